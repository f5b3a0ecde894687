# SPDX-License-Identifier: Apache-2.0
"""Machines that boot by user data: a minimal Debian with the real cloud-init, in a root and a network of its own. There is no systemd in it: the test
starts the programs that cognitora-setup would have started."""
import hashlib
import os
import pathlib
import shutil
import subprocess
import tarfile

from cloud import ROOT

BUILD = pathlib.Path(os.environ.get("CGN_BUILD", ROOT / "build/ci")).resolve()
BASE = ROOT / "build/root-cloud-init"
ADDRESS = "10.80.0.10"


def base():
    """Return the folder of the minimal Debian; it is made once (about a minute)."""
    if not (BASE / "etc/debian_version").exists():
        listed = subprocess.run(["apt-get", "indextargets", "--format", "$(CODENAME) $(SITE)", "Created-By: Packages"], capture_output=True, text=True, check=True).stdout
        site = next(line.split()[1] for line in listed.splitlines() if line.startswith("bookworm "))
        new = BASE.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "--include=cloud-init,curl,ca-certificates,iproute2", "bookworm", new, site], check=True, timeout=900)
        new.rename(BASE)
    return BASE


def make_release(folder, version="0.1.0"):
    """Make a release's folder of this build; return the SHA-256 of its installer."""
    name = f"cognitora-{version}-linux-x86_64"
    archive = folder / f"{name}.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for program in ("router", "agent", "sim", "ctl"):
            tar.add(BUILD / f"src/{program}/cgn-{program}", f"{name}/bin/cgn-{program}")
        for unit in (ROOT / "deploy/systemd").glob("c*.[st]*"):
            if unit.suffix in (".service", ".target"):
                tar.add(unit, f"{name}/lib/systemd/system/{unit.name}")
    (folder / "SHA256SUMS").write_text(f"{hashlib.sha256(archive.read_bytes()).hexdigest()}  {archive.name}\n")
    text = (ROOT / "deploy/installer/install.sh").read_bytes()
    (folder / "install.sh").write_bytes(text)
    return hashlib.sha256(text).hexdigest()


class Machine:
    def __init__(self, folder, name, space, release):
        self.name, self.space, self.root = name, space, folder / name / "root"
        for part in ("root", "upper", "work"):
            (folder / name / part).mkdir(parents=True)
        options = f"lowerdir={base()},upperdir={folder / name / 'upper'},workdir={folder / name / 'work'}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, self.root], check=True)
        for what, flags in (("proc", ["-t", "proc", "proc"]), ("dev", ["--rbind", "/dev"]), ("run", ["-t", "tmpfs", "tmpfs"]), ("tmp", ["-t", "tmpfs", "tmpfs"])):
            subprocess.run(["mount", *flags, self.root / what], check=True)
        shutil.copytree(release, self.root / "release")
        self.processes = []

    def command(self, *args):
        return ["ip", "netns", "exec", self.space, "chroot", str(self.root), "/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", *map(str, args)]

    def run(self, *args, text=None, check=True):
        done = subprocess.run(self.command(*args), capture_output=True, text=True, input=text, timeout=180)
        assert not check or done.returncode == 0, f"{self.name}: {args}: {done.stdout}{done.stderr}"
        return done

    def boot(self, user_data):
        """Boot as cloud-init does, from a NoCloud seed; return its log."""
        seed = self.root / "var/lib/cloud/seed/nocloud"
        seed.mkdir(parents=True)
        (seed / "user-data").write_text(user_data)
        (seed / "meta-data").write_text(f"instance-id: {self.name}\nlocal-hostname: {self.name}\n")
        (self.root / "etc/cloud/cloud.cfg.d/99-test.cfg").write_text("datasource_list: [NoCloud]\nnetwork: {config: disabled}\n")
        for stage in (["init", "--local"], ["init"], ["modules", "--mode=config"], ["modules", "--mode=final"]):
            self.run("cloud-init", *stage, check=False)
        return (self.root / "var/log/cloud-init-output.log").read_text() if (self.root / "var/log/cloud-init-output.log").exists() else ""

    def enable(self, *setup):
        """Run cognitora-setup with a systemctl that notes the enabled units; the real one carries it out in this root."""
        notes = self.root / "systemctl.notes"
        (self.root / "run/systemd/system").mkdir(parents=True, exist_ok=True)
        (self.root / "usr/local/bin/systemctl").write_text("#!/bin/sh\necho \"$@\" >> /systemctl.notes\n")
        (self.root / "usr/local/bin/systemctl").chmod(0o755)
        self.run("/usr/bin/env", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "/usr/local/sbin/cognitora-setup", *setup)
        for line in notes.read_text().splitlines():
            if line.startswith("enable "):
                subprocess.run(["systemctl", f"--root={self.root}", "enable", *(w for w in line.split()[1:] if w != "--now")], check=True, capture_output=True)

    def start(self, program):
        """Start a program as its unit does: as the user cognitora, with a folder for its state."""
        self.run("install", "-d", "-o", "cognitora", "-g", "cognitora", "/var/lib/cognitora", "/run/cognitora")
        log = open(self.root.parent / f"{program}.log", "ab")
        argv = self.command("setpriv", "--reuid=cognitora", "--regid=cognitora", "--init-groups", program, "--config", "/etc/cognitora/cognitora.toml")
        self.processes.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def log(self, program):
        return (self.root.parent / f"{program}.log").read_text()

    def close(self):
        for p in self.processes:
            p.terminate()
        for p in self.processes:
            p.wait(60)
        subprocess.run(["umount", "-R", "-l", self.root], check=True)

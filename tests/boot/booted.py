# SPDX-License-Identifier: Apache-2.0
"""A minimal Debian 12 that its own systemd boots, in namespaces of its own: systemd-nspawn, with a loopback network only. The folder is a copy."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from cluster import BUILD, until  # noqa: E402

BASE = ROOT / "build/root-boot"
PROGRAMS = ("router", "agent", "kvcached", "metrics")
BOOT_S = 180
ENGINE = """[Unit]
Description=Simulated engine
[Service]
ExecStart=/usr/bin/cgn-sim --listen 127.0.0.1:8000 --model sim --time-scale 0
[Install]
WantedBy=multi-user.target
"""


def base():
    """Return the folder of the minimal Debian; it is made once (a minute)."""
    if not (BASE / "etc/debian_version").exists():
        listed = subprocess.run(["apt-get", "indextargets", "--format", "$(CODENAME) $(SITE)", "Created-By: Packages"], capture_output=True, text=True, check=True).stdout
        site = next(line.split()[1] for line in listed.splitlines() if re.match(r"bookworm ", line))
        new = BASE.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "--include=systemd,systemd-sysv,dbus,iproute2", "bookworm", new, site], check=True, timeout=900)
        new.rename(BASE)
    return BASE


class Machine:
    """A copy of the minimal Debian with the programs of this build in /usr/bin."""

    def __init__(self, folder):
        self.root, self.console, self.boots = folder / "root", folder / "console.log", 0
        subprocess.run(["cp", "-a", base(), self.root], check=True)
        for program in (*PROGRAMS, "sim", "ctl"):
            shutil.copy(BUILD / f"src/{program}/cgn-{program}", self.root / "usr/bin")
        (self.root / "etc/systemd/system/engine.service").write_text(ENGINE)
        self.process = self.leader = None

    def ctl(self, *args):
        """Run cgn-ctl on the folder of the machine, which need not run."""
        return subprocess.run([BUILD / "src/ctl/cgn-ctl", *args, "--root", self.root], check=True, capture_output=True, text=True, timeout=120)

    def enable(self, *units):
        subprocess.run(["systemctl", f"--root={self.root}", "enable", "--quiet", *units], check=True, timeout=60)

    def boot(self):
        self.boots += 1
        with open(self.console, "ab") as log:
            self.process = subprocess.Popen(["systemd-nspawn", "--quiet", "--boot", "--keep-unit", "--register=no", "--private-network", "--console=pipe",
                                             f"--machine=cgn-{os.getpid()}", "-D", self.root], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.leader = until(self._leader, self.log, wait_s=BOOT_S, step_s=0.1)
        until(lambda: self.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded"), self.log, wait_s=BOOT_S, step_s=0.5)

    def _leader(self):
        assert self.process.poll() is None, self.log()
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return next((c for c in children if pathlib.Path(f"/proc/{c}/comm").read_text().strip() == "systemd"), None)

    def log(self):
        return self.console.read_text(errors="replace")[-4000:]

    def _enter(self, *namespaces):
        return ["nsenter", "--target", self.leader, *namespaces]

    def run(self, *args, check=True):
        """Run a program of the machine."""
        done = subprocess.run([*self._enter("--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd"), *args], capture_output=True, text=True, timeout=180,
                              env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}, stdin=subprocess.DEVNULL)
        assert not check or done.returncode == 0, done.stdout + done.stderr + self.journal()
        return done

    def python(self, text, *args):
        """Start a client: this machine's Python, in the network of the booted one."""
        return subprocess.Popen([*self._enter("--net"), sys.executable, "-c", text, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, "PYTHONPATH": str(ROOT / "tests/e2e"), "CGN_BUILD": str(BUILD)})

    def journal(self):
        return subprocess.run(["journalctl", "--no-pager", "-n", "60", "--root", self.root], capture_output=True, text=True).stdout

    def property(self, unit, name):
        return self.run("systemctl", "show", unit, "-P", name).stdout.strip()

    def poweroff(self):
        self.run("systemctl", "poweroff", check=False)
        self.process.wait(BOOT_S)
        self.process = None

    def cut_power(self):
        """End all of the machine's processes at once, with its first one."""
        os.kill(int(self.leader), signal.SIGKILL)
        self.process.wait(BOOT_S)
        self.process = None

    def close(self):
        if self.process is not None and self.leader is not None:
            self.cut_power()

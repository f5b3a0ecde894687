# SPDX-License-Identifier: Apache-2.0
"""Minimal Debians and an Ubuntu that their own systemd boots, in namespaces of their own: systemd-nspawn, with a loopback network only. The folder is
a copy."""
import contextlib
import itertools
import json
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

PROGRAMS = ("router", "agent", "kvcached", "metrics")
UBUNTU = ("noble",)  # from the archive at CGN_UBUNTU_MIRROR
UBUNTU_KEYS = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"  # of Debian's package ubuntu-keyring
MINIMAL = ("systemd", "systemd-sysv", "dbus", "iproute2", "apt")
BOOT_S = 180
ENGINE = """[Unit]
Description=Simulated engine
[Service]
ExecStart=/usr/bin/cgn-sim --listen 127.0.0.1:8000 --model sim --time-scale 0
[Install]
WantedBy=multi-user.target
"""
# Addresses of the loopback network. They come late, as from DHCP, and the network is said to be online when they are there.
ADDRESSES = """[Unit]
Description=Addresses of this machine
Before=network-online.target
Wants=network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=sleep 2
{}
[Install]
WantedBy=multi-user.target
"""
BODY = {"model": "sim", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}
CHAT = """
import http.client, sys
c = http.client.HTTPConnection(sys.argv[1], 8080, timeout=60)
c.request("POST", "/v1/chat/completions", sys.argv[2], {"Content-Type": "application/json"})
r = c.getresponse()
print(r.status, r.read().decode())
"""
# Requests one after another, each on a connection of its own, until the file is there.
LOAD = """
import http.client, json, os, sys, time
asked = failed = 0
count = open(sys.argv[2], "ab", 0)
end = time.monotonic() + 300
while time.monotonic() < end and not os.path.exists(sys.argv[1]):
    c = http.client.HTTPConnection(sys.argv[3], 8080, timeout=60)
    asked += 1
    try:
        c.request("POST", "/v1/completions", json.dumps({"model": "sim", "max_tokens": 4, "prompt": f"p{asked}"}), {"Content-Type": "application/json"})
        r = c.getresponse()
        text = r.read()
        if r.status != 200:
            failed += 1
            print(r.status, text, flush=True)
    except OSError as e:
        failed += 1
        print(repr(e), flush=True)
    c.close()
    count.write(b".")
print(json.dumps({"asked": asked, "failed": failed}))
"""
# Units of two machines have the same names, and need control groups of their own: $1 is the machine's, below the group of this process or, with
# several hierarchies, at their tops.
OWN_GROUP = """
if [ -e /sys/fs/cgroup/cgroup.procs ]; then groups=/sys/fs/cgroup; else groups=$(echo /sys/fs/cgroup/*); fi
for group in $groups; do
	[ -e "$group/cgroup.procs" ] && mkdir -p "$group/$1" && echo $$ >"$group/$1/cgroup.procs"
done 2>/dev/null
shift
exec "$@"
"""
numbers = itertools.count()


def mirror(suite):
    """Return the archive that apt has the release's packages from: for a Debian that of this machine's Debian."""
    if suite in UBUNTU:
        return os.environ["CGN_UBUNTU_MIRROR"]
    listed = subprocess.run(["apt-get", "indextargets", "--format", "$(CODENAME) $(SITE)", "Created-By: Packages"], capture_output=True, text=True, check=True).stdout
    return next(line.split()[1] for line in listed.splitlines() if re.match(r"(bookworm|trixie) ", line))


def why_not(suite):
    """Return why there can be no machine of that release here, or None."""
    if suite in UBUNTU and "CGN_UBUNTU_MIRROR" not in os.environ:
        return "CGN_UBUNTU_MIRROR is not set: the URL of an archive of Ubuntu's packages"
    if suite in UBUNTU and not os.path.exists(UBUNTU_KEYS):
        return f"no {UBUNTU_KEYS}: apt-get install ubuntu-keyring"
    return None


def base(suite, more=()):
    """Return the folder of a minimal system with |more| packages; it is made once (a minute)."""
    folder = ROOT / f"build/root-boot-{'-'.join((suite, *more))}"
    if not (folder / "etc/os-release").exists():
        new = folder.with_name(folder.name + ".new")
        shutil.rmtree(new, ignore_errors=True)
        others = ["--components=main,universe", f"--keyring={UBUNTU_KEYS}"] if suite in UBUNTU else []
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join((*MINIMAL, *more))}", *others, suite, new, mirror(suite)], check=True, timeout=900)
        new.rename(folder)
    return folder


class Machine:
    """A copy of a minimal system with |programs| of this build in /usr/bin."""

    def __init__(self, folder, suite="bookworm", more=(), programs=(*PROGRAMS, "sim", "ctl"), addresses=()):
        self.root, self.console, self.boots = folder / "root", folder / "console.log", 0
        self.name = f"cgn-{os.getpid()}-{next(numbers)}"
        subprocess.run(["cp", "-a", "--reflink=auto", base(suite, more), self.root], check=True)
        for program in programs:
            shutil.copy(BUILD / f"src/{program}/cgn-{program}", self.root / "usr/bin")
        self.unit("engine", ENGINE)
        if addresses:
            self.unit("addresses", ADDRESSES.format("\n".join(f"ExecStart=ip address add {a} dev lo" for a in addresses)))
            self.enable("addresses.service")
        self.process = self.leader = None

    def unit(self, name, text):
        (self.root / f"etc/systemd/system/{name}.service").write_text(text)

    def ctl(self, *args):
        """Run cgn-ctl on the folder of the machine, which need not run."""
        return subprocess.run([BUILD / "src/ctl/cgn-ctl", *args, "--root", self.root], check=True, capture_output=True, text=True, timeout=120)

    def enable(self, *units):
        subprocess.run(["systemctl", f"--root={self.root}", "enable", "--quiet", *units], check=True, timeout=60)

    def boot(self):
        self.boots += 1
        with open(self.console, "ab") as log:
            self.process = subprocess.Popen(["sh", "-c", OWN_GROUP, "sh", self.name, "systemd-nspawn", "--quiet", "--boot", "--keep-unit", "--register=no", "--private-network", "--console=pipe",
                                             f"--machine={self.name}", "-D", self.root], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
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

    def here(self, *args):
        """Run a program of this machine in the network of the booted one."""
        return subprocess.run([*self._enter("--net"), *map(str, args)], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)

    def python(self, text, *args):
        """Start a client: this machine's Python, in the network of the booted one."""
        return subprocess.Popen([*self._enter("--net"), sys.executable, "-c", text, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, "PYTHONPATH": str(ROOT / "tests/e2e"), "CGN_BUILD": str(BUILD)})

    def chat(self, host="127.0.0.1"):
        """Send a chat to the gateway; return "STATUS ANSWER", or the reason of a failure."""
        return self.python(CHAT, host, json.dumps(BODY)).communicate(timeout=90)[0]

    def answers(self, host="127.0.0.1"):
        until(lambda: self.chat(host).startswith("200 "), lambda: self.chat(host) + self.journal(), wait_s=60, step_s=0.5)

    def all_run(self, units):
        until(lambda: all(self.property(u, "ActiveState") == "active" for u in units),
              lambda: self.run("systemctl", "status", "--no-pager", *units, check=False).stdout + self.journal(), wait_s=60, step_s=0.5)

    def journal(self):
        return subprocess.run(["journalctl", "--no-pager", "-n", "60", "--root", self.root], capture_output=True, text=True).stdout

    def programs(self):
        """Return the names of our programs that run."""
        names = self.run("sh", "-c", "cat /proc/[0-9]*/comm 2>/dev/null || :").stdout.split("\n")
        return sorted(n for n in names if n.startswith("cgn-"))

    def failed(self):
        """Return the units of ours that failed."""
        return [line for line in self.units("--state=failed") if "not-found" not in line]

    def units(self, *which):
        """Return the lines of our units that systemd knows, "UNIT LOAD ACTIVE SUB ..."."""
        listed = self.run("systemctl", "list-units", "--no-legend", "--plain", *which).stdout.splitlines()
        return [line for line in listed if "cgn-" in line or "cognitora" in line]

    def unit_files(self):
        listed = self.run("systemctl", "list-unit-files", "--no-legend", "--plain").stdout.splitlines()
        return [line for line in listed if "cgn-" in line or "cognitora" in line]

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
        for group in pathlib.Path("/sys/fs/cgroup").glob(f"**/{self.name}"):
            for folder in sorted([group, *group.rglob("*/")], reverse=True):
                with contextlib.suppress(OSError):  # a process may be ending there
                    folder.rmdir()


class Load:
    """Requests one after another, each on a connection of its own, while the block runs."""

    def __init__(self, machine, folder, host="127.0.0.1"):
        number = next(numbers)
        self.done, self.count = folder / f"done-{number}", folder / f"asked-{number}"
        self.count.touch()
        self.client = machine.python(LOAD, self.done, self.count, host)

    def __enter__(self):
        self.more(5)
        return self

    def __exit__(self, *failure):
        self.done.touch()
        self.said = self.client.communicate(timeout=180)[0]
        counts = json.loads(self.said.splitlines()[-1])
        self.asked, self.failed = counts["asked"], counts["failed"]

    def more(self, n):
        """Wait until n more requests ended."""
        enough = self.count.stat().st_size + n
        until(lambda: self.count.stat().st_size >= enough or self.client.poll() is not None, "requests do not end", wait_s=120)

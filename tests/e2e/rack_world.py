# SPDX-License-Identifier: Apache-2.0
"""Pretend hosts for cgn-ctl install baremetal: each is a bubblewrap with its own /etc, /usr/bin, /var and /run, in a folder of the test, a real
sshd at an address of its own (127.x.y.z), and a systemctl that really starts programs."""
import http.client
import json
import os
import pathlib
import random
import signal
import subprocess

from cluster import BUILD, free_port, until

SSHD = "/usr/sbin/sshd"
CTL = str(BUILD / "src/ctl/cgn-ctl")
TOOLS = ("sh dash bash tar sha256sum cut sort wc head find cp mv rm rmdir mkdir chmod sed grep tail cat sleep sync env true python3 etcd id date").split()
UNITS = ["etcd", "cgn-kvcached", "cgn-router", "cgn-agent", "cgn-metrics"]
# What follows stands for systemd: it reads units and drop-ins, gives credentials, waits for READY=1, and records the calls.
SYSTEMCTL = r'''#!/host-bin/python3
import os, pathlib, re, shlex, shutil, signal, socket, subprocess, sys, time
RUN = pathlib.Path("/run/units")
RUN.mkdir(parents=True, exist_ok=True)
words = [w for w in sys.argv[1:] if not w.startswith("--")]
verb, units = words[0], words[1:]
with open(RUN / "calls", "a") as calls:
    if verb not in ("is-active", "is-enabled", "status"):
        calls.write(" ".join(words) + "\n")

def file_of(unit):
    for folder in ("/etc/systemd/system", "/usr/lib/systemd/system"):
        path = pathlib.Path(folder, unit if "." in unit else unit + ".service")
        if path.is_file():
            return path
    sys.exit(f"Failed: Unit {unit}.service not found.")

def lines_of(unit):
    text = file_of(unit).read_text()
    for path in sorted(pathlib.Path(f"/etc/systemd/system/{unit}.service.d").glob("*.conf")):
        text += "\n" + path.read_text()
    return [line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#")]

def environment(unit, lines):
    credentials = pathlib.Path("/run/credentials", unit)
    shutil.rmtree(credentials, ignore_errors=True)
    credentials.mkdir(parents=True)
    env = {"PATH": "/usr/bin", "CREDENTIALS_DIRECTORY": str(credentials)}
    for key, value in lines:
        if key == "LoadCredential":
            name, path = value.split(":")
            shutil.copy(path, credentials / name)
        elif key == "Environment":
            name, text = value.split("=", 1)
            env[name] = text.replace("%d", str(credentials)).replace("%H", "host")
    for key, value in lines:
        if key == "EnvironmentFile" and os.path.exists(value.lstrip("-")):
            env.update(l.split("=", 1) for l in pathlib.Path(value.lstrip("-")).read_text().splitlines() if "=" in l and not l.startswith("#"))
    return env

def supervise(unit):
    """In a process of its own: run the program, note that it is ready, and its end."""
    lines = lines_of(unit)
    env = environment(unit, lines)
    for folder in ("/var/lib/cognitora", "/run/cognitora", "/var/log/cognitora"):
        os.makedirs(folder, exist_ok=True)
    where = RUN / f"{unit}.notify"
    where.unlink(missing_ok=True)
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.bind(str(where))
    told.settimeout(0.1)
    env["NOTIFY_SOCKET"] = str(where)
    argv = [w for w in shlex.split([v for k, v in lines if k == "ExecStart"][-1]) if not w.startswith("$")]
    with open(f"/var/log/{unit}.log", "ab") as log:
        child = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    (RUN / f"{unit}.ended").unlink(missing_ok=True)
    (RUN / f"{unit}.pid").write_text(str(child.pid))
    while child.poll() is None:
        try:
            if b"READY=1" in told.recv(4096):
                (RUN / f"{unit}.ready").write_text("")
        except socket.timeout:
            pass
    (RUN / f"{unit}.ready").unlink(missing_ok=True)
    (RUN / f"{unit}.ended").write_text("")
    (RUN / f"{unit}.pid").unlink(missing_ok=True)  # last: a restart goes on from here

def stop(unit):
    pid = RUN / f"{unit}.pid"
    if pid.exists():
        os.kill(int(pid.read_text()), signal.SIGTERM)
    while pid.exists():
        time.sleep(0.02)

def start(unit, wait):
    file_of(unit)
    if (RUN / f"{unit}.refuse").exists():
        sys.exit(f"Job for {unit}.service failed.")
    (RUN / f"{unit}.ended").unlink(missing_ok=True)
    if os.fork() == 0:
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        supervise(unit)
        os._exit(0)
    end = time.monotonic() + 60
    while wait and not (RUN / f"{unit}.ready").exists():
        if time.monotonic() > end or (RUN / f"{unit}.ended").exists():
            sys.exit(f"Job for {unit}.service failed: it ended, or is not ready.")
        time.sleep(0.02)

for unit in units:
    name = unit.removesuffix(".service")
    if verb == "is-active":
        active = (RUN / f"{name}.ready").exists()
        print("active" if active else "inactive")
        sys.exit(0 if active else 3)
    elif verb == "is-enabled":
        enabled = (RUN / f"{name}.enabled").exists()
        print("enabled" if enabled else "disabled")
        sys.exit(0 if enabled else 1)
    elif verb == "enable":
        file_of(name)
        (RUN / f"{name}.enabled").write_text("")
    elif verb == "disable":
        (RUN / f"{name}.enabled").unlink(missing_ok=True)
        if "--now" in sys.argv:
            stop(name)
    elif verb == "stop":
        stop(name)
    elif verb == "restart":
        stop(name)
        start(name, "--no-block" not in sys.argv)
    elif verb == "status":
        print(f"{name}: refused" if (RUN / f"{name}.refuse").exists() else f"{name}: no trouble known")
'''


def usable():
    """Return why there can be no pretend hosts here, or None."""
    for program in (SSHD, "/usr/bin/ssh", "/usr/bin/ssh-keygen", "/usr/bin/etcd", "/usr/bin/bwrap"):
        if not os.path.exists(program):
            return f"no {program}"
    tried = subprocess.run(["bwrap", "--unshare-user", "--unshare-pid", "--uid", "1000", "--ro-bind", "/", "/", "true"], capture_output=True, text=True)
    return tried.stderr or None if tried.returncode else None


def key_make(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path.with_suffix(".pub").read_text()


class Host:
    def __init__(self, rack, name, address):
        self.name, self.address, self.tree, self.port = name, address, rack.folder / "hosts" / name, free_port()
        for folder in ("etc/ssh", "etc/systemd/system", "usr/bin", "var/lib", "var/log", "run", "tmp", "home"):
            (self.tree / folder).mkdir(parents=True)
        for tool in TOOLS:
            (self.tree / "usr/bin" / tool).symlink_to(f"/host-bin/{tool}")
        self.stand_in("systemctl", SYSTEMCTL)
        self.write("etc/passwd", "op:x:1000:1000::/home:/bin/sh\n")
        self.write("etc/group", "op:x:1000:\n")
        self.write("etc/ssh/authorized_keys", rack.public)
        host_key = key_make(self.tree / "etc/ssh/host_key")
        self.known = f"[{address}]:{self.port} {host_key}"
        self.write("etc/ssh/sshd_config", f"Port {self.port}\nListenAddress {address}\nHostKey /etc/ssh/host_key\nPidFile none\nUsePAM no\nStrictModes no\n"
                   "AuthorizedKeysFile /etc/ssh/authorized_keys\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n")
        self.own = self.content()
        self.start()

    def stand_in(self, name, text):
        self.write(f"usr/bin/{name}", text)
        (self.tree / "usr/bin" / name).chmod(0o755)

    def write(self, path, text):
        (self.tree / path).write_text(text)

    def start(self):
        """Start the machine: its sshd, and below it what ssh starts."""
        binds = [x for folder in ("etc", "usr/bin", "var", "run", "tmp", "home") for x in ("--bind", self.tree / folder, f"/{folder}")]
        same = [x for folder in ("/usr/lib", "/usr/lib64", "/usr/sbin", "/usr/share") if os.path.exists(folder) for x in ("--ro-bind", folder, folder)]
        argv = ["bwrap", "--unshare-user", "--unshare-pid", "--uid", "1000", "--gid", "1000", "--die-with-parent", "--new-session", "--proc", "/proc", "--dev", "/dev",
                *same, "--ro-bind", "/usr/bin", "/host-bin", *binds, "--symlink", "usr/bin", "/bin", "--symlink", "usr/sbin", "/sbin", "--symlink", "usr/lib", "/lib",
                "--symlink", "usr/lib64", "/lib64", SSHD, "-D", "-e", "-f", "/etc/ssh/sshd_config"]
        with open(self.tree.parent / f"{self.name}.log", "ab") as log:
            self.popen = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(lambda: "Server listening" in self.log() or self.popen.poll() is not None, self.log)
        assert self.popen.poll() is None, self.log()

    def stop(self):
        """End the machine with all that runs there."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()

    def log(self):
        return (self.tree.parent / f"{self.name}.log").read_text(errors="replace")

    def unit_log(self, unit):
        path = self.tree / f"var/log/{unit}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def content(self):
        """Return the files that an installation writes, or may."""
        return {str(p.relative_to(self.tree)): p.read_bytes() for top in ("etc", "usr", "var/lib/cognitora") for p in (self.tree / top).rglob("*")
                if p.is_file() and not p.is_symlink()}

    def calls(self):
        """Return what systemctl was told since the last look."""
        path = self.tree / "run/units/calls"
        text = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        return text.splitlines()

    def active(self, unit):
        return (self.tree / f"run/units/{unit}.ready").exists()

    def refuse(self, unit, yes=True):
        path = self.tree / f"run/units/{unit}.refuse"
        path.parent.mkdir(exist_ok=True)
        path.write_text("") if yes else path.unlink()


class Rack:
    def __init__(self, folder, *names):
        self.folder, self.hosts = pathlib.Path(folder), {}
        (self.folder / "hosts").mkdir()
        self.public = key_make(self.folder / "id")
        net = f"127.{random.Random().randrange(1, 255)}.{random.Random().randrange(1, 255)}"
        for i, name in enumerate(names):
            self.hosts[name] = Host(self, name, f"{net}.{i + 1}")
        self.programs = self.folder / "programs"
        self.programs.mkdir()
        for program in ("router", "agent", "kvcached", "metrics", "ctl"):
            (self.programs / f"cgn-{program}").symlink_to(BUILD / f"src/{program}/cgn-{program}")
        (self.programs / "cgn-lab").symlink_to(BUILD / "src/ctl/cgn-lab")
        (self.folder / "known_hosts").write_text("".join(h.known for h in self.hosts.values()))
        (self.folder / "ssh_config").write_text(f"IdentityFile {self.folder}/id\nIdentitiesOnly yes\nUserKnownHostsFile {self.folder}/known_hosts\nLogLevel ERROR\n")
        self.inventory = self.folder / "rack.toml"

    def __getitem__(self, name):
        return self.hosts[name]

    def write(self, text):
        """Write the inventory. {NAME} stands for a host's address, {NAME.port} for that of its sshd."""
        self.inventory.write_text('[cluster]\nname = "pretend"\n[defaults]\nuser = "op"\nssh_config = "ssh_config"\n' + text.format(**self.hosts))

    def run(self, verb, *args):
        more = ["--programs", self.programs] if verb == "install" else []
        return subprocess.run([CTL, verb, "baremetal", "--inventory", self.inventory, *more, *map(str, args)], capture_output=True, text=True)

    def install(self, *args):
        return self.run("install", *args)

    def close(self):
        for h in self.hosts.values():
            h.stop()

    def logs(self):
        return "\n".join(f"---- {h.name}\n{h.log()[-1500:]}" + "".join(f"\n-- {u}\n{h.unit_log(u)[-1500:]}" for u in UNITS) for h in self.hosts.values())


def post(address, body):
    """Send a chat request to the gateway at port 8080 of an address; return the status."""
    c = http.client.HTTPConnection(address, 8080, timeout=30)
    try:
        c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        r.read()
        return r.status
    finally:
        c.close()

# SPDX-License-Identifier: Apache-2.0
"""The programs in hardened containers, as docs/concepts/trust.md sets them up for Docker, Podman and Kubernetes: a root that cannot be written, a
user that is not root, no capabilities, no new privileges, a filter of system calls, and /var/lib/cognitora, /run and /tmp to write to.
bubblewrap makes the containers, so that the test needs no daemon and no image: each has a root of its own with nothing but /usr and the
program, which is its process 1. They share the machine's network, and /run/cognitora."""
import contextlib
import functools
import json
import os
import pathlib
import platform
import shutil
import signal
import struct
import subprocess
import tempfile

import pytest

import cluster as module
from cluster import BUILD, SANITIZER, Cluster, Process, ask, free_port, until
from kvbulk import Bulk, key

SIM = BUILD / "src/sim/cgn-sim"
UID = 65532  # has no entry in a passwd file
CONFIG_INSIDE, PROGRAMS_INSIDE = "/etc/cognitora/cognitora.toml", "/opt"
PROGRAMS = ("router", "agent", "kvcached", "metrics")

# ---- the filter of system calls ----
# What container engines refuse to a container without capabilities, where the kernel itself might allow it.
REFUSED = ("acct add_key bpf clock_adjtime clock_settime delete_module fanotify_init finit_module fsconfig fsmount fsopen fspick get_mempolicy init_module "
           "io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mbind mount mount_setattr "
           "move_mount move_pages migrate_pages nfsservctl open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root chroot process_madvise "
           "process_vm_readv process_vm_writev ptrace quotactl quotactl_fd reboot request_key set_mempolicy set_mempolicy_home_node setdomainname "
           "sethostname setns settimeofday swapoff swapon syslog umount2 unshare userfaultfd vhangup").split()
NAMESPACES = 0x7e020000  # the flags of clone that make some
AF_VSOCK, EPERM, ENOSYS = 40, 1, 38
ALLOW, ERRNO, KILL = 0x7fff0000, 0x00050000, 0x80000000
LOAD, IF_EQUAL, IF_SET, IF_AT_LEAST, RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
NUMBER, ARCH, FIRST_ARGUMENT = 0, 4, 16
MACHINES = {"x86_64": 0xc000003e, "aarch64": 0xc00000b7}


@functools.cache
def numbers():
    """Return the number of each system call of this machine."""
    text = subprocess.run(["cc", "-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"], check=True, capture_output=True, text=True).stdout
    words = [line.split() for line in text.splitlines() if line.startswith("#define __NR_")]
    return {w[1].removeprefix("__NR_"): int(w[2]) for w in words if len(w) == 3 and w[2].isdigit()}


def seccomp_filter():
    """Return the filter as the kernel reads it: instructions of classic BPF, each with code, two jumps and a number."""
    def op(code, k, then=0, other=0):
        return struct.pack("=HBBI", code, then, other, k)
    out = op(LOAD, ARCH) + op(IF_EQUAL, MACHINES[platform.machine()], 1) + op(RETURN, KILL) + op(LOAD, NUMBER)
    if platform.machine() == "x86_64":
        out += op(IF_AT_LEAST, 0x40000000, 0, 1) + op(RETURN, ERRNO | EPERM)  # numbers of the x32 ABI
    for name in REFUSED:
        if name in numbers():
            out += op(IF_EQUAL, numbers()[name], 0, 1) + op(RETURN, ERRNO | EPERM)
    out += op(IF_EQUAL, numbers()["clone3"], 0, 1) + op(RETURN, ERRNO | ENOSYS)  # its flags are in memory: libc falls back to clone
    for name, refuse in (("clone", op(IF_SET, NAMESPACES, 0, 1)), ("socket", op(IF_EQUAL, AF_VSOCK, 0, 1)), ("personality", op(IF_AT_LEAST, 1, 0, 1))):
        out += op(IF_EQUAL, numbers()[name], 0, 4) + op(LOAD, FIRST_ARGUMENT) + refuse + op(RETURN, ERRNO | EPERM) + op(RETURN, ALLOW)
    return out + op(RETURN, ALLOW)


# ---- the containers ----

class Box:
    """What containers of one test share: the volumes, and the filter."""

    def __init__(self, folder):
        self.folder = folder
        self.state, self.run = folder / "var", folder / "run"
        for volume in (self.state, self.run):
            volume.mkdir()
            if os.geteuid() == 0:
                os.chown(volume, UID, UID)
        (folder / "filter").write_bytes(seccomp_filter())

    def wrap(self, argv, config=None):
        """Return a command that runs |argv| in a container of its own."""
        links = [x for name in ("bin", "sbin", "lib", "lib64") for x in ("--symlink", f"usr/{name}", f"/{name}")]
        folders = [x for name in ("/var", "/var/lib", "/etc", "/etc/cognitora", PROGRAMS_INSIDE) for x in ("--dir", name)]  # open to all, which implied ones are not
        rights = ["setpriv", "--no-new-privs", *(("--bounding-set=-all", "--inh-caps=-all", f"--reuid={UID}", f"--regid={UID}", "--clear-groups") if os.geteuid() == 0 else ())]
        return ["sh", "-c", 'exec 9<"$0" && exec bwrap --seccomp 9 "$@"', self.folder / "filter", "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts",
                "--as-pid-1", "--clearenv", "--ro-bind", "/usr", "/usr", *links, *folders, "--ro-bind", BUILD / "src", PROGRAMS_INSIDE,
                *(("--ro-bind", config, CONFIG_INSIDE) if config else ()), "--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/tmp", "--perms", "1777",
                "--tmpfs", "/run", "--bind", self.run, "/run/cognitora", "--bind", self.state, "/var/lib/cognitora", "--remount-ro", "/", "--", *rights, *argv]


def inside(program):
    """Return the path of a program of ours in a container."""
    return f"{PROGRAMS_INSIDE}/{pathlib.Path(program).relative_to(BUILD / 'src')}"


def descendant(pid, program):
    """Return the pid, as this test sees it, of the process below |pid| that runs |program|; None: there is none yet."""
    with contextlib.suppress(OSError):
        for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{child}/exe") == str(program):
                    return int(child)
            if found := descendant(child, program):
                return found
    return None


def boxed(box):
    class Boxed(Process):
        """A program as process 1 of a container; its configuration is the only file that it gets."""
        first = None  # the pid of the container's process 1, as this test sees it

        def start(self):
            program, config = inside(self.argv[0]), self.argv[self.argv.index("--config") + 1]
            self.argv[self.argv.index(config)] = CONFIG_INSIDE
            self.argv = [str(x) for x in box.wrap([program, *self.argv[1:]], config)]
            super().start()
            until(lambda: not self.alive() or descendant(self.pid, program), f"{self.name} runs in its container")
            self.first = descendant(self.pid, program)

        def signal(self, signo):
            """Signal the program, as a container engine does; the container ends with it."""
            if self.first is None or not self.alive():
                return super().signal(signo)
            self.may_end = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.first, signo)
    return Boxed


@pytest.fixture
def box():
    if not shutil.which("bwrap") and not os.environ.get("CI"):
        pytest.skip("no bwrap (bubblewrap)")
    if SANITIZER or platform.machine() not in MACHINES:
        pytest.skip("a sanitizer's system calls, or an unknown machine")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cgn-box-"))  # a Unix socket's path must be short, and the user must reach it
    folder.chmod(0o755)
    try:
        b = Box(folder)
        if subprocess.run(b.wrap(["true"]), capture_output=True).returncode != 0:
            pytest.skip("no namespaces here")
        yield b
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def status_of(process):
    return dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{process.first}/status").read_text().splitlines() if ":\t" in line)


@pytest.mark.plain
@pytest.mark.parametrize("what, allowed", [
    ("touch /x", False), ("touch /usr/x", False), ("touch /etc/x", False), ("touch /etc/cognitora/x", False), ("touch /proc/sys/x", False), ("mkdir /var/lib/x", False),
    ("touch /var/lib/cognitora/x", True), ("touch /run/x", True), ("touch /run/cognitora/x", True), ("touch /tmp/x", True),
    ("unshare -U true", False), ("unshare -m true", False), ("mount -t tmpfs none /tmp", False), ("chroot / true", False), ("setpriv --reuid=0 true", False),
    ("chown 0 /tmp", False), ("mknod /tmp/disk b 8 0", False), ("test $(id -u) -ne 0", True), ("test $$ -eq 1", True), ("true & wait $!", True)])
def test_a_container_is_tight(box, what, allowed):
    """The containers of this test are what it says they are."""
    done = subprocess.run(box.wrap(["sh", "-c", what + " || exit 7; exit 0"]), capture_output=True, text=True)
    assert done.returncode == (0 if allowed else 7), (what, done)


@pytest.mark.plain
def test_programs_run_in_hardened_containers(box, monkeypatch):
    """A request through router and agent to an engine that the agent starts in its container; a block in both tiers of a store; metrics. Then
    each program ends by SIGTERM as process 1, and the router has kept its state."""
    with Cluster(box.folder) as c:
        monkeypatch.setattr(module, "Process", boxed(box))
        c.common = {"cluster": {"router": f"127.0.0.1:{c.grpc_port}", "state_dir": "/var/lib/cognitora"}, "kv": {"uds": "/run/cognitora/kv.sock"}}
        engine_port, metrics_port, kv_admin = free_port(), free_port(), free_port()
        kv = {"kv": {"ram": "64MiB", "ssd": "64MiB", "ssd_dir": "/var/lib/cognitora/kv", "listen": f"127.0.0.1:{free_port()}", "listen_admin": f"127.0.0.1:{kv_admin}",
                     "resp_listen": "", "transport": "off", "worker_threads": 2}}
        store = c.run("kvcached", "cgn-kvcached", "--config", c.config("kvcached", kv))
        router = c.router({"router": {"access_log": "/var/lib/cognitora/access.log"}, "security": {"audit_file": "/var/lib/cognitora/audit.jsonl"}})
        agent, _, _ = c.agent("a", engine_port, {"agent": {"kv_uds": "/run/cognitora/kv.sock"}, "engine": {
            "managed": True, "binary": inside(SIM), "model": "sim", "extra_args": ["--time-scale", "0"]}})
        metrics = c.run("metrics", "cgn-metrics", "--config", c.config("metrics", {"metrics": {
            "listen": f"127.0.0.1:{metrics_port}", "scrape_routers": [f"127.0.0.1:{c.grpc_port}"], "scrape_interval": "300ms", "scrape_timeout": "200ms"}}))
        programs = dict(zip(PROGRAMS, (router, agent, store, metrics)))
        until(lambda: c.states().get("a") == "ready", c.logs)
        until(lambda: c.chat("hello", max_tokens=4).status == 200, c.logs)
        assert c.chat("hello", max_tokens=4, stream=True).status == 200
        until(lambda: ask(kv_admin, "GET", "/readyz").status == 200, store.log)
        with Bulk(str(box.run / "kv.sock.bulk")) as b:
            b.put_any(key("one"), b"x" * 100000)
        until(lambda: c.listens(metrics_port, metrics), metrics.log)
        until(lambda: b'cgn_scrape_targets{state="up"} 3' in ask(metrics_port, "GET", "/metrics").body, metrics.log)  # router, agent, store
        for name, p in programs.items():
            s = status_of(p)
            assert s["NoNewPrivs"] == "1" and s["Seccomp"] == "2" and s["NSpid"].split()[-1] == "1", (name, s)
            assert all(int(s[x], 16) == 0 for x in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")), (name, s)
            assert "0" not in s["Uid"].split() + s["Gid"].split() + s["Groups"].split(), (name, s)
        assert descendant(agent.first, inside(SIM)), "the agent runs the engine in its container"
        assert ask(c.admin_port, "POST", "/nodes/a/cordon", headers={"x-cgn-page": "1"}).status in (200, 202, 204), "an order that is kept"
        until(lambda: c.states().get("a") == "cordoned", c.logs)
        for name, p in programs.items():
            p.signal(signal.SIGTERM)
            assert p.wait() == 0, (name, p.log()[-2000:])
        assert not any("refused" in e.get("event", "") or "failed" in e.get("event", "") for p in programs.values() for e in events(p)), c.logs()
    kept = {p.name for p in box.state.iterdir()}
    assert {"access.log", "audit.jsonl", "kv"} <= kept, kept
    assert b"x" * 1000 in b"".join(p.read_bytes() for p in (box.state / "kv").rglob("*") if p.is_file()), "the block is on SSD"


def events(process):
    return [json.loads(line) for line in process.log().splitlines() if line.startswith("{")]

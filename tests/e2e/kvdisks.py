# SPDX-License-Identifier: Apache-2.0
"""A cgn-kvcached with an SSD tier, and the disks for it: small file systems, full ones, and disks that fail."""
import contextlib
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess

import pytest

from cluster import WAIT_S, Process, ask, free_port, toml, until


class Store:
    def __init__(self, folder, ssd="128MiB", **keys):
        self.folder = pathlib.Path(folder)
        self.dir = pathlib.Path(keys.pop("ssd_dir", self.folder / "ssd"))
        self.admin = free_port()
        self.sock = str(self.folder / "kv.sock.resp")
        kv = {"ram": "64MiB", "worker_threads": 1, "uds": str(self.folder / "kv.sock"), "resp_listen": "", "listen": "", "ssd": ssd,
              "ssd_dir": str(self.dir), "ssd_admission": "all", "listen_admin": f"127.0.0.1:{self.admin}", **keys}
        kv = {k: v for k, v in kv.items() if v is not None}
        (self.folder / "kv.toml").write_text(toml({"log": {"format": "json"}, "kv": kv}))
        self.process = Process(self.folder, "kvcached", "cgn-kvcached", "--config", self.folder / "kv.toml")
        self.starts = 0
        self.ready()

    def ready(self):
        self.starts += 1
        until(lambda: len(self.process.events("svc.ready")) >= self.starts or not self.process.alive(), self.process.log)
        assert self.process.alive(), self.process.log()

    def again(self, how=signal.SIGTERM):
        assert (self.process.stop() if how == signal.SIGTERM else self.process.kill()) == (0 if how == signal.SIGTERM else -9)
        self.process.start()
        self.ready()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        status = self.process.stop() if self.process.alive() else 0
        trouble = self.process.trouble()
        assert kind is not None or (status == 0 and not trouble), trouble or self.process.log()

    def tell(self):
        return ask(self.admin, "GET", "/store").json()

    def settle(self):
        until(lambda: self.tell()["ssd_queue_bytes"] == 0, self.tell)

    def __call__(self, *args):
        """Send one command of Redis, on a connection of its own."""
        args = [a if isinstance(a, bytes) else str(a).encode() for a in args]
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(WAIT_S)
            s.connect(self.sock)
            s.sendall(b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%s\r\n" % (len(a), a) for a in args))
            f = s.makefile("rb")
            line = f.readline().rstrip(b"\r\n")
            if line[:1] == b"$" and line != b"$-1":
                return f.read(int(line[1:]))
            return None if line in (b"$-1", b"_") else line


def value(i, size, version=1):
    return random.Random(f"{i}/{version}").randbytes(size)


def fill(store, n, size, first=0):
    for i in range(first, first + n):
        assert store("SET", f"k{i}", value(i, size)) == b"+OK"
        if i % 16 == 15:
            store.settle()
    store.settle()


MOUNT = "cgn-disk"  # beside it lies cgn-disk.pid, the process that mounted it


def sweep():
    """Unmount what tests mounted that were killed."""
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        at = pathlib.Path(line.split()[1].encode().decode("unicode_escape"))
        owner = at.parent / f"{MOUNT}.pid"
        if at.name == MOUNT and not (owner.exists() and pathlib.Path("/proc", owner.read_text()).exists()):
            subprocess.run(["umount", "-l", str(at)], check=False)


@contextlib.contextmanager
def mounted(folder, why, *args):
    """Mount at folder/cgn-disk. |why|: the reason to skip the test where that does not work."""
    at = folder / MOUNT
    sweep()
    at.mkdir()
    (folder / f"{MOUNT}.pid").write_text(str(os.getpid()))
    if subprocess.run(["mount", *args, str(at)], capture_output=True).returncode != 0:
        pytest.skip(why)
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


@pytest.fixture
def tmpfs(tmp_path):
    """A file system of 96 MiB, where this machine allows one."""
    with mounted(tmp_path, "no right to mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs") as at:
        yield at


@contextlib.contextmanager
def ext4(folder, mib, options="defaults"):
    """Mount an ext4 image of |mib| MiB."""
    image, why = folder / "image", "no ext4 image can be mounted here (mkfs.ext4, loop devices)"
    with open(image, "wb") as f:
        f.truncate(mib << 20)
    if shutil.which("mkfs.ext4") is None:
        pytest.skip(why)
    subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image)], check=True)
    with mounted(folder, why, "-o", f"loop,{options}", str(image)) as at:
        yield at


class Hog:
    """Takes all the room that a file system has left, until it is freed."""

    def __init__(self, folder):
        self.path = folder / "hog"

    def take(self):
        with open(self.path, "ab", buffering=0) as f, contextlib.suppress(OSError):
            while True:
                f.write(b"x" * 65536)
        with open(self.path, "ab", buffering=0) as f, contextlib.suppress(OSError):
            while True:
                f.write(b"x" * 512)

    def free(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

# SPDX-License-Identifier: Apache-2.0
"""A real etcd between the two sides of membership."""
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from cluster import BUILD, WAIT_S, free_port, until  # noqa: E402
from state_world import Demo  # noqa: E402


class Etcd:
    """An etcd of one member. It can be started and killed repeatedly; the data folder and the addresses stay."""

    def __init__(self, folder, tls=None, name="default"):
        self.folder, self.tls, self.name, self.members = pathlib.Path(folder), tls, name, [self]
        self.client, self.peer = free_port(), free_port()
        self.data = self.folder / f"etcd-{self.client}"
        self.popen = None

    @property
    def url(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.client}"

    def start(self, client=None):
        url = f"{'https' if self.tls else 'http'}://127.0.0.1:{client or self.client}"
        peer = f"http://127.0.0.1:{self.peer}"
        argv = ["etcd", "--data-dir", self.data, "--listen-client-urls", url, "--advertise-client-urls", url,
                "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--name", self.name,
                "--initial-cluster", ",".join(f"{m.name}=http://127.0.0.1:{m.peer}" for m in self.members)]
        if self.tls:
            argv += ["--cert-file", self.tls / "etcd.crt", "--key-file", self.tls / "etcd.key", "--trusted-ca-file", self.tls / "ca.crt", "--client-cert-auth"]
        with open(self.folder / "etcd.log", "ab") as log:
            self.popen = subprocess.Popen(list(map(str, argv)), stdout=log, stderr=log)
        self.running_at = url
        if self.members == [self]:
            self.wait()

    def wait(self):
        until(lambda: self.ctl("endpoint", "health", check=False).returncode == 0, f"etcd does not answer at {self.running_at}", wait_s=WAIT_S)

    def ctl(self, *args, check=True, stdin=None):
        argv = ["etcdctl", "--endpoints", self.running_at, "--command-timeout", "5s"]
        if self.tls:
            argv += ["--cacert", str(self.tls / "ca.crt"), "--cert", str(self.tls / "client.crt"), "--key", str(self.tls / "client.key")]
        return subprocess.run(argv + list(args), env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, text=True, check=check, input=stdin)

    def keys(self):
        return self.ctl("get", "--prefix", "/cognitora/", "--keys-only").stdout.split()

    def revision(self):
        return int(self.ctl("endpoint", "status", "--write-out", "json").stdout.split('"revision":')[1].split(",")[0].rstrip("}"))

    def kill(self):
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait()
            self.popen = None

    def wipe(self):
        shutil.rmtree(self.data)


class World:
    def __init__(self, folder):
        self.folder, self.parts = folder, []

    def etcd(self, tls=None):
        e = Etcd(self.folder, tls)
        self.parts.append(e)
        e.start()
        return e

    def etcd_cluster(self, n):
        members = [Etcd(self.folder, name=f"m{i}") for i in range(n)]
        self.parts += members
        for m in members:
            m.members = members
            m.start()
        for m in members:
            m.wait()
        return members

    def config(self, *urls, lease="3s", **cluster):
        return {"cluster": {"state_backend": "etcd", "etcd_endpoints": list(urls), "lease": lease, **cluster}, "agent": {"heartbeat": "1s"}}

    def demo(self, name, config, *args):
        d = Demo(self.folder, name, config, *args)
        self.parts.append(d)
        return d

    def close(self):
        for p in reversed(self.parts):
            p.stop() if isinstance(p, Demo) else p.kill()

# SPDX-License-Identifier: Apache-2.0
"""Several cgn-kvcached that fetch from each other, with certificates of one CA."""
import pathlib
import random
import subprocess
import time

import kvbulk
from cluster import BUILD, WAIT_S, ask, free_port, until
from kvbulk import PEERS, Bulk, Store

CTL = BUILD / "src/ctl/cgn-ctl"
REMOTE = 8
MIB = 1 << 20
STEP = 16 << 20


def pattern(n, seed=1):
    return random.Random(seed).randbytes(n)


def bootstrap(folder, *names):
    """A CA in |folder|, and a certificate and key for 127.0.0.1 under each name."""
    folder = pathlib.Path(folder)
    leaves = [x for name in names for x in ("--leaf", name)]
    subprocess.run([CTL, "pki", "bootstrap", "--out", folder, *leaves], check=True, capture_output=True, timeout=WAIT_S)
    return folder


CA_CONF = """[ca]
default_ca = this
[this]
database = index
new_certs_dir = .
certificate = ca.pem
private_key = ca.key
default_md = sha256
rand_serial = yes
unique_subject = no
policy = any
[any]
commonName = supplied
"""


def rotate(folder, name, valid=(-60, 172800)):
    """Write another certificate and key of the same CA to the same files. |valid|: from and until, in seconds
    from now."""
    def openssl(*args):
        subprocess.run(["openssl", *map(str, args)], cwd=folder, check=True, capture_output=True, timeout=WAIT_S)
    begin, end = (time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + t)) for t in valid)
    (folder / "ext").write_text(f"subjectAltName=IP:127.0.0.1,URI:cognitora://cognitora/kvcached/{name}\nextendedKeyUsage=serverAuth,clientAuth\n")
    (folder / "ca.conf").write_text(CA_CONF)
    (folder / "index").touch()
    openssl("ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", "new.key")
    openssl("req", "-new", "-key", "new.key", "-subj", f"/CN={name}", "-out", "new.csr")
    openssl("ca", "-config", "ca.conf", "-batch", "-notext", "-in", "new.csr", "-out", "new.pem", "-startdate", begin, "-enddate", end, "-extfile", "ext")
    (folder / "new.key").rename(folder / f"{name}.key")
    (folder / "new.pem").rename(folder / f"{name}.pem")


def security(folder, name):
    return {"ca_file": f"{folder}/ca.pem", "cert_file": f"{folder}/{name}.pem", "key_file": f"{folder}/{name}.key"}


def tiers(c, k):
    """Return the tiers of |k|, peers among them."""
    got, _, count, body, _ = c.ask(kvbulk.LOOKUP, k, flags=PEERS, count=1)
    assert got == kvbulk.INFOS and count == 1
    return kvbulk.Info(body).tiers


class Peer(Store):
    """A store that other stores can reach."""

    def __init__(self, folder, pki, name, peers=(), sections=None, cert=None, **kv):
        self.name, self.quic = name, free_port()
        folder = pathlib.Path(folder) / name
        folder.mkdir(exist_ok=True)
        sections = {"security": security(pki, cert or name), "agent": {"node_id": name, "heartbeat": "200ms"},
                    "cluster": {"router": f"127.0.0.1:{free_port()}", "state_dir": str(folder)}, **(sections or {})}
        super().__init__(folder, sections, **{"transport": "quic", "quic_listen": f"127.0.0.1:{self.quic}", "peers": [p.address for p in peers], **kv})

    @property
    def address(self):
        return f"127.0.0.1:{self.quic}"

    def peers(self):
        return {p["node"]: p for p in ask(self.admin, "GET", "/peers").json()["peers"]}

    def ready(self, n=1):
        """Wait until this store knows the blocks of |n| peers."""
        return until(lambda: sum(p["state"] == "ready" for p in self.peers().values()) >= n, lambda: f"{self.name}: {self.peers()}")

    def hears(self, k):
        """Wait until this store knows that some peer has |k|."""
        with Bulk(self.bulk) as c:
            until(lambda: tiers(c, k) & REMOTE, lambda: f"{self.name} does not hear of it: {self.peers()}")

    def put(self, k, value, **more):
        with Bulk(self.bulk) as c:
            return c.put_any(k, value, **more)

    def get(self, k, peers=True):
        with Bulk(self.bulk, wait_s=2 * WAIT_S) as c:
            v = c.get(k, PEERS if peers else 0)
            return v.read()

    def metric(self, name, **labels):
        total = 0.0
        for line in ask(self.admin, "GET", "/metrics").body.decode().splitlines():
            if not line.startswith(name) or line[len(name)] not in "{ ":
                continue
            if all(f'{k}="{v}"' in line for k, v in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def places(self, piece):
        """Return the place of |piece| in the store's memory for values."""
        found = []
        with open(f"/proc/{self.process.pid}/maps") as maps:
            arenas = [line.split()[0] for line in maps if "memfd:" in line and line.split()[1].startswith("rw")]
        with open(f"/proc/{self.process.pid}/mem", "rb", buffering=0) as memory:
            for arena in arenas:
                begin, end = (int(x, 16) for x in arena.split("-"))
                for base in range(begin, end, STEP):
                    memory.seek(base)
                    at = memory.read(min(STEP + len(piece) - 1, end - base)).find(piece)
                    if at >= 0:
                        found.append(base + at)
        return found

    def flip(self, places):
        """Flip one bit of each."""
        with open(f"/proc/{self.process.pid}/mem", "r+b", buffering=0) as memory:
            for at in places:
                memory.seek(at)
                byte = memory.read(1)[0]
                memory.seek(at)
                memory.write(bytes([byte ^ 4]))

    def used(self):
        return self.stats()["ram"]["bytes"]

    def blocks(self):
        return self.stats()["ram"]["blocks"]

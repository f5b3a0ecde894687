# SPDX-License-Identifier: Apache-2.0
"""State that programs of one version write and those of another read: a router's folder, and a block store's SSD tier. Used by
tests/golden/capture, test_golden_state.py and tests/skew."""
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile

from cluster import BUILD, Cluster, ask, until
from kvbulk import Bulk, Store, key as block_key
from test_batch import create, ended, results, jsonl, line
from test_limits import key

CTL = BUILD / "src/ctl/cgn-ctl"
MONEY = {"input": 2, "cached_input": 1, "output": 10}
BLOCKS = {f"block {i}": n for i, n in enumerate((5, 900, 5000, 70000))}  # small ones and large ones lie in different files


def settings(c):
    return {"auth": {"enabled": True, "api_keys_file": str(c.folder / "keys")}, "batch": {"enabled": True}, 'prices."sim"': MONEY,
            'tenants."acme"': {"budgets": ["1M tokens/month", "9 USD/month"]}}


def ctl(c, *args):
    return subprocess.run([CTL, *args, "--router", f"127.0.0.1:{c.grpc_port}"], check=True, capture_output=True, text=True).stdout


def value(name):
    return (name.encode() * BLOCKS[name])[:BLOCKS[name]]


# ---- a router ----

def begin_at(c, ready=("a", "b")):
    """Start a router with two nodes, of which |ready| become ready."""
    c.router(settings(c))
    for name in ("a", "b"):
        c.node(name, "--time-scale", "0")
    c.wait_ready(len(ready))


def policy(c):
    return json.loads(ctl(c, "cluster", "set-policy", "-o", "json"))["policy"]


def make(c):
    """Give the router state of each kind that its folder keeps; return what a reader must find."""
    c.headers = key(c.folder, "one", "acme")
    (c.folder / "headers.json").write_text(json.dumps(c.headers))
    begin_at(c)
    for i in range(5):
        assert c.chat(f"question {i}", c.headers, max_tokens=3).status == 200
    batch = ended(c, create(c, jsonl([line(1), line(2)]), c.headers), c.headers)
    assert batch["status"] == "completed"
    ctl(c, "cluster", "set-policy", "--policy", "weighted")
    ctl(c, "cluster", "cordon", "b")
    until(lambda: c.states().get("b") == "cordoned", c.logs)
    found = told(c, batch)
    assert found["used"] == 7 and found["lines"] == 2 and found["spent"] > 0 and found["policy"] == "weighted"
    return {**found, "batch": batch["id"]}


def told(c, batch):
    """Return what the running router says of its state. The key's last use is left out: each request changes it."""
    usage = ask(c.admin_port, "GET", "/usage?by=tenant&from=2026-01-01").json()["usage"]
    budgets = ask(c.admin_port, "GET", "/tenants").json()["tenants"]
    (acme,) = [t for t in budgets if t["name"] == "acme"]
    (tokens,) = [b for b in acme["budgets"] if b["unit"] == "tokens"]
    answers, faults = results(c, batch, c.headers)
    assert not faults
    return {"used": sum(row["requests"] for row in usage if row["tenant"] == "acme"), "spent": tokens["spent"], "lines": len(answers),
            "cordoned": sorted(i for i, s in c.states().items() if s == "cordoned"),
            "policy": policy(c)}


def check(c, want, budgets=True):
    """The router that runs now knows what |want| says. |budgets|: the month is still the same."""
    c.headers = json.loads((c.folder / "headers.json").read_text())
    batch = c.ask("GET", f"/v1/batches/{want['batch']}", headers=c.headers)
    assert batch.status == 200, batch.body
    got = told(c, batch.json())
    for what in ("used", "lines", "cordoned", "policy", *(("spent",) if budgets else ())):
        assert got[what] == want[what], (what, got, want, c.logs())
    aside = [p.name for p in c.state_dir.rglob("*.bad*")]
    assert not aside, (aside, c.logs())


# ---- a store ----

def store_at(folder, ssd):
    return Store(folder, ssd_dir=str(ssd), ssd="64MiB", ssd_admission="all")


def fill(store):
    with Bulk(store.bulk) as b:
        for name in BLOCKS:
            b.put_any(block_key(name), value(name))
    until(lambda: store.stats()["ssd"]["blocks"] == len(BLOCKS), lambda: str(store.stats()))


def has_all(store):
    assert store.stats()["ssd"]["blocks"] == len(BLOCKS), store.stats()
    with Bulk(store.bulk) as b:
        for name in BLOCKS:
            assert b.get(block_key(name)).read() == value(name), name


# ---- captures (tests/golden) ----

def capture(out):
    """Write what this build's programs leave behind to |out|/state.tar.xz and |out|/ssd.tar.xz."""
    with tempfile.TemporaryDirectory() as folder, Cluster(folder) as c:
        make(c)
        assert c.router_process.stop() == 0
        store = store_at(c.folder, c.folder / "ssd")
        fill(store)
        store.close()
        (c.state_dir / "port").write_text(str(c.http_port))
        for name, source in (("state", c.state_dir), ("ssd", c.folder / "ssd")):
            with tarfile.open(pathlib.Path(out) / f"{name}.tar.xz", "w:xz") as tar:
                for path in sorted(source.rglob("*")):
                    if path.is_file() and path.name not in ("LOCK", "lock", "LOG") and not path.name.startswith("OPTIONS"):
                        tar.add(path, str(path.relative_to(source)), filter=plain)


def plain(member):
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def unpack(archive, to, http_port=None):
    """Unpack a capture. A router's files are named by its address: they get the port that the router has here."""
    to.mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        tar.extractall(to)
    if http_port:
        old = (to / "port").read_text()
        (to / "port").unlink()
        for path in sorted(to.glob(f"*:{old}.*")):
            path.rename(to / path.name.replace(f":{old}.", f":{http_port}."))


if __name__ == "__main__":
    capture(sys.argv[1])

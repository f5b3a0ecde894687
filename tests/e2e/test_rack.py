# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl install baremetal: real sshd, etcd and programs on pretend hosts (rack_world)."""
import json
import subprocess
import threading

import pytest

import rack_world
from cluster import Process, ask, free_port, until
from rack_world import Rack

WHY_NOT = rack_world.usable()
pytestmark = [pytest.mark.plain, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]

# Hosts share the loopback interface, so admin ports are moved to the hosts' addresses.
THREE = """
roles = ["etcd", "agent"]
[defaults.engine]
kind = "sim"
url = "http://127.0.0.1:%(engine)d"
[defaults.settings.router]
drain_timeout = "5s"
[hosts.a]
address = "{a.address}"
port = {a.port}
roles = ["etcd", "router"]
settings.router.listen = "{a.address}:8080"
settings.router.listen_admin = "{a.address}:9091"
settings.router.policy = "%(policy)s"
[hosts.b]
address = "{b.address}"
port = {b.port}
roles = ["etcd", "agent", "store"]
settings.agent.listen_admin = "{b.address}:7081"
settings.agent.max_inflight = %(inflight)d
settings.kv.ram = "16MiB"
settings.kv.listen_admin = "{b.address}:7093"
settings.kv.resp_listen = ""
[hosts.c]
address = "{c.address}"
port = {c.port}
settings.agent.listen_admin = "{c.address}:7081"
"""
BODY = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


@pytest.fixture
def rack(tmp_path, request):
    racks = []

    def make(*names):
        racks.append(Rack(tmp_path, *names))
        return racks[0]
    yield make
    for r in racks:
        if getattr(request.node, "failed", False):
            print(r.logs())
        r.close()


def three(r, engine, policy="kv", inflight=100):
    r.write(THREE % {"engine": engine, "policy": policy, "inflight": inflight})


class Load:
    """Requests, one after another, until the end."""

    def __init__(self, host):
        self.statuses, self.ended, self.host = set(), threading.Event(), host
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.ended.is_set():
            self.statuses.add(rack_world.post(self.host.address, BODY))

    def end(self):
        self.ended.set()
        self.thread.join()
        return self.statuses


def answers(host):
    try:
        return rack_world.post(host.address, BODY) == 200
    except OSError:
        return False


@pytest.fixture
def engine(tmp_path):
    port = free_port()
    sim = Process(tmp_path, "sim", "cgn-sim", "--listen", f"127.0.0.1:{port}", "--time-scale", "0")
    yield port
    sim.kill()


def ok(done):
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    return done.stdout


def told(r):
    """Return what systemctl was told on each host that was told anything."""
    return {name: calls for name, h in r.hosts.items() if (calls := h.calls())}


def units(host):
    return {u for u in rack_world.UNITS if host.active(u)}


def nodes(r):
    address = f"{r['a'].address}:9090"
    pki = [x for flag, file in (("--ca", "ca.pem"), ("--cert", "admin.pem"), ("--key", "admin.key")) for x in (flag, r.folder / "pki" / file)]
    done = subprocess.run([rack_world.CTL, "cluster", "nodes", "-o", "json", "--router", address, *pki], capture_output=True, text=True)
    return {n["node"]: n["state"] for n in json.loads(done.stdout)} if done.returncode == 0 else {}


@pytest.mark.slow
def test_a_rack_comes_up_changes_and_goes(rack, engine):
    r = rack("a", "b", "c")
    three(r, engine)
    # The plan: nothing is written, here or there.
    plan = ok(r.install())
    assert "nothing was changed; with --apply 3 of 3 hosts would be" in plan and "+policy = \"kv\"" in plan and "start   etcd cgn-router\n" in plan
    assert "ports   tcp 2379, tcp 2380, tcp 8080, tcp 9090" in plan
    assert all(h.content() == h.own for h in r.hosts.values()) and not told(r) and not (r.folder / "pki").exists()
    # It comes up: a request goes by the gateway to an agent, all with certificates, over an etcd of three.
    assert "done; next" in ok(r.install("--apply"))
    until(lambda: answers(r["a"]) and nodes(r) == {"b": "ready", "c": "ready"}, r.logs)
    assert [units(h) for h in r.hosts.values()] == [{"etcd", "cgn-router"}, {"etcd", "cgn-agent", "cgn-kvcached"}, {"etcd", "cgn-agent"}]
    keys = {name: {p.name for p in (h.tree / "etc/cognitora/pki").iterdir()} for name, h in r.hosts.items()}
    assert keys["a"] == {"ca.pem", "etcd.pem", "etcd.key", "router.pem", "router.key"} and "ca.key" not in keys["b"] | keys["c"]
    assert all(p.stat().st_mode & 0o777 == 0o600 for h in r.hosts.values() for p in h.tree.glob("etc/cognitora/pki/*.key"))
    told(r)
    # Again: nothing.
    assert ok(r.install("--apply")).endswith("nothing to do: all hosts are as the inventory says\n") and not told(r)
    # A key of the router restarts the router only.
    three(r, engine, policy="round_robin")
    plan = ok(r.install())
    assert "-policy = \"kv\"\n+policy = \"round_robin\"" in plan and "restart cgn-router\n" in plan and "== b: nothing to do" in plan and not told(r)
    ok(r.install("--apply"))
    assert told(r) == {"a": ["daemon-reload", "restart cgn-router"]}
    until(lambda: nodes(r) == {"b": "ready", "c": "ready"}, r.logs)
    # A key of one agent restarts that agent, drained, while requests are answered.
    three(r, engine, policy="round_robin", inflight=200)
    load = Load(r["a"])
    ok(r.install("--apply"))
    assert told(r) == {"b": ["daemon-reload", "restart cgn-agent"]}
    assert load.end() == {200}
    assert nodes(r) == {"b": "ready", "c": "ready"}  # no cordon is left
    # It goes: files, units, folders.
    plan = ok(r.run("uninstall"))
    assert "stop    etcd cgn-router\n" in plan and "nothing was changed" in plan and not told(r)
    assert "removed; certificates and keys stay" in ok(r.run("uninstall", "--apply"))
    assert not any(units(h) for h in r.hosts.values())
    for h in r.hosts.values():
        left = set(h.content()) - set(h.own)
        assert all(path.startswith("var/lib/cognitora/pretend.") for path in left), left  # state of the programs
        assert not (h.tree / "etc/cognitora").exists() and not list((h.tree / "etc").rglob("cgn-*"))
    assert "no host has files of an installation" in ok(r.run("uninstall", "--apply"))


def one(r, more="", names=("a",)):
    """An inventory of routers with the embedded registry is one router; further hosts are agents."""
    text = ""
    for i, name in enumerate(names):
        text += f'[hosts.{name}]\naddress = "{{{name}.address}}"\nport = {{{name}.port}}\nroles = ["{"agent" if i else "router"}"]\n'
        text += f'settings.{"agent" if i else "router"}.listen_admin = "{{{name}.address}}:{7081 if i else 9091}"\n'
        if i:
            text += 'engine.url = "http://127.0.0.1:9"\n'
        else:
            text += 'settings.router.listen = "{%s.address}:8080"\n' % name
    r.write(text + more)


@pytest.mark.slow
def test_a_host_that_is_down_is_named_and_nothing_begins(rack):
    r = rack("a", "b")
    one(r, names=("a", "b"))
    r["b"].stop()
    done = r.install("--apply")
    assert done.returncode == 4 and "host b: ssh failed:" in done.stderr and "Connection refused" in done.stderr, done.stderr
    assert r["a"].content() == r["a"].own and not r["a"].calls()
    ok(r.install("--apply", "--limit", "a"))
    assert units(r["a"]) == {"cgn-router"} and nodes(r) == {}
    r["b"].start()
    ok(r.install("--apply"))
    assert units(r["b"]) == {"cgn-agent"}
    done = r.install("--limit", "a,x")
    assert done.returncode == 1 and "has no host x" in done.stderr


@pytest.mark.slow
def test_a_failed_unit_stops_and_the_next_run_goes_on(rack):
    r = rack("a", "b")
    one(r, names=("a", "b"))
    ok(r.install("--apply"))
    told(r)
    one(r, "[hosts.a.settings.log]\nlevel = \"debug\"\n[hosts.b.settings.log]\nlevel = \"debug\"\n", names=("a", "b"))
    r["a"].refuse("cgn-router")
    done = r.install("--apply")
    assert done.returncode == 4 and "host a: " in done.stderr and "unit cgn-router does not start" in done.stderr, done.stderr
    assert "done before the failure:\n  a: files written\n  b: files written\nthe same command again" in done.stderr, done.stderr
    assert told(r) == {"a": ["daemon-reload", "restart cgn-router"], "b": ["daemon-reload"]}
    r["a"].refuse("cgn-router", False)
    ok(r.install("--apply"))  # the files are right: what was not restarted is
    assert told(r) == {"a": ["restart cgn-router"], "b": ["restart cgn-agent"]}
    assert "nothing to do" in ok(r.install("--apply")) and not told(r)


def test_files_that_were_changed_are_kept(rack):
    r = rack("a")
    one(r)
    ok(r.install("--apply"))
    told(r)
    settings = r["a"].tree / "etc/cognitora/cognitora.toml"
    settings.write_text(settings.read_text() + "# mine\n")
    one(r, "[hosts.a.settings.log]\nlevel = \"debug\"\n")
    done = r.install("--apply")
    assert done.returncode == 1 and "keep    /etc/cognitora/cognitora.toml" in done.stdout and "1 files were kept" in done.stderr, done.stderr
    assert settings.read_text().endswith("# mine\n") and not told(r)
    done = r.run("uninstall", "--apply")
    assert done.returncode == 1 and "keep    /etc/cognitora/cognitora.toml" in done.stdout and settings.exists()
    left = {p for p in r["a"].content() if not p.startswith("var/lib/cognitora/")}
    assert left - set(r["a"].own) == {"etc/cognitora/cognitora.toml"}


@pytest.mark.slow
def test_a_role_that_a_host_has_no_more_is_removed(rack):
    r = rack("a", "b")
    one(r, names=("a", "b"))
    text = r.inventory.read_text()
    r.inventory.write_text(text.replace('roles = ["agent"]', 'roles = ["agent", "metrics"]') + f'settings.metrics.listen = "{r["b"].address}:9092"\n')
    ok(r.install("--apply"))
    assert units(r["b"]) == {"cgn-agent", "cgn-metrics"}
    told(r)
    r.inventory.write_text(text)
    plan = ok(r.install())
    assert "remove  /usr/bin/cgn-metrics\n" in plan and "stop    cgn-metrics\n" in plan
    ok(r.install("--apply"))
    assert units(r["b"]) == {"cgn-agent"} and not list(r["b"].tree.rglob("*metrics*.service")) and "restart cgn-agent" not in str(told(r))


@pytest.mark.slow
def test_programs_of_a_package_are_left_as_they_are(rack):
    r = rack("a")
    one(r)
    r["a"].stand_in("cgn-ctl", "#!/bin/sh\n")
    assert "leave   /usr/bin/cgn-ctl: " in ok(r.install("--apply"))
    assert "nothing to do" in ok(r.install("--apply"))
    ok(r.run("uninstall", "--apply"))
    assert (r["a"].tree / "usr/bin/cgn-ctl").read_text() == "#!/bin/sh\n" and not (r["a"].tree / "usr/bin/cgn-router").exists()


def test_a_program_that_does_not_run_there_is_not_installed(rack):
    r = rack("a")
    one(r)
    (r.programs / "cgn-router").unlink()
    (r.programs / "cgn-router").write_text("no program")
    (r.programs / "cgn-router").chmod(0o755)
    done = r.install("--apply")
    assert done.returncode == 4 and "/usr/bin/cgn-router does not run on this host" in done.stderr, done.stderr
    assert not (r["a"].tree / "etc/cognitora").exists() and not units(r["a"])


def test_what_a_host_needs_is_said(rack):
    r = rack("a")
    one(r)
    (r["a"].tree / "usr/bin/systemctl").unlink()
    done = r.install("--apply")
    assert done.returncode == 4 and "host a has no systemctl" in done.stderr and not (r["a"].tree / "etc/cognitora").exists()
    r.inventory.write_text(r.inventory.read_text().replace('["router"]', '["router", "etcd"]'))
    (r["a"].tree / "usr/bin/etcd").unlink()
    done = r.install()
    assert done.returncode == 1 and "host a has no /usr/bin/etcd: apt-get install etcd-server there" in done.stderr


def test_texts_of_a_host_are_no_commands(rack):
    r = rack("a")
    one(r)
    record = r["a"].tree / "var/lib/cognitora/install.sha256"
    record.parent.mkdir()
    record.write_text("0" * 64 + "  /$(touch /tmp/bad)`touch /tmp/bad`;touch /tmp/bad\n" + "1" * 64 + "  /etc/it's \"here\"\n")
    (r["a"].tree / "etc/it's \"here\"").write_text("x")
    done = r.install("--apply")
    assert done.returncode == 1 and "keep    /etc/it's \"here\"" in done.stdout, done.stdout + done.stderr
    assert not (r["a"].tree / "tmp/bad").exists() and units(r["a"]) == {"cgn-router"}


def test_an_unknown_host_key_is_refused(rack):
    r = rack("a")
    one(r)
    (r.folder / "known_hosts").write_text("")
    done = r.install("--apply")
    assert done.returncode == 4 and "host a: ssh failed: " in done.stderr and "Host key verification failed" in done.stderr, done.stderr


def test_folders_stand_for_hosts(tmp_path):
    (tmp_path / "rack.toml").write_text(subprocess.run([rack_world.CTL, "install", "baremetal", "--example"], capture_output=True, text=True, check=True).stdout)
    for name in ("head-1", "head-2", "head-3", "gpu-1", "gpu-2"):
        (tmp_path / "root" / name / "usr/bin").mkdir(parents=True)
        (tmp_path / "root" / name / "usr/bin/etcd").symlink_to("/usr/bin/etcd")
    (tmp_path / "programs").mkdir()
    for program in ("router", "agent", "kvcached", "metrics"):
        (tmp_path / f"programs/cgn-{program}").symlink_to("/usr/bin/true")

    def run(verb, *args):
        return ok(subprocess.run([rack_world.CTL, verb, "baremetal", "--inventory", tmp_path / "rack.toml", "--root", tmp_path / "root", "--apply", *args],
                                 capture_output=True, text=True))
    assert "gpu-2: 13 files written" in run("install", "--programs", tmp_path / "programs")
    assert "name = \"small\"" in (tmp_path / "root/gpu-2/etc/cognitora/cognitora.toml").read_text()
    assert "nothing to do" in run("install", "--programs", tmp_path / "programs")
    # A certificate that ends soon is made again, for that host only.
    pki = [tmp_path / "pki" / f"gpu-1.agent.{end}" for end in ("pem", "key")]
    subprocess.run([rack_world.CTL, "pki", "renew", "gpu-1.agent", "--dir", tmp_path / "pki", "--days", "29"], check=True, capture_output=True)
    short = [p.read_bytes() for p in pki]
    assert "gpu-1: 2 files written\ndone" in run("install", "--programs", tmp_path / "programs")
    assert all(p.read_bytes() != was for p, was in zip(pki, short))
    run("uninstall")
    assert not [p for p in (tmp_path / "root").rglob("*") if p.is_file() and p.name != "etcd"]

# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl install baremetal and the members of an etcd that runs: they join and leave one at a time, while the router serves."""
import json
import shutil
import subprocess

import pytest

import rack_world
from cluster import until
from test_rack import engine, nodes, ok, rack, told  # noqa: F401

pytestmark = [pytest.mark.plain, pytest.mark.skipif(rack_world.usable() is not None, reason=str(rack_world.usable()))]


def inventory(r, engine, etcd, more=()):
    """Host a has the router, b an agent; |etcd|: names of the hosts with the role etcd."""
    roles = {"a": ["router"], "b": ["agent"]}
    text = f'[defaults.engine]\nkind = "sim"\nurl = "http://127.0.0.1:{engine}"\n'
    for name in sorted({"a", "b", *etcd, *more}):
        mine = [*roles.get(name, []), *(["etcd"] if name in etcd else []), *(["store"] if name in more else [])]
        text += f'[hosts.{name}]\naddress = "{{{name}.address}}"\nport = {{{name}.port}}\nroles = {json.dumps(mine)}\n'
        if name == "a":
            text += 'settings.router.listen = "{a.address}:8080"\nsettings.router.listen_admin = "{a.address}:9091"\n'
        if name == "b":
            text += 'settings.agent.listen_admin = "{b.address}:7081"\n'
        if name in more:
            text += f'settings.kv.ram = "16MiB"\nsettings.kv.listen_admin = "{{{name}.address}}:7093"\nsettings.kv.resp_listen = ""\n'
    r.write(text)


def etcdctl(r, host, *args):
    pki = r.folder / "pki"
    done = subprocess.run(["etcdctl", "--endpoints", f"https://{r[host].address}:2379", "--cacert", pki / "ca.pem", "--cert", pki / "admin.pem",
                           "--key", pki / "admin.key", *args], capture_output=True, text=True, env={"ETCDCTL_API": "3", "PATH": "/usr/bin"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def members(r, host):
    """Return the names of the members that have a vote."""
    rows = json.loads(etcdctl(r, host, "member", "list", "-w", "json"))["members"]
    return sorted(m["name"] for m in rows if not m.get("isLearner"))


def serves(r):
    until(lambda: rack_world.post(r["a"].address, {"model": "sim", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}) == 200 and
          nodes(r) == {"b": "ready"}, r.logs)


def up(r, engine, etcd):
    inventory(r, engine, etcd)
    ok(r.install("--apply"))
    serves(r)
    told(r)
    etcdctl(r, etcd[0], "put", "mine", "kept")


def kept(r, host):
    return etcdctl(r, host, "get", "mine", "--print-value-only").strip() == "kept"


@pytest.mark.slow
def test_members_join_and_leave_one_at_a_time(rack, engine):  # noqa: F811
    r = rack("a", "b", "c", "d")
    up(r, engine, "a")
    # One becomes three. The plan says so; etcd of host a is not restarted for it.
    inventory(r, engine, "abc")
    plan = ok(r.install())
    assert "== members of etcd, one after another\njoin    b\njoin    c\n" in plan and "and the members of etcd" in plan and members(r, "a") == ["a"]
    done = ok(r.install("--apply"))
    assert "b: etcd joined\netcd: member b has a vote\nc: etcd joined\netcd: member c has a vote\n" in done, done
    assert members(r, "c") == ["a", "b", "c"] and all(kept(r, h) for h in "abc")
    assert "restart etcd" not in told(r)["a"]
    assert "nothing to do" in ok(r.install("--apply"))
    # Host c is lost with all that it had. Host d takes its place.
    r["c"].stop()
    inventory(r, engine, "abd")
    plan = ok(r.install())
    assert f"leave   c (https://{r['c'].address}:2380): " in plan and "join    d\n" in plan
    ok(r.install("--apply"))
    assert members(r, "d") == ["a", "b", "d"] and kept(r, "d")
    serves(r)
    # Three become one: members leave before their etcd is stopped.
    inventory(r, engine, "d")
    ok(r.install("--apply"))
    assert members(r, "d") == ["d"] and kept(r, "d") and not r["a"].active("etcd") and not r["b"].active("etcd")
    serves(r)
    # Host a comes back: what it had is of the member that left.
    inventory(r, engine, "abd")
    assert "join    a: its data is of a member that has left, and is moved aside\n" in ok(r.install())
    ok(r.install("--apply"))
    assert members(r, "a") == ["a", "b", "d"] and kept(r, "a")
    assert len(list((r["a"].tree / "var/lib/etcd").glob("pretend.left-*"))) == 1
    serves(r)
    assert "nothing to do" in ok(r.install("--apply"))


@pytest.mark.slow
def test_a_member_whose_disk_was_replaced_joins_again(rack, engine):  # noqa: F811
    r = rack("a", "b", "c")
    up(r, engine, "abc")
    r["c"].stop()
    shutil.rmtree(r["c"].tree / "var/lib/etcd")
    shutil.rmtree(r["c"].tree / "run/units")
    r["c"].start()
    plan = ok(r.install())
    assert f"leave   c (https://{r['c'].address}:2380): " in plan and "join    c\n" in plan
    ok(r.install("--apply"))
    assert members(r, "c") == ["a", "b", "c"] and kept(r, "c")


@pytest.mark.slow
def test_a_member_that_does_not_start_harms_nobody(rack, engine):  # noqa: F811
    r = rack("a", "b", "c")
    up(r, engine, "a")
    inventory(r, engine, "abc")
    r["b"].refuse("etcd")
    done = r.install("--apply")
    assert done.returncode == 4 and "unit etcd does not start" in done.stderr, done.stderr
    assert members(r, "a") == ["a"] and kept(r, "a")
    serves(r)
    r["b"].refuse("etcd", False)
    ok(r.install("--apply"))
    assert members(r, "c") == ["a", "b", "c"] and kept(r, "c")


@pytest.mark.slow
def test_without_a_majority_no_member_joins(rack, engine):  # noqa: F811
    r = rack("a", "b", "c", "d")
    up(r, engine, "abc")
    r["c"].stop()
    r["b"].stop()
    inventory(r, engine, "abd")
    r["b"].start()  # its programs do not run
    shutil.rmtree(r["b"].tree / "run/units")
    before = r["d"].content()
    done = r.install("--apply", "--limit", "a,d")
    assert done.returncode == 4 and "host d has no data of etcd and must join the members that other hosts have; etcd: it does not answer" in done.stderr, done.stderr
    assert r["d"].content() == before
    inventory(r, engine, "abc")
    ok(r.install("--apply", "--limit", "a,b"))  # etcd of host b starts again: two of three
    inventory(r, engine, "abd")
    ok(r.install("--apply"))
    assert members(r, "d") == ["a", "b", "d"] and kept(r, "d")

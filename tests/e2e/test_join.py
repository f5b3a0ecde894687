# SPDX-License-Identifier: Apache-2.0
"""Machines without certificates that join by a token: invite, join, serve; and those that try to without being invited."""
import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from cluster import WAIT_S, Cluster, audit_lines, free_port, until
from kvpeers import CTL, bootstrap, security

FAST = ("--time-scale", "0")


def signer(pki, **more):
    """The settings of a router that signs. |more|: of [security]."""
    return {"security": {**security(pki, "router"), "require_mtls": True, "ca_key_file": f"{pki}/ca.key", "listen_join": f"127.0.0.1:{free_port()}", **more}}


def answers(port, host="127.0.0.1"):
    try:
        socket.create_connection((host, port), 1).close()
        return True
    except OSError:
        return False


class World:
    """A router that signs, in a folder of its own."""

    def __init__(self, cluster, folder, **more):
        self.cluster, self.folder = cluster, folder
        self.pki, self.audit = bootstrap(folder / "pki", "router", "agent", "admin", "porter=porter"), folder / "audit.jsonl"
        self.settings = {**signer(self.pki, audit_file=str(self.audit)), 'roles."porter"': {"allow": ["node.invite", "status.read"]},
                         'roles."reader"': {"allow": ["status.read"]}}
        for section, keys in more.items():
            self.settings.setdefault(section, {}).update(keys)
        self.router = cluster.router(self.settings)
        until(self.answers, self.router.log)

    def answers(self):
        join = int(self.settings["security"]["listen_join"].rpartition(":")[2])
        return answers(self.cluster.grpc_port) and (answers(join) or answers(join, "::1"))

    def invite(self, *args, rc=0, by="admin"):
        done = subprocess.run([CTL, "node", "invite", "--router", f"127.0.0.1:{self.cluster.grpc_port}", "--ca", self.pki / "ca.pem", "--cert",
                               self.pki / f"{by}.pem", "--key", self.pki / f"{by}.key", *args], capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == rc, done.stderr
        return done.stdout.strip() if rc == 0 else done.stderr

    def join(self, token, name, *args, rc=0):
        """Join into the folder |name|, with the settings in |name|.toml."""
        done = subprocess.run([CTL, "node", "join", "-", "--dir", self.folder / name, "--config", self.folder / f"{name}.toml", *args], input=token,
                              capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == rc, (done.returncode, done.stderr)
        return done.stderr

    def refusals(self, event="node.join"):
        return audit_lines(self.audit, event, decision="refused")

    def restart(self):
        self.router.kill()
        self.cluster.processes.remove(self.router)
        (self.cluster.folder / "router.toml").unlink()
        self.router = self.cluster.router(self.settings)
        until(self.answers, self.router.log)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("join")
    with Cluster(folder) as c:
        yield World(c, folder)


def parts(token):
    return token.split("/", 6)


def with_part(token, i, text):
    p = parts(token)
    p[i] = text
    return "/".join(p)


def test_an_invitation_as_json_and_settings_that_are_there(world):
    told = json.loads(world.invite("--node", "told", "--ttl", "10m", "-o", "json"))
    assert (told["role"], told["node"]) == ("agent", "told") and told["id"] in told["token"] and told["ends"] > 0, told
    (world.folder / "told.toml").write_text("# mine\n")
    done = subprocess.run([CTL, "node", "join", "-", "--dir", world.folder / "told", "--config", world.folder / "told.toml"], input=told["token"],
                          capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode != 0 and "\\x0a" not in done.stderr and done.stderr.count("\n") == 1 and "is kept" in done.stderr, done
    assert done.stdout.startswith("[cluster]\n") and "[security]\n" in done.stdout and (world.folder / "told.toml").read_text() == "# mine\n"


def test_a_machine_joins_and_serves(world):
    c = world.cluster
    token = world.invite("--node", "new-1", "--san", "new-1.example")
    world.join(token, "new-1")
    shown = subprocess.run([CTL, "pki", "show", "--dir", world.folder / "new-1", "-o", "json"], capture_output=True, text=True, check=True).stdout
    mine = next(row for row in json.loads(shown) if row["certificate"] == "agent.pem")
    assert mine["node"] == "new-1" and "agent" in mine["roles"] and "new-1.example" in mine["names"]
    assert (world.folder / "new-1/agent.key").stat().st_mode & 0o777 == 0o600 and not (world.folder / "new-1/agent.key.new").exists()
    engine_port = free_port()
    c.engine("new-1", *FAST, port=engine_port)
    agent = c.run("agent-new-1", "cgn-agent", "--config", world.folder / "new-1.toml", "--set", f"agent.listen=127.0.0.1:{free_port()}", "--set",
                  f"agent.listen_admin=127.0.0.1:{free_port()}", "--set", f"engine.url=http://127.0.0.1:{engine_port}", "--set", "engine.kind=sim",
                  "--set", f"cluster.state_dir={world.folder}/new-1")
    until(lambda: c.states().get("new-1") == "ready", lambda: agent.log())
    assert c.chat("hello").status == 200
    again = world.invite("--node", "new-1")
    assert "a node new-1 is in the cluster" in world.join(again, "impostor", rc=1)
    before = (world.folder / "new-1/agent.pem").read_text()
    (world.folder / "new-1.toml").unlink()
    world.join(again, "new-1", "--replace")  # the machine itself may, while its agent runs
    assert (world.folder / "new-1/agent.pem").read_text() != before
    agent.signal(signal.SIGHUP)
    until(lambda: agent.events("svc.reloaded") and c.states().get("new-1") == "ready", agent.log)
    secrets = (parts(token)[4], parts(again)[4])
    stored = "".join(p.read_text() for p in c.state_dir.iterdir() if p.is_file())
    assert not any(s in text for s in secrets for text in (stored, world.audit.read_text(), world.router.log()))


def test_a_token_is_for_one_machine(world):
    token = world.invite("--node", "once")
    world.join(token, "once")
    assert "used by another machine" in world.join(token, "twice", rc=1)
    until(lambda: any("used by another machine" in e["why"] and e["from"].startswith("127.0.0.1") for e in world.refusals()), world.audit.read_text)
    assert not any((world.folder / "twice").iterdir())  # a refusal leaves no key either
    shutil.copy(world.folder / "once/agent.key", world.folder / "twice/agent.key.new")  # the machine itself, whose answer was lost
    world.join(token, "twice")


def test_many_that_race_for_a_token(world):
    token = world.invite("--node", "race")
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda i: subprocess.run([CTL, "node", "join", token, "--dir", world.folder / f"race-{i}"], capture_output=True).returncode,
                             range(6)))
    assert done.count(0) == 1, done


def test_a_token_is_for_its_role_and_node(world):
    token = world.invite("--node", "narrow")
    for i, (part, text, why) in enumerate(((1, "operator", "not for operator"), (2, "wide", "not for wide"), (4, "0" * 64, "no invite has this token"),
                                           (3, "f" * 16, "no invite has this token"))):
        assert why in world.join(with_part(token, part, text), f"narrow-{i}", rc=1)
        assert not any((world.folder / f"narrow-{i}").iterdir())
    assert "is for the node narrow, not for other" in world.join(token, "narrow-5", "--node", "other", rc=2)
    assert "is not a token" in world.join("hello", "narrow-6", rc=2) and "damaged" in world.join(token[:60], "narrow-7", rc=2)
    world.join(token, "narrow")  # none of that has used it up
    assert "no role" in world.invite("--role", "emperor", rc=2)


def test_nobody_invites_to_a_role_that_they_do_not_hold(world):
    """The right to invite brings machines in; it makes no operator of whoever has it."""
    for by, role, lacks in (("porter", "operator", "node.cordon"), ("porter", "router", "node.generate"), ("porter", "viewer", "explain.read"),
                            ("admin", "router", "node.generate")):
        why = world.invite("--role", role, "--node", "mine", rc=1, by=by)
        assert f"may not invite to the role {role}, which allows {lacks}" in why, why
    want = [("porter", "operator"), ("porter", "router"), ("porter", "viewer"), ("admin", "router")]
    until(lambda: [(e["name"], e["object"]) for e in world.refusals("node.invite")] == want, world.audit.read_text)
    for by, role in (("porter", "agent"), ("porter", "porter"), ("porter", "reader"), ("admin", "operator"), ("admin", "viewer"), ("admin", "metrics")):
        assert world.invite("--role", role, "--node", f"{by}-{role}", by=by)
    world.join(world.invite("--role", "operator", "--node", "second"), "second")  # an operator makes another one


def test_a_token_ends(world):
    token = world.invite("--node", "late", "--ttl", "1s")
    ends = time.time() + 1  # the router rounds up to a second
    until(lambda: time.time() >= ends + 1, "it ends", step_s=0.1)
    assert "is over" in world.join(token, "late", rc=1)


def test_a_man_in_the_middle_learns_nothing(world, tmp_path):
    """Another CA, and a certificate of the cluster that is no router's, at the token's address: the secret is not sent."""
    token = world.invite("--node", "careful")
    strange = bootstrap(tmp_path / "strange", "router")
    for i, (pki, name, why) in enumerate(((strange, "router", "another cluster"), (world.pki, "agent", "/router/"))):
        port = free_port()
        server = subprocess.Popen(["openssl", "s_server", "-accept", f"127.0.0.1:{port}", "-cert", pki / f"{name}.pem", "-key", pki / f"{name}.key",
                                   "-cert_chain", pki / "ca.pem", "-alpn", "h2", "-quiet"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL)
        try:
            until(lambda: answers(port), "openssl listens")
            assert why in world.join(with_part(token, 6, f"127.0.0.1:{port}"), f"careful-{i}", "--timeout", "3s", rc=4)
        finally:
            server.kill()
            heard = server.communicate()[0]
        assert bytes.fromhex(parts(token)[4]) not in heard
    world.join(token, "careful")


def test_invites_survive_a_router_that_is_killed(tmp_path):
    with Cluster(tmp_path) as c:
        w = World(c, tmp_path)
        used, unused = w.invite("--node", "used"), w.invite("--node", "unused")
        w.join(used, "used")
        w.restart()
        assert "used by another machine" in w.join(used, "thief", rc=1)
        shutil.copy(w.folder / "used/agent.key", w.folder / "agent.key.new")
        (w.folder / "again").mkdir()
        shutil.move(w.folder / "agent.key.new", w.folder / "again/agent.key.new")
        w.join(used, "again")  # killed between signing and answer: the machine that made the key may ask again
        w.join(unused, "unused")
        w.router.signal(signal.SIGHUP)
        until(lambda: w.router.events("svc.reloaded"), w.router.log)
        w.join(w.invite(), "free", "--node", "named-by-itself")
        for i, step in enumerate(("prepare", "switch", "finish")):  # while the CA is replaced
            subprocess.run([CTL, "pki", "rotate", "--ca", step, "--dir", w.pki], check=True, capture_output=True, timeout=WAIT_S)
            w.router.signal(signal.SIGHUP)
            until(lambda i=i: len(w.router.events("svc.reloaded")) == i + 2, w.router.log)
            w.join(w.invite("--node", step), step)
        (w.folder / "unused.toml").unlink()
        w.join(w.invite("--node", "unused"), "unused", "--replace")  # its certificate is of the CA that is gone
        with concurrent.futures.ThreadPoolExecutor(4) as pool:  # a flood of attempts is refused
            wrong = with_part(w.invite(), 4, "0" * 64)
            assert any("too many attempts" in why for n in range(10) for why in pool.map(lambda i, n=n: w.join(wrong, f"flood-{n}-{i}", rc=1), range(75)))


def flood_by_network(folder):
    """Run in a network namespace of its own: attempts from addresses of one IPv6 /64, each once, and one from another /64."""
    def ip(*lines):
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)
    addresses, other = [f"fd00:0:0:1::{i:x}" for i in range(1, 501)], "fd00:0:0:2::1"
    ip("link set lo up", *(f"addr add {a}/64 dev lo nodad" for a in (*addresses, other)))
    port = free_port()
    with Cluster(folder) as c:
        w = World(c, folder, security={"listen_join": f"[::]:{port}"})
        wrong = with_part(with_part(w.invite(), 4, "0" * 64), 6, f"[::1]:{port}")

        ip("route del local ::1/128 table local")

        def attempt(source):
            ip(f"route replace local ::1/128 dev lo table local src {source}")
            return w.join(wrong, "flood", rc=1)
        assert any("too many attempts" in attempt(a) for a in addresses)  # 60 a minute are allowed, and each second one more
        assert "too many attempts" not in attempt(other)
        until(lambda: any(e["from"].startswith(f"[{addresses[0]}]") for e in w.refusals()), "a client comes from the address that its route names")


def test_addresses_of_one_network_are_counted_together(tmp_path):
    alone = ["unshare", "-rn"]
    if subprocess.run([*alone, "ip", "link", "set", "lo", "up"], capture_output=True).returncode != 0:
        pytest.skip("no network namespaces here")
    done = subprocess.run([*alone, sys.executable, "-c", f"import test_join; test_join.flood_by_network(test_join.pathlib.Path({str(tmp_path)!r}))"],
                          cwd=pathlib.Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

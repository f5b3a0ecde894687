# SPDX-License-Identifier: Apache-2.0
"""Nobody grants what they do not hold: invites to roles, certificates with names of others, tokens and certificates without an end. What each role may give
to each other is walked by tests/unit/policy_identity.c."""
import contextlib
import re
import socket
import ssl
import subprocess
import threading

import pytest

from cluster import ROOT, WAIT_S, Cluster, audited, free_port, until
from kvpeers import CTL, bootstrap
from test_join import answers, signer

ROLES = re.findall(r'^ROLE\(\w+, +"(\w+)"', (ROOT / "src/policy/who/identity/roles.def").read_text(), re.M)
SERVE = ("agent", "kvcached")  # what node.invite itself covers: roles of machines that serve


class World:
    def __init__(self, folder):
        self.folder, self.pki = folder, folder / "pki"
        bootstrap(self.pki, "router", "agent", "admin", "bot=inviter", *(f"{r}-holder={r}+inviter" for r in ROLES if r not in ("operator",)))
        self.audit = folder / "audit.jsonl"
        self.c = Cluster(folder)
        settings = {**signer(self.pki, audit_file=str(self.audit)), 'roles."inviter"': {"allow": ["node.invite"]}}
        self.c.router(settings)
        self.join_port = int(settings["security"]["listen_join"].rpartition(":")[2])
        until(lambda: answers(self.c.grpc_port) and answers(self.join_port), self.c.logs)

    def ctl(self, by, *args, text=None):
        return subprocess.run([CTL, *map(str, args), "--router", f"127.0.0.1:{self.c.grpc_port}", "--ca", self.pki / "ca.pem", "--cert", self.pki / f"{by}.pem",
                               "--key", self.pki / f"{by}.key"], capture_output=True, text=True, timeout=WAIT_S, input=text)

    def invite(self, by, role, *more):
        return self.ctl(by, "node", "invite", "--role", role, "--node", f"n-{role}", *more)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    w = World(tmp_path_factory.mktemp("grants"))
    with w.c:
        yield w


@pytest.mark.parametrize("role", ROLES)
def test_who_may_only_invite_gives_no_other_role(world, role):
    done = world.invite("bot", role)
    if role in SERVE:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0 and "nobody gives what they do not hold" in done.stderr, done
        audited(world.audit, "node.invite", decision="refused", object=role)


@pytest.mark.parametrize("role", [r for r in ROLES if r != "operator"])
def test_who_holds_a_role_gives_that_one(world, role):
    assert world.invite(f"{role}-holder", role).returncode == 0
    done = world.invite(f"{role}-holder", "operator")
    assert done.returncode != 0 and "nobody gives" in done.stderr, done


@pytest.fixture
def impostor(world, tmp_path):
    """A TLS server with a certificate: (the names in it, port). It tells what its clients said, once the handshake was done."""
    with contextlib.ExitStack() as stack:
        def start(cert, key):
            ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            ctx.load_cert_chain(cert, key)
            ctx.set_alpn_protocols(["h2"])
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            heard = []

            def serve():
                while True:
                    try:
                        raw, _ = listener.accept()
                    except OSError:
                        return
                    try:
                        with ctx.wrap_socket(raw, server_side=True) as s:
                            s.settimeout(WAIT_S)
                            heard.append(s.recv(65536))
                    except OSError:
                        heard.append(b"")
            threading.Thread(target=serve, daemon=True).start()
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            return listener.getsockname()[1], heard
        yield start


def test_a_machine_takes_no_routers_place(world, impostor):
    """Whoever may invite an agent may name any host of it, the router's too. Clients of a router ask for its role."""
    token = world.invite("bot", "agent", "--san", "localhost", "--san", "router.example")
    assert token.returncode == 0, token.stderr
    folder = world.folder / "impostor"
    done = subprocess.run([CTL, "node", "join", "-", "--dir", folder, "--config", world.folder / "impostor.toml"], input=token.stdout, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    port, heard = impostor(folder / "agent.pem", folder / "agent.key")

    def status(port):
        return subprocess.run([CTL, "cluster", "status", "--router", f"localhost:{port}", "--ca", world.pki / "ca.pem", "--cert", world.pki / "admin.pem", "--key",
                               world.pki / "admin.key"], capture_output=True, text=True, timeout=WAIT_S)
    done = status(port)
    assert done.returncode != 0 and "/router/" in done.stderr, done
    assert not any(h.startswith(b"PRI") for h in heard), "nothing was said to it"
    assert status(world.c.grpc_port).returncode == 0
    agent = world.c.run("agent-lured", "cgn-agent", "--set", f"cluster.router=localhost:{port}", "--set", f"security.ca_file={world.pki}/ca.pem", "--set",
                        f"security.cert_file={world.pki}/agent.pem", "--set", f"security.key_file={world.pki}/agent.key", "--set", "agent.node_id=agent", "--set",
                        f"agent.listen=127.0.0.1:{free_port()}", "--set", f"agent.listen_admin=127.0.0.1:{free_port()}", "--set", f"cluster.state_dir={world.folder}",
                        "--set", "log.format=json", "--set", f"engine.url=http://127.0.0.1:{free_port()}", "--set", "engine.kind=sim")
    until(lambda: "/router/" in agent.log(), agent.log)
    assert not any(h.startswith(b"PRI") for h in heard)


@pytest.mark.parametrize("name", ["*.example.net", "*", "host name", "https://x", "a,b"])
def test_a_certificate_names_hosts_only(world, name):
    assert world.invite("bot", "agent", "--san", name).returncode != 0


@pytest.mark.parametrize("flags, why", [(("--ttl", "2592001s"), "30 days"), (("--days", "3651"), "3650"), (("--days", "4294967295"), "3650"), (("--ttl", "0s"), "30 days")])
def test_what_is_given_ends(world, flags, why):
    done = world.invite("bot", "agent", *flags)
    assert done.returncode != 0 and why in done.stderr, done

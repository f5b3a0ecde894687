# SPDX-License-Identifier: Apache-2.0
"""ngtcp2's own example client (Debian: ngtcp2-client) against our endpoint: handshakes, certificates, Retry,
versions, refusals, and the bytes of its requests. The client speaks HTTP/3, which the endpoint does not
answer, so each of its visits ends in a protocol error."""
import os
import pathlib
import shutil
import subprocess

import pytest

BUILD = pathlib.Path(os.environ.get("CGN_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
PEER = BUILD / "quic_peer"
CLIENT = shutil.which("gtlsclient")
WAIT_S = 60

pytestmark = pytest.mark.skipif(CLIENT is None, reason="gtlsclient is not installed: apt-get install ngtcp2-client")


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    d = tmp_path_factory.mktemp("quic")
    subprocess.run([PEER, "certs", d], check=True)
    other = tmp_path_factory.mktemp("stranger")
    subprocess.run([PEER, "certs", other], check=True)
    return d, other


class Server:
    def __init__(self, certs, alpn="h3", *more):
        self.p = subprocess.Popen([PEER, "serve", "127.0.0.1:0", certs[0], alpn, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.p.stdout.readline().split()[1])

    def end(self):
        out, _ = self.p.communicate("", timeout=WAIT_S)
        assert self.p.returncode == 0
        return out


def client(port, *args):
    argv = [CLIENT, "--exit-on-all-streams-close", "--timeout=2s", "--handshake-timeout=2s", *map(str, args), "127.0.0.1", str(port), "https://node.example/"]
    r = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S)
    return r.stdout + r.stderr


def identity(d):
    return f"--key={d / 'node.key'}", f"--cert={d / 'node.crt'}"


def test_a_client_with_our_certificate_is_let_in(certs):
    s = Server(certs)
    client(s.port, *identity(certs[0]))
    out = s.end()
    assert "peer node-1" in out and "accepted=1" in out and "stream of peer" in out


def test_a_client_without_a_certificate_is_refused(certs):
    s = Server(certs)
    client(s.port)
    out = s.end()
    assert "accepted=0 failed=1" in out and "peer " not in out.split("counters")[0]
    assert "gave no certificate" in out


def test_a_client_of_another_authority_is_refused(certs):
    s = Server(certs)
    client(s.port, *identity(certs[1]))
    out = s.end()
    assert "accepted=0 failed=1" in out and "issuer is unknown" in out


def test_a_client_with_another_protocol_is_refused(certs):
    s = Server(certs, "cgn-kv/1")
    client(s.port, *identity(certs[0]))
    out = s.end()
    assert "accepted=0 failed=1" in out and "does not speak cgn-kv/1" in out


def test_retry_is_followed(certs):
    s = Server(certs, "h3", "retry")
    client(s.port, *identity(certs[0]))
    out = s.end()
    assert "retries=1" in out and "accepted=1" in out


def test_an_unknown_version_is_negotiated(certs):
    s = Server(certs)
    client(s.port, "--version=0x1a2a3a4a", *identity(certs[0]))
    out = s.end()
    assert "versions=1" in out

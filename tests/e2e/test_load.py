# SPDX-License-Identifier: Apache-2.0
"""Operations while requests run: reload, rotate certificates, revoke keys. Running requests are unharmed, and
revoked keys are refused."""
import http.client
import json
import signal
import socket
import ssl
import subprocess

import pytest

from clients import Load
from cluster import BUILD, WAIT_S, Answer, scaled, until
from test_failures import agree, more, quiet, up

FAST = ("--time-scale", "0")
CTL = BUILD / "src/ctl/cgn-ctl"


def ctl(*args, code=0):
    r = subprocess.run([CTL, *map(str, args)], capture_output=True, text=True, timeout=60)
    assert r.returncode == code, r.stderr
    return r.stdout


@pytest.mark.both
@pytest.mark.threads
def test_reloads_under_load_harm_no_request(cluster):
    up(cluster, FAST, FAST)
    load = Load(cluster, n=4)
    path = cluster.folder / "router.toml"
    good = path.read_text()
    for i in range(1, 21):
        weights = "kv = 0.40\nload = 0.40" if i % 2 else "kv = 0.55\nload = 0.25"
        path.write_text(good + f"[router.score_weights]\n{weights}\npower = 0.10\ncapacity = 0.10\n")
        cluster.router_process.signal(signal.SIGHUP)
        until(lambda n=i: len(cluster.router_process.events("svc.reloaded")) == n, f"reload {i}")
    path.write_text(good + "[router.score_weights]\nkv = 7\n")
    cluster.router_process.signal(signal.SIGHUP)
    until(lambda: cluster.router_process.events("svc.reload_failed"), "a wrong file is refused")
    for n in cluster.nodes.values():
        n.agent.signal(signal.SIGHUP)
    more(load, scaled(50))
    load.end()
    assert load.ends["answered"] == load.sent, (load.ends, load.statuses)
    quiet(cluster, "a", "b")
    agree(cluster, load)


def test_a_revoked_key_is_refused_soon(cluster):
    keys = cluster.folder / "keys"
    one, two = (ctl("key", "create", "--file", keys, "--name", n).split()[0] for n in ("one", "two"))
    ids = {row["name"]: row["id"] for row in json.loads(ctl("key", "ls", "--file", keys, "-o", "json"))}
    cluster.common = {"auth": {"enabled": True, "api_keys_file": str(keys)}}
    cluster.router()
    cluster.node("a", *FAST)

    def status(key):
        return cluster.chat("x", {"Authorization": f"Bearer {key}"}, max_tokens=1).status
    until(lambda: status(one) == status(two) == 200, "both are served")
    ctl("key", "revoke", "--file", keys, ids["one"])
    until(lambda: status(one) == 401, "the revoked key is refused")
    assert status(two) == 200
    wrong = cluster.chat("x", {"Authorization": f"Bearer {two[:-1]}"})
    assert wrong.status == 401 and two[:-1].encode() not in wrong.body


# ---- TLS ----

def pki(folder):
    ctl("pki", "bootstrap", "--out", folder, "--leaf", "router", "--leaf", "admin", "--leaf", "a=agent+router")
    return folder


def trusting(folder):
    return ssl.create_default_context(cafile=str(folder / "ca.pem"))


def https(cluster, ctx):
    def do(method, path, body=None, headers=None):
        c = http.client.HTTPSConnection("localhost", cluster.http_port, timeout=WAIT_S, context=ctx)
        try:
            c.request(method, path, body, headers or {})
            r = c.getresponse()
            return Answer(r.status, r.getheaders(), r.read())
        finally:
            c.close()
    return do


def serial(cluster, ctx):
    with socket.create_connection(("127.0.0.1", cluster.http_port), WAIT_S) as s, ctx.wrap_socket(s, server_hostname="localhost") as t:
        return t.getpeercert()["serialNumber"]


@pytest.mark.both
@pytest.mark.threads
def test_certificates_are_changed_under_load(cluster):
    here, new = pki(cluster.folder / "pki"), pki(cluster.folder / "new")
    ctx = trusting(here)
    ctx.load_verify_locations(str(new / "ca.pem"))
    cluster.router({"router": {"tls_cert_file": str(here / "router.pem"), "tls_key_file": str(here / "router.key")}})
    cluster.node("a", *FAST)
    until(lambda: cluster.states().get("a") == "ready", "a is ready")
    do = https(cluster, ctx)
    until(lambda: do("GET", "/readyz").status == 200, "the workers know of it")
    was = serial(cluster, ctx)
    load = Load(cluster, n=3, ask_with=do)
    more(load, scaled(20))
    for name in ("router.pem", "router.key"):
        (here / name).write_bytes((new / name).read_bytes())
    cluster.router_process.signal(signal.SIGHUP)
    until(lambda: serial(cluster, ctx) != was, "the new certificate is shown")
    more(load, scaled(20))
    load.end()
    assert load.ends["answered"] == load.sent, (load.ends, load.statuses)


def test_mtls_refuses_strangers(cluster):
    mine, other = pki(cluster.folder / "pki"), pki(cluster.folder / "other")
    cluster.common = {"security": {"require_mtls": True, "ca_file": str(mine / "ca.pem"), "cert_file": str(mine / "a.pem"),
                                   "key_file": str(mine / "a.key")}}
    up(cluster, FAST)
    assert cluster.chat("inside", max_tokens=1).status == 200

    def hello(port, certs, name="admin"):
        """Return the server's verdict on this client, which comes with the server's first bytes."""
        ctx = trusting(mine)
        ctx.set_alpn_protocols(["h2"])
        if certs:
            ctx.load_cert_chain(str(certs / f"{name}.pem"), str(certs / f"{name}.key"))
        try:
            with socket.create_connection(("127.0.0.1", port), WAIT_S) as s, ctx.wrap_socket(s, server_hostname="localhost") as t:
                t.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
                return bool(t.recv(9))
        except (ssl.SSLError, ConnectionError):
            return False
    for port in (cluster.grpc_port, cluster.nodes["a"].agent_port):
        assert hello(port, mine)
        assert not hello(port, None) and not hello(port, other)
    ls = [CTL, "cluster", "nodes", "--router", f"127.0.0.1:{cluster.grpc_port}", "--timeout", "2s", "--ca", mine / "ca.pem"]
    assert subprocess.run([*ls, "--cert", mine / "admin.pem", "--key", mine / "admin.key"], capture_output=True, timeout=60).returncode == 0
    stranger = subprocess.run([*ls, "--cert", other / "admin.pem", "--key", other / "admin.key"], capture_output=True, text=True, timeout=60)
    assert stranger.returncode != 0 and stranger.stderr.strip()
    assert cluster.chat("still", max_tokens=1).status == 200


def test_a_certificate_without_its_key_is_a_sentence(cluster):
    here, other = pki(cluster.folder / "pki"), pki(cluster.folder / "other")
    for cert, key in ((here / "router.pem", other / "router.key"), (here / "none.pem", here / "router.key"), (here / "ca.key", here / "router.key")):
        path = cluster.config("bad", {"router": {"listen": "127.0.0.1:0", "listen_grpc": "127.0.0.1:0", "listen_admin": "127.0.0.1:0",
                                                 "tls_cert_file": str(cert), "tls_key_file": str(key)}})
        p = cluster.run(f"bad-{cert.name}", "cgn-router", "--config", path)
        assert p.wait() not in (0, -6, -11)
        assert str(cert) in p.log() or str(key) in p.log(), p.log()


def test_an_expired_certificate_is_a_sentence(cluster):
    """Made by openssl, since cgn-ctl only makes certificates that are valid now."""
    here = pki(cluster.folder / "pki")
    (here / "index.txt").write_text("")
    (here / "serial").write_text("01\n")
    (here / "ca.cnf").write_text(f"[ca]\ndefault_ca = d\n[d]\ndatabase = {here}/index.txt\nserial = {here}/serial\nnew_certs_dir = {here}\n"
                                 "default_md = sha256\npolicy = p\n[p]\ncommonName = supplied\n[req]\ndistinguished_name = n\n[n]\n")
    key, old = here / "router.key", here / "old.pem"

    def openssl(*args):
        subprocess.run(["openssl", *args], check=True, capture_output=True, timeout=60)
    openssl("req", "-new", "-key", key, "-subj", "/CN=localhost", "-config", here / "ca.cnf", "-out", here / "r.csr")
    openssl("ca", "-batch", "-config", here / "ca.cnf", "-selfsign", "-keyfile", key, "-in", here / "r.csr", "-out", old, "-notext",
            "-startdate", "20200101000000Z", "-enddate", "20200201000000Z")
    path = cluster.config("old", {"router": {"listen": "127.0.0.1:0", "listen_grpc": "127.0.0.1:0", "listen_admin": "127.0.0.1:0",
                                             "tls_cert_file": str(old), "tls_key_file": str(key)}})
    p = cluster.run("old", "cgn-router", "--config", path)
    assert p.wait() not in (0, -6, -11)
    assert "expired" in p.log() and str(old) in p.log(), p.log()

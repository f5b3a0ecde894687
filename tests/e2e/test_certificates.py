# SPDX-License-Identifier: Apache-2.0
"""Certificate reports of the programs, peer names in logs, and mutual authentication within a cluster."""
import datetime
import json
import os
import signal
import subprocess

import pytest

from cluster import WAIT_S, Cluster, ask, until
from kvpeers import CTL, Peer, bootstrap, rotate, security

KEY = 'cgn_tls_certificate_expiry_seconds{key="%s"}'
CONNECTED = 'cgn_state_connected{what="%s"}'


@pytest.fixture
def pki(tmp_path):
    return bootstrap(tmp_path / "pki", "router", "agent=agent@a", "kv", "admin")


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path) as c:
        yield c


def value(admin, series):
    """Return the value of a series, or None."""
    try:
        lines = ask(admin, "GET", "/metrics").body.decode().splitlines()
    except OSError:
        return None
    return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == series), None)


def is_value(admin, series, want):
    until(lambda: value(admin, series) == want, lambda: f"{series} is {value(admin, series)}, not {want}")


def nearly_over(pki, name, days):
    """Replace the certificate of |name| by one that is some months old and has |days| left. Returns its end
    in Unix seconds."""
    now = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    begin, end = now - datetime.timedelta(days=300), now + datetime.timedelta(days=days)
    (pki / "index.txt").write_text("")
    (pki / "ext").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    (pki / "ca.cnf").write_text(f"[ca]\ndefault_ca = d\n[d]\ndatabase = {pki}/index.txt\nnew_certs_dir = {pki}\nrand_serial = yes\n"
                                "default_md = sha256\npolicy = p\n[p]\ncommonName = supplied\n[req]\ndistinguished_name = n\n[n]\n")

    def openssl(*args):
        subprocess.run(["openssl", *map(str, args)], cwd=pki, check=True, capture_output=True, timeout=WAIT_S)
    openssl("req", "-new", "-key", f"{name}.key", "-subj", f"/CN={name}", "-config", "ca.cnf", "-out", "soon.csr")
    openssl("ca", "-batch", "-config", "ca.cnf", "-cert", "ca.pem", "-keyfile", "ca.key", "-in", "soon.csr", "-out", f"{name}.pem", "-notext",
            "-extfile", "ext", "-startdate", begin.strftime("%Y%m%d%H%M%SZ"), "-enddate", end.strftime("%Y%m%d%H%M%SZ"))
    return int(end.timestamp())


def test_a_certificate_that_ends_soon_is_told_of(cluster, pki, tmp_path):
    end = nearly_over(pki, "agent", 5)
    later = nearly_over(pki, "kv", 40)
    r = cluster.router({"security": {**security(pki, "agent"), "require_mtls": True},
                        "router": {"tls_cert_file": str(pki / "router.pem"), "tls_key_file": str(pki / "router.key")}})
    agent = cluster.node("a", sections={"security": {**security(pki, "agent"), "require_mtls": True}})
    kv = Peer(tmp_path, pki, "kv")
    try:
        for admin, program, want in ((cluster.admin_port, r, end), (agent.admin_port, agent.agent, end), (kv.admin, kv.process, later)):
            is_value(admin, KEY % "security.cert_file", want)
            said = program.events("svc.certificate_ends")
            assert [e["key"] for e in said] == (["security.cert_file"] if want == end else []), said
        said = r.events("svc.certificate_ends")[0]
        assert said["days"] in (4, 5)
        assert datetime.datetime.fromtimestamp(end, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC") == said["ends"]
        assert value(cluster.admin_port, KEY % "router.tls_cert_file") > later
        rotate(pki, "agent")  # for two days, which are its whole lifetime: not soon
        for admin, program in ((cluster.admin_port, r), (agent.admin_port, agent.agent)):
            program.signal(signal.SIGHUP)
            until(lambda: value(admin, KEY % "security.cert_file") not in (None, end), "the new certificate is told of")
            assert len(program.events("svc.certificate_ends")) == 1
    finally:
        kv.close()


def test_a_spoilt_certificate_is_refused_and_the_old_one_stays(cluster, pki):
    mine = {"security": {**security(pki, "agent"), "require_mtls": True}}
    cluster.router({"security": {**security(pki, "router"), "require_mtls": True}})
    agent = cluster.node("a", sections=mine)
    cluster.wait_ready()
    good = (pki / "agent.pem").read_bytes()
    (pki / "agent.pem").write_text("-----BEGIN CERTIFICATE-----\nnothing\n")
    agent.agent.signal(signal.SIGHUP)
    until(lambda: agent.agent.events("svc.reloaded_in_part"), agent.agent.log)
    assert "agent.pem" in str(agent.agent.events("agent.tls_reload")[0]["why"])
    assert not agent.agent.events("svc.reloaded")
    assert cluster.chat("hello").status == 200
    (pki / "agent.pem").write_bytes(good)
    agent.agent.signal(signal.SIGHUP)
    until(lambda: agent.agent.events("svc.reloaded"), agent.agent.log)
    assert cluster.chat("hello").status == 200


def only_named(folder, *leaves):
    """Sign leaves again that have one DNS name and their roles, and no address."""
    (folder / "index.txt").write_text("")
    for leaf, name, role in leaves:
        def openssl(*args):
            subprocess.run(["openssl", *map(str, args)], cwd=folder, check=True, capture_output=True, timeout=WAIT_S)
        (folder / "ext").write_text(f"subjectAltName=DNS:{name},URI:cognitora://cognitora/{role}/a\nextendedKeyUsage=serverAuth,clientAuth\n")
        openssl("req", "-new", "-key", f"{leaf}.key", "-subj", f"/CN={leaf}", "-out", "named.csr")
        openssl("x509", "-req", "-in", "named.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "ext", "-out", f"{leaf}.pem")


@pytest.mark.parametrize("name, serves", [("nodes.prod.svc", True), ("others.prod.svc", False)])
def test_one_name_stands_in_the_certificates_of_all_nodes(cluster, pki, name, serves):
    """security.node_name: the address of a node is not in its certificate, as that of a pod."""
    only_named(pki, ("agent", name, "agent"))
    cluster.router({"security": {**security(pki, "router"), "require_mtls": True, "node_name": "nodes.prod.svc"}})
    cluster.node("a", sections={"security": {**security(pki, "agent"), "require_mtls": True}})
    if serves:
        cluster.wait_ready()
        assert cluster.chat("hello").status == 200
    else:
        log = cluster.router_process.log
        until(lambda: [line for line in log().splitlines() if "nodes.prod.svc" in line and "certificate" in line], log)
        assert cluster.states().get("a") != "ready"


@pytest.mark.slow
def test_replaced_files_are_followed_without_a_signal(cluster, pki):
    """security.follow_files: pairs that fit count; a broken one changes nothing, and is read once."""
    mine = {**security(pki, "agent"), "require_mtls": True, "follow_files": True}
    cluster.router({"security": {**security(pki, "router"), "require_mtls": True}})
    agent = cluster.node("a", sections={"security": mine})
    cluster.wait_ready()
    end = nearly_over(pki, "agent", 5)
    is_value(agent.admin_port, KEY % "security.cert_file", end)
    assert agent.agent.events("svc.certificate_files_changed")
    good = (pki / "agent.pem").read_bytes()
    (pki / "agent.pem").write_text("-----BEGIN CERTIFICATE-----\nnothing\n")
    until(lambda: agent.agent.events("svc.reloaded_in_part"), agent.agent.log)
    assert cluster.chat("hello").status == 200
    (pki / "agent.pem").unlink()  # the moment between two files: nothing is read
    (pki / "agent.pem").write_bytes(good)
    until(lambda: len(agent.agent.events("svc.reloaded")) == 2, agent.agent.log)
    assert len(agent.agent.events("svc.reloaded_in_part")) == 1
    assert value(agent.admin_port, KEY % "security.cert_file") == end


def pki_ctl(*args, rc=0):
    done = subprocess.run([CTL, "pki", *map(str, args)], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == rc, done.stderr
    return done.stdout if rc == 0 else done.stderr


def test_a_revoked_agent_is_gone_and_cannot_return(cluster, tmp_path):
    pki = bootstrap(tmp_path / "pki", "router", "a", "b")
    pki_ctl("crl", "--renew", "--dir", pki)

    def mine(name):
        return {"security": {**security(pki, name), "require_mtls": True, "crl_file": f"{pki}/crl.pem"}, "cluster": {"lease": "1s"}}
    r = cluster.router(mine("router"))
    a, b = (cluster.node(name, sections=mine(name)) for name in ("a", "b"))
    cluster.wait_ready(2)
    assert cluster.metric("cgn_tls_crl_revoked") == 0 and cluster.metric("cgn_tls_crl_peers_total") == 0
    pki_ctl("revoke", "a", "--dir", pki)  # nobody is told: the programs see that the file changed
    assert "a.pem" in pki_ctl("show", "--dir", pki)
    until(lambda: list(cluster.states()) == ["b"], cluster.states)
    assert cluster.metric("cgn_tls_crl_revoked") == 1 and r.events("svc.crl_taken")[0]["revoked"] == 1
    assert cluster.chat("hello", max_tokens=1).headers["x-cgn-node"] == "b"
    before = cluster.metric("cgn_tls_crl_peers_total")
    until(lambda: cluster.metric("cgn_tls_crl_peers_total") > before, "it tries again, and is refused")
    assert list(cluster.states()) == ["b"] and "revoked" in str(a.agent.log())
    assert b.agent.alive() and not b.agent.events("tls.revoked")


def test_the_command_refuses_a_revoked_server(cluster, tmp_path, monkeypatch):
    """gRPC and the gateway, by flag and by context; the message names the list. Without a list nothing can be known. test_admin_port.py asks
    an admin port."""
    pki = bootstrap(tmp_path / "pki", "router", "admin")
    pki_ctl("crl", "--renew", "--dir", pki)
    monkeypatch.setenv("CGN_CONTEXTS", str(tmp_path / "contexts.toml"))
    cluster.router({"security": {**security(pki, "router"), "require_mtls": True},
                    "router": {"tls_cert_file": f"{pki}/router.pem", "tls_key_file": f"{pki}/router.key"}})
    router = ("--router", f"127.0.0.1:{cluster.grpc_port}")
    gate = ("bench", "chat", "--url", f"https://127.0.0.1:{cluster.http_port}")
    files, crl = ("--ca", pki / "ca.pem", "--cert", pki / "admin.pem", "--key", pki / "admin.key"), ("--crl", pki / "crl.pem")

    def run(*args):
        return subprocess.run([CTL, *map(str, args)], capture_output=True, text=True, timeout=WAIT_S)
    asks = [("cluster", "status", *router, *files), ("model", "ls", *router, *files), ("explain", *router, *files), (*gate, "--ca", pki / "ca.pem")]
    until(lambda: run(*asks[0]).returncode == 0, lambda: run(*asks[0]).stderr)
    good = [run(*ask, *crl) for ask in asks]
    assert not [r for r in good if "revoked" in r.stderr]
    assert [r.returncode for r in good[:3]] == [0] * 3, good
    assert run("context", "set", "prod", *router, *files, *crl).returncode == 0
    assert json.loads(run("context", "show", "prod", "-o", "json").stdout)["crl"] == str(pki / "crl.pem")
    assert run("cluster", "status", "--context", "prod").returncode == 0
    pki_ctl("revoke", "router", "--dir", pki)
    for ask in (*((*ask, *crl) for ask in asks), ("cluster", "status", "--context", "prod")):
        r = run(*ask)
        assert r.returncode != 0 and "is revoked" in r.stderr and str(pki / "crl.pem") in r.stderr, (ask, r)
        assert r.stdout == "", (ask, r.stdout)
    assert all(run(*ask).returncode == 0 for ask in asks[:3])
    for ask in asks:
        alone = [x for x in ask if x not in ("--ca", pki / "ca.pem")]
        r = run(*alone, *crl, *(("--context", "") if "--router" in ask else ()))
        assert r.returncode == 2 and "needs --ca" in r.stderr, (ask, r)
    none = run(*asks[0], "--crl", tmp_path / "none.pem")
    assert none.returncode != 0 and "none.pem" in none.stderr and "pki crl" in none.stderr, none


def test_a_bad_revocation_list_is_refused_and_the_old_one_stays(cluster, tmp_path):
    pki = bootstrap(tmp_path / "pki", "router", "a")
    pki_ctl("crl", "--renew", "--dir", pki)
    pki_ctl("revoke", "a", "--dir", pki)
    good = (pki / "crl.pem").read_bytes()
    own = {"security": {**security(pki, "router"), "require_mtls": True, "crl_file": f"{pki}/crl.pem"}}
    r = cluster.router(own)
    strange = bootstrap(tmp_path / "strange", "a")
    pki_ctl("crl", "--renew", "--dir", strange)
    (pki / "crl.pem").write_bytes((strange / "crl.pem").read_bytes())
    r.signal(signal.SIGHUP)
    until(lambda: r.events("svc.reloaded_in_part"), r.log)
    assert "not signed by an authority of" in r.events("svc.crl_refused")[0]["why"] and "crl --renew" in r.events("svc.crl_refused")[0]["do"]
    assert cluster.metric("cgn_tls_crl_failures_total") >= 1 and cluster.metric("cgn_tls_crl_revoked") == 1
    (pki / "crl.pem").write_bytes(good)
    r.signal(signal.SIGHUP)
    until(lambda: r.events("svc.reloaded"), r.log)
    assert "there is no list" in pki_ctl("crl", "--dir", tmp_path, rc=1)


def test_a_ca_is_replaced_while_all_goes_on(cluster, tmp_path):
    """Three steps; after each one every program has its files, and requests are served throughout."""
    pki = bootstrap(tmp_path / "pki", "router", "a", "gone", "late")
    pki_ctl("revoke", "gone", "--dir", pki)
    (tmp_path / "late.pem").write_bytes((pki / "late.pem").read_bytes())
    gone = {suffix: (pki / f"gone.{suffix}").read_bytes() for suffix in ("pem", "key")}

    def mine(name):
        return {"security": {**security(pki, name), "require_mtls": True, "crl_file": f"{pki}/crl.pem"}}
    r = cluster.router(mine("router"))
    a = cluster.node("a", "--time-scale", "0", sections=mine("a"))
    cluster.wait_ready(1)
    assert "first --ca prepare" in pki_ctl("rotate", "--ca", "switch", "--dir", pki, rc=1)
    for i, step in enumerate(("prepare", "switch", "finish")):
        pki_ctl("rotate", "--ca", step, "--dir", pki)
        if step == "switch":  # the last CA's certificates can still be revoked
            pki_ctl("revoke", tmp_path / "late.pem", "--dir", pki)
            assert [row["revoked"] for row in json.loads(pki_ctl("crl", "--dir", pki, "-o", "json"))] == [0, 2]
        for p in (r, a.agent):
            p.signal(signal.SIGHUP)
            until(lambda p=p, i=i: len(p.events("svc.reloaded")) == i + 1, p.log)
        assert cluster.chat("hello", max_tokens=1).status == 200
        assert (pki / "ca.pem").read_text().count("BEGIN") == (1 if step == "finish" else 2)
    assert not (pki / "old").exists() and not (pki / "next").exists()
    shown = pki_ctl("show", "--dir", pki)
    assert "cluster CA 2" in shown and list(cluster.states()) == ["a"]
    # What the old CA signed is refused, revoked or not.
    for suffix, content in gone.items():
        (pki / f"gone.{suffix}").write_bytes(content)
    done = subprocess.run([CTL, "cluster", "status", "--router", f"127.0.0.1:{cluster.grpc_port}", "--ca", pki / "ca.pem", "--cert", pki / "gone.pem", "--key",
                           pki / "gone.key"], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 4 and "alert" in done.stderr, done


def test_who_ordered_it_is_in_the_log(cluster, pki):
    r = cluster.router({"security": {**security(pki, "router"), "require_mtls": True}})
    cluster.node("a", sections={"security": {**security(pki, "agent"), "require_mtls": True}})
    until(lambda: cluster.states().get("a") == "ready", "the node is ready")

    def ctl(*args):
        subprocess.run([CTL, "cluster", *args, "--router", f"127.0.0.1:{cluster.grpc_port}", "--ca", pki / "ca.pem", "--cert", pki / "admin.pem", "--key",
                        pki / "admin.key"], check=True, capture_output=True, timeout=WAIT_S)
    ctl("cordon", "a")
    ctl("set-policy", "--policy", "random")
    (cordon,), (policy,) = r.events("router.cordon"), r.events("router.set_policy")
    assert cordon["node"] == "a" and cordon["by"] == policy["by"] == "admin"
    assert cordon["from"].startswith("127.0.0.1:") and policy["from"].startswith("127.0.0.1:")


def test_whether_the_cluster_answers(cluster, pki, tmp_path):
    """Of the router, of an agent, and of a store."""
    agent = cluster.node("a")
    is_value(agent.admin_port, CONNECTED % "registration", 0)
    kv = Peer(tmp_path, pki, "kv", sections={"cluster": {"router": f"127.0.0.1:{cluster.grpc_port}"}, "security": security(pki, "kv")})
    try:
        is_value(kv.admin, CONNECTED % "stores", 0)
        router = cluster.router()
        is_value(cluster.admin_port, CONNECTED % "members", 1)
        is_value(agent.admin_port, CONNECTED % "registration", 1)
        assert value(kv.admin, CONNECTED % "stores") == 0  # the store speaks TLS, the router does not
        router.kill()
        os.remove(cluster.folder / "router.toml")
        is_value(agent.admin_port, CONNECTED % "registration", 0)
        cluster.router({"security": security(pki, "router")})
        is_value(kv.admin, CONNECTED % "stores", 1)
    finally:
        kv.close()

# SPDX-License-Identifier: Apache-2.0
"""An admin port that other machines reach: TLS, certificates and keys, limits for wrong keys, and pages of other sites."""
import json
import os
import shutil
import signal
import subprocess

import pytest

from cluster import BUILD, WAIT_S, Within, audited, toml, until
from kvpeers import CTL, bootstrap, security

HOST = "10.99.0.1"
OTHER = "10.99.0.2"  # another machine
PAGE = ("-H", "x-cgn-page: 1")


def ip(*args):
    return subprocess.run(["ip", *args], capture_output=True, text=True).returncode == 0


@pytest.fixture(scope="module")
def network():
    """A network namespace in which the programs have addresses that are not of loopback."""
    name = f"cgn-admin-{os.getpid()}"
    if os.geteuid() != 0 or not ip("netns", "add", name):
        pytest.skip("no network namespaces here")
    ok = all(ip("-n", name, "addr", "add", f"{a}/32", "dev", "lo") for a in (HOST, OTHER)) and ip("-n", name, "link", "set", "lo", "up")
    yield name
    ip("netns", "del", name)
    assert ok


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    subprocess.run([CTL, "pki", "bootstrap", "--out", folder, "--san", HOST, "--leaf", "router", "--leaf", "admin", "--leaf", "bob=viewer", "--leaf", "metrics",
                    "--leaf", "bare=none", "--leaf", "relay=metrics+viewer+operator", "--leaf", "looks=looks", "--leaf", "shifts=shifts"], check=True, capture_output=True, timeout=WAIT_S)
    bootstrap(folder / "foreign", "admin")
    for name, *flags in (("operator", "--scopes", "admin"), ("caller", "--scopes", "chat"), ("ended", "--scopes", "admin", "--expires", "2020-01-01"),
                         ("locked", "--scopes", "admin"), ("looker", "--scopes", "admin", "--role", "viewer"), ("nobody", "--scopes", "admin", "--role", "none-such")):
        made = subprocess.run([CTL, "key", "create", "--file", folder / "keys", "--name", name, *flags, "-o", "json"], check=True, capture_output=True, text=True)
        (folder / f"{name}.secret").write_text(json.loads(made.stdout)["key"])
        if name == "locked":
            subprocess.run([CTL, "key", "lock", json.loads(made.stdout)["id"], "--file", folder / "keys"], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def port(network, pki, tmp_path_factory):
    folder = tmp_path_factory.mktemp("router")
    config = {"router": {"listen": "127.0.0.1:8080", "listen_grpc": "127.0.0.1:9090", "listen_admin": f"{HOST}:9091", "worker_threads": 1},
              "cluster": {"state_dir": str(folder)}, "log": {"format": "json"},
              "security": {**security(pki, "router"), "admin_keys_file": str(pki / "keys"), "audit_file": str(folder / "audit.jsonl")}}
    (folder / "router.toml").write_text(toml(config))
    p = Within(network, folder, "router", "cgn-router", "--config", folder / "router.toml")
    p.audit, p.config, p.pki, p.network = folder / "audit.jsonl", folder / "router.toml", pki, network
    until(lambda: p.events("svc.ready") or not p.alive(), p.log)
    yield p
    p.stop()
    assert not p.trouble(), p.trouble()


def secret(pki, name):
    return (pki / f"{name}.secret").read_text()


def curl(port, path, *args, since=OTHER):
    """Ask from another address; return status, head and body."""
    done = subprocess.run(["ip", "netns", "exec", port.network, "curl", "-sS", "-i", "-m", "10", "--interface", since, "--cacert", port.pki / "ca.pem", *args,
                           f"https://{HOST}:9091{path}"], capture_output=True, text=True, timeout=WAIT_S)
    if done.returncode:
        return 0, "", done.stderr
    head, _, body = done.stdout.replace("\r\n", "\n").partition("\n\n")
    return int(head.split()[1]), head.lower(), body


def cert(pki, name):
    return "--cert", pki / f"{name}.pem", "--key", pki / f"{name}.key"


def bearer(key):
    return "-H", f"Authorization: Bearer {key}"


def test_the_page_of_several_routers_lends_nobody_its_certificate(port, pki, tmp_path):
    """cgn-metrics may cordon at the router; a caller of it who may not, may not through it either."""
    file = tmp_path / "metrics.toml"
    file.write_text(toml({"metrics": {"listen": f"{OTHER}:9092", "routers": [f"here=https://{HOST}:9091"], "routers_ca_file": str(pki / "ca.pem")},
                          "log": {"format": "json"}, "security": security(pki, "relay"),
                          'roles."looks"': {"allow": ["status.read", "admin.change"]},
                          'roles."shifts"': {"allow": ["status.read", "admin.change", "node.cordon:a*"]}}))
    p = Within(port.network, tmp_path, "metrics", "cgn-metrics", "--config", file)
    until(lambda: p.events("svc.ready") or not p.alive(), p.log)

    def ask(who, path, *args):
        done = subprocess.run(["ip", "netns", "exec", port.network, "curl", "-sS", "-m", "10", "-k", "-w", " %{http_code}", *cert(pki, who), *args,
                               f"https://{OTHER}:9092/routers/here{path}"], capture_output=True, text=True, timeout=WAIT_S)
        body, _, status = done.stdout.rpartition(" ")
        return int(status), body
    try:
        for who, path, args, lacks in (("looks", "/explain?last=1", (), "explain.read"), ("looks", "/metrics", (), "metrics.read"),
                                       ("looks", "/nodes/a/cordon", ("-X", "POST", *PAGE), "node.cordon:a"),
                                       ("shifts", "/nodes/b/cordon", ("-X", "POST", *PAGE), "node.cordon:b"),
                                       ("shifts", "/nodes/%62/cordon", ("-X", "POST", *PAGE), "node.cordon:b"),
                                       ("looks", "/playground/v1/chat/completions", ("-X", "POST", *PAGE), "playground.use")):
            status, body = ask(who, path, *args)
            assert status == 403 and f"lacks the permission {lacks}" in body, (who, path, status, body)
        assert ask("looks", "/nodes")[0] == 200
        status, body = ask("shifts", "/nodes/a/cordon", "-X", "POST", *PAGE)
        assert status == 404 and "no_node" in body, body  # the router itself was asked
        assert ask("admin", "/explain?last=1")[0] == 200 and ask("admin", "/metrics")[0] == 200
    finally:
        p.stop()


ROUTES = {"/": "status.read", "/nodes": "status.read", "/metrics": "metrics.read", "/config": "config.read", "/config.json": "config.read",
          "/explain": "explain.read", "/page/": "status.read", "/nothing/here": "status.read"}


def test_whoever_shows_nothing_learns_nothing(port):
    for path in ROUTES:
        status, head, body = curl(port, path)
        assert status == 401 and 'www-authenticate: basic realm=' in head and "www-authenticate: bearer" in head, (path, head)
        assert "cgn_" not in body and "x-frame-options: deny" in head
    assert curl(port, "/nodes/a/cordon", "-X", "POST", *PAGE)[0] == 401
    for path in ("/healthz", "/version"):
        assert curl(port, path)[0] == 200
    assert curl(port, "/readyz")[0] in (200, 503)
    plain = subprocess.run(["ip", "netns", "exec", port.network, "curl", "-sS", "-m", "5", f"http://{HOST}:9091/healthz"], capture_output=True, text=True)
    assert plain.returncode != 0, plain


@pytest.mark.parametrize("name, lacks", [("admin", ()), ("bob", ()), ("metrics", ("config.read", "explain.read")), ("router", ("metrics.read", "config.read", "explain.read")),
                                         ("bare", set(ROUTES.values()))])
def test_a_certificate_has_its_roles(port, pki, name, lacks):
    for path, action in ROUTES.items():
        status, _, body = curl(port, path, *cert(pki, name))
        assert (status == 403) == (action in lacks), (name, path, status, body)
        assert status != 401 and (status != 403 or f"lacks the permission {action}" in body), body


def test_a_foreign_certificate_gets_no_connection(port, pki):
    status, _, why = curl(port, "/nodes", *cert(pki / "foreign", "admin"))
    assert status in (0, 401), why  # TLS 1.3 tells the client after its first request, or curl withholds the certificate


def test_a_key_with_the_scope_admin(port, pki):
    operator, caller = secret(pki, "operator"), secret(pki, "caller")
    assert curl(port, "/nodes", *bearer(operator))[0] == 200
    assert curl(port, "/config", "-u", f"anybody:{operator}")[0] == 200
    status, _, body = curl(port, "/nodes", *bearer(caller))
    assert status == 403 and "lacks the permission status.read" in body and caller not in body
    assert operator not in curl(port, "/config", *bearer(operator))[2]


def test_a_key_that_has_ended_or_is_locked_counts_for_nothing(port, pki):
    for name in ("ended", "locked"):
        status, _, body = curl(port, "/nodes", *bearer(secret(pki, name)))
        assert status == 401 and secret(pki, name) not in body, (name, body)


def test_a_key_with_a_role_has_that_role_only(port, pki):
    looker, nobody = bearer(secret(pki, "looker")), bearer(secret(pki, "nobody"))
    assert curl(port, "/nodes", *looker)[0] == 200
    assert curl(port, "/nodes/a/cordon", "-X", "POST", *PAGE, *looker)[0] == 403
    assert curl(port, "/nodes", *nobody)[0] == 403


def test_changes_need_the_right_and_the_page(port, pki):
    order = ("/nodes/a/cordon", "-X", "POST")
    assert curl(port, *order, *PAGE, *cert(pki, "bob"))[0] == 403
    operator = cert(pki, "admin")
    assert "not_the_page" in curl(port, *order, *operator)[2]
    assert "no_node" in curl(port, *order, *PAGE, *operator)[2]
    assert "no_node" in curl(port, *order, *PAGE, *operator, "-H", f"Origin: https://{HOST}:9091", "-H", "Sec-Fetch-Site: same-origin")[2]
    for foreign in ("Origin: https://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site"):
        assert "another_site" in curl(port, *order, *PAGE, *operator, "-H", foreign)[2], foreign
    audited(port.audit, "node.cordon", name="bob", by="certificate")
    audited(port.audit, "admin.request", name="admin", decision="refused")


def test_our_own_tools_show_a_certificate_or_a_key(port, pki):
    def show(*flags, **env):
        return subprocess.run(["ip", "netns", "exec", port.network, BUILD / "src/ctl/cgn-ctl", "config", "show", "--admin", f"{HOST}:9091", "--ca", pki / "ca.pem",
                               *flags], capture_output=True, text=True, timeout=WAIT_S, env={**os.environ, **env})
    assert "[security]" in show(*cert(pki, "admin")).stdout
    assert "[security]" in show(CGN_API_KEY=secret(pki, "operator")).stdout
    refused = show(*cert(pki, "bare"))
    assert refused.returncode != 0 and "lacks the permission config.read" in refused.stderr, refused


def test_wrong_keys_are_judged_rarely(port, pki):
    """From one address; another one does not notice."""
    said = [curl(port, "/nodes", *bearer(f"cgn-{n}"), since=HOST) for n in range(14)]
    assert said[0][0] == 401 and said[-1][0] == 429 and "retry-after: " in said[-1][1], said[-1]
    assert curl(port, "/nodes", *bearer(secret(pki, "operator")), since=HOST)[0] == 429
    assert curl(port, "/nodes", *cert(pki, "admin"), since=HOST)[0] == 200
    assert curl(port, "/nodes", *bearer(secret(pki, "operator")))[0] == 200


def test_a_key_is_taken_away_by_a_reload(port, pki):
    operator, keys = secret(pki, "operator"), pki / "keys"
    text = keys.read_text()
    keys.write_text("".join(x for x in text.splitlines(True) if " operator" not in x))
    os.kill(port.popen.pid, signal.SIGHUP)
    until(lambda: curl(port, "/nodes", *bearer(operator))[0] in (401, 429), port.log)
    keys.write_text("nonsense\n")
    os.kill(port.popen.pid, signal.SIGHUP)
    until(lambda: port.events("login.refused"), port.log)
    keys.write_text(text)
    os.kill(port.popen.pid, signal.SIGHUP)
    until(lambda: curl(port, "/nodes", *cert(pki, "admin"))[0] == 200 and len(port.events("svc.reloaded")) >= 2, port.log)


def test_the_command_refuses_a_revoked_server(port, network, tmp_path):
    pki = shutil.copytree(port.pki, tmp_path / "pki")
    subprocess.run([CTL, "pki", "crl", "--renew", "--dir", pki], check=True, capture_output=True, timeout=WAIT_S)

    def run(*args):
        return subprocess.run(["ip", "netns", "exec", network, CTL, *map(str, args)], capture_output=True, text=True, timeout=WAIT_S)
    files = ("--admin", f"{HOST}:9091", "--ca", pki / "ca.pem", "--cert", pki / "admin.pem", "--key", pki / "admin.key")
    asks = [("config", "show", *files), ("usage", *files), ("tenant", "ls", *files), ("key", "ls", "--file", pki / "keys", *files)]
    assert [run(*ask, "--crl", pki / "crl.pem").returncode for ask in asks] == [0] * len(asks)
    subprocess.run([CTL, "pki", "revoke", "router", "--dir", pki], check=True, capture_output=True, timeout=WAIT_S)
    for ask in asks:
        r = run(*ask, "--crl", pki / "crl.pem")
        assert r.returncode != 0 and "is revoked" in r.stderr and str(pki / "crl.pem") in r.stderr and r.stdout == "", (ask, r)
        assert run(*ask).returncode == 0
    alone = run("config", "show", "--admin", f"{HOST}:9091", "--crl", pki / "crl.pem")
    assert alone.returncode == 2 and "needs --ca" in alone.stderr, alone

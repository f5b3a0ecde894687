# SPDX-License-Identifier: Apache-2.0
"""A peer cluster with the right certificate and bad intentions: tenants that no list names, tenants of the other cluster, and tenants without number.

And machines and people of that cluster, whose certificates are not a router's."""
import contextlib

import pytest

import http.client
import json
import ssl

from cluster import WAIT_S, Answer, until
from test_federation import FAST, Fed
from test_limits import key
from test_load import ctl


def ask_gate(fed, x, y, tenant, path="/v1/chat/completions", text="hello", connection=None, model="sim", leaf="router", method="POST", fields=None):
    """Ask the port of |y| for |x| as |x| would, for any tenant; or with the certificate |leaf|, or |fields| instead of a router's."""
    c = connection or connect(fed, x, y, leaf)
    body = json.dumps({"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": text}]}).encode() if method == "POST" else b""
    if fields is None:
        fields = [("X-Cgn-Via", x), *([("X-Cgn-Tenant", tenant)] if tenant is not None else [])]
    c.putrequest(method, path)
    for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(body))), *fields):
        c.putheader(name, value)
    c.endheaders(body)
    r = c.getresponse()
    a = Answer(r.status, r.getheaders(), r.read())
    if connection is None:
        c.close()
    return a


def connect(fed, x, y, leaf="router"):
    ctx = ssl.create_default_context(cafile=str(fed.pki[y] / "ca.pem"))
    ctx.load_cert_chain(fed.pki[x] / f"{leaf}.pem", fed.pki[x] / f"{leaf}.key")
    return http.client.HTTPSConnection("localhost", fed.gates[x, y], timeout=WAIT_S, context=ctx)


def world(stack, folder, rows, **sections):
    fed = Fed(stack, folder)
    fed.add("a", "b")
    fed.link("a", "b")
    fed.rows["b"]['peers."a"']["accepts_tenants"] = rows
    fed.acme = key(fed.c["b"].folder, "one", "acme")
    fed.start("b", FAST, auth={"enabled": True, "api_keys_file": str(fed.c["b"].folder / "keys")}, **sections)
    return fed


@pytest.fixture(scope="module")
def fed(tmp_path_factory):
    with contextlib.ExitStack() as stack:
        yield world(stack, tmp_path_factory.mktemp("peers"), ["partner=acme", "lab-*"])


LEAVES = {"agent": "agent", "operator": "operator", "admin": "admin", "kvcached": "kvcached", "user": "user", "none": "bare=none",
          "both": "both=agent+router", "named": "router-1=agent@router"}


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """A peer whose cluster has a name of its own, and a certificate of each kind."""
    with contextlib.ExitStack() as stack:
        folder = tmp_path_factory.mktemp("strangers")
        fed = Fed(stack, folder)
        fed.add("a", "b")
        fed.pki["a"] = folder / "a" / "virginia"
        ctl("pki", "bootstrap", "--out", fed.pki["a"], "--name", "virginia", "--leaf", "router", *(x for leaf in LEAVES.values() for x in ("--leaf", leaf)))
        fed.link("a", "b")
        fed.rows["b"]['peers."a"']["accepts_tenants"] = ["acme=acme"]
        fed.audit = folder / "audit.jsonl"
        fed.start("b", FAST, security={"audit_file": str(fed.audit)})
        yield fed


@pytest.mark.parametrize("leaf", ["agent", "operator", "admin", "kvcached", "user", "bare", "router-1"])
def test_only_a_router_of_the_peer_counts_as_the_peer(strangers, leaf):
    """A machine or a person of the peer's cluster has a certificate of its CA, but does not speak for the cluster."""
    for method, path in (("POST", "/v1/chat/completions"), ("GET", "/healthz"), ("GET", "/federation/v1/summary"), ("GET", "/v1/models")):
        a = ask_gate(strangers, "a", "b", "acme", path, leaf=leaf, method=method)
        assert a.status == 403 and a.json()["error"]["code"] == "not_a_router", (path, a.status, a.body)
        assert "role router" in a.json()["error"]["message"], a.body

    def noted():
        log = strangers.audit.with_name(strangers.audit.name + ".refused")
        return [e for e in map(json.loads, log.read_text().splitlines()) if e.get("why") == "not_a_router"] if log.exists() else []
    lines = until(lambda: [e for e in noted() if e["object"] == "POST /v1/chat/completions"], "it is in the audit log")
    assert {e["by"] for e in lines} == {"certificate"} and all(e["name"] for e in lines), lines


@pytest.mark.parametrize("leaf", ["router", "both"])
def test_a_router_of_the_peer_works_whatever_its_cluster_is_called(strangers, leaf):
    assert ask_gate(strangers, "a", "b", "acme", leaf=leaf).status == 200
    assert ask_gate(strangers, "a", "b", None, "/healthz", leaf=leaf, method="GET", fields=[]).status == 200


def test_no_request_leaves_for_a_machine_that_is_no_router(tmp_path):
    """An agent of the peer has the port and the host name of its router, in a cluster named router."""
    with contextlib.ExitStack() as stack:
        fed = Fed(stack, tmp_path)
        fed.add("a", "b")
        fed.pki["b"] = tmp_path / "b" / "router"
        ctl("pki", "bootstrap", "--out", fed.pki["b"], "--name", "router", "--leaf", "router", "--leaf", "agent")
        fed.link("a", "b")
        gate = fed.rows["b"]['peers."a"']
        fed.rows["b"]['peers."a"'] = gate | {n: str(fed.pki["b"] / f"agent.{end}") for n, end in (("cert_file", "pem"), ("key_file", "key"))}
        fed.start("b", FAST)
        fed.start("a")
        until(lambda: fed.c["a"].metric("cgn_federation_summaries_total", outcome="failed") > 0, lambda: fed.peer("a", "b"))
        assert fed.peer("a", "b")["state"] == "lost" and fed.c["a"].chat("hello", max_tokens=1).status == 503
        assert not fed.c["b"].router_process.events("gateway.request")


@pytest.mark.parametrize("fields", [
    [("X-Cgn-Via", "a"), ("X-Cgn-Tenant", "acme"), ("X-Cgn-Tenant", "acme")],
    [("X-Cgn-Via", "a"), ("X-Cgn-Tenant", "acme"), ("x-cgn-tenant", "partner")],
    [("X-Cgn-Via", "a"), ("X-Cgn-Tenant", "acme"), ("X-Cgn-Tenant", "")],
    [("X-Cgn-Via", "a"), ("X-Cgn-Via", "b"), ("X-Cgn-Tenant", "acme")],
    [("X-Cgn-Via", ""), ("X-Cgn-Tenant", "acme")],
    [("X-Cgn-Tenant", "acme")],
], ids=["twice", "two", "empty", "vias", "no-cluster", "no-via"])
def test_fields_that_no_router_sends_are_refused(strangers, fields):
    a = ask_gate(strangers, "a", "b", None, fields=fields)
    assert a.status == 400 and a.json()["error"]["code"] == "invalid_header", (a.status, a.body)


@pytest.mark.parametrize("tenant", ["acme", "root", "", None, "-", "a/acme", "LAB-1", "lab"])
def test_a_tenant_that_no_list_names_is_refused(fed, tenant):
    a = ask_gate(fed, "a", "b", tenant)
    assert a.status == 421 and a.json()["error"]["code"] == "tenant_not_accepted", (a.status, a.body)


def test_empty_lists_let_nobody_in(tmp_path):
    with contextlib.ExitStack() as stack:
        fed = world(stack, tmp_path, [])
        for tenant in ("acme", "-", "x"):
            assert ask_gate(fed, "a", "b", tenant).status == 421


def cached(a):
    return a.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_peers_tenants_find_no_cache_of_ours_unless_mapped(fed):
    """The prompt of acme is cached. The peer's lab-1 does not find it, whatever it is called there; its partner, which the operator mapped, does."""
    text = "a secret of acme " * 100
    chat = {"model": "sim", "max_tokens": 1, "messages": [{"role": "user", "content": text}]}
    assert fed.c["b"].ask("POST", "/v1/chat/completions", chat, fed.acme).status == 200
    again = fed.c["b"].ask("POST", "/v1/chat/completions", chat, fed.acme)
    assert cached(again) > 100
    assert cached(ask_gate(fed, "a", "b", "lab-1", text=text)) == 0
    assert cached(ask_gate(fed, "a", "b", "partner", text=text)) == cached(again)
    lines = fed.requests("b", 4)
    told = sorted((e["from"], e["tenant"]) for e in lines[-2:])  # two workers write lines in any order
    assert told == [("a", "a/lab-1"), ("a", "acme")], lines


def test_a_peers_models_are_those_of_the_list(fed):
    assert ask_gate(fed, "a", "b", "lab-1", model="other").status == 404
    assert ask_gate(fed, "a", "b", "lab-1").status == 200


def test_invented_tenants_make_no_series(fed):
    """300 tenants that the pattern fits are one row in /metrics and in the usage."""
    def tenants():
        return {x for x in fed.c["b"].scrape().splitlines() if "lab-" in x}
    assert ask_gate(fed, "a", "b", "lab-first").status == 200
    before = {x.rpartition(" ")[0] for x in tenants()}
    c = connect(fed, "a", "b")
    for i in range(300):
        assert ask_gate(fed, "a", "b", f"lab-{i}", connection=c).status == 200
    c.close()
    after = {x.rpartition(" ")[0] for x in tenants()}
    assert after == before and all("a/lab-*" in x for x in after), after ^ before


def test_no_key_has_the_name_of_a_peers_tenant(tmp_path):
    with contextlib.ExitStack() as stack:
        fed = Fed(stack, tmp_path)
        fed.add("a", "b")
        fed.link("a", "b")
        mine, other = key(fed.c["b"].folder, "one", "a/lab-1"), key(fed.c["b"].folder, "two", "x/lab-1")
        fed.start("b", FAST, auth={"enabled": True, "api_keys_file": str(fed.c["b"].folder / "keys")})
        a = fed.c["b"].chat("hello", mine)
        assert a.status == 403 and a.json()["error"]["code"] == "tenant_of_a_peer", a.body
        assert fed.c["b"].chat("hello", other).status == 200

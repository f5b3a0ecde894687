# SPDX-License-Identifier: Apache-2.0
"""A peer cluster with the right certificate and bad intentions: tenants that no list names, tenants of the other cluster, and tenants without number."""
import contextlib

import pytest

import http.client
import json
import ssl

from cluster import WAIT_S, Answer
from test_federation import FAST, Fed
from test_limits import key


def ask_gate(fed, x, y, tenant, path="/v1/chat/completions", text="hello", connection=None, model="sim"):
    """Ask the port of |y| for |x| as |x| would, for any tenant."""
    c = connection or connect(fed, x, y)
    body = json.dumps({"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": text}]})
    c.request("POST", path, body, {"Content-Type": "application/json", **({"X-Cgn-Tenant": tenant} if tenant is not None else {})})
    r = c.getresponse()
    a = Answer(r.status, r.getheaders(), r.read())
    if connection is None:
        c.close()
    return a


def connect(fed, x, y):
    ctx = ssl.create_default_context(cafile=str(fed.pki[y] / "ca.pem"))
    ctx.load_cert_chain(fed.pki[x] / "router.pem", fed.pki[x] / "router.key")
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

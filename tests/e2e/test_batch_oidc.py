# SPDX-License-Identifier: Apache-2.0
"""Batches that the holder of a provider's token made: carried out in the holder's name when the token has ended, and when the router was restarted."""
import time

import pytest

from cluster import ask, until
from issuer import Issuer
from test_batch import create, ended, get, jsonl, line, results, upload
from test_oidc import FAST, auth


@pytest.fixture
def house(cluster, tmp_path):
    """Return an identity provider with one key, and what starts the router with it."""
    (tmp_path / "keys").write_text("")
    issuer = Issuer(tmp_path)
    issuer.key("ES256")

    def begin(**more):
        asks = {k: v for k, v in {**auth(issuer, tmp_path, oidc_clock_skew="0s"), **more}.items() if v is not None}
        cluster.router({"batch": {"enabled": True}, "auth": asks, "security": {"audit_file": str(tmp_path / "audit.jsonl")},
                        'roles."students"': {"allow": ["model.use:s*"]},
                        'claims."1-acme"': {"claim": "groups", "value": "acme", "tenant": "acme", "role": "students", "limits": "rps=1000,50tokens/day"}})
    yield cluster, issuer, begin
    issuer.close()


def bearer(issuer, seconds=600, **claims):
    token = issuer.token(issuer.keys[0], issuer.claims(exp=int(time.time()) + seconds, **claims))
    return {"Authorization": f"Bearer {token}"}


def let_in(c, who):
    until(lambda: c.ask("GET", "/v1/files", headers=who).status == 200, c.logs)


def asked(c):
    return [e for e in c.router_process.events("gateway.request") if e["path"] == "/v1/chat/completions" and e["status"] == 200]


@pytest.mark.slow
def test_a_batch_runs_in_its_makers_name_after_the_token_has_ended(house):
    c, issuer, begin = house
    begin()
    later = bearer(issuer, groups=["acme"])
    let_in(c, later)
    first = bearer(issuer, 12, groups=["acme"])
    batch = create(c, jsonl([line(1), line(2), line(3, model="llama")]), first)
    # No node answers, so that its lines wait until the token has ended; kill -9 meanwhile.
    until(lambda: c.ask("GET", "/v1/files", headers=first).status == 401, "the token has ended")
    assert get(c, batch, later)["status"] in ("validating", "in_progress")
    c.router_process.kill()
    secret = first["Authorization"].split()[1].split(".")[2]
    for path in c.state_dir.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    begin()
    c.node("a", *FAST)  # One node: while another one alone is known, a line for this one's model would find no such model.
    c.wait_ready()
    let_in(c, later)
    done = ended(c, batch, later)
    assert done["status"] == "completed" and done["request_counts"] == {"total": 3, "completed": 2, "failed": 1}, done
    good, bad = results(c, done, later)
    assert sorted(r["custom_id"] for r in good) == ["line-1", "line-2"] and bad[0]["response"]["status_code"] == 404, bad
    assert {(e["tenant"], e["key"].split("~")[0]) for e in asked(c)} == {("acme", "ann")}
    # The limits are those of the token, and count together with what the holder asks now.
    usage = until(lambda: [u for u in ask(c.admin_port, "GET", "/usage?by=key").json()["usage"] if u["key"].startswith("ann~") and u["requests"] >= 2], c.logs)
    assert usage[0]["requests"] == 2
    over = c.chat("more", later, max_tokens=60)
    assert over.status == 429 and over.json()["error"]["code"] == "insufficient_quota", over.body


def test_a_batch_is_its_tenants_and_anothers_token_does_not_see_it(house):
    c, issuer, begin = house
    begin()
    c.node("a", *FAST)
    c.wait_ready()
    ann, bob = bearer(issuer), bearer(issuer, sub="bob")
    let_in(c, ann)
    batch = create(c, jsonl([line(1)]), ann)
    assert ended(c, batch, ann)["status"] == "completed"
    assert c.ask("GET", f"/v1/batches/{batch['id']}", headers=bob).status == 404
    assert c.ask("POST", "/v1/batches", {"input_file_id": batch["input_file_id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}, bob).status == 404
    # Nobody but the router itself can speak for the holder of a batch.
    for guess in ("~e30", "0" * 64 + ".~e30", f"~{batch['id']}"):
        assert upload(c, b"x", {"Authorization": f"Bearer {guess}"}).status == 401


@pytest.mark.parametrize("change", [{"oidc_issuer": "https://127.0.0.1:9/elsewhere"}, {"oidc_issuer": None, "oidc_audience": None}])
def test_a_provider_that_is_not_configured_any_more_ends_its_batches(house, change):
    why = "is no longer auth.oidc_issuer"
    c, issuer, begin = house
    begin()
    ann = bearer(issuer)
    let_in(c, ann)
    batch = create(c, jsonl([line(1), line(2)]), ann)
    assert c.router_process.stop() == 0
    begin(**change)
    c.node("a", *FAST)
    (over,) = until(lambda: c.router_process.events("batch.over"), c.logs)
    assert (over["batch"], over["status"]) == (batch["id"], "failed") and issuer.url in over["why"] and why in over["why"], over
    assert c.router_process.stop() == 0
    begin()
    let_in(c, ann)
    done = get(c, batch, ann)
    assert [e["code"] for e in done["errors"]["data"]] == ["caller_refused"] and why in done["errors"]["data"][0]["message"]
    good, bad = results(c, done, ann)
    assert not good and [r["error"]["code"] for r in bad] == ["batch_failed"] * 2, bad
    assert not asked(c)


def test_a_role_that_is_gone_ends_a_batch(house):
    c, issuer, begin = house
    begin()
    ann = bearer(issuer, groups=["acme"])
    let_in(c, ann)
    batch = create(c, jsonl([line(1)]), ann)
    assert c.router_process.stop() == 0
    c.router({"batch": {"enabled": True}, "auth": auth(issuer, c.folder)})
    (over,) = until(lambda: c.router_process.events("batch.over"), c.logs)
    assert (over["batch"], over["status"]) == (batch["id"], "failed") and "students" in over["why"], over

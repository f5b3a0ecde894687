# SPDX-License-Identifier: Apache-2.0
"""/usage: it adds up to what engines counted, by tenant, key, model and time, and survives a restart."""
import contextlib
import csv
import io
import json
import signal
import subprocess
import time

import pytest
from clients import Stream, set_faults
from cluster import ask, until
from engine_nodes import sections
from failing_engine import COMPLETION, JSON, Engine
from test_limits import CTL, key


@pytest.fixture
def world(cluster):
    c = cluster
    keys = {t: key(c.folder, t, t) for t in ("acme", "beta")}
    c.router({"router": {"worker_threads": 2}, "auth": {"enabled": True, "api_keys_file": str(c.folder / "keys")},
              'prices."sim"': {"input": 2, "cached_input": 1, "output": 10}, 'tenants."acme"': {"budgets": ["1M tokens/day", "9 USD/day"]}})
    c.node("a", "--time-scale", "0")
    c.wait_ready()
    return c, keys


def usage(c, by="tenant", **query):
    words = "&".join(f"{k}={v}" for k, v in {"by": by, **query}.items())
    rows = ask(c.admin_port, "GET", f"/usage?{words}").json()["usage"]
    return {row.get(by, "all"): row for row in rows}


def engine_counts(c):
    """What the engine says that it computed and made."""
    text = ask(c.nodes["a"].engine_port, "GET", "/metrics").body.decode()
    value = lambda name: sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if name in line and not line.startswith("#"))
    return int(value("prompt_tokens_total")), int(value("generation_tokens_total"))


def test_what_an_engine_cannot_have_made_is_not_charged(cluster):
    c = cluster
    keys = key(c.folder, "acme", "acme")
    with contextlib.closing(Engine("odd", ["m"])) as engine:
        c.router(sections([engine], auth={"enabled": True, "api_keys_file": str(c.folder / "keys")}, **{'tenants."acme"': {"budgets": ["1M tokens/day"]}}))
        c.wait_ready(1)
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}
        sums = []
        for told in (10**12, 500, 7):  # never; more than was asked for; true, of an engine that is not believed
            engine.fails = (200, JSON, [json.dumps({**COMPLETION, "usage": {"prompt_tokens": told, "completion_tokens": told}}).encode()])
            assert c.ask("POST", DIALECTS[0][0], body, keys).status == 200
            sums.append(until(lambda: (row := usage(c).get("acme")) and row["requests"] == len(sums) + 1 and row, lambda: usage(c)))
        assert [row["output_tokens"] for row in sums] == [1, 2, 3] and [row["estimated"] for row in sums] == [1, 2, 3], sums
        assert c.metric("cgn_usage_untrue_total", node="odd") == 2 and "gateway.usage_untrue" in c.logs()
        assert sums[0]["input_tokens"] < 100 and c.ask("POST", DIALECTS[0][0], body, keys).status == 200, "the budget is not spent"


DIALECTS = [
    ("/v1/chat/completions", {"model": "sim", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 7}),
    ("/v1/completions", {"model": "sim", "prompt": "hello there", "max_tokens": 5}),
    ("/v1/messages", {"model": "sim", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 6}),
    ("/v1/responses", {"model": "sim", "input": "hello there", "max_output_tokens": 4}),
    ("/api/chat", {"model": "sim", "messages": [{"role": "user", "content": "hello there"}], "options": {"num_predict": 8}}),
    ("/v1/embeddings", {"model": "sim", "input": "hello there"}),
]


def test_an_error_behind_a_200_has_no_tokens(world):
    c, keys = world
    set_faults(c.nodes["a"].engine_port, "error-200")
    for stream in (False, True):
        a = c.ask("POST", DIALECTS[0][0], {**DIALECTS[0][1], "stream": stream}, keys["acme"])
        assert a.status == 200 and b"error-200" in a.body
    row = until(lambda: usage(c).get("acme"), "it was counted")
    assert row["input_tokens"] == row["output_tokens"] == 0, row


def test_it_adds_up_to_what_the_engine_counted(world):
    c, keys = world
    asked = embedded = 0
    for i, (path, body) in enumerate(DIALECTS):
        for stream in (False, True, "usage"):
            more = {"stream": bool(stream)} if "embed" not in path else {}
            if stream == "usage" and path in ("/v1/chat/completions", "/v1/completions"):
                more["stream_options"] = {"include_usage": True}
            a = c.ask("POST", path, {**body, **more}, keys["acme" if i % 2 else "beta"])
            assert a.status == 200, (path, a.body)
            asked += 1
            embedded += a.json()["usage"]["prompt_tokens"] if "embed" in path else 0  # the simulator does not count these
    assert c.ask("POST", "/v1/chat/completions", {"model": "nowhere", "messages": []}, keys["acme"]).status == 404  # asks no engine
    assert c.ask("POST", "/v1/chat/completions", {"model": "sim", "messages": 7}, keys["acme"]).status == 400  # the engine refuses it
    asked += 1
    until(lambda: usage(c, "all")["all"]["requests"] == asked, lambda: usage(c, "all"))
    total = usage(c, "all")["all"]
    counted = engine_counts(c)
    assert (total["input_tokens"], total["output_tokens"]) == (counted[0] + embedded, counted[1]), total
    for by in ("tenant", "key", "model"):
        rows = usage(c, by).values()
        for field in ("requests", "input_tokens", "cached_tokens", "output_tokens", "estimated"):
            assert sum(row[field] for row in rows) == total[field]
        assert sum(row["money"] for row in rows) == pytest.approx(total["money"])
    want = (2 * (total["input_tokens"] - total["cached_tokens"]) + total["cached_tokens"] + 10 * total["output_tokens"]) / 1e6
    assert total["money"] == pytest.approx(want) and set(usage(c)) == {"acme", "beta"}


def test_a_stream_that_is_cut_is_counted_and_told(world):
    c, keys = world
    c.node("b", "--token-interval-us", "3000", model="slow")
    c.wait_ready(2)
    s = Stream(c.http_port, "hello", fields=keys["acme"], model="slow", max_tokens=5000)
    s.read_until(b"data:")
    s.reset()
    until(lambda: "slow" in usage(c, "model"), c.logs)
    row = usage(c, "model")["slow"]
    assert row["requests"] == row["estimated"] == 1 and row["input_tokens"] > 0 and 0 < row["output_tokens"] < 5000


def test_formats_times_and_errors(world):
    c, keys = world
    assert c.chat("hello", keys["acme"], max_tokens=2).status == 200
    until(lambda: usage(c), c.logs)
    assert [set(r) for r in ask(c.admin_port, "GET", "/usage").json()["usage"]] == [set(r) for r in ask(c.admin_port, "GET", "/usage?by=tenant").json()["usage"]]
    assert all(r["tenant"] for r in ask(c.admin_port, "GET", "/usage").json()["usage"])
    a = ask(c.admin_port, "GET", "/usage?by=tenant&step=hour&format=csv")
    rows = list(csv.DictReader(io.StringIO(a.body.decode())))
    assert a.headers["content-type"].startswith("text/csv") and rows[0]["tenant"] == "acme" and rows[0]["requests"] == "1"
    assert rows[0]["time"] in {time.strftime("%Y-%m-%dT%H:00:00Z", time.gmtime(time.time() - back)) for back in (0, 60)}
    assert usage(c, **{"from": "2001-01-01", "to": "2001-02-01"}) == {}
    assert usage(c, **{"from": int(time.time()) - 7200})["acme"]["requests"] == 1
    for query, says in (("by=node", "by is one of"), ("from=then", "from and to"), ("step=week", "step is"), ("format=xml", "format is"), ("from=2026-02-30", "from and to"),
                        ("from=18446744073709551615", "from and to"), ("since=2026-01-01", '"since": /usage takes from, to, by, step, format')):
        a = ask(c.admin_port, "GET", "/usage?" + query)
        assert a.status == 400 and says in a.json()["error"]["message"]
    scraped = c.scrape()
    assert c.metric("cgn_tenant_requests_total", scraped, tenant="acme") == 1


def test_it_survives_a_restart_and_a_damaged_day_is_set_aside(world):
    c, keys = world
    assert c.chat("hello", keys["acme"], max_tokens=2).status == 200
    until(lambda: usage(c), c.logs)
    before = usage(c)
    for damage in (False, True):
        c.router_process.signal(signal.SIGTERM)
        c.router_process.wait(10)
        file = next(f for f in c.state_dir.glob("*.usage-*") if f.suffix != ".bad")
        if damage:
            file.write_bytes(file.read_bytes()[:-20])
        c.router_process.start()
        c.wait_ready()
        assert usage(c) == ({} if damage else before)
    assert "statefile.set_aside" in c.router_process.log()


def test_tenants_and_their_budgets(world):
    c, keys = world
    a = c.chat("hello", keys["acme"], max_tokens=2)
    counted = a.json()["usage"]["total_tokens"]
    acme = lambda: ask(c.admin_port, "GET", "/tenants").json()["tenants"][0]
    until(lambda: acme()["budgets"][0]["spent"] == counted, acme)
    tokens, money = acme()["budgets"]
    assert tokens["budget"] == "1000000 tokens/day" and tokens["left"] == 1000000 - counted
    assert tokens["resets_at"] % 86400 == 0 and 0 < tokens["resets_at"] - time.time() <= 86400
    assert money["unit"] == "USD" and 0 < money["spent"] < 0.01
    until(lambda: c.metric("cgn_tenant_budget_spent_ratio", tenant="acme", unit="tokens", window="day") == pytest.approx(counted / 1e6), c.logs)


def ctl(c, *words, code=0):
    out = subprocess.run([CTL, *words, "--admin", f"127.0.0.1:{c.admin_port}"], capture_output=True, text=True, timeout=60)
    assert out.returncode == code, (out.stdout, out.stderr)
    return out.stdout + (out.stderr if code else "")


def test_the_verbs_show_the_same(world):
    c, keys = world
    assert c.chat("hello", keys["acme"], max_tokens=2).status == 200
    until(lambda: usage(c), c.logs)
    table = ctl(c, "usage", "--step", "day").splitlines()
    assert table[0].split()[:4] == ["TIME", "TENANT", "REQUESTS", "ESTIMATED"] and table[1].split()[1:3] == ["acme", "1"]
    assert json.loads(ctl(c, "usage", "--by", "model", "-o", "json"))["usage"][0]["model"] == "sim"
    assert ctl(c, "usage", "--by", "key", "--csv").startswith("key,requests,estimated,input_tokens,")
    assert "a time in UTC" in ctl(c, "usage", "--from", "x&by=all", code=2)
    assert "by is one of" in ctl(c, "usage", "--by", "node", code=2)
    table = ctl(c, "tenant", "ls").splitlines()
    assert "1000000 tokens/day" in table[1] and table[1].startswith("acme") and "UTC" in table[1] and "9 USD/day" in table[2]
    assert json.loads(ctl(c, "tenant", "show", "acme", "-o", "json"))["budgets"][1]["unit"] == "USD"
    assert json.loads(ctl(c, "tenant", "ls", "-o", "json"))["tenants"][0]["name"] == "acme"
    assert "no tenant" in ctl(c, "tenant", "show", "none", code=1)


def journal_outputs(c):
    """The answers' tokens in each row of the journal."""
    lines = [line for f in c.state_dir.glob("*.usage.journal") for line in f.read_bytes().splitlines()]
    return [int(line[17:].split()[10]) for line in lines if line[16:17] == b"e"]


def day_output(c):
    """The answers' tokens in the day's file."""
    days = [f for f in c.state_dir.glob("*.usage-*") if f.suffix != ".bad"]
    return sum(int(line.split()[8]) for f in days for line in f.read_bytes().splitlines() if len(line.split()) == 11)


def test_a_router_that_is_killed_keeps_its_usage(world):
    c, keys = world
    for n in (1, 2, 3):
        tokens = 2 + n  # tells the rows of this round from others
        for i in range(5):
            a = c.chat(f"hello {n} {i}", keys["acme" if i % 2 else "beta"], max_tokens=tokens, ignore_eos=True, stream=bool(i % 3))
            assert a.status == 200
        all_tokens = sum(5 * (2 + k) for k in range(1, n + 1))
        until(lambda: sum(r["output_tokens"] for r in usage(c).values()) == all_tokens, lambda: usage(c))
        until(lambda: day_output(c) == all_tokens or (n < 3 and journal_outputs(c).count(tokens) == 5), "the files have them")
        before = usage(c, "key")
        for _ in range(2):  # the second one finds what the first one took over
            c.router_process.kill()
            c.router_process.start()
            c.wait_ready()
            assert usage(c, "key") == before
    [file] = c.state_dir.glob("*.usage.journal")
    c.router_process.stop()
    assert file.read_bytes() == b""
    for bad in (b"not a journal\n", b"0123456789abcdefr1 a b c 1 2 3 4 5 6 7\n", b"\0" * 100):
        file.write_bytes(bad)
        c.router_process.start()
        c.wait_ready()
        assert usage(c, "key") == before
        c.router_process.stop()

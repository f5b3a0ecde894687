# SPDX-License-Identifier: Apache-2.0
"""Budgets of tenants: refused, settled, kept over restarts, changed by a reload."""
import concurrent.futures
import re
import signal
import time

import pytest
from clients import Stream
from cluster import until
from test_energy import logged
from test_energy import world as powered  # noqa: F401
from test_limits import key, reload

JOULE_SCALE = 1000  # the file has millijoules


def start(c, budgets, node=("--time-scale", "0"), tenant="acme", **sections):
    headers = key(c.folder, "one", tenant)
    c.router({"router": {"worker_threads": 4}, "auth": {"enabled": True, "api_keys_file": str(c.folder / "keys")},
              f'tenants."{tenant}"': {"budgets": budgets}, **sections})
    c.node("a", *node)
    c.wait_ready()
    return headers


def early_in_the_day(window=120):
    """Is there at least |window| seconds until the UTC day ends? Else budgets of a day would begin again."""
    return 86400 - time.time() % 86400 > window


@pytest.fixture(autouse=True)
def day():
    until(early_in_the_day, lambda: "the day ends", wait_s=130)


def state_file(c):
    found = list(c.state_dir.glob("*.budgets"))
    return found[0] if found else None


def spent_today(c, subject="t:acme"):
    """What the router's file says: for each kind of window three windows, the current one first, of a number and four amounts."""
    for line in state_file(c).read_text().splitlines() if state_file(c) else ():
        if line.split()[0] == subject:
            _, requests, tokens, money, _ = map(int, line.split()[16:21])
            return {"requests": requests, "tokens": tokens, "money": money / 1e9}


def test_a_budget_is_exact_over_workers_and_survives_kill(cluster):
    c = cluster
    headers = start(c, ["25 requests/month", "1000 requests/day"])
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda _: c.chat("hello", headers, max_tokens=2).status, range(60)))
    assert statuses.count(200) == 25 and statuses.count(429) == 35
    a = c.chat("hello", headers)
    error = a.json()["error"]
    assert error["code"] == error["type"] == "insufficient_quota"
    assert "tenant acme has 25 requests/month, of which 25 are spent" in error["message"] and " UTC" in error["message"]
    assert 0 < int(a.headers["retry-after"]) <= 31 * 86400 and a.headers["x-should-retry"] == "false"
    assert a.headers["x-budget-limit"] == "25 requests/month" and a.headers["x-budget-remaining"] == "0"
    assert c.metric("cgn_budget_refused_total", subject="tenant", unit="requests", window="month") == 36
    until(lambda: state_file(c) and " 25 " in state_file(c).read_text(), lambda: "the file is written")
    c.router_process.kill()  # -9
    c.router_process.start()
    c.wait_ready()
    assert c.chat("hello", headers).status == 429


def test_tokens_and_money_are_settled_with_what_the_engine_counts(cluster):
    c = cluster
    headers = start(c, ["3000 tokens/day", "5 USD/day"], **{'prices."s*"': {"input": 1000, "output": 2000}})
    money = tokens = 0
    for i in range(10):  # 1,900 are reserved each time, but the answer stops after a word
        for _ in range(50):  # the refund comes when the answer is over, which the client may know first
            a = c.chat("hello", headers, max_tokens=1900, stop=[" "])
            if a.status == 200:
                break
            time.sleep(0.05)
        assert a.status == 200, a.body
        usage = a.json()["usage"]
        tokens += usage["total_tokens"]
        money += usage["prompt_tokens"] * 0.001 + usage["completion_tokens"] * 0.002
    until(lambda: spent_today(c) == {"requests": 10, "tokens": tokens, "money": pytest.approx(money)}, lambda: f"{spent_today(c)} {tokens} {money}")
    too_large = c.chat("hello", headers, max_tokens=3001)
    assert too_large.status == 429 and "too large" in too_large.json()["error"]["message"] and "retry-after" not in too_large.headers
    assert "tenant acme has a budget of 5 USD/day" in too_large.json()["error"]["message"]


def test_a_lowered_budget_acts_at_once_and_a_raised_one_too(cluster):
    c = cluster
    headers = start(c, ["100 requests/day"])
    assert [c.chat("hello", headers, max_tokens=2).status for _ in range(5)] == [200] * 5
    auth = {"auth": {"enabled": True, "api_keys_file": str(c.folder / "keys")}}
    reload(c, {}, **auth, **{'tenants."acme"': {"budgets": ["5 requests/day"]}})
    until(lambda: c.chat("hello", headers, max_tokens=2).status == 429, c.logs)
    reload(c, {}, **auth, **{'tenants."acme"': {"budgets": ["1k requests/day"]}})
    until(lambda: c.chat("hello", headers, max_tokens=2).status == 200, c.logs)
    reload(c, {}, **auth)
    until(lambda: "x-budget-limit" not in c.chat("hello", headers, max_tokens=2).headers, c.logs)


def test_a_budget_that_is_removed_is_shown_no_more(cluster):
    c = cluster
    headers = start(c, ["100 requests/day", "100 requests/month"], **{'tenants."else"': {"budgets": ["7 tokens/day"]}})
    assert c.chat("hello", headers, max_tokens=2).status == 200

    def shown():
        return {tuple(re.search(f'{label}="([a-z]*)"', x)[1] for label in ("tenant", "unit", "window")): float(x.rpartition(" ")[2])
                for x in c.scrape().splitlines() if x.startswith("cgn_tenant_budget_spent_ratio{")}
    both = {("acme", "requests", "day"): 0.01, ("acme", "requests", "month"): 0.01}
    until(lambda: shown() == {**both, ("else", "tokens", "day"): 0}, shown)
    auth = {"auth": {"enabled": True, "api_keys_file": str(c.folder / "keys")}}
    reload(c, {}, **auth, **{'tenants."acme"': {"budgets": ["100 requests/month", "1k tokens/month"]}})
    until(lambda: set(shown()) == {("acme", "requests", "month"), ("acme", "tokens", "month")}, shown)
    assert shown()["acme", "requests", "month"] == 0.01
    reload(c, {}, **auth)
    until(lambda: shown() == {}, shown)
    reload(c, {}, **auth, **{'tenants."acme"': {"budgets": ["100 requests/day", "100 requests/month"]}})
    until(lambda: shown() == both, shown)


@pytest.mark.parametrize("damage", ["cut", "flipped", "future", "nonsense"])
def test_a_damaged_file_is_set_aside(cluster, damage):
    c = cluster
    headers = start(c, ["2 requests/month"])
    assert [c.chat("hello", headers, max_tokens=2).status for _ in range(3)] == [200, 200, 429]
    c.router_process.signal(signal.SIGTERM)
    c.router_process.wait(10)
    text = state_file(c).read_bytes()
    bad = {"cut": text[:-9], "flipped": text.replace(b"t:acme", b"t:acm3"), "future": text.replace(b"budgets 1", b"budgets 7"),
           "nonsense": bytes(range(256))}[damage]
    path = state_file(c)
    path.write_bytes(bad)
    c.router_process.start()
    c.wait_ready()
    assert "statefile.set_aside" in c.router_process.log(), c.logs()
    assert path.with_name(path.name + ".bad").read_bytes() == bad
    assert c.chat("hello", headers, max_tokens=2).status == 200


def test_a_stream_that_is_cut_costs_what_it_used(cluster):
    c = cluster
    headers = start(c, ["2000 tokens/day"], node=("--token-interval-us", "5000"))
    for i in range(3):
        s = Stream(c.http_port, "hello", fields=headers, max_tokens=1900)
        s.read_until(b"data:")
        assert b" 200 " in s.got.split(b"\r\n", 1)[0], s.got
        s.reset()
        until(lambda: c.router_process.log().count("client_gone") > i, c.logs)
    until(lambda: (spent_today(c) or {"tokens": 300})["tokens"] < 300, lambda: spent_today(c))
    assert spent_today(c)["requests"] == 3 and spent_today(c)["tokens"] > 3


def joules_today(c, subject="t:acme"):
    for line in state_file(c).read_text().splitlines() if state_file(c) else ():
        if line.split()[0] == subject:
            return int(line.split()[20]) / JOULE_SCALE
    return 0


def test_joules_are_settled_with_what_the_node_counts(tmp_path, powered):
    """A budget in joules, on a node whose energy counter is read: requests are granted while there are some, and what is spent is the sum of
    what requests took. Another tenant is still served."""
    headers, other = (key(tmp_path, t, t) for t in ("acme", "other"))
    c, _ = powered(["a"], auth={"enabled": True, "api_keys_file": str(tmp_path / "keys")}, **{'tenants."acme"': {"budgets": ["1000 joules/day", "1 kWh/month"]}})
    refused = None
    for i in range(40):
        a = c.chat(f"conversation {i}", headers, max_tokens=100)
        if a.status == 429:
            refused = a.json()["error"]
            break
        assert a.status == 200 and a.headers["x-budget-limit"] in ("1000 joules/day", "1 kWh/month"), a.headers
        lines = logged(c, i + 1)
        took = sum(x["joules"] for x in lines)
        until(lambda: joules_today(c) == pytest.approx(took, rel=0.01), lambda: f"{joules_today(c)} {took}")  # before the next one reserves
    assert refused and refused["code"] == "insufficient_quota" and "tenant acme has" in refused["message"] and "1000 joules/day" in refused["message"], refused
    most = max(x["joules"] for x in lines)
    assert 990 - most < took < 1000 + most, (took, most)
    assert c.metric("cgn_budget_refused_total", subject="tenant", unit="joules", window="day") == 1
    until(lambda: c.metric("cgn_tenant_budget_spent_ratio", tenant="acme", unit="joules", window="month") == pytest.approx(took / 3.6e6, rel=0.01), c.scrape)
    assert c.chat("hello", other, max_tokens=1).status == 200

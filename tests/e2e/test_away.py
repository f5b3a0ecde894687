# SPDX-License-Identifier: Apache-2.0
"""Requests that leave for a hosted API ([peers]). The hosted API is another cluster of ours, behind TLS and API keys."""
import concurrent.futures
import json
import subprocess

import pytest

from clients import Stream, set_faults
from cluster import BUILD, Cluster, ask, until
from failing_engine import COMPLETION, JSON, Engine
from forgetful_engine import Forgetful
from test_load import pki
from test_limits import key


CTL = BUILD / "src" / "ctl" / "cgn-ctl"


class World:
    """A cluster `home` with one node for one request at a time, and a cluster `cloud` that is its peer."""

    def __init__(self, home, folder):
        self.home, self.folder = home, folder
        self.pki = pki(folder / "pki")
        (folder / "cloud").mkdir()
        self.cloud = Cluster(folder / "cloud")
        self.cloud.MODEL = "big"
        self.secret = key(self.cloud.folder, "home")["Authorization"].removeprefix("Bearer ")
        (folder / "cloud.key").write_text(self.secret + "\n")

    def start_cloud(self, engine=("--time-scale", "0"), **sections):
        self.cloud.router({"router": {"tls_cert_file": str(self.pki / "router.pem"), "tls_key_file": str(self.pki / "router.key")},
                           "auth": {"enabled": True, "api_keys_file": str(self.cloud.folder / "keys")}, **sections})
        self.cloud_node = self.cloud.node("far", *engine)
        until(lambda: list(self.cloud.states().values()) == ["ready"], "the cloud is ready")

    def start_home(self, engine=("--time-scale", "1", "--decode-ms", "5"), peer=None, nodes=1, **sections):
        mine = {"url": f"https://localhost:{self.cloud.http_port}/v1", "api_key_file": str(self.folder / "cloud.key"), "ca_file": str(self.pki / "ca.pem"),
                "models": ["sim=big"], "tenants": ["*"], "input": 2, "output": 10, "daily_budget": 5}
        sections = {"router.federation": {"enabled": True, "margin": "0s"}, 'peers."cloud"': {**mine, **(peer or {})}, **sections}
        sections.setdefault("router.admission", {"max_concurrent_per_replica": 1, "queue_timeout": "30s", "node_wait": "0s"})
        self.home.router(sections)
        for i in range(nodes):
            self.node = self.home.node(f"near{i}", *engine)
        if nodes:
            self.home.wait_ready()

    def hold(self, tokens=4000):
        """Keep the node of `home` busy until the stream is closed."""
        return Stream(self.home.http_port, "hold the node", model="sim", max_tokens=tokens, ignore_eos=True).read_until(b"data:")

    def outcomes(self):
        text = self.home.scrape()
        return {o: n for o in ("answered", "cut", "refused", "failed", "late", "busy", "budget")
                if (n := int(self.home.metric("cgn_away_total", text, peer="cloud", outcome=o)))}

    def ended(self, **want):
        """Wait until the requests that left have ended so: they are counted after their last byte was sent."""
        until(lambda: self.outcomes() == want, lambda: f"{self.outcomes()}, not {want}")

    def waits(self):
        until(lambda: self.home.metric("cgn_queue_depth", model="sim") >= 1, "a request waits at home")

    def peers(self):
        return ask(self.home.admin_port, "GET", "/peers").json()["peers"]

    def later(self, text="later", **more):
        """Send a chat in another thread."""
        return concurrent.futures.ThreadPoolExecutor(1).submit(self.home.chat, text, max_tokens=4, **more)


@pytest.fixture
def world(cluster, tmp_path):
    w = World(cluster, tmp_path)
    with w.cloud:
        yield w


def test_what_would_wait_leaves_and_what_need_not_stays(world):
    world.start_cloud()
    world.start_home()
    a = world.home.chat("hello", max_tokens=4)
    assert a.status == 200 and a.headers["x-cgn-node"] == "near0" and "x-cgn-peer" not in a.headers
    held = world.hold()
    a = world.home.chat("hello", {"X-Request-Id": "plain"}, max_tokens=4)
    assert a.status == 200 and a.headers["x-cgn-peer"] == "cloud" and "x-cgn-node" not in a.headers, a.headers
    assert a.json()["model"] == "sim" and a.json()["usage"]["completion_tokens"] == 4
    s = world.home.chat("hello", {"X-Request-Id": "stream"}, max_tokens=4, stream=True)
    assert s.status == 200 and s.headers["x-cgn-peer"] == "cloud" and s.events()[-1][1] == "[DONE]"
    assert {json.loads(d)["model"] for _, d in s.events()[:-1]} == {"sim"}
    world.ended(answered=2)
    line = until(lambda: next((e for e in world.home.router_process.events("gateway.request") if e["id"] == "plain"), None), "it is logged")
    assert line["away"] == "cloud" and line["node"] == "peer:cloud"
    usage = a.json()["usage"]
    assert line["away_cost"] == pytest.approx((2 * usage["prompt_tokens"] + 10 * 4) / 1e6)
    [row] = world.peers()
    assert row["state"] == "ready" and row["measured"] and 0 < row["spent_today"] < 0.01 and row["left_today"] == pytest.approx(5 - row["spent_today"])
    shown = subprocess.run([CTL, "cluster", "peers", "--router", f"127.0.0.1:{world.home.grpc_port}"], check=True, capture_output=True, text=True)
    assert [line.split()[:3] for line in shown.stdout.splitlines()] == [["PEER", "KIND", "STATE"], ["cloud", "openai", "ready"]]
    held.close()
    until(lambda: world.home.chat("again", max_tokens=4).headers.get("x-cgn-node") == "near0", "requests stay again")


def test_neither_the_clients_key_nor_its_name_reach_the_peer(world):
    world.start_cloud()
    headers = key(world.home.folder, "client", "acme")
    world.start_home(auth={"enabled": True, "api_keys_file": str(world.home.folder / "keys")}, peer={"tenants": ["acme"]}, nodes=0)
    a = world.home.chat("hello", {**headers, "X-Cgn-Session": "s1", "Cookie": "c=1", "X-Request-Id": "mine", "OpenAI-Organization": "org"}, max_tokens=4)
    assert a.status == 200 and a.headers["x-cgn-peer"] == "cloud" and a.headers["x-request-id"] == "mine"
    [line] = until(lambda: world.cloud.router_process.events("gateway.request"), "it is logged")
    assert line["status"] == 200 and line["id"] != "mine" and not line["session"], line
    assert world.secret not in world.home.router_process.log() + world.home.scrape()


def test_nothing_leaves_that_is_not_allowed_to(world):
    world.start_cloud()
    acme, other = key(world.home.folder, "one", "acme"), key(world.home.folder, "two", "other")
    world.start_home(auth={"enabled": True, "api_keys_file": str(world.home.folder / "keys")}, peer={"tenants": ["ac*"]}, nodes=0)
    assert world.home.chat("hello", acme, max_tokens=4).headers["x-cgn-peer"] == "cloud"
    refused = world.home.chat("hello", other, max_tokens=4)
    assert refused.status == 503 and refused.json()["error"]["code"] == "no_node"
    for stays in ({"X-Cgn-Priority": "0"}, {"X-Cgn-Away": "off"}):
        assert world.home.chat("hello", {**acme, **stays}, max_tokens=4).status == 503, stays
    assert world.home.ask("POST", "/v1/chat/completions", {"model": "big", "messages": []}, acme).status != 200  # the name that the peer knows
    world.ended(answered=1)


def test_models_of_peers_are_listed_and_stored_answers_stay(world):
    world.start_cloud()
    world.start_home(nodes=0)
    assert [m["id"] for m in world.home.ask("GET", "/v1/models").json()["data"]] == ["sim"]
    assert world.home.ask("GET", "/v1/models/sim").status == 200 and world.home.ask("GET", "/readyz").status == 200
    body = {"model": "sim", "input": "hello", "max_output_tokens": 4}
    a = world.home.ask("POST", "/v1/responses", {**body, "store": False})
    assert a.status == 200 and a.headers["x-cgn-peer"] == "cloud" and a.json()["model"] == "sim", a.body
    assert world.home.ask("POST", "/v1/responses", body).status == 503


def test_the_budget_of_the_day_holds_over_a_restart(world):
    world.start_cloud()
    world.start_home(peer={"input": 0, "output": 100000, "daily_budget": 1}, nodes=0)  # 0.1 a token
    assert world.home.chat("hello", max_tokens=8).headers["x-cgn-peer"] == "cloud"
    assert world.home.chat("hello", max_tokens=8).status == 503
    world.ended(answered=1, budget=1)
    until(lambda: list(world.home.state_dir.glob("*.budgets")), "the book is written")
    world.home.router_process.stop()
    world.home.router_process.start()
    until(lambda: world.home.listens(world.home.http_port, world.home.router_process), "the router is back")
    assert world.peers()[0]["spent_today"] == pytest.approx(0.8)
    assert world.home.chat("hello", max_tokens=8).status == 503
    assert world.home.chat("hello", max_tokens=2).headers["x-cgn-peer"] == "cloud"
    assert world.peers()[0]["state"] == "budget exhausted"


def test_a_peer_that_fails_spends_nothing_of_its_budget(world):
    world.start_cloud()
    world.start_home(peer={"input": 0, "output": 100000, "daily_budget": 1}, nodes=0)
    set_faults(world.cloud_node.engine_port, "http500")
    assert world.home.chat("hello", max_tokens=8).status >= 500
    assert world.peers()[0]["spent_today"] == 0


def test_a_peer_that_refuses_rests_and_the_request_waits_here(world):
    world.start_cloud(**{"router.rate_limit": {"tokens_per_minute": 60}})
    world.start_home(nodes=1)
    held = world.hold()
    answers = [world.later("limited " * 4)]

    def refused():
        if answers[-1].done():
            assert len(answers) < 20
            answers.append(world.later("limited " * 4))
        return world.outcomes().get("refused") == 1
    until(refused, world.outcomes)
    world.waits()
    [row] = world.peers()
    assert row["state"] == "resting"
    held.close()
    assert answers[-1].result().headers["x-cgn-node"] == "near0"
    [event] = world.home.router_process.events("gateway.peer_failed")
    assert event["status"] == 429 and event["rest_ms"] >= 1000


@pytest.mark.parametrize("fault", ["slow", "key", "certificate", "gone"])
def test_whatever_goes_wrong_there_the_request_is_answered_here(world, fault):
    world.start_cloud()
    if fault == "slow":
        set_faults(world.cloud_node.engine_port, "hang")
    if fault == "key":
        (world.folder / "cloud.key").write_text("wrong\n")
    ca = {"ca_file": str(pki(world.folder / "other") / "ca.pem")} if fault == "certificate" else {}
    world.start_home(peer={"first_byte_timeout": "500ms", **ca})
    if fault == "gone":
        world.cloud.router_process.kill()
    held = world.hold()
    answer = world.later()
    outcome = {"slow": "late", "key": "refused"}.get(fault, "failed")
    until(lambda: world.outcomes().get(outcome), lambda: f"{outcome}: {world.outcomes()}")
    world.waits()
    held.close()
    a = answer.result()
    assert a.status == 200 and a.headers["x-cgn-node"] == "near0" and "x-cgn-peer" not in a.headers
    [event] = world.home.router_process.events("gateway.peer_failed")
    assert fault != "certificate" or "certificate" in event["why"], event


@pytest.mark.parametrize("way, outcome", [("page", "failed"), ("no_body", "failed"), ("json", "failed"), ("no_content", "refused")])
def test_a_success_of_a_peer_without_an_answer_is_a_failure(world, way, outcome):
    api = Engine("api", ["big"], way)
    world.start_home(peer={"url": f"http://127.0.0.1:{api.port}/v1", "ca_file": ""}, **{"router.breaker": {"failures": 1}})
    held = world.hold()
    answer = world.later()
    world.ended(**{outcome: 1})
    world.waits()
    held.close()
    a = answer.result()
    assert a.status == 200 and a.headers["x-cgn-node"] == "near0" and len(api.seen) == 1, a.body
    [event] = world.home.router_process.events("gateway.peer_failed")
    assert event["status"] == 204 or event["why"].startswith("it answered 200 with "), event
    assert world.home.metric("cgn_breaker_state", node="peer:cloud") == 2, world.home.scrape()
    api.close()


def test_a_peer_that_counts_more_tokens_than_were_asked_for_is_not_believed(world):
    lie = {**COMPLETION, "usage": {"prompt_tokens": 5, "completion_tokens": 10 ** 8, "total_tokens": 10 ** 8 + 5}}
    api = Engine("api", ["big"], (200, JSON, [json.dumps(lie).encode()]))
    world.start_home(peer={"url": f"http://127.0.0.1:{api.port}/v1", "ca_file": ""}, nodes=0)
    assert world.home.chat("hello", max_tokens=4).headers["x-cgn-peer"] == "cloud"
    world.ended(answered=1)
    [row] = world.peers()
    assert 0 < row["spent_today"] < 1e-4 and world.home.metric("cgn_usage_untrue_total", node="cloud") == 1, row  # of the text that came
    api.close()


def test_a_peer_that_dies_in_its_answer_is_as_a_node_that_dies(world):
    world.start_cloud(engine=("--token-interval-us", "20000"))
    world.start_home(nodes=0)
    s = Stream(world.home.http_port, "go", model="sim", max_tokens=400, ignore_eos=True).read_until(b"data:")
    world.cloud.router_process.kill()
    got = s.read_until(b"0\r\n\r\n").got
    assert b"event: error" in got and b"[DONE]" not in got
    world.ended(cut=1)


def test_an_answer_that_broke_off_there_goes_on_here(world):
    world.start_cloud(engine=("--token-interval-us", "20000"))
    world.start_home(nodes=0, router={"resume": True})
    s = Stream(world.home.http_port, "go", model="sim", max_tokens=400, ignore_eos=True).read_until(b"data:")
    world.home.node("near0", "--time-scale", "0")
    world.home.wait_ready()
    world.cloud.router_process.kill()
    got = s.read_until(b"0\r\n\r\n").got
    assert b"event: error" not in got and b"[DONE]" in got, got[-300:]
    world.ended(cut=1)
    assert world.home.metric("cgn_resumes_total", outcome="resumed") == 1


def test_the_rest_of_an_answer_goes_before_those_who_wait(world):
    """A client that reads an answer is kept waiting less than one that waits for its first byte."""
    world.start_cloud(engine=("--token-interval-us", "20000"))
    world.start_home(router={"resume": True})
    held = world.hold()
    s = Stream(world.home.http_port, "go", fields={"X-Cgn-Deadline-Ms": "1000"}, model="sim", max_tokens=200, ignore_eos=True)
    while s.got.count(b"data:") < 60:  # longer than the first byte might take
        assert s.read()
    long = Stream(world.home.http_port, "stays", fields={"X-Cgn-Away": "off"}, model="sim", max_tokens=20000, ignore_eos=True)
    world.waits()
    world.cloud.router_process.kill()
    until(lambda: world.home.metric("cgn_queue_depth", model="sim") >= 2, "the rest waits too")
    held.close()
    got = s.read_until(b"0\r\n\r\n").got
    assert b"event: error" not in got and b"[DONE]" in got, got[-300:]
    long.close()


def test_a_client_that_leaves_ends_the_call_there(world):
    world.start_cloud(engine=("--token-interval-us", "20000"))
    world.start_home(nodes=0)
    s = Stream(world.home.http_port, "go", model="sim", max_tokens=4000, ignore_eos=True).read_until(b"data:")
    assert world.peers()[0]["open"] == 1
    s.reset()
    until(lambda: world.peers()[0]["open"] == 0, "the call is over")
    until(lambda: ask(world.cloud_node.engine_port, "GET", "/sim/state").json()["running"] == 0, "the engine there stops")


def test_a_client_that_leaves_before_the_answer_begins_is_counted_no_more(world):
    world.start_cloud()
    set_faults(world.cloud_node.engine_port, "hang")
    world.start_home(nodes=0)
    s = Stream(world.home.http_port, "go", model="sim", max_tokens=4)
    until(lambda: world.peers()[0]["open"] == 1, "the peer is asked")
    s.reset()
    until(lambda: world.peers()[0]["open"] == 0, "the call is over")


def test_a_peer_that_closed_its_connection_has_not_failed(world):
    with Forgetful() as api:
        world.start_home(peer={"url": f"{api.settings['url']}/v1", "ca_file": ""}, nodes=0)
        for _ in range(4):
            a = world.home.chat("hello", {"Authorization": "Bearer mine", "OpenAI-Organization": "mine"}, max_tokens=4)
            assert a.status == 200 and a.headers["x-cgn-peer"] == "cloud" and "x-account" not in a.headers, a.headers
        world.ended(answered=4)
        assert api.closed >= 1
        assert "mine" not in "".join(api.heads)


@pytest.mark.parametrize("way", ["http401", "http402"])
def test_an_error_about_the_operators_account_stays_here(world, way):
    api = Engine("api", ["big"], way)
    world.start_home(peer={"url": f"http://127.0.0.1:{api.port}/v1", "ca_file": ""}, nodes=0)
    a = world.home.chat("hello", max_tokens=4)
    assert a.status == 503 and a.json()["error"]["code"] == "no_node" and len(api.seen) == 1, a.body
    api.close()


def test_a_request_leaves_for_a_peer_once(world):
    api = Engine("api", ["big"], "http500")
    world.start_home(peer={"url": f"http://127.0.0.1:{api.port}/v1", "ca_file": ""}, **{"router.breaker": {"failures": 0}})
    held = world.hold()
    answer = world.later()
    world.ended(refused=1)
    world.waits()
    held.close()
    assert answer.result().status == 200 and len(api.seen) == 1
    world.ended(refused=1)
    api.close()


def test_anthropics_route_gets_its_key_and_version(world):
    world.start_cloud()
    world.start_home(peer={"kind": "anthropic", "url": f"https://localhost:{world.cloud.http_port}"}, nodes=0)
    a = world.home.ask("POST", "/v1/messages", {"model": "sim", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]})
    assert a.status == 200 and a.headers["x-cgn-peer"] == "cloud" and a.json()["model"] == "sim" and a.json()["type"] == "message"
    assert world.home.ask("POST", "/v1/completions", {"model": "sim", "prompt": "x"}).status == 503

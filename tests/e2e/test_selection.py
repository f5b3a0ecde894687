# SPDX-License-Identifier: Apache-2.0
"""The selection API: a client asks which node should get a request, and sends it there itself."""
import json
import urllib.parse

import pytest

from cluster import Cluster, ask, until
from test_direct import add
from test_limits import key

ON = {"router.selection": {"enabled": True}}
IDS = list(range(64))


@pytest.fixture
def pair(tmp_path):
    with Cluster(tmp_path) as c:
        c.router(ON)
        for name in ("a", "b"):
            add(c, name)
        c.wait_ready(2)
        until(lambda: len(c.ask("GET", "/workers").json()) == 2, "both nodes can be chosen")
        yield c


def select(c, path="/select_and_reserve", status=200, headers=None, **more):
    r = c.ask("POST", path, {"model_name": "sim", "token_ids": IDS, **more}, headers)
    assert r.status == status, r.body
    return r.json()


def inflight(c):
    return {n["id"]: n["router_inflight"] for n in ask(c.admin_port, "GET", "/nodes").json()["nodes"]}


def test_a_reservation_counts_as_a_request_until_it_ends(pair):
    got = select(pair, selection_id="s-1", expected_output_tokens=4)
    assert got["selection_id"] == "s-1" and got["model_name"] == "sim" and got["dp_rank"] == 0
    node = pair.nodes[got["node"]]
    assert got["endpoint"] == f"http://127.0.0.1:{node.engine_port}"
    assert got["effective_prefill_tokens"] > 0 and got["overlap"]["longest_matched"] == 0
    until(lambda: inflight(pair)[got["node"]] == 1, "the load counts")
    assert pair.metric("cgn_reservations") == 1
    assert pair.ask("POST", "/reservations/s-1/prefill_complete").status == 200
    assert pair.ask("POST", "/reservations/s-1/output_block").status == 200
    assert pair.ask("DELETE", "/reservations/s-1?completion_tokens=4").status == 200
    until(lambda: inflight(pair)[got["node"]] == 0, "the load is gone")
    assert pair.metric("cgn_reservations") == 0 and pair.metric("cgn_reservations_ended_total", outcome="done") == 1
    assert pair.ask("DELETE", "/reservations/s-1").status == 404


def test_a_pick_books_nothing_and_the_prefix_goes_where_it_is(pair):
    first = select(pair, selection_id="s-1")
    assert pair.ask("POST", "/reservations/s-1/prefill_complete").status == 200
    assert pair.ask("DELETE", "/reservations/s-1").status == 200
    again = select(pair, path="/select")
    assert again["node"] == first["node"] and again["overlap"]["longest_matched"] > 0
    assert again["effective_prefill_tokens"] < first["effective_prefill_tokens"]
    assert sum(inflight(pair).values()) == 0
    other = select(pair, path="/select", allowed_worker_ids=[w["worker_id"] for w in pair.ask("GET", "/workers").json()
                                                             if w["node"] != first["node"]])
    assert other["node"] != first["node"]


def test_a_request_that_failed_leaves_no_prefix(pair):
    select(pair, selection_id="s-1")
    assert pair.ask("DELETE", "/reservations/s-1?outcome=failed").status == 200
    assert select(pair, path="/select")["overlap"]["longest_matched"] == 0
    assert pair.metric("cgn_reservations_ended_total", outcome="failed") == 1


def test_the_request_itself_is_taken(pair):
    body = {"model": "sim", "messages": [{"role": "user", "content": "which node? " * 40}]}
    got = pair.ask("POST", "/select_and_reserve?for=" + urllib.parse.quote("/v1/chat/completions", ""), body, {"X-Request-Id": "mine"})
    assert got.status == 200, got.body
    got = got.json()
    assert got["selection_id"] == "mine" and "rewrite" not in got
    assert ask(pair.nodes[got["node"]].engine_port, "POST", "/v1/chat/completions", body).status == 200
    assert len(got["fallbacks"]) == 1 and got["fallbacks"][0] not in got["endpoint"]


def test_only_the_endpoints_of_the_subset(pair):
    for name, node in pair.nodes.items():
        header = {"x-gateway-destination-endpoint-subset": f"127.0.0.1:1, 127.0.0.1:{node.engine_port}"}
        assert select(pair, path="/select", headers=header)["node"] == name
    for empty in ("", "127.0.0.1:1"):
        got = select(pair, status=503, headers={"x-gateway-destination-endpoint-subset": empty})
        assert got["error"]["code"] == "no_node" and "endpoints that may be chosen" in got["error"]["message"]


def test_a_certain_worker(pair):
    workers = {w["node"]: w["worker_id"] for w in pair.ask("GET", "/workers").json()}
    for name, number in workers.items():
        assert select(pair, path="/reservations", worker_id=number, selection_id=f"r-{name}")["node"] == name
    assert "worker_id" in select(pair, path="/reservations", status=400, selection_id="x")["error"]["message"]
    assert select(pair, path="/reservations", status=503, selection_id="x", worker_id=7)["error"]["code"] == "no_node"


def test_refusals(pair):
    select(pair, selection_id="s-1")
    assert select(pair, status=409, selection_id="s-1")["error"]["code"] == "reservation_exists"
    assert sum(inflight(pair).values()) == 1
    assert select(pair, status=404, model_name="other")["error"]["code"] == "model_not_found"
    assert "token_ids" in select(pair, status=400, token_ids=None)["error"]["message"]
    assert pair.ask("POST", "/select", b"{").status == 400
    assert pair.ask("POST", "/select?for=/v1/models", {}).status == 400
    assert pair.ask("POST", "/reservations/s-1/what").status == 404
    assert pair.ask("GET", "/select").status == 405


def test_room_is_waited_for_and_given_back(tmp_path):
    with Cluster(tmp_path) as c:
        c.router({**ON, "router.admission": {"max_concurrent_per_replica": 1, "queue_timeout": "200ms"}})
        add(c, "a")
        c.wait_ready(1)
        until(lambda: c.ask("GET", "/workers").json(), "the node can be chosen")
        select(c, selection_id="s-1")
        assert select(c, status=503, selection_id="s-2")["error"]["code"] == "queue_timeout"
        assert select(c, path="/select", status=503)["error"]["code"] == "overloaded"
        assert c.ask("DELETE", "/reservations/s-1").status == 200
        select(c, selection_id="s-2")


def test_a_lease_that_is_over_ends_the_reservation(tmp_path):
    with Cluster(tmp_path) as c:
        c.router({"router.selection": {"enabled": True, "lease": "1s", "max": 2}})
        add(c, "a")
        c.wait_ready(1)
        until(lambda: c.ask("GET", "/workers").json(), "the node can be chosen")
        select(c, selection_id="s-1")
        select(c, selection_id="s-2")
        assert select(c, status=429, selection_id="s-3")["error"]["code"] == "overloaded"
        until(lambda: c.metric("cgn_reservations_ended_total", outcome="expired") == 2, "both have expired")
        assert sum(inflight(c).values()) == 0
        select(c, selection_id="s-3")


def test_nodes_that_take_no_requests_of_others_are_not_chosen(tmp_path):
    with Cluster(tmp_path) as c:
        c.router(ON)
        add(c, "a", direct="off")
        c.wait_ready(1)
        got = select(c, status=503)
        assert got["error"]["code"] == "no_node" and "agent.direct" in got["error"]["message"]


def test_off_by_default(cluster):
    cluster.router()
    assert cluster.ask("POST", "/select", {"model_name": "sim", "token_ids": [1]}).status == 404
    assert cluster.ask("GET", "/workers").status == 404


def test_other_keys_do_not_see_a_reservation(tmp_path):
    with Cluster(tmp_path) as c:
        acme, umbra = (key(tmp_path, tenant, tenant) for tenant in ("acme", "umbra"))
        c.router({**ON, "auth": {"enabled": True, "api_keys_file": str(tmp_path / "keys")}})
        add(c, "a")
        c.wait_ready(1)
        until(lambda: c.ask("GET", "/workers", None, acme).json(), "the node can be chosen")
        assert select(c, status=401)["error"]["code"] == "invalid_api_key"
        select(c, headers=acme, selection_id="s-1")
        assert c.ask("DELETE", "/reservations/s-1", None, umbra).status == 404
        select(c, headers=umbra, selection_id="s-1")  # ids of others are not in the way
        assert c.ask("DELETE", "/reservations/s-1", None, acme).status == 200
        assert sum(inflight(c).values()) == 1


def test_blocks_that_the_engine_tells_of_count(tmp_path):
    with Cluster(tmp_path) as c:
        c.router(ON)
        node = add(c, "a")
        c.wait_ready(1)
        until(lambda: c.ask("GET", "/workers").json(), "the node can be chosen")
        select(c, selection_id="s-1")
        assert ask(node.engine_port, "POST", "/v1/completions", {"model": "sim", "prompt": IDS, "max_tokens": 1}).status == 200
        assert c.ask("DELETE", "/reservations/s-1").status == 200
        got = until(lambda: select(c, path="/select")["overlap"]["gpu"] and select(c, path="/select"), "the engine's events are heard")
        assert got["overlap"]["longest_matched"] == got["overlap"]["disk"] == 64 and got["block_size"] == 16

# SPDX-License-Identifier: Apache-2.0
"""Cached blocks in the routers' view: every router gets the agents' reports completely, corrects them after
lost events, and drops them with their node. The dishonest agents are tests/helpers/agent_fake."""
import http.client
import json
import queue
import subprocess
import threading

import pytest

from cluster import BUILD, WAIT_S, Cluster, ask, free_port, scaled, until


class Fake:
    """A fake agent whose Watch follows commands on stdin."""

    def __init__(self, cluster, name, blocks=0, model="sim"):
        self.name = name
        self.proc = subprocess.Popen([BUILD / "agent_fake", "127.0.0.1:0", name, model, str(blocks)], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True, bufsize=1)
        self.said, self.lines = [], queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()
        self.address = f"127.0.0.1:{self.wait('port')['port']}"

    def read(self):
        for line in self.proc.stdout:
            self.lines.put(json.loads(line))

    def say(self, *lines):
        for line in lines:
            self.proc.stdin.write(line + "\n")
        self.proc.stdin.flush()

    def wait(self, key):
        while True:
            self.said.append(self.lines.get(timeout=WAIT_S))
            if key in self.said[-1]:
                return self.said[-1]

    def repairs(self):
        while not self.lines.empty():
            self.said.append(self.lines.get())
        return [x["repair"] for x in self.said if "repair" in x]

    def close(self):
        self.proc.kill()
        self.proc.wait()


@pytest.fixture
def fakes():
    made = []

    def make(*args, **more):
        made.append(Fake(*args, **more))
        return made[-1]
    yield make
    for f in made:
        f.close()


def static(cluster, *addresses):
    """Start a router, or a further one, that finds its nodes in a list."""
    cluster.common["cluster"] = {"state_backend": "static", "nodes": list(addresses)}


def digests(port, node):
    """Return {digest: tiers} as a router has it."""
    held, blocks = {}, ask(port, "GET", f"/index?node={node}").json()["blocks"]
    ranges = [f"&range={i}" for i in range(256)] if blocks > 65536 else [""]
    for r in ranges:
        for line in ask(port, "GET", f"/index?node={node}&format=digests{r}").body.decode().splitlines():
            digest, tiers = line.split()
            held[int(digest, 16)] = int(tiers)
    return held


def cache(port, node):
    try:
        answer = ask(port, "GET", f"/index?node={node}")
        return answer.json() if answer.status == 200 else {}
    except (OSError, http.client.HTTPException):
        return {}  # the router is just starting


def agreed(cluster, node, blocks):
    until(lambda: (now := cache(cluster.admin_port, node)).get("state") == "agreed" and now["blocks"] == blocks,
          lambda: f"{node} holds {blocks} blocks and both sides agree: {cache(cluster.admin_port, node)}")


def started(cluster, *fakes):
    static(cluster, *(f.address for f in fakes))
    cluster.router()
    cluster.wait_ready(len(fakes))


def test_blocks_arrive_with_their_tiers_and_go_again(cluster, fakes):
    f = fakes(cluster, "n1")
    f.say("source events")
    started(cluster, f)
    f.say("hold 1000000000000001 1", "hold 1000000000000002 2", "hold ff00000000000003 12", "check")
    agreed(cluster, "n1", 3)
    assert digests(cluster.admin_port, "n1") == {0x1000000000000001: 1, 0x1000000000000002: 2, 0xff00000000000003: 12}
    known = cache(cluster.admin_port, "n1")
    assert known["source"] == "events" and known["staleness_seconds"] == 0
    assert (known["gpu"], known["ram"], known["ssd"], known["remote"]) == (1, 1, 1, 1)
    f.say("hold 1000000000000001 3", "hold 1000000000000002 0", "again", "again", "check")
    agreed(cluster, "n1", 2)
    assert digests(cluster.admin_port, "n1") == {0x1000000000000001: 3, 0xff00000000000003: 12}
    assert f.repairs() == []


def test_a_lost_event_is_found_and_only_its_range_repeated(cluster, fakes):
    f = fakes(cluster, "n1", 2000)
    started(cluster, f)
    agreed(cluster, "n1", 2000)
    f.say("hide 4200000000000001 1", "hide 4200000000000002 4", "check")
    agreed(cluster, "n1", 2002)
    f.say("claim ab00000000000009 1", "check")
    until(lambda: f.repairs() == [[0x42], [0xab]], lambda: f"two repairs of one range each: {f.repairs()}")
    agreed(cluster, "n1", 2002)
    assert 0xab00000000000009 not in digests(cluster.admin_port, "n1")
    until(lambda: cluster.metric("cgn_index_repairs_total", node="n1") == 2, "they are counted")
    assert len(cluster.router_process.events("router.index_repair")) == 2


def test_a_gap_in_the_numbers_starts_over(cluster, fakes):
    f = fakes(cluster, "n1", 500)
    started(cluster, f)
    agreed(cluster, "n1", 500)
    f.say("hide 0100000000000001 1", "gap")
    f.wait("watch")
    f.wait("watch")
    agreed(cluster, "n1", 501)
    assert f.repairs() == [], "a snapshot mends it, and no range by range"


def test_sums_that_never_fit_are_not_asked_for_without_end(cluster, fakes):
    f = fakes(cluster, "n1", 100)
    started(cluster, f)
    agreed(cluster, "n1", 100)
    f.say("lie")
    until(lambda: len(f.repairs()) >= 8, "it is asked a few times")
    f.say(*["check"] * 50, "hold 0100000000000001 1")
    until(lambda: cache(cluster.admin_port, "n1")["blocks"] == 101, "what it tells is taken all the same")
    assert len(f.repairs()) == 8 and set(map(tuple, f.repairs())) == {(7,)}
    known = cache(cluster.admin_port, "n1")
    assert known["state"] == "repairing" and known["staleness_seconds"] > 0


@pytest.mark.both
def test_two_routers_agree_and_a_restarted_one_is_whole_again(cluster, fakes, tmp_path):
    blocks = scaled(200_000, 20_000)
    a, b = fakes(cluster, "n1", blocks), fakes(cluster, "n2", 10)
    started(cluster, a, b)
    (tmp_path / "second").mkdir()
    with Cluster(tmp_path / "second") as other:
        started(other, a, b)
        for c in (cluster, other):
            agreed(c, "n2", 10)
        agreed(other, "n1", blocks)  # the fake reports to its last watcher alone: the first one has the snapshot
        until(lambda: cache(cluster.admin_port, "n1").get("blocks") == blocks, "the first one has read the whole snapshot")
        sums = [{n: cache(c.admin_port, n)["sums"] for n in ("n1", "n2")} for c in (cluster, other)]
        assert sums[0] == sums[1] and sums[0]["n1"] != sums[0]["n2"]
        other.router_process.kill()
        other.router_process.start()
        agreed(other, "n1", blocks)
        assert {n: cache(other.admin_port, n)["sums"] for n in ("n1", "n2")} == sums[0]


def test_what_a_node_held_goes_with_it(cluster, fakes):
    cluster.router()
    cluster.node("a", "--time-scale", "0")
    cluster.wait_ready()
    cluster.chat("x" * 4000)
    until(lambda: cache(cluster.admin_port, "a").get("blocks", 0) > 0, "its agent told what was sent there")
    assert cache(cluster.admin_port, "a")["source"] == "sent"
    cluster.nodes["a"].agent.stop()
    until(lambda: cluster.states() == {}, "it left")
    index = ask(cluster.admin_port, "GET", "/index").json()
    assert index["nodes"] == {} and index["memberships"] == 0
    assert ask(cluster.admin_port, "GET", "/index?node=a").status == 404
    assert cluster.metric("cgn_index_held") == 0 and "cgn_source_trust{" not in cluster.scrape()


def test_an_engine_without_prefix_caching_holds_nothing(cluster):
    """Two turns of a prompt, at once and after a wait: nothing is predicted, and the source says why."""
    cluster.router()
    cluster.node("a", "--time-scale", "0", "--no-prefix-caching")
    cluster.wait_ready()
    until(lambda: cache(cluster.admin_port, "a").get("source") == "none", "the engine says that it keeps nothing")
    for _ in range(3):
        a = cluster.chat("x" * 4000)
        assert a.status == 200 and a.headers["x-cgn-cache-hit"].startswith("0/"), a.headers
        assert not (a.json()["usage"].get("prompt_tokens_details") or {}).get("cached_tokens")
    assert cache(cluster.admin_port, "a")["blocks"] == 0
    engine = cluster.status()["nodes"][0]["engines"][0]
    assert engine["residency"] == "none: prefix caching is off", engine


def test_a_watch_that_is_lost_makes_its_knowledge_stale(cluster):
    cluster.router({"cluster": {"lease": "60s"}})
    cluster.node("a", "--time-scale", "0")
    cluster.wait_ready()
    cluster.chat("x" * 4000)
    blocks = until(lambda: (c := cache(cluster.admin_port, "a")).get("state") == "agreed" and c["blocks"], "it is known")
    cluster.nodes["a"].agent.kill()
    until(lambda: cache(cluster.admin_port, "a")["staleness_seconds"] > 0, "its watch is lost")
    known = cache(cluster.admin_port, "a")
    assert known["state"] == "lost" and known["blocks"] == blocks, "kept, since it may only be the network"
    until(lambda: cluster.metric("cgn_index_staleness_seconds", node="a") > 0, "and shown")
    cluster.nodes["a"].agent.start()
    until(lambda: cache(cluster.admin_port, "a").get("state") == "agreed", "it is back")
    assert cache(cluster.admin_port, "a")["staleness_seconds"] == 0
    assert cache(cluster.admin_port, "a")["blocks"] == 0, "a new agent process has sent nothing yet"


def test_a_node_that_moves_takes_nothing_along(cluster):
    cluster.router({"cluster": {"lease": "60s"}})
    a = cluster.node("a", "--time-scale", "0")
    cluster.wait_ready()
    cluster.chat("x" * 4000)
    until(lambda: cache(cluster.admin_port, "a").get("blocks", 0) > 0, "it is known")
    before = cluster.status()["nodes"][0]["address"]
    a.agent.kill()
    cluster.agent("a", a.engine_port)
    until(lambda: (n := cluster.status()["nodes"])[0]["address"] != before and n[0]["state"] == "ready", "the same node, elsewhere")
    until(lambda: cache(cluster.admin_port, "a").get("state") == "agreed", "and watched there")
    cluster.chat("y" * 4000)
    until(lambda: cache(cluster.admin_port, "a")["blocks"] > 0, "what was sent there since")
    assert ask(cluster.admin_port, "GET", "/index").json()["memberships"] == cache(cluster.admin_port, "a")["blocks"]


def test_the_agent_says_how_stale_its_source_is(cluster, fakes):
    f = fakes(cluster, "n1", 5)
    f.say("source events 2500")
    started(cluster, f)
    until(lambda: cache(cluster.admin_port, "n1").get("staleness_seconds", 0) >= 2.5, "as the agent said")
    f.say("source events 0")
    until(lambda: cache(cluster.admin_port, "n1")["staleness_seconds"] == 0, "it hears its engine again")


def test_nonsense_about_blocks_ends_the_watch_and_nothing_else(cluster, fakes):
    f = fakes(cluster, "n1", 10)
    started(cluster, f)
    agreed(cluster, "n1", 10)
    f.say("nonsense")
    f.wait("watch")
    f.wait("watch")
    agreed(cluster, "n1", 10)
    assert "tier that does not exist" in cluster.router_process.events("router.watch_lost")[-1]["why"]


def test_an_index_that_is_too_small_stays_within_its_bound_and_says_so(cluster, fakes):
    f = fakes(cluster, "n1", 300_000)
    static(cluster, f.address)
    cluster.router({"router": {"index_size": "4MiB"}})
    cluster.wait_ready(1)
    until(lambda: cache(cluster.admin_port, "n1").get("state") == "shed", "some had no room")
    index = ask(cluster.admin_port, "GET", "/index").json()
    assert 0 < index["bytes"] <= index["budget_bytes"] == 4 << 20
    assert index["memberships"] + index["shed_memberships"] == 300_000 and index["memberships"] > 100_000
    until(lambda: cluster.metric("cgn_index_shed_total") == index["shed_memberships"], "counted")
    f.say("check", "check", "hold 4200000000000001 1", "check")
    until(lambda: cluster.metric("cgn_index_staleness_seconds") == 0, "what is known is right")
    assert f.repairs() == [], "what was shed is not asked for again and again"


def test_what_the_admin_port_refuses_of_the_index(cluster, fakes):
    f = fakes(cluster, "n1", 70_000)
    started(cluster, f)
    agreed(cluster, "n1", 70_000)
    assert ask(cluster.admin_port, "GET", "/index?node=nobody").status == 404
    for bad in ("256", "x", "-1"):
        assert ask(cluster.admin_port, "GET", f"/index?node=n1&format=digests&range={bad}").status == 400
    assert ask(cluster.admin_port, "GET", "/index?node=n1&format=digests").json()["error"]["code"] == "too_many"
    assert len(digests(cluster.admin_port, "n1")) == 70_000


def trust(cluster, node):
    return cache(cluster.admin_port, node)["trust"]


def test_a_source_that_promises_more_than_is_found_is_discounted_until_it_tells_the_truth(cluster):
    cluster.router({"router.admission": {"max_concurrent_per_replica": 64}})
    liar = cluster.node("liar", "--time-scale", "0", "--fault", "uncached")
    cluster.node("honest", "--time-scale", "0")
    cluster.wait_ready()

    def ask_of(node, text):
        assert cluster.chat(text, {"X-Cgn-Node": node}).status == 200
    for _ in range(2):
        ask_of("honest", "h" * 4000)
    for i in range(12):
        ask_of("liar", "l" * 4000 + str(i))
    until(lambda: trust(cluster, "liar") < 0.5, "what it promised was not found")
    assert trust(cluster, "honest") == 1
    until(lambda: cluster.metric("cgn_source_trust", node="liar") < 0.5, "shown")
    assert cluster.metric("cgn_cached_tokens_total", node="liar", kind="actual") == 0
    assert cluster.metric("cgn_cached_tokens_total", node="liar", kind="predicted") > 0
    engine_port = liar.engine_port
    liar.engine.kill()
    cluster.engine("truthful", "--time-scale", "0", port=engine_port)
    cluster.wait_ready()
    until(lambda: cluster.chat("l" * 4000, {"X-Cgn-Node": "liar"}).status == 200 and trust(cluster, "liar") == 1, "believed again")

# SPDX-License-Identifier: Apache-2.0
"""From an engine's KV events to the router's index: for every format and every fault on the way, the index
equals the engine's own cache in the end, block for block and tier by tier."""
import random
import signal
import subprocess

import pytest

from cluster import BUILD, ask, free_port, until
from test_residency import cache, digests

FORMATS = ["vllm", "vllm-array", "vllm-map", "sglang", "sglang-old", "sglang-map"]
MASK = {"GPU": 1, "CPU": 2, "STORAGE": 4}


def endpoints():
    return f"tcp://127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{free_port()}"


def start(cluster, *engine_args, replay=True, ranks=1, events=None, **keys):
    """A router and one node whose engine publishes events."""
    cluster.router()
    node = add(cluster, "n1", *engine_args, replay=replay, ranks=ranks, events=events, **keys)
    cluster.wait_ready()
    return node


def add(cluster, name, *engine_args, replay=True, ranks=1, events=None, **keys):
    events = events or endpoints()
    publish = ["--kv-events", events[0], *(["--kv-events-replay", events[1]] if replay else [])]
    keys = {"kv_events": events[0], "kv_events_ranks": ranks, **({"kv_events_replay": events[1]} if replay else {}), **keys}
    return cluster.node(name, "--time-scale", "0", "--kv-blocks", "96", *publish, *engine_args, sections={"engine": keys})


def truth(node):
    """Return {digest: mask} as the engine reports it; blocks of several ranks count once."""
    held = {}
    for rank in ask(node.engine_port, "GET", "/sim/blocks").json()["ranks"]:
        for tier, bit in MASK.items():
            for d in rank[tier]:
                held[int(d, 16) if isinstance(d, str) else d] = held.get(int(d, 16) if isinstance(d, str) else d, 0) | bit
    return held


def load(cluster, seed, n=30, salt="pepper"):
    """Send prompts that share beginnings, to a cache that can't hold them all."""
    rng = random.Random(seed)
    for _ in range(n):
        group = rng.randrange(8)
        body = {"model": "sim", "prompt": [group * 1000 + i for i in range(rng.randrange(20, 400))], "max_tokens": rng.randrange(1, 40),
                "ignore_eos": True}
        if group % 2 and salt:
            body["cache_salt"] = salt
        assert ask(cluster.http_port, "POST", "/v1/completions", body).status == 200


def source(node):
    try:
        (engine,) = ask(node.admin_port, "GET", "/engines").json()["engines"]
    except OSError:  # the agent is just starting
        return {"kv_events": {"ranks": []}}
    return engine


def state(node):
    return [r["state"] for r in source(node)["kv_events"]["ranks"]]


def exact(cluster, node, states=("good",)):
    def same():
        return state(node) == list(states) and cache(cluster.admin_port, node.name).get("state") == "agreed" and \
            digests(cluster.admin_port, node.name) == truth(node)

    def told():
        have, due = digests(cluster.admin_port, node.name), truth(node)
        return f"the index is the engine's cache: {len(have)} blocks, should be {len(due)}, {len(set(have.items()) ^ set(due.items()))} differ; {source(node)}"
    until(same, told)


def answers(port):
    try:
        return bool(ask(port, "GET", "/version").status)
    except OSError:
        return False


def faults(node, *list_):
    assert ask(node.engine_port, "POST", "/sim/faults", {"faults": list(list_)}).status == 200


@pytest.mark.parametrize("form", FORMATS)
def test_the_index_is_the_engines_cache(cluster, form):
    below = [] if form == "sglang-old" else ["--cpu-blocks", "64", "--disk-blocks", "128", "--kv-events-describe"]
    node = start(cluster, "--kv-events-format", form, "--kv-events-topic", "kv@here", *below, kv_events_topic="kv@")
    load(cluster, 1, salt=None if form == "sglang-old" else "pepper")  # this format has no salts
    assert len(truth(node)) > 90
    exact(cluster, node)
    assert cache(cluster.admin_port, "n1")["source"] == "events"
    engine = source(node)
    assert engine["residency"] == "events"
    (rank,) = engine["kv_events"]["ranks"]
    assert rank["errors"] == rank["gaps"] == rank["orphans"] == rank["unknown_events"] == rank["unknown_removed"] == 0
    assert ask(node.engine_port, "POST", "/reset_prefix_cache").status == 200
    exact(cluster, node)


@pytest.mark.parametrize("hashes", ["int", "bytes"])
def test_groups(cluster, hashes):
    node = start(cluster, "--kv-groups", "3", "--kv-events-hash", hashes)
    load(cluster, 2)
    exact(cluster, node)


def test_blocks_of_several_of_ours(cluster):
    cluster.common['models."sim"'] = {"block_tokens": 16}
    node = start(cluster, "--block-tokens", "32")
    load(cluster, 3)
    # Each is two blocks of ours, of which the first may belong to several.
    until(lambda: state(node) == ["good"] and len(truth(node)) < len(digests(cluster.admin_port, "n1")) <= 2 * len(truth(node)),
          lambda: f"{len(truth(node))} blocks, {len(digests(cluster.admin_port, 'n1'))} of ours")


def test_blocks_that_do_not_divide(cluster):
    cluster.common['models."sim"'] = {"block_tokens": 32}
    node = start(cluster)
    load(cluster, 4, n=2)
    until(lambda: state(node) == ["demoted"], lambda: f"the source is demoted: {source(node)}")
    assert "16 tokens, which does not go with the model's block_tokens = 32" in source(node)["residency"]
    assert source(node)["residency"].startswith("demoted: ")
    assert cache(cluster.admin_port, "n1")["source"] == "sent"
    (shown,) = cluster.status()["nodes"]
    assert shown["engines"][0]["residency"] == source(node)["residency"]
    nodes = subprocess.run([BUILD / "src/ctl/cgn-ctl", "cluster", "nodes", "-o", "wide", "--router", f"127.0.0.1:{cluster.grpc_port}"],
                           capture_output=True, text=True)
    assert "sent, demoted" in nodes.stdout, nodes


def differing(cluster):
    return cluster.metric("cgn_node_blocks_differ", node="n1")


@pytest.mark.threads
@pytest.mark.parametrize("how", ["blocks", "name"])
def test_an_agent_that_makes_other_digests_is_told(cluster, how):
    """Nothing that its events tell of would ever be found: they are not used, and what was sent there counts."""
    ours, theirs = ({"block_tokens": 16}, {"block_tokens": 32}) if how == "blocks" else ({"aliases": ["sim"]}, {"block_tokens": 16})
    name = "sim" if how == "blocks" else "one-name"
    cluster.router({f'models."{name}"': ours})
    events = endpoints()
    cluster.node("n1", "--time-scale", "0", "--kv-blocks", "96", "--block-tokens", "32" if how == "blocks" else "16", "--kv-events", events[0],
                 "--kv-events-replay", events[1], sections={"engine": {"kv_events": events[0], "kv_events_replay": events[1]}, 'models."sim"': theirs})
    cluster.wait_ready()
    until(lambda: source(cluster.nodes["n1"])["residency"] == "events" and differing(cluster) == 1, cluster.status)
    hits = []
    for _ in range(3):
        a = ask(cluster.http_port, "POST", "/v1/completions", {"model": "sim", "prompt": list(range(200)), "max_tokens": 1})
        assert a.status == 200
        hits.append(a.headers["x-cgn-cache-hit"])
    assert hits == ["0/12", "12/12", "12/12"]
    [said] = cluster.router_process.events("router.blocks_differ")
    assert said["node"] == "n1" and said["level"] == "warn"
    assert said["why"] == ("block_tokens of model sim is 32 at its agent and 16 at this router" if how == "blocks" else
                           "its agent calls the model sim, this router one-name")
    (node,) = cluster.status()["nodes"]
    assert node["state"] == "ready" and node["reason"] == f"its KV events are not used: {said['why']}"
    shown = subprocess.run([BUILD / "src/ctl/cgn-ctl", "cluster", "nodes", "--router", f"127.0.0.1:{cluster.grpc_port}"], capture_output=True, text=True)
    assert said["why"] in shown.stdout, shown
    if how == "blocks":
        config = cluster.folder / "router.toml"
        config.write_text(config.read_text().replace("block_tokens = 16", "block_tokens = 32"))
        cluster.router_process.signal(signal.SIGHUP)
        until(lambda: cluster.router_process.events("router.blocks_agree") and differing(cluster) == 0, cluster.status)
        exact(cluster, cluster.nodes["n1"])
        assert cluster.status()["nodes"][0]["reason"] == ""


@pytest.mark.parametrize("page", [1, 4])
def test_pages_smaller_than_ours(cluster, page):
    """SGLang's pages have one token unless configured otherwise: sixteen pages make one block."""
    cluster.common['models."sim"'] = {"block_tokens": 16}
    node = start(cluster, "--block-tokens", str(page), "--kv-blocks", str(1600 // page), "--kv-events-format", "sglang", kv_events_lora="path")
    for prompt in range(3):
        body = {"model": "sim", "prompt": [prompt * 1000 + i for i in range(200)], "max_tokens": 1}
        assert ask(cluster.http_port, "POST", "/v1/completions", body).headers["x-cgn-cache-hit"] == "0/12"
    until(lambda: state(node) == ["good"] and len(digests(cluster.admin_port, "n1")) == 36, lambda: f"3 x 12 blocks of ours: {source(node)}")
    again = ask(cluster.http_port, "POST", "/v1/completions", body)
    assert again.headers["x-cgn-cache-hit"] == "12/12"
    assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 192


def test_ranks(cluster):
    folder = cluster.folder
    node = start(cluster, "--workers", "3", ranks=3, events=(f"ipc://{folder}/e", f"ipc://{folder}/r"))
    load(cluster, 5, n=60)
    exact(cluster, node, ["good"] * 3)


def test_what_was_there_before_the_agent(cluster):
    """A restarted agent learns all blocks from a replay."""
    node = start(cluster)
    load(cluster, 6)
    exact(cluster, node)
    node.agent.kill()
    node.agent.start()
    exact(cluster, node)


def test_a_short_buffer_makes_it_partial(cluster):
    node = start(cluster, "--kv-events-buffer", "5")
    load(cluster, 6)
    exact(cluster, node)
    node.agent.kill()
    node.agent.start()
    until(lambda: state(node) == ["partial"], lambda: f"the source is partial: {source(node)}")
    assert source(node)["residency"] == "events: partial (events before the first that was seen are not known)"
    until(lambda: cache(cluster.admin_port, "n1").get("state") == "agreed", "the router has it all")
    assert set(digests(cluster.admin_port, "n1")) <= set(truth(node)), "what it knows is true"
    assert ask(node.engine_port, "POST", "/reset_prefix_cache").status == 200
    load(cluster, 7, n=5)
    exact(cluster, node)  # from then on every block is known


def test_lost_doubled_and_swapped_batches(cluster):
    node = start(cluster)
    faults(node, "kv-lose@0.1", "kv-twice@0.1", "kv-swap@0.1", "kv-alien@0.1")
    load(cluster, 7, n=60)
    exact(cluster, node)
    (rank,) = source(node)["kv_events"]["ranks"]
    assert rank["gaps"] > 0 and rank["duplicates"] > 0 and rank["unknown_events"] > 0


def test_a_restarted_engine(cluster):
    node = start(cluster)
    load(cluster, 8)
    exact(cluster, node)
    faults(node, "kv-restart@nth=1")
    load(cluster, 9, n=1)
    faults(node)
    load(cluster, 10, n=10)
    exact(cluster, node)
    assert source(node)["kv_events"]["ranks"][0]["restarts"] == 1


def test_garbage_demotes_and_is_told(cluster):
    node = start(cluster)
    load(cluster, 11, n=5)
    exact(cluster, node)
    faults(node, "kv-garbage@nth=1")
    load(cluster, 12, n=1)
    until(lambda: state(node) == ["demoted"], lambda: f"the source is demoted: {source(node)}")
    assert source(node)["residency"].startswith("demoted: unparsable event, batch ")
    (event,) = node.agent.events("kv_events.unparsable")
    assert event["head"]
    faults(node)
    load(cluster, 13, n=3)
    until(lambda: cache(cluster.admin_port, "n1").get("source") == "sent", "what was sent counts")
    until(lambda: cache(cluster.admin_port, "n1")["blocks"] > 0, lambda: f"it is told: {source(node)}")


@pytest.mark.parametrize("seed", [1, 2])
def test_a_life_of_two_nodes(cluster, seed):
    """Requests, evictions through three tiers, events that are lost, doubled and swapped, engines and agents
    that die: in each lull the index equals the engines' contents."""
    rng = random.Random(seed)
    router = cluster.router()
    nodes = [add(cluster, name, "--cpu-blocks", "64", "--disk-blocks", "128", "--kv-events-format", form)
             for name, form in (("n1", "vllm"), ("n2", "sglang-map"))]
    cluster.wait_ready(2)
    for _ in range(4):
        for node in nodes:
            faults(node, *rng.sample(["kv-lose@0.1", "kv-twice@0.2", "kv-swap@0.1", "kv-alien@0.1"], 2))
        load(cluster, rng.random(), n=20)
        victim = rng.choice([nodes[0].engine, nodes[1].engine, nodes[0].agent, nodes[1].agent, router])
        victim.kill()
        victim.start()
        for node in nodes:
            until(lambda: answers(node.engine_port), "the engine listens")
        until(lambda: answers(cluster.admin_port), "the router listens")
        cluster.wait_ready(2)
        for node in nodes:
            faults(node)
        load(cluster, rng.random(), n=20)
        for node in nodes:
            exact(cluster, node)
            assert len(truth(node)) > 0


# ---- requests that are faster than their events ----

def turn(cluster, messages, **more):
    """Send a turn of a conversation and append the answer. Return predicted and actual cached tokens."""
    answer = cluster.ask("POST", "/v1/chat/completions", {"model": "sim", "messages": messages, "ignore_eos": True, **more})
    assert answer.status == 200
    messages.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]})
    messages.append({"role": "user", "content": "and then?"})
    name = answer.headers["x-request-id"]
    log = until(lambda: next((e for e in cluster.router_process.events("gateway.request") if e["id"] == name), None), "the request is logged")
    assert answer.headers["x-cgn-cache-hit"] == f'{log["blocks_held"]}/{log["blocks"]}'
    return log["cached_predicted"], log["cached_tokens"]


def test_a_turn_may_be_faster_than_the_events_of_the_one_before(cluster):
    """No event of the conversation arrives: its prompts count as held all the same."""
    node = start(cluster)
    exact(cluster, node)
    faults(node, "kv-silent")
    messages = [{"role": "user", "content": "a story of the sea, " * 40}]
    assert turn(cluster, messages, max_tokens=1) == (0, 0)
    for _ in range(5):
        predicted, actual = turn(cluster, messages, max_tokens=1)
        assert predicted == actual > 200
    assert digests(cluster.admin_port, "n1") == {}


def test_the_last_block_of_an_answer_is_told_of_at_once(cluster):
    """The engine completes a block one token before the end of the answer, and the next turn is sent at once."""
    node = start(cluster, "--time-scale", "1", "--decode-ms", "20", "--kv-blocks", "500")
    exact(cluster, node)
    messages, right = [{"role": "user", "content": "a story of the sea"}], 0
    for _ in range(7):
        tokens = ask(node.engine_port, "POST", "/tokenize", {"model": "sim", "messages": messages}).json()["count"]
        predicted, actual = turn(cluster, messages, max_tokens=4 + (-tokens - 2) % 16)
        right += predicted == actual
    assert right >= 4  # a busy machine may delay some


def test_what_was_sent_counts_when_the_events_begin(cluster, tmp_path):
    """Until an engine's events can be read, the router goes by what it sent. That stays known while the first events are awaited."""
    real, link = tmp_path / "real", tmp_path / "link"
    cluster.router()
    node = cluster.node("n1", "--time-scale", "0", "--kv-blocks", "96", "--kv-events", f"ipc://{real}", "--kv-events-replay", f"ipc://{real}-replay",
                        sections={"engine": {"kv_events": f"ipc://{link}", "kv_events_replay": f"ipc://{link}-replay"}})
    cluster.wait_ready()
    faults(node, "kv-silent")
    messages = [{"role": "user", "content": "a story of the sea, " * 40}]
    assert turn(cluster, messages, max_tokens=1) == (0, 0)
    assert cache(cluster.admin_port, "n1")["source"] == "sent"
    (tmp_path / "link-replay").symlink_to(f"{real}-replay")
    link.symlink_to(real)
    until(lambda: cache(cluster.admin_port, "n1")["source"] == "events", "the events are read")
    predicted, actual = turn(cluster, messages, max_tokens=1)
    assert predicted == actual > 200

# SPDX-License-Identifier: Apache-2.0
"""KV events through a foreign ZeroMQ and MessagePack: npm's zeromq (libzmq) publishes to a cgn-agent, and
subscribes to cgn-sim."""
import json
import os
import queue
import shutil
import subprocess
import threading

import pytest

from cluster import WAIT_S, ask, free_port, until
from conftest import HERE
from kvwire import next_digest, root_digest, short

pytestmark = pytest.mark.skipif(not os.environ.get("CI") and not ((HERE / "node_modules" / "zeromq").is_dir() and shutil.which("node")),
                                reason="no node, or no zeromq: npm install in tests/interop")
BLOCK = 16


class Node:
    """A script of the test under node, line by line."""

    def __init__(self, script, *args):
        self.proc = subprocess.Popen(["node", script, *map(str, args)], cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.proc.stdout:
            self.lines.put(json.loads(line))

    def line(self):
        return self.lines.get(timeout=WAIT_S)

    def close(self):
        self.proc.kill()
        self.proc.wait()


class Publisher(Node):
    def __init__(self, endpoints, *options):
        super().__init__("kv_publisher.mjs", *endpoints, *options)
        assert self.line()["ready"]

    def batch(self, *events, lose=False):
        self.proc.stdin.write(json.dumps({"events": events, "lose": lose}) + "\n")
        self.proc.stdin.flush()
        return self.line()["batch"]


def tokens(prompt, n):
    return [prompt * 10000 + i for i in range(n * BLOCK)]


def stored(prompt, at, n, **more):
    """Return blocks |at| to |at| + |n| of a prompt whose tokens are its own."""
    return {"type": "BlockStored", "block_hashes": [prompt * 100 + at + i for i in range(n)], "parent_block_hash": prompt * 100 + at - 1 if at else None,
            "token_ids": tokens(prompt, at + n)[at * BLOCK:], "block_size": BLOCK, "medium": "GPU", **more}


def removed(prompt, at, medium="GPU"):
    return {"type": "BlockRemoved", "block_hashes": [prompt * 100 + at], "medium": medium}


def chain(prompt, n, model="sim"):
    d, out = root_digest(model), []
    for i in range(n):
        d = next_digest(d, tuple(tokens(prompt, n)[i * BLOCK:(i + 1) * BLOCK]))
        out.append(short(d))
    return out


def number(d):
    return int(d, 16) if isinstance(d, str) else d


def index(cluster):
    """Return {digest: mask} as the router has it."""
    known = ask(cluster.admin_port, "GET", "/index?node=n1")
    if known.status != 200 or known.json()["state"] != "agreed":
        return None
    lines = ask(cluster.admin_port, "GET", "/index?node=n1&format=digests").body.decode().splitlines()
    return {int(d, 16): int(mask) for d, mask in map(str.split, lines)}


def is_known(cluster, *due):
    """Wait until the router has exactly the blocks |due|: (digest, mask)."""
    want = {number(d): mask for d, mask in due}
    until(lambda: index(cluster) == want, lambda: f"the index has {len(want)} blocks: {index(cluster)}")


@pytest.mark.parametrize("options", [["map", "topic-in-replay"], ["array", "hash-bytes"], ["map", "hash-bytes"]], ids="-".join)
def test_libzmq_publishes(cluster, options):
    endpoints = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    p = Publisher(endpoints, *options)
    try:
        p.batch(stored(1, 0, 3), stored(2, 0, 1))
        p.batch(stored(1, 3, 1), removed(2, 0))
        cluster.router()
        node = cluster.node("n1", sections={"engine": {"kv_events": endpoints[0], "kv_events_replay": endpoints[1], "kv_events_topic": "kv@"}})
        cluster.wait_ready()
        is_known(cluster, *((d, 1) for d in chain(1, 4)))
        p.batch(stored(3, 0, 2))
        is_known(cluster, *((d, 1) for d in chain(1, 4) + chain(3, 2)))
        p.batch(stored(3, 2, 1), lose=True)
        p.batch(stored(3, 3, 1), {"type": "BlockStored", "block_hashes": [300], "parent_block_hash": None, "token_ids": [], "block_size": 0, "medium": "CPU"})
        first, *rest = chain(3, 4)
        is_known(cluster, *((d, 1) for d in chain(1, 4) + rest), (first, 3))
        p.batch({"type": "AllBlocksCleared"}, stored(4, 0, 1, lora_id=1, lora_name="tuned"))
        is_known(cluster, (chain(4, 1, "tuned")[0], 1))
        p.close()  # another engine takes its place
        p = Publisher(endpoints, *options)
        for i in range(8):
            p.batch(stored(5 + i, 0, 1))
        is_known(cluster, *((chain(5 + i, 1)[0], 1) for i in range(8)))
        (engine,) = ask(node.admin_port, "GET", "/engines").json()["engines"]
        assert engine["residency"] == "events"
        (rank,) = engine["kv_events"]["ranks"]
        assert (rank["restarts"], rank["errors"], rank["orphans"]) == (1, 0, 0) and rank["gaps"] >= 1
    finally:
        p.close()


def test_libzmq_subscribes(cluster):
    endpoints = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    _, port = cluster.engine("e", "--time-scale", "0", "--kv-events", endpoints[0], "--kv-events-replay", endpoints[1], "--kv-events-topic", "kv@me")

    def complete(prompt):
        assert ask(port, "POST", "/v1/completions", {"model": "sim", "prompt": tokens(prompt, 3), "max_tokens": 1}).status == 200

    complete(1)
    s = Node("kv_subscriber.mjs", *endpoints, "kv@", 3)
    try:
        said = [s.line()]
        while said[-1]["kind"] != "ready":
            said.append(s.line())
        replayed = said[:-1]
        assert [b["number"] for b in replayed] == list(range(len(replayed))) and replayed
        prompt = 2
        live = []
        while len(live) < 3:  # until the subscription has arrived
            complete(prompt)
            prompt += 1
            try:
                live.append(s.lines.get(timeout=0.2))
            except queue.Empty:
                continue
        assert {b["kind"] for b in live} == {"live"} and all(b["outer"] for b in live)
        assert [b["number"] for b in live] == list(range(live[0]["number"], live[0]["number"] + 3))
    finally:
        s.close()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a removal of replicas costs in cache hits, with and without block stores.

A router whose autoscaler removes all but one of several managed cgn-sim, each beside its own cgn-kvcached. Conversations go on
before and after the removal; their histories lie on all replicas. Counts are compared, not times, so that a busy machine does
not matter: prompt tokens that were found in a cache, of the tokens that an earlier turn had already computed. A conversation is
streamed through the whole removal and must end whole. Prints JSON.

    bench/autoscale_stores.py --build build/ci --replicas 3 --conversations 48 --turns 4 --rounds 3
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import types

ROOT = pathlib.Path(__file__).resolve().parents[1]
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
parser.add_argument("--replicas", type=int, default=3)
parser.add_argument("--conversations", type=int, default=48)
parser.add_argument("--turns", type=int, default=4, help="of each conversation before the removal")
parser.add_argument("--words", type=int, default=600, help="of the first prompt")
parser.add_argument("--rounds", type=int, default=3)
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
if __name__ == "__main__":
    a = parser.parse_args()  # before the imports of tests/, which read CGN_BUILD
    os.environ["CGN_BUILD"] = str(a.build.resolve())
from clients import Stream  # noqa: E402
from cluster import BUILD, Cluster, ask, free_port, until  # noqa: E402
from kvpeers import Peer, bootstrap  # noqa: E402

WORDS = "sea wind salt gull rope tide moon sand wave ship fog bell star dune reef kelp foam crab harbour night".split()
SCALER = {"enabled": True, "up_window": "1s", "down_window": "2s", "idle": "600s", "ttft": "0s", "itl": "0s"}
TOKENS_PER_S = 8000


class Fleet:
    def __init__(self, stack, folder, replicas, stores):
        self.c = c = stack.enter_context(Cluster(folder))
        self.names = "abcdefgh"[:replicas]
        self.c.router({"router.autoscaler": SCALER, 'models."sim"': {"replicas": f"{replicas}-{replicas}"}})
        pki = bootstrap(folder / "pki", *self.names) if stores else None
        peers, places = {}, {n: types.SimpleNamespace(address=f"127.0.0.1:{free_port()}") for n in self.names}
        for n in self.names:
            more = []
            if stores:
                peers[n] = stack.enter_context(contextlib.closing(Peer(folder, pki, n, places.values(), quic_listen=places[n].address, ram="1GiB")))
                more = ["--kv-uds", str(peers[n].uds), "--kv-block-bytes", "4096"]
            c.agent(n, free_port(), {"agent": {"kv_uds": str(peers[n].uds) if stores else str(folder / "none.sock")}, "engine": {
                "managed": True, "model_path": "sim", "binary": str(BUILD / "src/sim/cgn-sim"), "stop_grace": "2s",
                "extra_args": ["--prefill-tokens-per-s", str(TOKENS_PER_S), "--time-scale", "0.1", "--kv-blocks", "65536", *more]}})
        c.wait_ready(replicas)
        for p in peers.values():
            p.ready(replicas - 1)
        self.peers = peers

    def ready(self):
        return ask(self.c.admin_port, "GET", "/autoscaler").json()["models"][0]["ready"]

    def shrink(self):
        """Let the autoscaler remove all replicas but one, while a stream goes on."""
        file = self.c.folder / "router.toml"
        n = len(self.names)
        file.write_text(file.read_text().replace(f'"{n}-{n}"', f'"1-{n}"'))
        with contextlib.closing(Stream(self.c.http_port, "a long answer", max_tokens=400, ignore_eos=True)) as s:
            s.read_until(b"data: ")
            self.c.router_process.signal(signal.SIGHUP)
            s.read_until(b"[DONE]")
        until(lambda: self.ready() == 1, lambda: self.c.scrape(), wait_s=120)


def turn_all(fleet, talks, rng, seen):
    """Let every conversation go on by a turn; return tokens that an earlier turn had computed, and those found."""
    known = found = 0
    order = list(range(len(talks)))
    rng.shuffle(order)
    for k in order:
        talk = talks[k]
        talk.append({"role": "user", "content": " ".join(rng.choices(WORDS, k=rng.randint(20, 60)))})
        r = fleet.c.ask("POST", "/v1/chat/completions", {"model": "sim", "messages": talk, "max_tokens": 16})
        assert r.status == 200, r.body
        body = r.json()
        usage = body["usage"]
        known += seen.get(k, 0)
        found += min((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0, seen.get(k, 0))
        seen[k] = usage["prompt_tokens"]
        talk.append({"role": "assistant", "content": body["choices"][0]["message"]["content"]})
    return known, found


def share(rows):
    return round(sum(f for _, f in rows) / max(1, sum(k for k, _ in rows)), 4)


def one_round(seed, stores):
    rng = random.Random(seed)
    with contextlib.ExitStack() as stack:
        fleet = Fleet(stack, pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())), a.replicas, stores)
        talks = [[{"role": "user", "content": f"{k}: " + " ".join(rng.choices(WORDS, k=a.words))}, {"role": "assistant", "content": "yes"}] for k in range(a.conversations)]
        seen = {}
        before = [turn_all(fleet, talks, rng, seen) for _ in range(a.turns)][1:]
        fleet.shrink()
        after = turn_all(fleet, talks, rng, seen)
        later = turn_all(fleet, talks, rng, seen)
        moved = sum(p.metric("cgn_kv_peer_bytes_total", direction="in") for p in fleet.peers.values())
        return {"stores": stores, "before": share(before), "first_turn_after": share([after]), "second_turn_after": share([later]),
                "kept": round(share([after]) / share(before), 4), "moved_bytes": int(moved)}


def main():
    rows = [one_round(seed, stores) for seed in range(a.rounds) for stores in (True, False)]
    for stores in (True, False):
        mine = [r for r in rows if r["stores"] == stores]
        print(f"stores {stores}: kept {min(r['kept'] for r in mine)} to {max(r['kept'] for r in mine)}", file=sys.stderr)
    print(json.dumps({"replicas": a.replicas, "conversations": a.conversations, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()

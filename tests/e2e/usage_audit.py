# SPDX-License-Identifier: Apache-2.0
"""The audit of usage: many requests of all kinds, to engines that keep books of their own (cgn-sim --books), and the router's
/usage beside these books. Each kind has a model of its own.

usage: usage_audit.py [--requests N] [--seed N]    prints the table of docs/proof/usage.md; CGN_BUILD names the build folder"""
import argparse
import collections
import concurrent.futures
import dataclasses
import json
import pathlib
import random
import re
import tempfile
import time

from clients import Stream
from cluster import Cluster, Node, ask, free_port, until
from test_batch import create, ended, jsonl, line
from test_limits import key

CHAT = "/v1/chat/completions"
FLEET = ("plain", "stream", "asked", "text", "messages", "responses", "ollama", "reset", "left", "closed")
PACE = ("--token-interval-us", "4000")
TENANTS = ("acme", "beta")
PRICE = {"input": 1.5, "cached_input": 0.5, "output": 6}
FIELDS = ("input", "cached", "output")
CLIENTS = 24


@dataclasses.dataclass
class Sent:
    number: int
    kind: str
    who: str
    tokens: int
    closes: int = 0  # bytes after which the client leaves


def share_of(kind):
    return {"batch": 4, "away": 3, "pair": 3}.get(kind, 5)


KINDS = (*FLEET, "retried", "resumed", "cascade", "pair", "away", "batch")
# Kinds whose clients leave: the engine's count never comes.
ESTIMATED = ("reset", "left")


class Audit:
    def __init__(self, c, seed=1):
        self.c, self.dice = c, random.Random(seed)
        self.keys = {f"{t}{i}": key(c.folder, f"{t}{i}", t) for t in TENANTS for i in (1, 2)}
        self.sent, self.books = {}, {}

    # ---- the fleet ----

    def begin(self):
        c = self.c
        away = free_port()
        prices = {f'prices."{m}"': dict(PRICE) for m in (*FLEET, "retried", "small", "large", "pair", "batch")}
        prices['prices."resumed"'] = {"input": 1.5, "output": 6}
        c.router({
                  "router": {"worker_threads": 2}, "auth": {"enabled": True, "api_keys_file": str(c.folder / "keys")}, **prices,
                  "batch": {"enabled": True}, "router.retry": {"backoff": "1ms", "budget": 1.0, "attempts": 4},
                  "router.federation": {"enabled": True, "margin": "0s"}, "router.admission": {"node_wait": "0s"},
                  'peers."cloud"': {"url": f"http://127.0.0.1:{away}/v1", "ca_file": "", "models": ["away"], "tenants": ["*"], "input": 2, "output": 10, "daily_budget": 900},
                  "router.cascade": {"enabled": True, "small_model": "small", "large_model": "large", "confidence_threshold": -0.3, "tokens": 8, "calibration_share": 0},
                  "router.disagg": {"enabled": True, "colocate_below_tokens": 64}, 'models."pair"': {"block_bytes": 64, "tokens": "bytes"}})
        fleet = [w for m in FLEET[1:] for w in ("--model", m)]
        for name in ("a", "b"):
            self.node(name, *fleet, *PACE, model=FLEET[0])
        self.node("r1", *PACE, "--fault", "http500@0.3", model="retried")
        self.node("r2", *PACE, model="retried")
        self.node("c1", *PACE, "--fault", "cut-after=9@0.4", model="resumed")
        self.node("c2", *PACE, model="resumed")
        self.node("s", *PACE, "--skill", "0.5", model="small")
        self.node("l", *PACE, "--skill", "1", model="large")
        self.node("q", *PACE, model="batch")
        for name, role in (("p", "prefill"), ("d", "decode")):
            self.half(name, role)
        c.engine("engine-away", *PACE, "--books", self.book("away"), port=away, model="away")
        c.wait_ready(len(c.nodes))

    def book(self, name):
        self.books[name] = self.c.folder / f"books-{name}"
        return str(self.books[name])

    def node(self, name, *args, model):
        self.c.node(name, *args, "--books", self.book(name), model=model)

    def half(self, name, role):
        """One end of a pair that hands prompts over."""
        c = self.c
        engine, port = c.engine(f"engine-{name}", "--handoff", "nixl", "--role", role, "--kv-block-bytes", "1024", *PACE, "--books", self.book(name), model="pair")
        agent, agent_port, admin = c.agent(name, port, {"agent": {"role": role}, "engine": {"handoff": "nixl", "handoff_port": port}})
        c.nodes[name] = Node(name, engine, agent, port, agent_port, admin)

    # ---- requests ----

    def draw(self, n):
        kinds = [k for k in KINDS for _ in range(share_of(k)) if k != "batch"]
        out = []
        for i in range(n):
            # A peer and the batch runner have request ids of their own: their requests are of one key.
            kind = self.dice.choice(kinds)
            who = "acme1" if kind == "away" else self.dice.choice(sorted(self.keys))
            out.append(Sent(i, kind, who, self.dice.choice((3, 20, 80, 200)), self.dice.randrange(1, 40000)))
        return out

    def body(self, s):
        dice = random.Random(s.number)
        # Some prompts begin alike, so that engines find parts of them.
        words = f"part {dice.randrange(4)} " + "of the same long beginning " * dice.choice((0, 10, 60)) + f"request {s.number}"
        model = "large" if s.kind == "cascade" else s.kind
        chat = {"model": model, "messages": [{"role": "user", "content": words}], "max_tokens": s.tokens, "ignore_eos": True}
        streams = s.kind in ("stream", "asked", "reset", "closed", "resumed") or (s.kind not in ("plain", "left") and dice.random() < 0.5)
        if s.kind == "asked":
            chat["stream_options"] = {"include_usage": True}
        if s.kind == "cascade":
            chat["difficulty"] = dice.choice((0.05, 0.95))
        if s.kind == "text":
            return "/v1/completions", {"model": model, "prompt": words, "max_tokens": s.tokens, "ignore_eos": True, "stream": streams}
        if s.kind == "responses":
            return "/v1/responses", {"model": model, "input": words, "max_output_tokens": s.tokens, "stream": streams}
        if s.kind == "ollama":
            return "/api/chat", {"model": model, "messages": chat["messages"], "options": {"num_predict": s.tokens}, "stream": streams}
        return "/v1/messages" if s.kind == "messages" else CHAT, {**chat, "stream": streams}

    def send(self, s):
        path, body = self.body(s)
        fields = {**self.keys[s.who], "X-Request-Id": f"au{s.number}x"} | ({"X-Cgn-Resume": "1"} if s.kind == "resumed" else {})
        self.sent[s.number] = s
        if s.kind in ("reset", "left", "closed"):
            self.leave(s, path, body, fields)
            return
        a = self.c.ask("POST", path, body, fields)
        assert a.status == 200, (s, a.status, a.body[:300])

    def leave(self, s, path, body, fields):
        """Go away in the middle of a stream or of the computing of a document, or right behind the last event."""
        client = Stream(self.c.http_port, fields=fields, path=path, **body)
        if s.kind == "left":
            time.sleep(random.Random(s.number).uniform(0.05, 0.004 * s.tokens))  # somewhere in the computing: nothing is awaited
        elif s.kind == "closed":
            client.read_until(b"data: [DONE]")
        else:
            while len(client.got) < s.closes and b"[DONE]" not in client.got[-40:] and client.read():
                pass
        client.reset()

    def batches(self, n):
        for tenant in TENANTS if n else ():
            rows = [line(i, model="batch", ignore_eos=True) for i in range(n // 2)]
            b = ended(self.c, create(self.c, jsonl(rows), self.keys[f"{tenant}1"]), self.keys[f"{tenant}1"])
            assert b["status"] == "completed" and b["request_counts"]["completed"] == n // 2, b

    def run(self, n):
        batch = n * share_of("batch") // sum(map(share_of, KINDS))
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            lines = pool.submit(self.batches, batch)
            for done in pool.map(self.send, self.draw(n - batch)):
                pass
            lines.result()
        self.n_batch = batch // 2 * 2

    # ---- the books ----

    def lines(self):
        for name, path in self.books.items():
            for text in path.read_text().splitlines():
                yield name, json.loads(text)

    def settled(self):
        text = self.c.scrape()
        idle = all(ask(n.engine_port, "GET", "/sim/state").json()["running"] == 0 for n in self.c.nodes.values())
        return idle and self.c.metric("cgn_inflight", text) == 0

    def expected(self):
        """Return {model: {field: count}} and the same by tenant and key of what the engines' books say that each has to pay."""
        legs = collections.defaultdict(list)
        by = {dim: collections.defaultdict(lambda: dict.fromkeys(FIELDS, 0)) for dim in ("model", "tenant", "key")}

        def add(model, who, **more):
            for dim, name in (("model", model), ("tenant", who[:-1]), ("key", who)):
                for field, value in more.items():
                    by[dim][name][field] += value
        # Engines get ids of the router's own.
        numbers = {e["own_id"]: int(e["id"][2:-1]) for e in self.c.router_process.events("gateway.request") if e["own_id"] and e["id"].startswith("au")}
        for name, entry in self.lines():
            number = next((numbers[i] for i in re.findall("req-[0-9a-f]+", entry["id"]) if i in numbers), None)
            if number is not None:
                legs[number].append((name, entry))
            else:
                who = "acme1" if entry["model"] == "away" else None
                add(entry["model"], who or "?0", input=entry["prompt"], cached=entry["cached"], output=entry["tokens"])
        for number, rows in legs.items():
            s = self.sent[number]
            entries = [e for _, e in rows]
            if s.kind == "resumed":  # the answer has as many tokens as were asked for, whoever made them
                add("resumed", s.who, input=entries[0]["prompt"], cached=entries[-1]["cached"], output=s.tokens)
            elif s.kind == "pair":
                answer = next((e for n, e in rows if n == "d"), entries[-1])
                first = next((e for n, e in rows if n == "p"), answer)
                add("pair", s.who, input=answer["prompt"], cached=first["cached"], output=answer["tokens"])
            else:
                for e in entries:
                    add(e["model"], s.who, input=e["prompt"], cached=e["cached"], output=e["tokens"])
        return by

    def charged(self, by):
        rows = ask(self.c.admin_port, "GET", f"/usage?by={by}").json()["usage"]
        return {r[by]: {"requests": r["requests"], "estimated": r["estimated"], "input": r["input_tokens"], "cached": r["cached_tokens"],
                        "output": r["output_tokens"], "money": r["money"]} for r in rows}


def price(model, row):
    p = {"input": 2, "output": 10} if model == "away" else {"input": 1.5, "output": 6} if model == "resumed" else PRICE
    cached = row["cached"] if "cached_input" in p else 0
    return (p["input"] * (row["input"] - cached) + p.get("cached_input", 0) * cached + p["output"] * row["output"]) / 1e6


def audit(folder, n, seed=1):
    """Return (rows by model: (requests, estimated, charged, books), charged by tenant and key, books by tenant and key, audit)."""
    with Cluster(folder) as c:
        a = Audit(c, seed)
        a.begin()
        began = time.monotonic()
        a.run(n)
        until(a.settled, "all requests have ended")
        counted = n - (n * share_of("batch") // sum(map(share_of, KINDS))) + a.n_batch
        # On a busy machine a client may leave before an engine has its request: that is not counted.
        early = sum(s.kind in ESTIMATED for s in a.sent.values())
        until(lambda: counted - early <= sum(r["requests"] for r in a.charged("model").values()) <= counted, lambda: (counted, a.charged("model")))
        a.took = time.monotonic() - began
        a.metrics = {k: c.metric("cgn_tokens_total", kind=k) for k in ("prompt", "completion")}
        return a, {by: a.charged(by) for by in ("model", "tenant", "key")}, a.expected()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--requests", type=int, default=10000)
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        a, charged, books = audit(pathlib.Path(folder), args.requests, args.seed)
    print(f"{args.requests} requests in {a.took:.0f} s\n\n| model | requests | estimated | prompt tokens | cached | answer tokens | money |\n|---|---|---|---|---|---|---|")
    for model, got in sorted(charged["model"].items()):
        want = books["model"][model]
        cells = [f"{got[f]:,}" + (f" ({got[f] - want[f]:+,})" if got[f] != want[f] else "") for f in FIELDS]
        money = price(model, want)
        off = got["money"] / money - 1 if money else 0
        print(f"| {model} | {got['requests']:,} | {got['estimated']:,} | {' | '.join(cells)} | {got['money']:.6f}" + (f" ({100 * off:+.2f} %)" if abs(off) > 1e-6 else "") + " |")


if __name__ == "__main__":
    main()

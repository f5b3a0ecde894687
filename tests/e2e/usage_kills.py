# SPDX-License-Identifier: Apache-2.0
"""Kills of a router under load: /usage, and the budgets, beside what clients got and what engines wrote down (cgn-sim --books).

usage: usage_kills.py [--kills N] [--tokens N] [--clients N]    prints JSON; CGN_BUILD names the build folder"""
import argparse
import http.client
import json
import pathlib
import tempfile
import threading

from cluster import Cluster, ask, until
from test_limits import key

PACE = ("--token-interval-us", "4000")
KINDS = ("long", "short", "whole")


class Load:
    """Clients that send one request after the other until they are stopped."""

    def __init__(self, c, headers, clients):
        self.c, self.headers, self.over = c, headers, threading.Event()
        self.lock, self.delivered, self.refused = threading.Lock(), 0, b""
        self.threads = [threading.Thread(target=self.run, args=(KINDS[i % 3],), daemon=True) for i in range(clients)]
        for t in self.threads:
            t.start()

    def run(self, kind):
        while not self.over.is_set():
            got = 0
            try:
                for tokens in self.tokens(kind):
                    got += tokens
            except (OSError, http.client.HTTPException):
                self.over.wait(0.02)  # the router starts again
            with self.lock:
                self.delivered += got

    def tokens(self, kind):
        """Send a request, and yield how many tokens of its answer came with each piece."""
        streams = kind != "whole"
        conn = http.client.HTTPConnection("127.0.0.1", self.c.http_port, timeout=60)
        try:
            body = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": {"long": 1500, "short": 20, "whole": 30}[kind],
                    "ignore_eos": True, "stream": streams}
            conn.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json", **self.headers})
            answer = conn.getresponse()
            if answer.status != 200:
                self.refused = answer.read()
                self.over.wait(0.02)
            elif not streams:
                yield json.loads(answer.read())["usage"]["completion_tokens"]
            else:
                while line := answer.readline():
                    yield b'"content":"' in line and b'"content":""' not in line
        finally:
            conn.close()

    def more(self, tokens):
        """Wait until clients got that many more tokens, those of requests that are under way not counted."""
        before = self.delivered
        until(lambda: self.delivered >= before + tokens, lambda: (before, self.delivered, self.refused))

    def stop(self):
        self.over.set()
        for t in self.threads:
            t.join()


def spent(c):
    [acme] = [t for t in ask(c.admin_port, "GET", "/tenants").json()["tenants"] if t["name"] == "acme"]
    return {b["unit"]: b["spent"] for b in acme["budgets"]}


def kills(folder, n, tokens, clients):
    with Cluster(folder) as c:
        headers = key(c.folder, "acme", "acme")
        c.router({"router": {"worker_threads": 2}, "auth": {"enabled": True, "api_keys_file": str(c.folder / "keys")}, "prices.\"sim\"": {"input": 1, "output": 10},
                  'tenants."acme"': {"budgets": ["1G tokens/day", "1G requests/day", "9000 USD/day"]}})
        books = c.folder / "books"
        c.node("a", *PACE, "--books", str(books))
        c.wait_ready()
        load = Load(c, headers, clients)
        for _ in range(n):
            load.more(tokens)
            c.router_process.kill()
            c.router_process.start()
            c.wait_ready()
        load.more(tokens)
        load.stop()
        until(lambda: c.metric("cgn_inflight") == 0 and ask(c.nodes["a"].engine_port, "GET", "/sim/state").json()["running"] == 0, "all requests have ended")
        total = until(lambda: (rows := ask(c.admin_port, "GET", "/usage?by=all").json()["usage"]) and rows[0], "there is usage")
        until(lambda: spent(c)["requests"] >= total["requests"], lambda: (spent(c), total))
        computed = sum(json.loads(line)["tokens"] for line in books.read_text().splitlines())
        return {"kills": n, "requests": total["requests"], "estimated": total["estimated"], "delivered": load.delivered, "computed": computed,
                "charged": total["output_tokens"], "usage": {"tokens": total["input_tokens"] + total["output_tokens"], "requests": total["requests"], "money": total["money"]},
                "budgets": spent(c)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kills", type=int, default=20)
    p.add_argument("--tokens", type=int, default=10000, help="tokens that clients get between two kills")
    p.add_argument("--clients", type=int, default=24)
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        got = kills(pathlib.Path(folder), args.kills, args.tokens, args.clients)
    got["lost"] = f"{100 * (1 - got['charged'] / got['delivered']):.3f} %"
    print(json.dumps(got))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what a hostile tenant takes from a victim, for each thing that tenants share: the victim does its work alone, then beside
the attack, for --seconds each, in --rounds turns. JSON to --out and stdout: operations a second and latencies of both, what the
hostile tenant held and may hold, and the statuses that both got.

A router, one cgn-sim and two tenants run on this machine: an attack also costs the processor time that its connections take, which
the victim, the router and the engine need too."""
import argparse
import collections
import contextlib
import datetime
import json
import os
import pathlib
import platform
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PLACES = 64
CHAT = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


def percentile(values, p):
    s = sorted(values)
    return s[min(len(s) - 1, int(len(s) * p))] if s else None


def work(operation, seconds, wait_s):
    """Do the victim's operation again and again; return times and statuses."""
    times, statuses, end = [], collections.Counter(), time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        statuses[operation()] += 1
        times.append((time.monotonic() - began) * 1e3)
        time.sleep(wait_s)
    return {"n": len(times), "per_s": round(len(times) / seconds, 1), "p50_ms": round(statistics.median(times), 2), "p99_ms": round(percentile(times, 0.99), 2),
            "statuses": dict(statuses)}


class Rows:
    """Each row: the victim's operation, and a context in which the hostile tenant attacks."""

    def __init__(self, c, h, mallory, victim):
        self.c, self.h, self.mallory, self.victim = c, h, mallory, victim
        self.said = collections.Counter()
        self.n = 0

    def chat(self):
        return self.c.ask("POST", "/v1/chat/completions", CHAT, self.victim).status

    def upload(self):
        got = self.h.upload(self.c, self.h.jsonl([self.h.line(0)]), self.victim)
        if got.status == 200:
            self.c.ask("DELETE", f"/v1/files/{got.json()['id']}", headers=self.victim)
        return got.status

    def reserve(self):
        self.n += 1
        got = self.c.ask("POST", "/select_and_reserve", {"model_name": "sim", "token_ids": [1, 2, 3], "selection_id": f"v-{self.n}"}, self.victim).status
        self.c.ask("DELETE", f"/reservations/v-{self.n}", headers=self.victim)
        return got

    @contextlib.contextmanager
    def flood(self, operation, threads):
        stop = threading.Event()

        def run(i):
            while not stop.is_set():
                try:
                    self.said[operation(i)] += 1
                except OSError:
                    self.said["closed"] += 1
                time.sleep(0.01)
        made = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
        for t in made:
            t.start()
        time.sleep(1)
        yield
        stop.set()
        for t in made:
            t.join()

    @contextlib.contextmanager
    def unread_streams(self):
        body = json.dumps({"model": "sim", "stream": True, "max_tokens": 7000, "ignore_eos": True, "messages": CHAT["messages"]}).encode()
        first = self.h.head("/v1/chat/completions", self.mallory, {"Content-Type": "application/json", "Content-Length": len(body)}.items()) + body
        with self.h.held_open(self.c.http_port, first, 4 * PLACES):
            time.sleep(1)
            yield

    @contextlib.contextmanager
    def slow_uploads(self):
        with self.h.slow_uploads(self.c, self.mallory, 64):
            time.sleep(1)
            yield

    @contextlib.contextmanager
    def slow_bodies(self):
        part = self.h.head("/v1/chat/completions", self.mallory, {"Content-Length": 900000, "Content-Type": "application/json"}.items()) + b"x" * 800000
        with self.h.held_open(self.c.http_port, part, 64):
            time.sleep(1)
            yield

    def flood_chat(self):
        return self.flood(lambda i: self.c.ask("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 64}, self.mallory).status, 16)

    def flood_files(self):
        return self.flood(lambda i: self.h.upload(self.c, b"{}\n", self.mallory).status, 4)

    def flood_reservations(self):
        def one(i):
            self.n += 1
            return self.c.ask("POST", "/select_and_reserve", {"model_name": "sim", "token_ids": [1, 2, 3], "selection_id": f"m-{i}-{self.n}"}, self.mallory).status
        return self.flood(one, 4)

    def flood_refusals(self):
        return self.flood(lambda i: self.c.ask("POST", "/v1/chat/completions", CHAT).status, 4)


ROWS = [("streams that nobody reads", "requests", "chat", "unread_streams"), ("a flood of chats", "requests", "chat", "flood_chat"),
        ("slow bodies", "body_bytes", "chat", "slow_bodies"), ("slow uploads", "file_calls", "upload", "slow_uploads"),
        ("a flood of uploads", "files", "upload", "flood_files"), ("a flood of reservations", "reservations", "reserve", "flood_reservations"),
        ("requests without a key", "", "chat", "flood_refusals")]


def held(ask, c, share):
    for t in ask(c.admin_port, "GET", "/tenants").json()["tenants"]:
        if t["name"] == "mallory":
            return next(({"held": s["held"], "limit": s["limit"]} for s in t["shares"] if s["share"] == share), None)
    return None


def measure(row, args, folder):
    import hostile as h
    from cluster import Cluster, ask, until
    from test_direct import add
    name, share, operation, attack = row
    out = {"attack": name, "share": share, "alone": [], "beside": []}
    with Cluster(folder) as c:
        keys = {t: h.key(c.folder, t, t) for t in ("mallory", "victim")}
        c.router({"router": {"worker_threads": 2, "max_body": "1MiB", "max_inflight_body": "32MiB"}, "auth": {"enabled": True, "api_keys_file": str(c.folder / "keys")},
                  "batch": {"enabled": True, "max_files": 200}, "router.selection": {"enabled": True, "max": 128},
                  "router.admission": {"max_concurrent_per_replica": PLACES, "queue_timeout": "5s"}, "security": {"audit_file": str(c.folder / "audit.jsonl")}})
        add(c, "a", "--token-interval-us", "10000")
        c.wait_ready(1)
        rows = Rows(c, h, keys["mallory"], keys["victim"])
        victim = getattr(rows, operation)
        until(lambda: victim() == 200, "the victim is served")
        for _ in range(args.rounds):
            out["alone"].append(work(victim, args.seconds, args.wait_ms / 1e3))
            with getattr(rows, attack)():
                out["beside"].append(work(victim, args.seconds, args.wait_ms / 1e3))
                out["holds"] = held(ask, c, share)
            time.sleep(1)
        out["hostile_statuses"] = {str(k): v for k, v in rows.said.items()}
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", default=str(ROOT / "build/ci"))
    ap.add_argument("--seconds", type=float, default=5)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--wait-ms", type=float, default=5, help="pause of the victim between two operations")
    ap.add_argument("--only", help="only attacks with this text in their name")
    ap.add_argument("--out")
    args = ap.parse_args()
    os.environ["CGN_BUILD"] = str(pathlib.Path(args.build).resolve())
    sys.path[:0] = [str(ROOT / "tests/attack"), str(ROOT / "tests/e2e")]
    rows = [r for r in ROWS if not args.only or args.only in r[0]]
    result = {"date": datetime.date.today().isoformat(), "machine": platform.processor() or platform.machine(), "cpus": os.cpu_count(), "seconds": args.seconds,
              "rows": []}
    for row in rows:
        with tempfile.TemporaryDirectory() as folder:
            result["rows"].append(measure(row, args, pathlib.Path(folder)))
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        pathlib.Path(args.out).write_text(text + "\n")


if __name__ == "__main__":
    main()

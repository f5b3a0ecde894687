# SPDX-License-Identifier: Apache-2.0
"""The real programs for minutes or hours, under load and faults that a seed draws. Rounds follow each other: load and faults, then rest; the
invariants are checked all the while, and what must be zero is looked at in each rest. docs/change/soak.md says what is checked."""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from batches import Batches
from faults import Faults, plan
from load import Counts, Load
from page import page
from watch import Logs, Memory, counted, held, produced, usage
from world import ROOT, World, why_not

ROUND_S, SETTLE_S, CLIENTS = 300, 60, 10
EXACT = 30          # requests of a rest that are counted exactly, for each router
USAGE_LOST_S = 1    # a killed router forgets what ended in its last 10 ms, and what was open; the rest is for a busy machine
CHURNED_EACH_2H = 10000
THRIFTY = 40        # requests a minute of the tenant with the small budget (world.TENANTS)


class Soak:
    def __init__(self, options):
        self.o = options
        self.folder = pathlib.Path(options.folder or tempfile.mkdtemp(prefix="soak-"))
        self.violations, self.lock = [], threading.Lock()
        self.began, self.wall = time.monotonic(), int(time.time())
        self.rounds, self.answered_at, self.counts = 0, collections.deque(maxlen=20000), Counts()
        self.exact = self.rests = 0
        self.minutes = collections.Counter()
        self.stopping = False
        self.slowest_rest = 0.0

    # ---- what is told ----
    def say(self, text):
        left = max(0, self.o.minutes * 60 - (time.monotonic() - self.began))
        print(f"{self.clock()} {text}; {left / 60:.0f} min left", flush=True)

    def clock(self):
        spent = int(time.monotonic() - self.began)
        return f"[{spent // 3600}:{spent // 60 % 60:02d}:{spent % 60:02d}]"

    def violation(self, kind, text):
        with self.lock:
            self.violations.append({"at_s": round(time.monotonic() - self.began, 1), "kind": kind, "text": text,
                                    "faults": self.faults_now() if hasattr(self, "faults") else []})
        print(f"{self.clock()} VIOLATION {kind}: {text[:600]}", flush=True)

    def faults_now(self):
        now = time.monotonic()
        return [f"{f.kind} {f.detail} {now - f.begin:.0f} s ago" + ("" if f.end else ", now") for f in self.faults.any_during(now - 10, now)]

    # ---- each request ----
    def finished(self, r):
        with self.lock:
            self.counts.add(r)
            if r.ending == "answered":
                first, last = (int(self.wall + t - self.began) // 60 for t in (r.begin, r.end))
                self.minutes[first] += r.tenant == "thrifty" and first == last
                self.answered_at.append((r.end, r.router, r.tenant, r.tokens))
        hard = self.faults.hard_during(r.begin, r.end)
        if r.ending == "wrong":
            self.violation("wrong", json.dumps(r.tell()))
        elif r.ending == "broken" and not self.reaches(hard, r.router):
            self.violation("broken", json.dumps(r.tell()))
        elif r.ending == "cut" and not hard:
            self.violation("cut", json.dumps(r.tell()))
        elif r.ending == "refused" and not self.may_refuse(r, hard):
            self.violation("refused", json.dumps(r.tell()))

    @staticmethod
    def reaches(hard, router):
        """Return whether one of the faults harms this router, or the way there."""
        return any(router in f.targets for f in hard)

    @staticmethod
    def may_refuse(r, hard):
        if r.status == 429:
            return r.tenant == "thrifty" or bool(hard)
        return r.status >= 500 and bool(hard)

    # ---- one round ----
    def round(self, world, load, seconds):
        self.rounds += 1
        events = plan(self.o.seed, self.rounds, seconds, self.o.only)
        load.going.set()
        begin, running = time.monotonic(), []
        last = begin
        while time.monotonic() < begin + seconds and not self.stopping:
            while events and time.monotonic() - begin >= events[0][0]:
                _, kind, seed = events.pop(0)
                running.append(threading.Thread(target=self.faults.carry_out, args=(kind, seed), daemon=True))
                running[-1].start()
            self.look(world)
            if time.monotonic() - last > self.o.tell_s:
                last = time.monotonic()
                self.tell(load)
            time.sleep(0.5)
        for t in running:
            t.join(150)
            if t.is_alive():
                self.violation("soak", "a fault does not end")

    def look(self, world):
        self.logs.read()
        for p in (*world.programs.values(), *world.helpers):
            if p.ended_by_itself():
                self.violation("ended", f"{p.name} ended by itself with {p.popen.returncode}: {p.log()[-1500:]}")
                p.start()

    def tell(self, load):
        c = self.counts
        now = [f"{f.kind} {f.detail}" for f in self.faults.done if f.end is None]
        self.say(f"round {self.rounds}: {load.sent} sent, {c.endings['answered']} answered, {c.endings['refused']} refused, {c.endings['left']} left, "
                 f"{c.endings['cut']} cut, {c.endings['broken']} broken; {len(self.faults)} faults, now: {', '.join(now) or 'none'}; "
                 f"{len(self.violations)} violations")

    # ---- one rest ----
    def rest(self, world, load, batches):
        """Everything comes to rest, is counted exactly, and is measured."""
        self.faults.undo()
        begin = time.monotonic()
        load.going.clear()
        self.wait(lambda: world.healthy() or self.nudge(world), lambda: f"the cluster is not healthy: {[(r, world.states(r)) for r in world.routers]}", 60)
        if not load.stop():
            self.violation("rest", f"{load.under_way} requests never ended")
        self.wait(lambda: batches.idle, lambda: "a batch goes on", 200)
        self.wait(lambda: not held(world), lambda: f"not at rest: {held(world)}", SETTLE_S)
        self.slowest_rest = max(self.slowest_rest, time.monotonic() - begin)
        self.exactly(world, load)
        self.ledger(world)
        self.budgets()
        self.wait(lambda: not held(world), lambda: f"not at rest: {held(world)}", SETTLE_S)
        time.sleep(2)
        self.memory.take(time.monotonic() - self.began)
        self.look(world)
        self.rests += 1

    def wait(self, what, why, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if what():
                return True
            time.sleep(0.3)
        self.violation("rest", f"not within {seconds} s: {why()}")
        return False

    @staticmethod
    def nudge(world):
        """A breaker that is half-open waits for a request."""
        for router in world.routers:
            for node, (state, breaker) in world.states(router).items():
                if state == "ready" and breaker == "half-open":
                    world.pin(router, node)

    def exactly(self, world, load):
        """Requests without a fault: each one is answered, counted once, and charged with what the engines made."""
        begin = time.monotonic()
        self.quiet_since = begin
        before = self.totals(world)
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            seeds = [self.dice.random() for _ in range(EXACT)]
            records = [r for router in world.routers
                       for r in pool.map(lambda s, router=router: load.one(random.Random(s), router, random.Random(s).choice(("acme", "beta")), "read"), seeds)]
        bad = [r.tell() for r in records if r.ending != "answered"]
        if bad:
            self.violation("exact", f"{len(bad)} of {len(records)} requests at rest are not answered: {bad[:2]}")
        want = (len(records) - len(bad), sum(r.tokens for r in records))
        got = None

        def settled():
            nonlocal got
            after = self.totals(world)
            if before is None or after is None:
                return False
            got = tuple(b - a for a, b in zip(before, after))
            return bool(bad) or self.is_exact(got, want)
        end = time.monotonic() + 10
        while not settled() and time.monotonic() < end:
            time.sleep(0.2)
        if not bad and not (got and self.is_exact(got, want)):
            self.violation("exact", f"answered, charged requests, charged tokens, tokens of engines: {got}; clients: {want}")
        self.exact += len(records)

    @staticmethod
    def is_exact(got, want):
        return got[0] == got[1] == want[0] and got[2] == got[3] == want[1]

    def totals(self, world):
        """Return (answers that routers counted, requests charged, tokens charged, tokens made)."""
        made, answers, charged, tokens = produced(world), 0, 0, 0
        for r in world.routers:
            rows = usage(world, r, self.wall - 3600)
            if rows is None or made is None:
                return None
            answers += counted(world, r, code="200", model="sim")
            charged += sum(rows[t]["requests"] for t in ("acme", "beta") if t in rows)
            tokens += sum(rows[t]["output_tokens"] for t in ("acme", "beta") if t in rows)
        return answers, charged, tokens, made

    def ledger(self, world):
        """What tenants are charged is what they got, within the bound that is documented."""
        rows = [usage(world, r, self.wall - 3600) for r in world.routers]
        if None in rows:
            self.violation("ledger", "/usage does not answer")
            return
        with self.lock:
            recent, tokens, open_tokens = list(self.answered_at), self.counts.tokens.copy(), self.counts.open_tokens.copy()
        for at, router, tenant, n in recent:  # what a kill may have made forgotten
            if any(name == router and killed - USAGE_LOST_S <= at <= killed + 1 for name, killed in self.faults.kills):
                self.forgiven[at, tenant] = n
        for tenant in ("acme", "beta", "thrifty"):
            charged = sum(r.get(tenant, {}).get("output_tokens", 0) for r in rows)
            forgiven = sum(n for (_, t), n in self.forgiven.items() if t == tenant)
            if not tokens[tenant] - forgiven <= charged <= tokens[tenant] + open_tokens[tenant] + self.counts.spare[tenant]:
                self.violation("ledger", f"{tenant}: {charged} tokens are charged; {tokens[tenant]} were answered, of which {forgiven} may be forgotten after a "
                                         f"kill; {open_tokens[tenant]} at most were made for requests that broke off")

        liars = [row for r in rows for row in [r.get("liars")] if row]
        if any(row["output_tokens"] > 8 * row["requests"] or row["input_tokens"] > 1000 * row["requests"] for row in liars):
            self.violation("ledger", f"an engine that lies is believed: {liars}")

    def budgets(self):
        """The small tenant gets its requests a minute once, and as often as there are routers when Redis or a router was harmed or slow."""
        with self.lock:
            minutes, self.minutes = self.minutes, collections.Counter()
            alone = list(self.logs.alone)
        for minute, n in minutes.items():
            begin = minute * 60 - self.wall + self.began
            harmed = self.faults.any_during(begin - 30, begin + 60) or any(begin - 30 <= at <= begin + 65 for at in alone)
            if n > THRIFTY * (2 if harmed else 1):
                self.violation("budget", f"{n} answers in the minute {minute}, of {THRIFTY}")

    # ---- the whole ----
    def run(self):
        self.dice, self.forgiven = random.Random(f"{self.o.seed} rest"), {}
        with World(self.folder, spare=True) as world:
            rounds = max(1, round(self.o.minutes * 60 / ROUND_S))
            self.faults = Faults(world, self.violation, max(10, int(CHURNED_EACH_2H / 120 * self.o.minutes / rounds)))
            with self.faults.on("start") as start:
                start.begin = self.began
            self.logs, self.memory = Logs(world, self.faults, self.violation), Memory(world, self.violation)
            load = Load(world, self.o.seed, self.o.clients, self.finished)
            batches = Batches(world, load, self.faults, self.violation, self.o.seed)
            self.say(f"the cluster runs: {len(world.programs)} programs, seed {self.o.seed}, logs in {self.folder}")
            each, end = self.o.minutes * 60 / rounds, self.began + self.o.minutes * 60
            while (time.monotonic() < end - each / 2 and not self.stopping) or not self.rests:
                self.round(world, load, max(20, each - (45 if each > 120 else 22)))
                self.rest(world, load, batches)
                self.tell(load)
                self.write(world, load, batches, False)
            batches.over.set()
            load.end()
            self.memory.judge()
            if load.sent != sum(self.counts.endings.values()):
                self.violation("count", f"{load.sent} sent, {sum(self.counts.endings.values())} ended")
            self.write(world, load, batches, True)
        return not self.violations

    def write(self, world, load, batches, over):
        """The report so far: a run that is interrupted leaves one too."""
        c, f = self.counts, self.faults
        commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
        kinds = collections.Counter(x.kind for x in f.done)
        report = {
            "whole": over, "seed": self.o.seed, "asked_minutes": self.o.minutes, "minutes": round((time.monotonic() - self.began) / 60, 1), "commit": commit, "began_unix": self.wall,
            "kernel": platform.release(), "cores": os.cpu_count(), "etcd": bool(world.etcd), "redis": bool(world.redis), "netem": world.net.netem,
            "rounds": self.rounds, "rests": self.rests, "longest_way_to_rest_s": round(self.slowest_rest, 1),
            "requests": {"sent": load.sent, **c.endings}, "by_tenant": {f"{t} {e}": n for (t, e), n in sorted(c.by_tenant.items())},
            "refusals": dict(c.codes.most_common(40)), "counted_exactly": self.exact,
            "batches": {"made": batches.made, "over": batches.completed, "lines": batches.lines, "not_taken": batches.not_taken},
            "tokens_answered": dict(c.tokens), "tokens_forgiven": sum(self.forgiven.values()),
            "faults": dict(kinds), "faults_left_out": f.skipped, "kills": dict(collections.Counter(n for n, _ in f.kills)),
            "nodes_churned": f.churned, "adapters": f.adapters,
            "logs": {f"{k} {level} {e}": n for (k, level, e), n in sorted(self.logs.seen.items())},
            "memory": self.memory.rows(), "last": self.memory.last(), "liars": [usage(world, r, self.wall - 3600) for r in world.routers], "violations": self.violations,
        }
        (self.folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
        (self.folder / "report.md").write_text(page(report))
        if self.o.report:
            shutil.copy(self.folder / "report.json", self.o.report)


def options():
    p = argparse.ArgumentParser(prog="scripts/soak", description=__doc__, epilog=f"kinds of faults: {', '.join(Faults.KINDS)}. Exit status 0: nothing was violated; 1: something was; 2: it can't run here.")
    p.add_argument("--minutes", type=float, default=5, metavar="M", help="how long, at least 1 (default: 5)")
    p.add_argument("--seed", type=int, default=1, metavar="N", help="of faults, clients and what they ask (default: 1)")
    p.add_argument("--clients", type=int, default=CLIENTS, metavar="N", help=f"clients at once (default: {CLIENTS})")
    p.add_argument("--only", type=lambda s: s.split(","), default=list(Faults.KINDS), metavar="KIND,...", help="only these kinds of faults; none: no fault")
    p.add_argument("--folder", metavar="DIR", help="for configuration, logs and report.json (default: a new one)")
    p.add_argument("--report", metavar="FILE", help="copy report.json there after each round")
    p.add_argument("--tell-s", type=float, default=20, metavar="S", help="seconds between lines of progress (default: 20)")
    o = p.parse_args()
    o.only = [] if o.only == ["none"] else o.only
    wrong = [k for k in o.only if k not in Faults.KINDS]
    if wrong:
        p.error(f"there is no fault {wrong[0]}")
    if o.minutes < 1:
        p.error("at least 1 minute")
    if o.clients < 1:
        p.error("at least 1 client")
    return o


def main():
    o = options()
    reason = why_not()
    if reason:
        print(f"scripts/soak: {reason}", file=sys.stderr)
        return 2
    if o.folder:
        pathlib.Path(o.folder).mkdir(parents=True, exist_ok=True)
    soak = Soak(o)

    def stop(*_):
        soak.stopping = True
        if hasattr(soak, "faults"):
            soak.faults.over.set()
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    good = soak.run()
    print(f"{soak.clock()} {soak.rounds} rounds, {sum(soak.counts.endings.values())} requests, {len(soak.faults)} faults, {len(soak.violations)} violations; "
          f"{soak.folder}/report.json", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

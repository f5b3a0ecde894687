# SPDX-License-Identifier: Apache-2.0
"""What is measured while a soak runs: logs, lives, memory, descriptors and threads; and what must be at rest."""
import collections
import datetime
import json
import os
import pathlib
import re
import statistics
import time

from world import ADMIN, AGENT_ADMIN, ENGINE, METRICS, NODES, sums

REPORTS = ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "WARNING: ThreadSanitizer", "runtime error:", "broken invariant")
LOG_MOST = 16 << 20
WARM_UP = 0.25      # of the rests, before memory is compared
FLAT_PERCENT = 1.0  # an hour
FLAT_KIB = 256      # smaller changes are pages that the allocator happens to keep
LEAST_HOURS = 0.5   # a shorter life says nothing about a percent an hour
TEXT_LINE = re.compile(r"^(\S+Z) (warn|error) +\S+ (\S+)")

# Events at level warn or error, and the kinds of fault that explain each. "busy": a machine that is slow for a moment explains it too.
WAY = {"start", "kill", "stop", "cut", "lossy"}
EXPLAINED = {
    # one program does not reach another
    **dict.fromkeys(("agent.watcher_slow", "gateway.direct_away", "kvpeer.lost", "router.agent_silent", "router.blocks_differ", "router.change_model_failed",
                     "router.cordon_failed", "router.index_repair", "router.state_away", "router.wanted_not_told", "router.watch_failed", "state.etcd_lost",
                     "state.leader_unknown", "state.lease_ended", "state.stores_unknown"), WAY),
    "router.watch_lost": WAY | {"churn", "certificates"},
    "log.left_out": WAY | {"churn"},
    "router.limit_store_away": WAY | {"busy"},
    "gateway.tokens_fallback": WAY | {"engine", "busy"},
    # a program starts before those that it needs
    "router.not_isolated": WAY,
    "sim.kv_store": WAY,
    "state.not_registered": WAY,
    "engine.check_failed": WAY | {"engine", "liar"},
    # an engine fails
    **dict.fromkeys(("agent.relay_failed", "engine.models_unknown", "engine.unready", "gateway.fails_everywhere", "gateway.misconfigured", "gateway.stream_cut",
                     "router.breaker"), WAY | {"engine", "liar"}),
    "engine.restarted": {"kill"},
    "engine.adapter_ignored": {"kill", "cut", "lossy", "stop", "adapter"},
    "gateway.usage_untrue": {"liar"},
    "state.members_stale": WAY,
    "engine.change_failed": WAY | {"engine", "adapter"},
    # a disk is full
    **dict.fromkeys(("batch.journal_not_written", "batch.no_journal", "batch.not_written", "batch.result_not_written", "kvstore.ssd_capped",
                     "kvstore.ssd_refuses", "router.usage_journal", "statefile.write_failed"), {"disk"}),
    **dict.fromkeys(("batch.journal_cut", "kvstore.ssd_file_aside", "kvstore.ssd_index_rebuilt", "kvstore.ssd_small_lost"), {"disk", "kill"}),
}


def explained(event, kinds):
    return bool(EXPLAINED.get(event, set()) & (kinds | {"busy"}))


class Logs:
    """Reads what each program has written since the last time; a file that grew large is cut, as rotation by copy and truncate does."""

    def __init__(self, world, faults, violation):
        self.world, self.faults, self.violation = world, faults, violation
        self.seen, self.unexplained, self.alone = collections.Counter(), {}, collections.deque(maxlen=1000)

    def read(self):
        for p in (*self.world.programs.values(), *self.world.helpers):
            if p.kind in ("etcd", "redis", "oracle", "liar"):
                continue
            self.read_one(p)

    def read_one(self, p):
        with open(p.log_file, "r+b") as f:
            f.seek(p.read_to)
            text = f.read()
            whole = text.rfind(b"\n") + 1
            p.read_to += whole
            if p.read_to > LOG_MOST and whole == len(text):
                f.truncate(0)
                p.read_to = 0
        for line in text[:whole].decode(errors="replace").split("\n"):
            self.line(p, line)

    @staticmethod
    def written(text):
        """Return when the line was written, on the clock of the faults: it may be read much later."""
        try:
            at = datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
        except ValueError:
            return time.monotonic()
        return time.monotonic() - max(0.0, time.time() - at)

    def line(self, p, line):
        if any(r in line for r in REPORTS):
            self.violation("report", f"{p.name}: {line[:300]}")
        if '"level":"warn"' in line or '"level":"error"' in line:
            try:
                doc = json.loads(line)
            except ValueError:
                return
            level, event, now = doc["level"], doc["event"], self.written(doc.get("time", ""))
        elif (found := TEXT_LINE.match(line)):
            at, level, event = found.groups()
            now = self.written(at)
        else:
            return
        self.seen[p.kind, level, event] += 1
        if event == "router.limit_store_away":
            self.alone.append(now)
        kinds = {f.kind for f in self.faults.any_during(now - 5, now)}
        if not explained(event, kinds):
            if (p.kind, event) not in self.unexplained:
                self.violation("log", f"{p.name}: {event} without a fault that explains it (now: {sorted(kinds)}): {line[:400]}")
            self.unexplained.setdefault((p.kind, event), line[:400])


class Sample:
    """One program at one rest. Private memory: pages that no other process has, /proc/PID/smaps_rollup."""

    def __init__(self, p, at):
        self.at, self.life = at, p.lives
        proc = pathlib.Path(f"/proc/{p.pid}")
        rows = dict(line.split(":", 1) for line in (proc / "smaps_rollup").read_text().splitlines()[1:])
        kib = lambda name: int(rows[name].split()[0])
        self.private, self.pss, self.rss = kib("Private_Clean") + kib("Private_Dirty"), kib("Pss"), kib("Rss")
        self.anonymous = kib("Anonymous")
        self.descriptors = len(os.listdir(proc / "fd"))
        self.threads = len(os.listdir(proc / "task"))


class Memory:
    """The samples of each life of each program, and what they say."""

    def __init__(self, world, violation):
        self.world, self.violation, self.samples = world, violation, collections.defaultdict(list)

    def take(self, at):
        for p in self.world.programs.values():
            if p.kind not in ("etcd", "redis") and p.alive():
                try:
                    self.samples[p.name, p.lives].append(Sample(p, at))
                except (OSError, ValueError, KeyError):
                    pass

    def rows(self):
        """Return a row for each life of at least six samples behind the warm-up."""
        out = []
        for (name, life), samples in sorted(self.samples.items()):
            samples = samples[max(1, int(len(samples) * WARM_UP)):]
            if len(samples) < 6:
                continue
            third = len(samples) // 3
            first, last = samples[:third], samples[-third:]
            middle = lambda part, what: statistics.median(getattr(s, what) for s in part)
            hours = (middle(last, "at") - middle(first, "at")) / 3600
            a, b = middle(first, "private"), middle(last, "private")
            out.append({"program": name, "life": life, "samples": len(samples), "hours": hours, "first_kib": a, "last_kib": b,
                        "percent_an_hour": 100 * (b - a) / a / hours if hours else 0.0,
                        "descriptors": [middle(first, "descriptors"), middle(last, "descriptors")],
                        "threads": [middle(first, "threads"), middle(last, "threads")]})
        return out

    def last(self):
        """Return a row for each program: how often it was started, and its last sample."""
        newest = {name: (life, samples[-1]) for (name, life), samples in sorted(self.samples.items())}
        return {name: {"lives": life, "private_kib": s.private, "rss_kib": s.rss, "descriptors": s.descriptors, "threads": s.threads}
                for name, (life, s) in newest.items()}

    def judge(self):
        for row in self.rows():
            grown = row["last_kib"] - row["first_kib"]
            if row["hours"] >= LEAST_HOURS and row["percent_an_hour"] > FLAT_PERCENT and grown > FLAT_KIB:
                self.violation("memory", f"{row['program']}: {row['first_kib']:.0f} to {row['last_kib']:.0f} KiB, {row['percent_an_hour']:.1f} % an hour")
            if row["descriptors"][1] > row["descriptors"][0] + 4:
                self.violation("descriptors", f"{row['program']}: {row['descriptors']}")
            if row["threads"][0] != row["threads"][1]:
                self.violation("threads", f"{row['program']}: {row['threads']}")


NOTHING = ("cgn_inflight", "cgn_others_inflight", "cgn_queue_depth", "cgn_reservations", "cgn_batch_lines_asked", "cgn_batch_waiting", "cgn_batch_open")


def held(world):
    """Return what is still taken somewhere, as texts; empty: the cluster is at rest."""
    out = []
    for r in world.routers:
        scraped = world.scrape(r)
        if scraped is None:
            out.append(f"{r} does not answer")
            continue
        out += [f"{r}: {name}{{{labels}}} {v:g}" for (name, labels), v in sums(scraped, *NOTHING).items() if v != 0]
        for q in (world.admin(r, "/queue") or {}).get("queues", []):
            out += [f"{r}: the queue of {q['model']} has {q['requests']}"] if q["requests"] else []
        for n in (world.admin(r, "/nodes") or {}).get("nodes", []):
            load = n.get("load") or {}
            out += [f"{r}: {n['id']} {k} {load[k]}" for k in ("inflight", "running", "waiting", "queued_tokens", "decoding", "foreign") if load.get(k)]
            out += [f"{r}: {n['id']} router_inflight {n['router_inflight']}"] if n["router_inflight"] else []
            out += [f"{r}: {n['id']} is not known to this soak"] if n["id"] not in (*NODES, "liar") else []
    for n in NODES:
        a = world.told(n, ENGINE, "/sim/state", tls=False)
        state = a.json() if a else {"workers": ()}
        out += [f"{n}: {k} {state[k]}" for k in ("running", "waiting") if state.get(k)]
        if world.told(n, AGENT_ADMIN, "/metrics") is None:
            out.append(f"agent-{n} does not answer")
    if world.told("m", METRICS, "/metrics") is None:
        out.append("cgn-metrics does not answer")
    return out


def produced(world):
    """Return the tokens of answers that the engines made, as they count them themselves; None: one does not answer."""
    out = 0
    for n in NODES:
        a = world.told(n, ENGINE, "/metrics", tls=False)
        if a is None:
            return None
        out += sum(float(line.rsplit(" ", 1)[1]) for line in a.body.decode().splitlines() if "generation_tokens_total" in line and not line.startswith("#"))
    return int(out)


def usage(world, router, since):
    """Return {tenant: row} as the router charges it."""
    a = world.admin(router, f"/usage?by=tenant&from={since}")
    return {row["tenant"]: row for row in a["usage"]} if a else None


def counted(world, router, **labels):
    scraped = world.scrape(router) or ""
    return sum(v for (_, said), v in sums(scraped, "cgn_requests_total").items() if all(f'{k}="{w}"' in said for k, w in labels.items()))


__all__ = ["Logs", "Memory", "held", "produced", "usage", "counted", "ADMIN"]

# SPDX-License-Identifier: Apache-2.0
"""What a soak does to the cluster, by a plan that a seed draws. Each fault is undone when it ends; what it harms is noted with its times."""
import contextlib
import http.client
import json
import random
import signal
import subprocess
import threading
import time

from world import ADMIN, CTL, ENGINE, HTTP, NODES, ask, ours, resolves, sh, until

ENGINE_FAULTS = (("http500@0.5",), ("http503",), ("refuse@0.5",), ("error-200@0.7",), ("cut-after:10@0.5",), ("hang@0.3",), ("stall-after:5@0.3",),
                 ("truncated-chunk@0.5",), ("http429@0.5",), ("uncached",))
SERVE = ("router", "agent", "engine")
GRACE_S = 20.0  # after a fault: breakers, leases, queues and retries take their time


class Fault:
    """One fault, as it was carried out. |hard|: requests may fail by it. Registry, Redis, block stores, disks and orders are not worth an answer."""

    def __init__(self, kind, targets, hard, detail=""):
        self.kind, self.targets, self.hard, self.detail = kind, set(targets), hard, detail
        self.begin, self.end = time.monotonic(), None

    def covers(self, begin, end):
        return self.begin <= end and (self.end is None or begin <= self.end + GRACE_S)


class Faults:
    """The faults of one soak. |busy|: machines that a fault has now; another one does not take them."""

    def __init__(self, world, violation, churn_nodes):
        self.world, self.violation, self.churn_nodes = world, violation, churn_nodes
        self.done, self.lock, self.busy = [], threading.Lock(), set()
        self.churned, self.adapters, self.kills = 0, 0, []
        self.over = threading.Event()
        self.skipped = 0

    # ---- notes ----
    @contextlib.contextmanager
    def on(self, kind, *targets, hard=False, detail=""):
        """Note the fault while it lasts. Targets that another fault has are left alone: then the body is not to run."""
        with self.lock:
            mine = not any(t in self.busy for t in targets)
            if mine:
                self.busy |= set(targets)
        if not mine:
            self.skipped += 1
            yield None
            return
        fault = Fault(kind, targets, hard, detail)
        self.done.append(fault)
        try:
            yield fault
        finally:
            fault.end = time.monotonic()
            with self.lock:
                self.busy -= set(targets)

    def hard_during(self, begin, end):
        return [f for f in self.done if f.hard and f.covers(begin, end)]

    def any_during(self, begin, end):
        return [f for f in self.done if f.covers(begin, end)]

    def disks_during(self, begin, end):
        return [f for f in self.any_during(begin, end) if f.hard or f.kind == "disk"]

    def rest(self, seconds):
        self.over.wait(seconds)

    # ---- what is done ----
    def kill(self, dice):
        """kill -9 of a program, and its start a moment later."""
        p = dice.choice([p for p in self.world.programs.values() if not p.spared])
        with self.on("kill", p.host, hard=p.kind in SERVE, detail=p.name) as fault:
            if fault:
                self.kills.append((p.name, time.monotonic()))
                p.kill()
                self.rest(dice.uniform(0, 3))
                p.start()
                self.serves(p)

    def serves(self, p):
        """Wait until the program is up: a fault that ends before would begin the time of grace too early."""
        ports = {"router": HTTP, "engine": ENGINE, "etcd": 2379, "redis": 6379}
        if p.kind in ports:
            until(lambda: resolves(self.world.at(p.host), ports[p.kind]) or not p.alive(), f"{p.name} is back", wait_s=60)

    def stop(self, dice):
        """SIGSTOP, and SIGCONT a moment later."""
        p = dice.choice(list(self.world.programs.values()))
        with self.on("stop", p.host, hard=p.kind in SERVE, detail=p.name) as fault:
            if fault:
                p.signal(signal.SIGSTOP)
                self.rest(dice.uniform(0.2, 9))
                p.signal(signal.SIGCONT)

    def cut(self, dice):
        """A machine that nobody reaches, and that reaches nobody."""
        host = dice.choice([h for h in self.world.net.names if h != "m"])
        with self.on("cut", host, hard=host != "s", detail=host) as fault:
            if fault:
                self.world.net.cut(host)
                self.rest(dice.uniform(0.5, 9))
                self.world.net.join(host)

    def lossy(self, dice):
        """Packets of a machine are lost: by netem where the kernel has it, else the wire is dark in bursts of 10 to 80 ms."""
        host = dice.choice([h for h in self.world.net.names if h != "m"])
        with self.on("lossy", host, hard=host != "s", detail=host) as fault:
            if not fault:
                return
            if self.world.net.netem:
                self.world.net.lossy(host, dice.choice((1, 5, 15)))
                self.rest(dice.uniform(2, 8))
                self.world.net.clean(host)
                return
            end = time.monotonic() + dice.uniform(2, 8)
            while time.monotonic() < end and not self.over.is_set():
                self.world.net.cut(host)
                time.sleep(dice.uniform(0.01, 0.08))
                self.world.net.join(host)
                time.sleep(dice.uniform(0.1, 0.5))

    def disk(self, dice):
        """A full disk: state_dir, usage, batch files, the SSD tier."""
        name = dice.choice(list(self.world.disks))
        with self.on("disk", f"disk {name}", detail=name) as fault:
            if not fault:
                return
            hog = self.world.disks[name] / "hog"
            with open(hog, "wb", buffering=0) as f, contextlib.suppress(OSError):
                for piece in (1 << 20, 4096):
                    with contextlib.suppress(OSError):
                        while True:
                            f.write(b"\0" * piece)
            self.rest(dice.uniform(1, 9))
            hog.unlink()

    def certificates(self, dice):
        """New certificates of the same CA; sometimes a new CA, in its three steps."""
        with self.on("certificates", "pki") as fault:
            if not fault:
                return
            steps = (("prepare",), ("switch",), ("finish",)) if dice.random() < 0.3 else ((),)
            fault.detail = "the CA" if len(steps) > 1 else "of the same CA"
            for step in steps:
                words = ("rotate", "--ca", *step) if step else ("renew",)
                sh(CTL, "pki", *words, "--dir", self.world.pki_dir)
                self.hang_up("router", "agent", "kvcached", "metrics")
                self.rest(4)

    def hang_up(self, *kinds):
        for p in self.world.programs.values():
            if p.kind in kinds and p.alive():
                p.signal(signal.SIGHUP)

    def reload(self, dice):
        """Other settings, and those of before."""
        name = dice.choice(self.world.routers)
        with self.on("reload", f"settings {name}", detail=name) as fault:
            if not fault:
                return
            for _ in range(dice.randrange(1, 5)):
                self.world.write_router(name, router={"policy": dice.choice(("weighted", "kv", "random")), "shadow": dice.choice(([], ["random"])),
                                                      "max_inflight_body": dice.choice(("64MiB", "128MiB"))},
                                        admission={"max_concurrent_per_replica": dice.choice((12, 16, 64)), "max_queue": dice.choice((200, 400))})
                self.world.programs[name].signal(signal.SIGHUP)
                self.rest(dice.uniform(0.1, 1))
            self.world.write_router(name)
            self.world.programs[name].signal(signal.SIGHUP)

    def keys(self, dice):
        """A key is made, used and revoked; behind that it is refused."""
        with self.on("keys", "keys") as fault:
            if not fault:
                return
            key, ident = self.world.key("acme")
            self.expect_status(dice, key, 200, "a new key is taken")
            sh(CTL, "key", "revoke", ident, "--file", self.world.folder / "keys")
            self.expect_status(dice, key, 401, "a revoked key is refused")

    def expect_status(self, dice, key, status, why):
        router = dice.choice(self.world.routers)
        begin, end, got = time.monotonic(), time.monotonic() + 5, None
        body = {"model": "sim", "messages": [{"role": "user", "content": "a key"}], "max_tokens": 1}
        while time.monotonic() < end and not self.over.is_set():
            with contextlib.suppress(OSError):
                got = ask(self.world.at(router), HTTP, "POST", "/v1/chat/completions", body, key, wait_s=5).status
                if got == status:
                    return
            time.sleep(0.2)
        if not self.over.is_set() and not self.hard_during(begin, time.monotonic()):
            self.violation("keys", f"{why}: {router} answers {got}, not {status}, for 5 s")

    def cordon(self, dice):
        """A node gets nothing new for a while."""
        node = dice.choice(NODES)
        with self.on("cordon", f"order {node}", detail=node) as fault:
            if not fault:
                return
            if self.order("cluster", "cordon", node):
                self.rest(dice.uniform(1, 5))
            self.uncordon(node)

    def order(self, *words):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.world.ctl(*words, check=False).returncode == 0
        return False

    def uncordon(self, node):
        end = time.monotonic() + 60
        while not self.order("cluster", "uncordon", node) and time.monotonic() < end:
            time.sleep(0.5)

    def adapter(self, dice):
        """A LoRA adapter is loaded into all engines, asked, and unloaded."""
        with self.on("adapter", "adapters") as fault:
            if not fault:
                return
            self.adapters += 1
            name = f"adapter-{self.adapters}"
            fault.detail = name
            folder = self.world.folder / "adapter"
            folder.mkdir(exist_ok=True)
            (folder / "adapter_config.json").write_text("{}")
            if self.order("model", "load", name, "--lora", folder, "--base", "sim", "--wait", "--timeout", "8s"):
                body = {"model": name, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
                for _ in range(5):
                    with contextlib.suppress(OSError, http.client.HTTPException):  # the engine may be killed within the answer
                        ask(self.world.at(dice.choice(self.world.routers)), HTTP, "POST", "/v1/chat/completions", body, self.world.keys["beta"], wait_s=15)
            end = time.monotonic() + 60
            while not self.order("model", "unload", name) and time.monotonic() < end:
                time.sleep(0.5)

    def churn(self, dice):
        """Nodes that come, are reached by nobody, and go."""
        if not self.world.etcd:
            return
        with self.on("churn", "churn") as fault:
            if not fault:
                return
            left = self.churn_nodes
            with contextlib.suppress(OSError):
                while left > 0 and not self.over.is_set():
                    n = min(left, dice.choice((5, 20, 60)))
                    for _ in range(n):
                        self.churned += 1
                        at = dice.choice((f"{self.world.at('m')}:1", f"{self.world.at('n0')}:1"))
                        self.world.put_node(f"fake-{self.churned}", {"id": f"fake-{self.churned}", "address": at, "engines": [
                            {"name": "e", "kind": "vllm", "models": [f"ghost-{self.churned % 50}"], "ready": True}]})
                    left -= n
                    self.rest(dice.uniform(0.1, 1.5))
                    self.world.drop_nodes("fake-")
            self.drop_fakes()

    def drop_fakes(self):
        end = time.monotonic() + 60
        while self.world.etcd and time.monotonic() < end:
            with contextlib.suppress(OSError):
                self.world.drop_nodes("fake-")
                return
            time.sleep(0.5)

    def engine(self, dice):
        """An engine that fails: errors, also behind 200, answers that are cut, stand still or never come."""
        node = dice.choice(NODES)
        what = dice.choice(ENGINE_FAULTS)
        with self.on("engine", f"engine {node}", hard=True, detail=f"{node}: {what[0]}") as fault:
            if fault:
                self.set_engine(node, what)
                self.rest(dice.uniform(1, 8))
                self.set_engine(node, ())

    def set_engine(self, node, what):
        """The engine may stand still or be unreachable for the moment. A killed one has no faults when it starts."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if ask(self.world.at(node), ENGINE, "POST", "/sim/faults", {"faults": list(what)}, wait_s=3).status == 200:
                    return
            time.sleep(0.3)

    def liar(self, dice):
        """An engine that says what is not so: usage of 10^12, errors inside a 200, empty streams. Its node has a model of its own."""
        with self.on("liar", "liar", detail="10 requests") as fault:
            if not fault:
                return
            for _ in range(10):
                body = {"model": "liar", "messages": [{"role": "user", "content": f"truth {dice.random()}"}], "max_tokens": 8, "stream": dice.random() < 0.5}
                router = dice.choice(self.world.routers)
                with contextlib.suppress(OSError):
                    a = ask(self.world.at(router), HTTP, "POST", "/v1/chat/completions", body, self.world.keys["liars"], wait_s=15)
                    if a.status not in (200, 404, 429, 500, 502, 503, 504) or a.status != 200 and not is_error(a.body):
                        self.violation("liar", f"{a.status} {a.body[:200]!r}")
                self.rest(dice.uniform(0, 0.3))

    # ---- the plan ----
    KINDS = ("kill", "stop", "cut", "lossy", "disk", "certificates", "reload", "keys", "cordon", "adapter", "churn", "engine", "liar")

    def carry_out(self, kind, seed):
        try:
            getattr(self, kind)(random.Random(seed))
        except Exception as e:  # pylint: disable=broad-except
            if not self.world.closed:
                self.violation("soak", f"the fault {kind} could not be carried out: {type(e).__name__}: {e}")

    def undo(self):
        """All that a fault may have left: nothing is cut, stopped, full or ordered."""
        w = self.world
        for host in list(w.net.cut_now):
            w.net.join(host)
        for p in w.programs.values():
            p.signal(signal.SIGCONT)
        for n in NODES:
            self.set_engine(n, ())
        self.drop_fakes()

    def __len__(self):
        return len(self.done)


def is_error(body):
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return bool(json.loads(body)["error"])
    return False


def plan(seed, number, seconds, kinds):
    """Return [(second, kind, seed)] of one round: each kind in turn, in an order that the seed draws."""
    dice = random.Random(f"{seed} {number}")
    each = 5 if seconds > 60 else 3
    n, out, bag = max(1, int(seconds / each)) if kinds else 0, [], []
    for i in range(n):
        bag = bag or dice.sample(kinds, len(kinds))
        out.append((dice.uniform(0.05, 0.8) * seconds, bag.pop(), f"{seed} {number} {i}"))
    return sorted(out)


__all__ = ["Faults", "Fault", "plan", "GRACE_S", "ADMIN", "ours"]

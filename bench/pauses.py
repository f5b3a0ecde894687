#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Agents that wait for tools, before a real llama-server with fewer slots than agents.

Each agent sends its whole history, gets a tool call, waits for its tool, and comes back with a longer history. Three
ways: the engine alone; with the block store, where a state is restored when its request arrives; and with sessions,
where a state is kept, or restored before the request. Prints JSON: for the turns that came back, the share of the
prompt that was cached, and the time of an answer of two tokens, which is close to the time to the first.

    bench/pauses.py --agents 4 --slots 2 --turns 8 --tokens 6000 --pause 1.5
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--llama-server", default=str(ROOT / "scripts/run/llama-server"))
parser.add_argument("--agents", type=int, default=4)
parser.add_argument("--slots", type=int, default=2)
parser.add_argument("--turns", type=int, default=8)
parser.add_argument("--warm", type=int, default=3, help="turns of each agent that are not counted")
parser.add_argument("--tokens", type=int, default=6000, help="of the first prompt")
parser.add_argument("--visitors", type=int, default=0, help="short requests at the beginning of each pause, at once")
parser.add_argument("--pause", type=float, default=1.5, help="seconds that a tool takes, after the visitors' answers")
sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "interop")]
if __name__ == "__main__":
    o = parser.parse_args()  # before the imports of tests/
import tool_caller  # noqa: E402
from cluster import Cluster, ask, free_port, until  # noqa: E402

TOOLS = [{"type": "function", "function": {"name": "build", "parameters": {"type": "object", "properties": {}}}}]
WORDS = "sea wind salt gull rope tide moon sand wave ship fog bell star dune reef kelp foam crab harbour night".split()


def prose(seed, n):
    rng, out = random.Random(seed), ""
    while len(out) < n:
        out += rng.choice(WORDS) + " "
    return out[:n]


class Bench:
    def __init__(self, folder, binary, o, way):
        self.o, self.way = o, way
        self.c = c = Cluster(folder)
        c.MODEL = "tiny"
        model = folder / "tiny.gguf"
        subprocess.run([sys.executable, ROOT / "scripts/run/tiny-gguf.py", model], check=True, stdout=subprocess.DEVNULL)
        slot_dir, engine_port, port = folder / "slots", free_port(), free_port()
        slot_dir.mkdir()
        context = o.tokens + o.turns * 300 + 400
        argv = [binary, "--model", model, "--host", "127.0.0.1", "--port", str(engine_port), "--threads", "1", "--parallel", str(o.slots),
                "--ctx-size", str(context * o.slots), "--slot-save-path", f"{slot_dir}/", "--metrics", "--cache-ram", "0"]
        self.engine = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.server = tool_caller.start(port, engine_port)
        uds = folder / "kv.sock"
        models = {"models.tiny": {"block_bytes": 32, "tokens": "bytes"}}
        if way != "engine":
            c.run("store", "cgn-kvcached", "--config", c.config("store", {"kv": {
                "uds": str(uds), "ram": "1GiB", "quic_listen": f"127.0.0.1:{free_port()}", "listen": f"127.0.0.1:{free_port()}",
                "listen_admin": f"127.0.0.1:{free_port()}", "resp_listen": f"127.0.0.1:{free_port()}", "worker_threads": 1}}))
            until(lambda: pathlib.Path(f"{uds}.bulk").exists(), "the store listens")
        c.router({"router": {"sessions": 4096 if way == "sessions" else 0}, **models})
        keeps = {"slot_dir": str(slot_dir), "kv_save_idle": "20ms"} if way != "engine" else {}
        _, _, self.admin = c.agent("a", port, {"agent": {"kv_uds": str(uds)}, **models, "engine": {"kind": "llama_cpp", "model": "tiny", "slots": o.slots, **keeps}})
        until(lambda: ask(c.http_port, "GET", "/readyz").status == 200, "the node is ready", wait_s=60)
        if keeps:
            until(lambda: ask(self.admin, "GET", "/engines").json()["engines"][0]["kept_slots"]["at_work"], "slots are kept", wait_s=60)

    def agent(self, k, rows):
        o = self.o
        talk = [{"role": "user", "content": prose(k, o.tokens)}]
        time.sleep(k * o.pause / o.agents)
        for turn in range(o.turns):
            began = time.monotonic()
            got = self.c.ask("POST", "/v1/chat/completions", {"model": "tiny", "messages": talk, "tools": TOOLS, "max_tokens": 2, "temperature": 0},
                             {"X-Cgn-Session": f"agent-{k}"})
            took = time.monotonic() - began
            assert got.status == 200, got.body
            usage = got.json()["usage"]
            if turn >= o.warm:
                rows.append((took * 1e3, usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]))
            talk += [{"role": "assistant", "content": "I look."}, {"role": "user", "content": prose(1000 * (k + 1) + turn, 120)}]
            self.visit(o.visitors)
            time.sleep(o.pause)

    def visit(self, n):
        """Send |n| requests without a session at once, which take all slots while the agent's tool runs."""
        def one(seed):
            self.c.ask("POST", "/v1/completions", {"model": "tiny", "prompt": prose(seed, 600), "max_tokens": 2})
        crowd = [threading.Thread(target=one, args=(time.monotonic_ns() + i,)) for i in range(n)]
        for t in crowd:
            t.start()
        for t in crowd:
            t.join()

    def run(self):
        rows = []
        threads = [threading.Thread(target=self.agent, args=(k, rows)) for k in range(self.o.agents)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        took = sorted(r[0] for r in rows)
        out = {"turns": len(rows), "prompt_tokens_mean": round(statistics.mean(r[2] for r in rows)), "cached_share": round(sum(r[1] for r in rows) / sum(r[2] for r in rows), 4),
               "ms_mean": round(statistics.mean(took), 1), "ms_p50": round(took[len(took) // 2], 1), "ms_p90": round(took[len(took) * 9 // 10], 1)}
        if self.way != "engine":
            kept = ask(self.admin, "GET", "/engines").json()["engines"][0]["kept_slots"]
            text = ask(self.admin, "GET", "/metrics").body.decode()
            out["prompts"] = {k: v for k, v in kept["prompts"].items() if v}
            out["pauses"] = {o: int(v) for o in ("held", "restored", "failed", "late") if (v := self.c.metric("cgn_slot_pauses_total", text, outcome=o))}
        return out

    def close(self):
        self.c.close()
        self.server.shutdown()
        self.engine.kill()
        self.engine.wait()


def main():
    report = {"agents": o.agents, "slots": o.slots, "turns": o.turns, "visitors": o.visitors, "pause_s": o.pause, "ways": {}}
    for way in ("engine", "store", "sessions"):
        with tempfile.TemporaryDirectory() as folder:
            b = Bench(pathlib.Path(folder), o.llama_server, o, way)
            try:
                report["ways"][way] = b.run()
            finally:
                b.close()
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

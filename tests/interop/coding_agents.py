# SPDX-License-Identifier: Apache-2.0
"""coding_agents.py NPM-FOLDER WORK-FOLDER AGENT SECONDS TURNS [--all] [--comments]: a coding agent (codex or claude), as npm has it, through a gateway in front
of an engine that is silent for SECONDS and asks for TURNS commands. Print a line of JSON for each case; exit 1 if one of them is wrong. Each
request of the agent has to be one run of the engine. --comments: the gateway sends comments while it waits (router.sse_keepalive). To be run where there is only a loopback interface:
unshare --map-root-user --net sh -c 'ip link set lo up; exec python3 tests/interop/coding_agents.py build/coding-agents /tmp/agents codex 60 30 --all'"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
import agent_engine  # noqa: E402
from cluster import Cluster, until  # noqa: E402

CODEX = """model = "coder"
model_provider = "gateway"
sandbox_mode = "danger-full-access"
approval_policy = "never"
[model_providers.gateway]
name = "gateway"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "GATEWAY_KEY"
{more}"""


def codex(npm, home, url, more=""):
    """Return argv and environment."""
    config = home / ".codex"
    config.mkdir(parents=True, exist_ok=True)
    (config / "config.toml").write_text(CODEX.format(url=url, more=more))
    return [npm / "node_modules/.bin/codex", "exec", "--skip-git-repo-check", "say hello"], {"GATEWAY_KEY": "sk-x", "CODEX_HOME": str(config)}


def claude(npm, home, url, more=""):
    binary = next(p for p in (npm / "node_modules/@anthropic-ai").glob("claude-code-*/claude"))
    return [binary, "-p", "say hello", "--model", "coder", "--allowedTools", "Bash(echo:*)"], {
        "ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "sk-x", "ANTHROPIC_DEFAULT_HAIKU_MODEL": "coder", "ANTHROPIC_SMALL_FAST_MODEL": "coder",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1"}


AGENTS = {"codex": codex, "claude": claude}


class Case:
    def __init__(self, world, agent, name, script, **more):
        self.world, self.agent, self.name, self.script, self.more = world, agent, name, script, more

    def start(self):
        w = self.world
        home = w.folder / f"{self.agent}-{self.name}"
        (home / "work").mkdir(parents=True)
        w.engine.script, w.engine.runs = self.script, []
        argv, env = AGENTS[self.agent](w.npm, home, f"http://127.0.0.1:{w.cluster.http_port}", **self.more)
        self.seen = len(w.requests())
        self.began = time.monotonic()
        return subprocess.Popen([str(a) for a in argv], cwd=home / "work", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={"PATH": os.environ["PATH"], "HOME": str(home), **env})

    def answered(self):
        process = self.start()
        try:
            said, _ = process.communicate(timeout=60 + self.limit())
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[0] + " -- timed out"
        rounds = self.script.get("rounds", 0)
        good = process.returncode == 0 and f"All {rounds} steps are done." in said
        single = self.is_cut_once() if self.script.get("dies") else self.is_single(rounds + 1)
        return self.report(good and single, said)

    def limit(self):
        silence = sum(self.script.get(k, 0) for k in ("prefill", "pause", "middle"))
        return (silence + 10) * (self.script.get("rounds", 0) + 1)

    def turns(self):
        """Return the runs that answer the agent's turns; the others are small questions of its own, such as for a title."""
        return [r for r in self.world.engine.runs if r["body"].get("tools")]

    def is_single(self, turns):
        """Is each request one run of the engine, and none asked twice?"""
        runs, requests = self.world.engine.runs, self.relayed()
        bodies = {json.dumps(r["body"], sort_keys=True) for r in runs}
        return len(self.turns()) == turns and len(bodies) == len(runs) == len(requests) and all(r["tries"] == 1 for r in requests)

    def is_cut_once(self):
        """Did the agent ask again when the stream had ended with an error?"""
        return [r["outcome"] for r in self.relayed()] == ["cut", "ok"] and len(self.world.engine.runs) == 2

    def relayed(self):
        return [r for r in self.world.requests()[self.seen:] if r["tries"] > 0]

    def left(self):
        """End the agent while the engine is silent."""
        process = self.start()
        until(lambda: self.turns(), "the engine computes")
        process.send_signal(signal.SIGINT)
        try:
            said, _ = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
        until(lambda: all(r["ended"] for r in self.world.engine.runs), "the engine's run has ended")
        until(lambda: len(self.relayed()) == len(self.world.engine.runs), "the router has noted the request")
        return self.report(self.is_single(1), said)

    def report(self, good, said):
        news = self.world.requests()[self.seen:]
        first = self.turns()[0] if self.turns() else {"headers": {}}
        out = {"agent": self.agent, "case": self.name, "good": good, "seconds": round(time.monotonic() - self.began, 1), "turns": len(self.turns()),
               "runs": len(self.world.engine.runs), "requests": sorted({(r["method"], r["path"], r["status"]) for r in news}),
               "runs_ended": sorted({str(r["ended"]) for r in self.world.engine.runs}), "tries": max((r["tries"] for r in news), default=0),
               "fields": sorted(first["headers"]), "breaker": [n["breaker"]["state"] for n in self.world.cluster.status()["nodes"]]}
        if not good:
            out |= {"said": said[-1500:], "outcomes": [r["outcome"] for r in news]}
        print(json.dumps(out), flush=True)
        return good


class World:
    def __init__(self, npm, folder, cluster):
        self.npm, self.folder, self.cluster = npm, folder, cluster
        self.engine = agent_engine.serve()

    def requests(self):
        return [e for e in self.cluster.router_process.events("gateway.request") if e["path"].startswith("/v1/") and "/v1/models" not in e["path"]]


def cases(world, agent, silence, turns, all_of_them):
    if all_of_them:
        yield Case(world, agent, "plain", {})
        yield Case(world, agent, "prefill", {"prefill": silence})
        yield Case(world, agent, "pause", {"pause": silence, "middle": silence, "rounds": 1})
        yield Case(world, agent, "turns", {"rounds": turns})
        yield Case(world, agent, "dies", {"dies": True})
    else:
        yield Case(world, agent, "silent", {"prefill": silence, "pause": silence, "middle": silence, "rounds": turns})
    if agent == "codex":
        yield Case(world, agent, "websocket", {}, more="supports_websockets = true")


def main(npm, folder, agent, silence, turns, all_of_them, comments):
    folder = pathlib.Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with Cluster(folder) as cluster:
        world = World(pathlib.Path(npm).resolve(), folder, cluster)
        short = f"{int(max(silence / 4, 0.25) * 1000)}ms"
        cluster.router({'engine_nodes."a"': {"url": f"http://127.0.0.1:{world.engine.server_port}", "kind": "openai_compat", "stall_timeout": short},
                        "router": {"stall_timeout": short, "sse_keepalive": "100ms" if comments else "0s"}})
        cluster.wait_ready(1)
        good = [case.answered() for case in cases(world, agent, silence, turns, all_of_them)]
        good.append(Case(world, agent, "left", {"pause": silence, "middle": silence}).left())
        if not all(good):
            print(cluster.logs(20), file=sys.stderr)
    return all(good)


if __name__ == "__main__":
    words = [w for w in sys.argv[1:] if not w.startswith("--")]
    sys.exit(0 if main(*words[:3], float(words[3]), int(words[4]), "--all" in sys.argv, "--comments" in sys.argv) else 1)

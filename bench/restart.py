#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure how long a restarted router takes until it knows again which blocks all nodes hold.

cgn-sim generates blocks (POST /sim/fill) and publishes them as KV events; its agent follows the events and reports to the router,
which is then killed with SIGKILL and started again. The time is from the router's start to the log line that says that the last
node's sums agree with the agent's. JSON to --out, or to stderr."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/e2e"))


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def complete(c, nodes):
    """Return when the last node's sums agreed, as seconds since the epoch; None: not yet."""
    done = {e["node"]: e for e in c.router_process.events("router.residency_complete") if e["blocks"] > 0}
    if len(done) < nodes:
        return None
    return max(datetime.datetime.fromisoformat(e["time"].replace("Z", "+00:00")).timestamp() for e in done.values())


def fill(tools, c, name, blocks, seed):
    """Start a node whose engine holds that many blocks and has published them."""
    events, replay = (f"tcp://127.0.0.1:{tools.free_port()}" for _ in range(2))
    node = c.node(name, "--time-scale", "0", "--kv-blocks", str(blocks + 1024), "--kv-events", events, "--kv-events-replay", replay,
                  sections={"engine": {"kv_events": events, "kv_events_replay": replay}})

    def state():
        ranks = tools.ask(node.admin_port, "GET", "/engines").json()["engines"][0]["kv_events"]["ranks"]
        return ranks[0]["state"] if ranks else None
    tools.until(lambda: tools.Cluster.listens(node.admin_port, node.agent) and state() in ("good", "syncing"), "its events are listened to")
    assert tools.ask(node.engine_port, "POST", "/sim/fill", {"blocks": blocks, "seed": seed}, wait_s=300).status == 200
    return node


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1] / "build" / "release")
    ap.add_argument("--out", type=pathlib.Path)
    ap.add_argument("--blocks", type=int, default=2_300_000, help="blocks of all nodes together")
    ap.add_argument("--nodes", type=int, default=4, help="number of nodes; an agent keeps at most 1,048,576 blocks of an engine")
    ap.add_argument("--rounds", type=int, default=5)
    args = ap.parse_args()
    os.environ["CGN_BUILD"] = str(args.build.resolve())
    import cluster
    seconds, router_cpu, agent_cpu, rss = [], [], [], 0
    with tempfile.TemporaryDirectory() as folder, cluster.Cluster(folder) as c:
        c.router()
        each = args.blocks // args.nodes
        nodes = [fill(cluster, c, f"n{i}", each, i) for i in range(args.nodes)]
        cluster.until(lambda: cluster.ask(c.admin_port, "GET", "/index").json()["memberships"] == each * args.nodes, "all is known", 300, 0.2)
        index = cluster.ask(c.admin_port, "GET", "/index").json()
        for _ in range(args.rounds):
            time.sleep(1)
            before = sum(cpu_s(n.agent.pid) for n in nodes)
            c.router_process.kill()
            c.router_process.log_file.write_text("")
            began = time.time()
            c.router_process.start()
            seconds.append(round(cluster.until(lambda: complete(c, args.nodes), "complete again", 120) - began, 3))
            router_cpu.append(round(cpu_s(c.router_process.pid), 2))
            agent_cpu.append(round(sum(cpu_s(n.agent.pid) for n in nodes) - before, 2))
            again = cluster.ask(c.admin_port, "GET", "/index").json()
            assert {k: v["sums"] for k, v in again["nodes"].items()} == {k: v["sums"] for k, v in index["nodes"].items()}
            rss = c.router_process.rss_kib()
    report = {"bench": "restart", "date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "kernel": platform.release(),
              "blocks": each * args.nodes, "nodes": args.nodes, "seconds": seconds, "seconds_median": statistics.median(seconds),
              "router_cpu_seconds": router_cpu, "agents_cpu_seconds": agent_cpu, "router_rss_kib": rss, "index_bytes": index["bytes"],
              "load_average": os.getloadavg()[0]}
    text = json.dumps(report, indent=1) + "\n"
    if args.out:
        args.out.write_text(text)
    print(text, file=sys.stderr)


if __name__ == "__main__":
    main()

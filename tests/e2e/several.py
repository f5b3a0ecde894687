# SPDX-License-Identifier: Apache-2.0
"""Several routers over the same nodes, with the load spread over them."""
import collections
import contextlib
import datetime
import http.client
import random
import threading
import time

from cluster import Cluster, ask, free_port, until


class Router:
    def __init__(self, process, http_port, admin_port):
        self.process, self.http_port, self.admin_port = process, http_port, admin_port

    def nodes(self):
        """Return {node id: its row of /nodes}; {} while the admin port does not answer."""
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            return {n["id"]: n for n in ask(self.admin_port, "GET", "/nodes").json()["nodes"]}
        return {}

    def states(self):
        return {i: n["state"] for i, n in self.nodes().items()}

    def inflight(self):
        return {i: n["router_inflight"] for i, n in self.nodes().items()}

    def others(self, what="inflight"):
        return {i: n["others"][what] for i, n in self.nodes().items()}

    def metric(self, name, node):
        for line in ask(self.admin_port, "GET", "/metrics").body.decode().splitlines():
            if line.startswith(f'{name}{{node="{node}"}}'):
                return float(line.rpartition(" ")[2])
        return None

    def chat(self, text, wait_s=60, **more):
        return ask(self.http_port, "POST", "/v1/chat/completions",
                   {"model": "sim", "messages": [{"role": "user", "content": text}], **more}, wait_s=wait_s)


class Several(Cluster):
    """Start the nodes, then the routers, which know the nodes from a list or from the settings |common|."""

    def static_nodes(self, names, *engine_args, sections=None):
        self.common["cluster"] = {"state_backend": "static", "nodes": ["127.0.0.1:1"]}  # agents need no state backend
        for name in names:
            self.node(name, *engine_args, sections=sections)
        self.common["cluster"]["nodes"] = [f"127.0.0.1:{n.agent_port}" for n in self.nodes.values()]

    def routers(self, n, sections=None):
        self.made = getattr(self, "made", [])
        for i in range(len(self.made), len(self.made) + n):
            http_port, grpc_port, admin_port = free_port(), free_port(), free_port()
            mine = {"router": {"listen": f"127.0.0.1:{http_port}", "listen_grpc": f"127.0.0.1:{grpc_port}",
                               "listen_admin": f"127.0.0.1:{admin_port}", "worker_threads": 1}}
            for section, keys in (sections or {}).items():
                mine.setdefault(section, {}).update(keys)
            mine["cluster"] = {"state_dir": str(self.folder / f"state-{i}")}
            (self.folder / f"state-{i}").mkdir()
            p = self.run(f"router-{i}", "cgn-router", "--config", self.config(f"router-{i}", mine))
            self.made.append(Router(p, http_port, admin_port))
        for r in self.made:
            until(lambda r=r: self.listens(r.http_port, r.process), "the router listens")
            until(lambda r=r: list(r.states().values()).count("ready") >= len(self.nodes), lambda r=r: f"all are ready, not {r.states()}")
        return self.made


class Spread:
    """Run |clients| clients that each send one request after another, the i-th to the i-th router; every
    prompt is new. The routers' logs show the requests on each node over time. Answers are long beside the
    20 ms after which routers learn of each other's load, and of different lengths: answers that end
    together would be followed by prompts of which the other routers do not know yet, again and again."""

    def __init__(self, routers, clients, each, tag):
        self.routers, self.tag, self.statuses = routers, tag, []
        self.clients, self.each = clients, each

    def client(self, router, i):
        dice = random.Random(i)
        for k in range(self.each):
            self.statuses.append(router.chat(f"{self.tag} {i} {k} " + "word " * 200, max_tokens=dice.randrange(1, 60)).status)

    def requests(self):
        """Return (node, begin, end) of each request, in seconds."""
        out = []
        for r in self.routers:
            for e in r.process.events("gateway.request"):
                if e["path"].startswith("/v1/"):
                    end = datetime.datetime.fromisoformat(e["time"].replace("Z", "+00:00")).timestamp()
                    out.append((e["node"], end - e["total_ms"] / 1e3, end))
        return out

    def run(self):
        """Return (busiest node's requests over the mean, mean over time of the fullest node's requests in
        flight over the mean)."""
        before = len(self.requests())
        threads = [threading.Thread(target=self.client, args=(self.routers[i % len(self.routers)], i)) for i in range(self.clients)]
        for t in threads:
            t.start()
            time.sleep(0.05)
        for t in threads:
            t.join()
        assert set(self.statuses) == {200}, self.statuses
        n = before + self.clients * self.each
        rows = sorted(until(lambda: len(got := self.requests()) == n and got, "all are in the logs"), key=lambda row: row[2])[before:]
        nodes = len(self.routers[0].nodes())
        served = collections.Counter(node for node, _, _ in rows)
        return max(served.values()) * nodes / len(rows), fullest(rows, nodes, self.clients)


def fullest(rows, nodes, clients):
    """Return the mean over the time in which at least half of the clients' requests are in flight."""
    now, weighed, whole, last = collections.Counter(), 0.0, 0.0, None
    for at, node, step in sorted([(b, node, 1) for node, b, _ in rows] + [(e, node, -1) for node, _, e in rows]):
        if last is not None and now.total() >= clients / 2:
            weighed += max(now.values()) * nodes / now.total() * (at - last)
            whole += at - last
        now[node] += step
        last = at
    return weighed / whole

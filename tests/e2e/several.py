# SPDX-License-Identifier: Apache-2.0
"""Several routers over the same nodes, and load that is spread over them."""
import contextlib
import http.client
import threading
import time

from cluster import Cluster, ask, free_port, until


class Router:
    def __init__(self, process, http_port, admin_port):
        self.process, self.http_port, self.admin_port = process, http_port, admin_port

    def nodes(self):
        """{node id: its row of /nodes}; {} while the admin port does not answer."""
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
    """Nodes first, then routers that know them: from a list, or from whatever |common| says."""

    def static_nodes(self, names, *engine_args, sections=None):
        self.common["cluster"] = {"state_backend": "static", "nodes": ["127.0.0.1:1"]}  # agents need none
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
            until(lambda r=r: list(r.states().values()).count("ready") == len(self.nodes), lambda r=r: f"all are ready, not {r.states()}")
        return self.made


class Spread:
    """|clients| that ask one after the other, the i-th of the i-th router; every prompt is a new one. What is where meanwhile is watched
    at the agents themselves."""

    def __init__(self, cluster, routers, clients, each, tag, tokens=8):
        self.cluster, self.tag, self.tokens, self.statuses = cluster, tag, tokens, []
        self.threads = [threading.Thread(target=self.client, args=(routers[i % len(routers)], i, each)) for i in range(clients)]
        self.peaks, self.done = [], False

    def client(self, router, i, each):
        for k in range(each):
            self.statuses.append(router.chat(f"{self.tag} {i} {k} " + "word " * 200, max_tokens=self.tokens).status)

    def watch(self):
        while not self.done:
            now = [ask(n.admin_port, "GET", "/engines").json()["inflight"] for n in self.cluster.nodes.values()]
            if sum(now) >= len(self.threads) / 2:
                self.peaks.append(max(now) * len(now) / sum(now))
            time.sleep(0.02)

    def served(self):
        return [ask(n.admin_port, "GET", "/engines").json()["requests_total"] for n in self.cluster.nodes.values()]

    def run(self):
        """(busiest node's requests over the mean, the mean over time of the fullest node's requests under way over the mean)"""
        before = self.served()
        watcher = threading.Thread(target=self.watch)
        for t in [*self.threads, watcher]:
            t.start()
        for t in self.threads:
            t.join()
        self.done = True
        watcher.join()
        assert set(self.statuses) == {200}, self.statuses
        got = [b - a for a, b in zip(before, self.served())]
        return max(got) * len(got) / sum(got), sum(self.peaks) / len(self.peaks)

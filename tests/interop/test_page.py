# SPDX-License-Identifier: Apache-2.0
"""The router's page in a real Chromium, by puppeteer: page.test.mjs has the tests."""
import contextlib
import http.server
import json
import os
import pathlib
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

from cluster import Cluster, free_port, toml, until

HERE = pathlib.Path(__file__).resolve().parent
MODEL = "<img src=x onerror=alert(1)>"


class Relay(http.server.BaseHTTPRequestHandler):
    """A proxy that serves the admin port below /ops/cgn/, as an operator's nginx would."""
    protocol_version = "HTTP/1.1"
    upstream = prefix = None

    def log_message(self, *_):
        pass

    def answer(self, status, kind, body):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def relay(self):
        assert self.path.startswith(self.prefix)
        length = int(self.headers.get("content-length") or 0)
        sent = {k: v for k, v in self.headers.items() if k.lower() in ("content-type", "x-cgn-page", "accept")}
        rq = urllib.request.Request(self.upstream + self.path[len(self.prefix):], method=self.command, data=self.rfile.read(length) or None,
                                    headers={**sent, "x-forwarded-for": "198.51.100.7"})
        try:
            with urllib.request.urlopen(rq, timeout=20) as r:
                self.answer(r.status, r.headers["content-type"], r.read())
        except urllib.error.HTTPError as e:
            self.answer(e.code, e.headers["content-type"], e.read())

    do_GET = do_POST = relay


class Crowd(Relay):
    """The page's files from a real router, and the JSON of a fleet: a thousand nodes, a thousand requests a second."""
    node = answered = None
    began = time.time()

    def relay(self):
        path = self.path.split("?")[0]
        turn = int((time.time() - self.began) * 1000)
        if path == "/nodes":
            nodes = [dict(self.node, id=f"node-{i}", router_inflight=(turn // 100 + i * 7) % 40) for i in range(1000)]
            self.answer(200, "application/json", json.dumps({"cluster": "crowd", "policy": "kv", "state_connected": True, "state_stale": False, "nodes": nodes}).encode())
        elif path == "/explain":
            rows = [dict(self.answered, id=f"r-{turn}-{i}") for i in range(100)]
            self.answer(200, "application/json", json.dumps({"record": {"decisions": turn}, "requests": rows}).encode())
        else:
            super().relay()

    do_GET = relay


def serve(handler, **members):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Served", (handler,), members))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def read(url):
    with urllib.request.urlopen(url, timeout=10) as r:
        return json.load(r)


@contextlib.contextmanager
def several_routers(tmp_path, east):
    """cgn-metrics in front of the router |east|, one of another cluster, one that is away, and one that never answers."""
    (tmp_path / "west").mkdir()
    with Cluster(tmp_path / "west") as c, socket.create_server(("127.0.0.1", 0)) as hung:
        c.router()
        c.node("w0")
        c.wait_ready(1)
        port, gone = free_port(), free_port()
        routers = [f"east={east}", f"west=http://127.0.0.1:{c.admin_port}", f"gone=http://127.0.0.1:{gone}", f"hung=http://127.0.0.1:{hung.getsockname()[1]}"]
        (tmp_path / "metrics.toml").write_text(toml({"metrics": {"listen": f"127.0.0.1:{port}", "routers": routers}}))
        process = c.run("metrics", "cgn-metrics", "--config", tmp_path / "metrics.toml")
        until(lambda: c.listens(port, process), "cgn-metrics listens")
        yield f"http://127.0.0.1:{port}"


def test_in_chromium(tmp_path):
    if shutil.which("chromium") is None and not os.environ.get("CI"):
        pytest.skip("no chromium")
    with contextlib.ExitStack() as stack:
        c = stack.enter_context(Cluster(tmp_path))
        c.router({"router": {"shadow": ["round_robin"]}})
        for i in range(3):
            c.node(f"n{i}", "--token-interval-us", "4000")
        c.node("odd", model=MODEL)
        c.wait_ready(4)
        c.chat("a first request", max_tokens=4)
        base = f"http://127.0.0.1:{c.admin_port}"
        crowd = {"node": read(base + "/nodes")["nodes"][0], "answered": read(base + "/explain?last=1&detail=brief")["requests"][0]}
        servers = [serve(Relay, upstream=base, prefix="/ops/cgn"), serve(Crowd, upstream=base, prefix="", **crowd)]
        ports = [s.server_address[1] for s in servers]
        several = stack.enter_context(several_routers(tmp_path, base))
        done = subprocess.run(["node", "--test", "--test-reporter=spec", "page.test.mjs"], cwd=HERE, capture_output=True, text=True, timeout=240, env={
            **os.environ, "BASE": base, "GATE": f"http://127.0.0.1:{c.http_port}", "PREFIX": f"http://127.0.0.1:{ports[0]}/ops/cgn", "BIG": f"http://127.0.0.1:{ports[1]}", "SEVERAL": several})
        for s in servers:
            s.shutdown()
        print(done.stdout)
        assert done.returncode == 0, done.stdout + done.stderr

# SPDX-License-Identifier: Apache-2.0
"""cgn-metrics scrapes: targets that behave and targets that do not, found and given, and all of them as one text."""
import contextlib
import gzip
import http.server
import json
import signal
import socket
import threading
import urllib.parse

import pytest
from cluster import Process, ask, free_port, toml, until

FAST = ("--time-scale", "0")
GOOD = b'# HELP good_total Good things.\n# TYPE good_total counter\ngood_total{x="1"} 7\n'


class Targets(http.server.ThreadingHTTPServer):
    """One server; the path says how it behaves."""
    daemon_threads = True
    request_queue_size = 64

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def send(self, body, status=200, length=None, **fields):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            for name, value in fields.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            what = self.path.strip("/")
            self.server.asked[what] = self.server.asked.get(what, 0) + 1
            with contextlib.suppress(OSError):
                getattr(self, f"do_{what}")()

        def do_good(self):
            self.send(self.server.text)

        def do_drips(self):
            self.send(b"a 1\n", length=1000)
            while not self.server.over.wait(0.02):
                self.wfile.write(b"a")

        def do_hangs(self):
            self.server.over.wait(20)

        def do_endless(self):
            self.send_response(200)
            self.end_headers()
            while not self.server.over.is_set():
                self.wfile.write(b"a 1\n" * 4096)

        def do_million(self):
            self.send(b"".join(b'm{n="%d"} 1\n' % i for i in range(self.server.million)))

        def do_cut(self):
            self.send(b"a 1\n", length=100)

        def do_gzipped(self):
            self.send(gzip.compress(b"a 1\n" * 1000000), Content_Encoding="gzip")

        def do_html(self):
            self.send(b"<html><body>login</body></html>\n" * 3)

        def do_mixed(self):
            self.send(b'a 1\nthis is no sample\na{x="1"\nb{instance="i",x="\\"}"} NaN 123\n')

        def do_failing(self):
            self.send(b"no", status=500)

        def do_moved(self):
            self.send(b"", status=302, Location="/good")

        def do_secret(self):
            if self.headers["Authorization"] == "Bearer open-sesame":
                self.send(b"secret 1\n")
            else:
                self.send(b"", status=401)

        def do_empty(self):
            self.send(b"")

    def __init__(self):
        super().__init__(("127.0.0.1", 0), self.Handler)
        self.over, self.asked, self.text, self.million = threading.Event(), {}, GOOD, 30000
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def handle_error(self, *_):
        pass

    def close(self):
        self.over.set()
        self.shutdown()
        self.server_close()


class Metrics:
    def __init__(self, folder, targets, **own):
        self.port, self.folder, self.own = free_port(), folder, own
        self.write(targets)
        self.process = Process(folder, "metrics", "cgn-metrics", "--config", self.folder / "metrics.toml", "--set", "log.format=json")
        until(lambda: "svc.ready" in self.process.log(), "it is ready")

    def write(self, targets):
        own = {"listen": f"127.0.0.1:{self.port}", "scrape_interval": "500ms", "scrape_timeout": "400ms", "discover": False, **self.own}
        rows = {f'scrape_targets."{n}"': t if isinstance(t, dict) else {"url": t} for n, t in targets.items()}
        common = {"cluster": own.pop("cluster")} if "cluster" in own else {}
        (self.folder / "metrics.toml").write_text(toml({**common, "metrics": own, **rows}))

    def reload(self, targets):
        self.write(targets)
        n = len(self.process.events("svc.reloaded") + self.process.events("svc.reloaded_in_part"))
        self.process.signal(signal.SIGHUP)
        until(lambda: len(self.process.events("svc.reloaded") + self.process.events("svc.reloaded_in_part")) > n, "it is reloaded")

    def targets(self):
        return {t["name"]: t for t in json.loads(ask(self.port, "GET", "/targets").body)["targets"]}

    def state(self, name, state):
        """Wait until the target is in that state, and return it."""
        def now():
            t = self.targets().get(name)
            return t if t and t["state"] == state else None
        return until(now, lambda: f"{name} is {state}: {self.targets().get(name)}")

    def federate(self, *match):
        query = "?" + "&".join("match[]=" + urllib.parse.quote(m) for m in match) if match else ""
        return ask(self.port, "GET", "/federate" + query)

    def text(self, *match):
        answer = self.federate(*match)
        assert answer.status == 200, answer.body
        return answer.body.decode()


@pytest.fixture
def world(tmp_path):
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(server := Targets()))
        running = []

        def begin(targets, **own):
            running.append(Metrics(tmp_path, {n: f"{server.url}/{t}" if isinstance(t, str) else t for n, t in targets.items()}, **own))
            stack.callback(running[-1].process.kill)
            return running[-1]
        begin.server = server
        yield begin
        for m in running:
            assert m.process.alive(), m.process.log()
            assert not m.process.trouble()


def test_bad_targets_cost_themselves(world):
    bad = ("drips", "hangs", "endless", "cut", "gzipped", "html", "mixed", "failing", "moved", "secret", "empty", "million")
    m = world({"good": "good", "nobody": {"url": "http://127.0.0.1:1"}, **{n: n for n in bad}}, scrape_max_bytes="1MiB", scrape_max_samples=10000)
    reasons = {"drips": "was not whole within 0.4 s (metrics.scrape_timeout)", "hangs": "was not whole within", "cut": "closed before the answer was complete",
               "endless": "is longer than 1048576 bytes (metrics.scrape_max_bytes)", "html": "its answer is not a Prometheus text: no line is a sample",
               "gzipped": "its answer is not a Prometheus text: no line is a sample", "failing": "it answers with status 500",
               "moved": "it answers with status 302, and redirects are not followed", "secret": "it answers with status 401: set token_file of the target",
               "nobody": "Connection refused"}
    for name, reason in reasons.items():  # on a busy machine a scrape may be late before it is what it is
        until(lambda: reason in m.state(name, "down")["why"], lambda: f"{name} is down because: {reason}: {m.targets()[name]}")
    million = m.state("million", "up")
    assert (million["samples"], million["left_out"]) == (10000, 20000) and "metrics.scrape_max_samples" in million["why"], million
    mixed = m.state("mixed", "up")
    assert (mixed["samples"], mixed["invalid_lines"]) == (2, 2) and mixed["why"] == "2 lines are not samples and are left out", mixed
    assert m.state("empty", "up")["samples"] == 0
    until(lambda: m.state("good", "up")["age_ms"] < 3000, "the age of a target that is up stays below two intervals and a timeout")
    assert m.state("good", "up")["samples"] == 1
    text, at = m.text(), f"127.0.0.1:{world.server.server_port}"
    assert f'# HELP good_total Good things.\n# TYPE good_total counter\ngood_total{{cgn_target="good",instance="{at}",x="1"}} 7\n' in text
    assert f'b{{cgn_target="mixed",instance="{at}",exported_instance="i",x="\\"}}"}} NaN\n' in text
    assert text.count("# TYPE ") == len({line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")})
    assert m.text("good_total") == text[text.index("# HELP good_total"):text.index("# TYPE m ")]
    assert m.text('{cgn_target=~"mi.*",x!="",__name__="b"}').splitlines()[0] == "# TYPE b untyped" and m.text("nothing") == ""
    own = ask(m.port, "GET", "/metrics").body.decode()
    assert 'cgn_scrape_up{target="good"} 1' in own and 'cgn_scrape_up{target="hangs"} 0' in own
    assert 'cgn_scrape_failures_total{target="endless",why="large"}' in own and 'cgn_scrape_failures_total{target="drips",why="late"}' in own
    refused = m.federate("a{")
    assert refused.status == 400 and "a selector is NAME" in refused.json()["error"]["message"]


def test_a_text_is_told_until_it_is_old(world):
    m = world({"good": "good", "other": "mixed"}, scrape_interval="250ms", scrape_timeout="100ms")
    m.state("good", "up")
    world.server.text = b"<html>\n"
    assert m.state("good", "stale")["samples"] == 1 and "good_total" in m.text()
    m.state("good", "down")
    assert "good_total" not in m.text() and 'cgn_target="other"' in m.text()
    world.server.text = GOOD.replace(b" 7", b" 8")
    m.state("good", "up")
    assert "} 8\n" in m.text("good_total")


def test_a_reload_keeps_what_is_unchanged(world, tmp_path):
    m = world({"good": "good", "old": "mixed"}, scrape_interval="1h")
    m.state("good", "up")
    m.state("old", "up")
    (tmp_path / "token").write_text("open-sesame\n")
    url = world.server.url
    m.reload({"good": f"{url}/good", "new": {"url": f"{url}/secret", "token_file": str(tmp_path / "token")}})
    m.state("new", "up")
    assert set(m.targets()) == {"good", "new"} and world.server.asked["good"] == 1
    text = m.text()
    assert "good_total" in text and "secret{" in text and 'cgn_target="old"' not in text
    assert 'target="old"' not in ask(m.port, "GET", "/metrics").body.decode()
    m.reload({"good": f"{url}/good", "bad": "ftp://x"})
    assert "bad" in m.process.events("svc.reloaded_in_part")[-1]["why"] and set(m.targets()) == {"good", "new"}


def test_texts_have_a_memory(world):
    m = world({f"t{i}": "million" for i in range(4)}, scrape_memory="4MiB", scrape_timeout="2s", scrape_interval="2s")

    def refused():
        return [t for t in m.targets().values() if t["state"] == "down" and "take metrics.scrape_memory already" in t["why"]]
    until(lambda: len(refused()) == 2 and [t["state"] for t in m.targets().values()].count("up") == 2, lambda: m.targets())


def test_a_slow_reader_of_the_text_holds_up_nobody(world):
    world.server.million = 90000
    m = world({f"t{i}": "million" for i in range(4)}, scrape_timeout="2s", scrape_interval="2s")
    until(lambda: all(t["state"] == "up" for t in m.targets().values()), lambda: m.targets())
    slow = []
    for _ in range(8):
        s = socket.create_connection(("127.0.0.1", m.port))
        s.sendall(b"GET /federate HTTP/1.1\r\nHost: localhost\r\n\r\n")
        slow.append(s)
    until(lambda: m.federate().status == 503, "eight answers are under way")
    assert "scrape again later" in m.federate().json()["error"]["message"] and m.state("t0", "up")
    for s in slow:
        s.close()
    until(lambda: m.federate("nothing").status == 200, "their places are free again")
    assert m.text().count("\nm{") == 4 * 90000


def test_programs_of_a_cluster_are_found(cluster, world):
    store_port = free_port()
    cluster.router({"router": {"worker_threads": 1}})
    cluster.run("kv", "cgn-kvcached", "--config", cluster.config("kv", {"agent": {"node_id": "a"}, "kv": {
        "listen": f"127.0.0.1:{store_port}", "uds": str(cluster.folder / "kv.sock"), "listen_admin": f"127.0.0.1:{free_port()}", "resp_listen": "",
        "ram": "64MiB"}}))
    cluster.node("a", *FAST, sections={"agent": {"kv_uds": str(cluster.folder / "kv.sock")}})
    cluster.wait_ready()
    m = world({}, discover=True, scrape_routers=[f"127.0.0.1:{cluster.grpc_port}"])
    m.state("agent/a", "up")
    m.state("store/a", "up")
    m.state(f"router/127.0.0.1:{cluster.grpc_port}", "up")
    text = m.text("cgn_build_info")
    assert {p for p in ("cgn-router", "cgn-agent", "cgn-kvcached") if f'program="{p}"' in text} == {"cgn-router", "cgn-agent", "cgn-kvcached"}
    assert f'instance="{m.targets()["agent/a"]["url"]}"' in text
    cluster.nodes["a"].agent.stop()
    until(lambda: "agent/a" not in m.targets() and "store/a" not in m.targets(), "the node that left is forgotten")
    cluster.router_process.kill()
    m.state(f"router/127.0.0.1:{cluster.grpc_port}", "down")

# SPDX-License-Identifier: Apache-2.0
"""cgn-agent with well-behaved and misbehaving engines: relaying, cancelling, failing, watching, supervising,
draining."""
import http.client
import http.server
import json
import os
import pathlib
import queue
import signal
import socket
import ssl
import subprocess
import threading
import time

import pytest

from cluster import BUILD, REPORTS, WAIT_S, free_port, until

AGENT = BUILD / "src/agent/cgn-agent"
SIM = BUILD / "src/sim/cgn-sim"
CTL = BUILD / "src/ctl/cgn-ctl"
ASK = BUILD / "agent_ask"


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def is_listening(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


# ---- a scripted engine ----
class FakeEngine:
    """Answer /health, /v1/models and /metrics; POSTs go to |behave|, which gets the request handler."""

    def __init__(self, models=("m",), key=None, tls=None):
        self.requests, self.closed, self.connections = [], queue.Queue(), []
        self.behave, self.release = self.echo, threading.Event()
        self.ended = 0
        self.gets = {}  # path: (status, body) of a GET, instead of the usual answer
        self.scrapes, self.metrics = 0, b"vllm:num_requests_running 3\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\n"
        engine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def setup(self):
                super().setup()
                engine.connections.append(self.connection)

            def finish(self):
                super().finish()
                engine.ended += 1

            def reply(self, status, body, headers=()):
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                if key and self.headers.get("Authorization") != f"Bearer {key}":
                    self.reply(401, b"{}")
                elif self.path in engine.gets:
                    engine.scrapes += self.path == "/metrics"
                    self.reply(*engine.gets[self.path])
                elif self.path == "/v1/models":
                    self.reply(200, json.dumps({"data": [{"id": m} for m in models]}).encode())
                elif self.path == "/metrics":
                    engine.scrapes += 1
                    self.reply(200, engine.metrics)
                else:
                    self.reply(200, b"{}")

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                engine.requests.append((self.path, dict(self.headers.items()), body))
                try:
                    engine.behave(self)
                except OSError:
                    self.close_connection = True
                    engine.closed.put(time.monotonic())

            def chunk(self, data):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

            def start_stream(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()

            def die(self):
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls / "agent.pem", tls / "agent.key")
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def echo(self, h):
        _, _, body = self.requests[-1]
        h.reply(200, body, [("Content-Type", "application/json"), ("X-Engine", "fake"), ("Keep-Alive", "timeout=5")])

    def stop(self):
        self.release.set()
        self.server.shutdown()
        self.server.server_close()
        for c in self.connections:
            try:
                c.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


# ---- the agent ----
class Agent:
    def __init__(self, tmp_path, engine_toml, agent_toml="", **env):
        self.log, config = tmp_path / "agent.log", tmp_path / "agent.toml"
        config.write_text(
            f'[cluster]\nrouter = "127.0.0.1:{free_port()}"\nstate_dir = "{tmp_path}/state"\n[agent]\nnode_id = "n1"\nlisten = "127.0.0.1:0"\n'
            f'listen_admin = "127.0.0.1:0"\n{agent_toml}\n{engine_toml}\n')
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("COGNITORA__", "CGN_CONFIG", "NOTIFY_"))}
        clean.update(COGNITORA__LOG__FORMAT="json", PATH=f"{SIM.parent}:{clean['PATH']}", **env)
        self.config, self.ask_env, self.ends = config, None, 0
        with open(self.log, "w") as err:
            self.proc = subprocess.Popen([AGENT, "--config", config], env=clean, stderr=err)
        self.admin = until(lambda: self.event("svc.ready") or self.dead(), "ready")["admin_port"]
        self.addr = self.node()["address"]

    def end(self):
        """Stop the agent with SIGTERM, so that a leak checker can report. A test that killed the agent needs
        no report."""
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
        try:
            assert self.proc.wait(WAIT_S) in (self.ends, -signal.SIGKILL), self.log.read_text()[-4000:]
        finally:
            self.proc.kill()
            self.proc.wait()
        assert not any(r in self.log.read_text() for r in REPORTS), self.log.read_text()[-4000:]

    def dead(self):
        assert self.proc.poll() is None, self.log.read_text()

    def event(self, name):
        lines = [json.loads(line) for line in self.log.read_text().split("\n")[:-1]]
        return ([e for e in lines if e["event"] == name] or [None])[-1]

    def get(self, path):
        c = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=WAIT_S)
        try:
            c.request("GET", path)
            r = c.getresponse()
            return r.status, r.read().decode()
        finally:
            c.close()

    def node(self):
        status, body = self.get("/engines")
        assert status == 200
        return json.loads(body)

    def engine(self, i=0):
        return self.node()["engines"][i]

    def wait_ready(self):
        until(lambda: self.get("/readyz")[0] == 200, "an engine is ready")
        return self

    def metric(self, name):
        for line in self.get("/metrics")[1].split("\n"):
            if line.startswith(name + " "):
                return float(line.split()[1])
        return None

    def start(self, *args, **popen):
        popen.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen([ASK, self.addr, *args], stdout=subprocess.PIPE, text=True, env=self.ask_env, **popen)

    def generate(self, *args, path="/v1/chat/completions", body=b"{}"):
        p = subprocess.run([ASK, self.addr, "generate", path, *args], input=body, capture_output=True, timeout=WAIT_S, env=self.ask_env)
        lines = [json.loads(line) for line in p.stdout.decode().split("\n") if line]
        assert lines, p.stderr
        return Answer(lines)


class Answer:
    def __init__(self, lines):
        self.head = next((x for x in lines if "head" in x), None)
        self.data = "".join(x.get("data", "") for x in lines)
        self.last = lines[-1]
        self.code, self.message = self.last.get("code"), self.last.get("message")


@pytest.fixture
def fake():
    made = []

    def make(*args, **kw):
        made.append(FakeEngine(*args, **kw))
        return made[-1]

    yield make
    for e in made:
        e.stop()


@pytest.fixture
def start(tmp_path):
    running = []

    def go(engine_toml, agent_toml="", **env):
        running.append(Agent(tmp_path, engine_toml, agent_toml, **env))
        return running[-1]

    yield go
    for a in running:
        a.end()


@pytest.fixture
def pki(tmp_path):
    subprocess.run([CTL, "pki", "bootstrap", "--out", tmp_path / "pki"], check=True, capture_output=True, timeout=WAIT_S)
    return tmp_path / "pki"


def adopted(e, more=""):
    return f'[engine]\nkind = "openai_compat"\nurl = "http://127.0.0.1:{e.port}"\nready_interval = "20ms"\n{more}'


@pytest.fixture
def pair(fake, start):
    e = fake()
    return e, start(adopted(e)).wait_ready()


# ---- relaying ----
def test_a_request_goes_through_verbatim(pair):
    e, a = pair
    body = b'{"model":"m",  "x":[1.0,1e5,"\\u00e9\xc3\xa9"],"unknown":{"a":null}}'
    got = a.generate("model=m", "id=req-7", "header=content-type:application/json", "header=traceparent:00-aa-bb-01",
                     "header=accept-encoding:gzip", "header=authorization:Bearer client", "header=connection:x", body=body)
    assert (got.code, got.head["head"], got.head["engine"]) == ("FINE", 200, "openai_compat")
    assert got.data.encode() == body
    headers = dict(got.head["headers"])
    assert headers["x-engine"] == "fake" and headers["content-type"] == "application/json"
    assert "keep-alive" not in headers and "connection" not in headers
    path, sent, seen = e.requests[-1]
    sent = {k.lower(): v for k, v in sent.items()}
    assert path == "/v1/chat/completions" and seen == body
    assert sent["x-request-id"] == "req-7" and sent["traceparent"] == "00-aa-bb-01"
    assert sent["content-length"] == str(len(body)) and sent["host"] == f"127.0.0.1:{e.port}"
    assert "accept-encoding" not in sent and "authorization" not in sent
    until(lambda: a.metric('cgn_relays_total{engine="openai_compat",outcome="ok"}') == 1, "counted")


def test_a_megabyte_and_an_error_status_go_through(pair):
    e, a = pair
    body = b'{"p":"' + b"x" * 3_000_000 + b'"}'
    got = a.generate("model=m", body=body)
    assert got.code == "FINE" and got.data.encode() == body
    e.behave = lambda h: h.reply(429, b'{"error":{"message":"slow down"}}', [("Retry-After", "7")])
    got = a.generate("model=m")
    assert got.code == "FINE" and got.head["head"] == 429 and got.data == '{"error":{"message":"slow down"}}'
    assert dict(got.head["headers"])["retry-after"] == "7"


def test_a_stream_arrives_piece_by_piece(pair):
    e, a = pair

    def behave(h):
        h.start_stream()
        for i in range(3):
            h.chunk(b"data: %d\n\n" % i)
            assert e.release.wait(WAIT_S) if i == 1 else True
        h.chunk(b"")

    e.behave = behave
    p = a.start("generate", "/v1/chat/completions", "model=m")
    lines = [json.loads(p.stdout.readline()) for _ in range(2)]
    assert lines[0]["head"] == 200 and lines[1]["data"].startswith("data: 0")
    assert p.poll() is None  # the engine has not finished
    e.release.set()
    rest = [json.loads(line) for line in p.stdout]
    assert rest[-1]["code"] == "FINE"
    assert lines[1]["data"] + "".join(x.get("data", "") for x in rest) == "data: 0\n\ndata: 1\n\ndata: 2\n\n"


def test_events_that_arrive_together_are_sent_together(pair):
    """Many small events of one write become few messages; a piece between them that is too large to be gathered keeps its place."""
    e, a = pair
    events = [b"data: %d\n\n" % i for i in range(100)]
    events[50] = b"data: " + b"x" * 40_000 + b"\n\n"

    def behave(h):
        h.start_stream()
        h.wfile.write(b"".join(b"%x\r\n%s\r\n" % (len(x), x) for x in events))
        h.chunk(b"")

    e.behave = behave
    lines = [json.loads(line) for line in a.start("generate", "/v1/chat/completions", "model=m").stdout]
    data = [x["data"] for x in lines if "data" in x]
    assert lines[-1]["code"] == "FINE"
    assert "".join(data).encode() == b"".join(events)
    assert len(data) < 20


def test_hostile_requests_reach_no_engine(pair):
    e, a = pair
    for bad in (["header=x:a\r\nb: c"], ["header=x y:1"], ["header=:1"], ["method=GET /x"], ["method="], ["id=a\nb"]):
        got = a.generate("model=m", *bad)
        assert got.code == "INVALID", bad
    for path in ("relative", "/a b", "/a\r\nHost: x", "/a\tb"):
        assert a.generate("model=m", path=path).code == "INVALID", path
    assert e.requests == []


def test_a_base_path_and_a_key_from_a_file(fake, start, tmp_path):
    e = fake(key="sk-secret")
    (tmp_path / "key").write_text("sk-secret\n")
    a = start(f'[engine]\nurl = "http://127.0.0.1:{e.port}/v1"\napi_key_file = "{tmp_path}/key"\nready_interval = "20ms"').wait_ready()
    assert a.generate("model=m").code == "FINE"
    path, sent, _ = e.requests[-1]
    assert path == "/v1/chat/completions" and {k.lower(): v for k, v in sent.items()}["authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in a.log.read_text() and "sk-secret" not in a.get("/config")[1]


def test_what_an_engine_lacks_is_501(fake, start):
    e = fake()
    a = start(f'[engine]\nkind = "llama_cpp"\nurl = "http://127.0.0.1:{e.port}"\nready_interval = "20ms"').wait_ready()
    got = a.generate("model=m", path="/v1/score?x=1")
    assert got.code == "FINE" and got.head["head"] == 501
    assert json.loads(got.data)["error"]["type"] == "not_supported_error"
    assert e.requests == []


def test_an_unknown_model_or_engine_is_not_found(pair):
    _, a = pair
    got = a.generate("model=other")
    assert got.code == "NOT_FOUND" and "other" in got.message and got.head is None
    assert a.generate("engine=nobody").code == "NOT_FOUND"
    assert a.generate("engine=openai_compat", "model=whatever").code == "FINE"


def test_an_engine_behind_tls(fake, start, pki):
    e = fake(key="sk-1", tls=pki)
    (pki / "key").write_text("sk-1")
    toml = f'[engine]\nurl = "https://127.0.0.1:{e.port}/v1"\napi_key_file = "{pki}/key"\nready_interval = "20ms"\n'
    a = start(toml + f'ca_file = "{pki}/ca.pem"').wait_ready()
    assert a.generate("model=m", body=b"over tls").data == "over tls"


def test_an_engine_with_an_unsigned_certificate_is_not_trusted(fake, start, pki):
    e = fake(tls=pki)
    a = start(f'[engine]\nurl = "https://127.0.0.1:{e.port}"\nready_interval = "20ms"')
    until(lambda: "certificate" in a.engine()["trouble"].lower(), lambda: a.engine()["trouble"])
    assert a.get("/readyz")[0] == 503 and e.requests == []


def test_mutual_tls_between_router_and_agent(fake, start, pki):
    security = "".join(f'{k}_file = "{pki}/{v}"\n' for k, v in (("ca", "ca.pem"), ("cert", "agent.pem"), ("key", "agent.key")))
    a = start(adopted(fake()) + f"\n[security]\nrequire_mtls = true\n{security}").wait_ready()
    got = a.generate("model=m")
    assert got.code == "UNAVAILABLE" and got.head is None  # in clear
    a.ask_env = {**os.environ, "ASK_CA": f"{pki}/ca.pem"}
    assert a.generate("model=m").head is None  # without a certificate
    a.ask_env = {**a.ask_env, "ASK_CERT": f"{pki}/router.pem", "ASK_KEY": f"{pki}/router.key"}
    got = a.generate("model=m", body=b"secret")
    assert got.code == "FINE" and got.data == "secret"


# ---- failures ----
def test_cancelling_closes_the_engines_connection(pair):
    e, a = pair

    def behave(h):
        h.start_stream()
        while True:
            h.chunk(b"data: x\n\n")
            time.sleep(0.002)

    e.behave = behave
    for _ in range(20):
        got = a.generate("model=m", "cancel=2")
        assert got.last == {"cancelled": True}
        e.closed.get(timeout=WAIT_S)
    until(lambda: a.node()["inflight"] == 0, "nothing in flight")
    assert a.metric('cgn_relays_total{engine="openai_compat",outcome="cancelled"}') == 20


def test_cancelling_before_the_head_closes_it_too(pair):
    e, a = pair
    gone = threading.Event()

    def behave(h):
        h.connection.settimeout(WAIT_S)
        try:
            assert h.connection.recv(1) == b""
        except ConnectionResetError:
            pass
        gone.set()
        h.close_connection = True

    e.behave = behave
    p = a.start("generate", "/v1/chat/completions", "model=m")
    until(lambda: e.requests, "the engine has it")
    p.kill()
    p.wait()
    assert gone.wait(WAIT_S)


def test_an_engine_that_dies_in_its_answer_never_ends_it_well(pair):
    e, a = pair

    def behave(h):
        h.start_stream()
        h.chunk(b"data: half\n\n")
        h.die()

    e.behave = behave
    got = a.generate("model=m")
    assert got.head["head"] == 200 and got.data == "data: half\n\n"
    assert got.code == "UNAVAILABLE" and "middle" in got.message


def test_a_content_length_that_lies_is_no_clean_end(pair):
    e, a = pair

    def behave(h):
        h.send_response(200)
        h.send_header("Content-Length", "100")
        h.end_headers()
        h.wfile.write(b"short")
        h.die()

    e.behave = behave
    assert a.generate("model=m").code == "UNAVAILABLE"


def test_an_engine_that_talks_nonsense(pair):
    e, a = pair

    def behave(h):
        h.wfile.write(b"SSH-2.0-OpenSSH\r\n\r\n")
        h.die()

    e.behave = behave
    got = a.generate("model=m")
    assert got.code == "INTERNAL" and got.head is None and "openai_compat" in got.message  # it took the request, and broke off


def test_a_stale_connection_is_tried_once_more_unseen(pair):
    e, a = pair
    assert a.generate("model=m").code == "FINE"
    answers = [True]

    def behave(h):
        if answers:
            answers.pop()
            h.die()  # a kept-alive connection that the engine closed
        else:
            e.echo(h)

    e.behave = behave
    got = a.generate("model=m", body=b"again")
    assert got.code == "FINE" and got.data == "again"
    assert [r[2] for r in e.requests] == [b"{}", b"again", b"again"]


def test_an_idle_connection_goes_before_an_engine_would_close_it(fake, start):
    """uvicorn and llama-server close idle connections after 5 s; a request in flight on such a connection is
    lost."""
    e = fake()
    a = start(adopted(e)).wait_ready()
    e.behave = lambda h: (e.release.wait(WAIT_S), e.echo(h))
    calls = [a.start("generate", "/v1/chat/completions", "model=m") for _ in range(2)]
    until(lambda: a.node()["inflight"] == 2, "two in flight")
    before = e.ended
    e.release.set()
    for p in calls:
        assert json.loads(p.communicate(timeout=WAIT_S)[0].strip().split("\n")[-1])["code"] == "FINE"
    until(lambda: e.ended > before, "the agent closes one of them; its questions keep the other in use")


def test_an_engine_that_is_away_is_unavailable(fake, start):
    e = fake()
    a = start(adopted(e)).wait_ready()
    e.stop()
    got = a.generate("model=m")
    assert got.code == "UNAVAILABLE" and got.head is None and "openai_compat" in got.message
    until(lambda: a.get("/readyz")[0] == 503, "seen as away")
    got = a.generate("model=m")
    assert got.code == "UNAVAILABLE" and "unhealthy" in got.message


def test_a_slow_reader_slows_the_engine(pair):
    e, a = pair
    sent = [0]

    def behave(h):
        h.start_stream()
        block = b"x" * 65536
        for _ in range(1600):  # 100 MiB
            h.chunk(block)
            sent[0] += len(block)
        h.chunk(b"")

    e.behave = behave
    p = a.start("generate", "/v1/chat/completions", "model=m", "body={}", "pause=1", stdin=subprocess.PIPE)
    until(lambda: json.loads(p.stdout.readline()).get("paused"), "paused")
    before = -1
    while sent[0] != before:  # until the counter stands still
        before = sent[0]
        time.sleep(0.5)
    assert before < 40 << 20
    p.stdin.write("\n")
    p.stdin.flush()
    last = json.loads(list(p.stdout)[-1])
    assert last["code"] == "FINE" and last["bytes"] == 100 << 20


def test_too_many_at_once_are_refused(fake, start):
    e = fake()
    a = start(adopted(e), "max_inflight = 2").wait_ready()
    e.behave = lambda h: (e.release.wait(WAIT_S), e.echo(h))
    open_calls = [a.start("generate", "/v1/chat/completions", "model=m") for _ in range(2)]
    until(lambda: a.node()["inflight"] == 2, "two in flight")
    got = a.generate("model=m")
    assert got.code == "OVERLOADED" and "max_inflight" in got.message
    e.release.set()
    for p in open_calls:
        assert json.loads(p.communicate(timeout=WAIT_S)[0].strip().split("\n")[-1])["code"] == "FINE"
    assert a.generate("model=m").code == "FINE"


def test_a_reload_changes_what_is_live(fake, start):
    e = fake()
    a = start(adopted(e), "max_inflight = 1").wait_ready()
    e.behave = lambda h: (e.release.wait(WAIT_S), e.echo(h))
    p = a.start("generate", "/v1/chat/completions", "model=m")
    until(lambda: a.node()["inflight"] == 1, "one in flight")
    assert a.generate("model=m").code == "OVERLOADED"
    a.config.write_text(a.config.read_text().replace("max_inflight = 1", "max_inflight = 5"))
    a.proc.send_signal(signal.SIGHUP)
    until(lambda: a.event("svc.reloaded"), "reloaded")
    e.release.set()
    assert p.wait(WAIT_S) == 0
    os.kill(a.proc.pid, 0)
    e.release.clear()
    calls = [a.start("generate", "/v1/chat/completions", "model=m") for _ in range(3)]
    until(lambda: a.node()["inflight"] == 3, "three in flight")
    e.release.set()
    assert [c.wait(WAIT_S) for c in calls] == [0, 0, 0]


# ---- watching ----
class Watch:
    def __init__(self, a, *options, **popen):
        self.proc, self.events, self.lines = a.start("watch", *options, **popen), [], queue.Queue()
        threading.Thread(target=lambda: [self.lines.put(x) for x in self.proc.stdout] and None, daemon=True).start()

    def next(self):
        return json.loads(self.lines.get(timeout=WAIT_S))

    def until(self, what):
        while True:
            for e in self.events:
                if what(e):
                    return e
            self.events.append(self.next())
            if "seq" in self.events[-1]:
                assert self.events[-1]["seq"] == sum("seq" in e for e in self.events)

    def clear(self):
        self.proc.kill()
        self.proc.wait()


def test_watch_tells_node_load_and_residency(pair):
    e, a = pair
    assert a.generate("model=m", "chain=a,b,c").code == "FINE"
    w = Watch(a)
    first = w.until(lambda ev: ev["seq"] == 1)
    assert first["node"]["id"] == "n1" and first["node"]["engines"][0]["ready"] and first["node"]["engines"][0]["models"] == ["m"]
    assert first["residency"]["reset"] and first["residency"]["source"] == "sent"
    assert set(first["residency"]["stored"]) == {"a", "b", "c"}
    assert first["load"]["requests_total"] == 1
    until(lambda: a.engine()["load"]["running"] == 3, "scraped")
    w.until(lambda ev: ev.get("load", {}).get("running") == 3)
    assert a.generate("model=m", "chain=a,b,d").code == "FINE"
    ev = w.until(lambda ev: ev["seq"] > 1 and "residency" in ev)
    assert not ev["residency"]["reset"] and set(ev["residency"]["stored"]) == {"d"} and ev["residency"]["removed"] == []
    e.behave = lambda h: h.reply(500, b"{}")
    assert a.generate("model=m", "chain=f").code == "FINE"  # no prefill, so no block is held
    e.stop()
    w.until(lambda ev: "node" in ev and not ev["node"]["engines"][0].get("ready"))
    gone = set()
    while gone != {"a", "b", "c", "d"}:
        gone |= set(w.until(lambda ev: set(ev.get("residency", {}).get("removed", [])) - gone)["residency"]["removed"])
    w.clear()
    until(lambda: a.node()["watchers"] == 0, "forgotten")


def test_an_adopted_engine_that_was_restarted_unseen_holds_nothing(fake, start):
    e = fake()
    e.metrics = b"vllm:prompt_tokens_total 5000\n"
    a = start(adopted(e)).wait_ready()
    assert a.generate("model=m", "chain=a,b").code == "FINE"
    until(lambda: a.metric('cgn_engine_requests_running{engine="openai_compat"}') == 0 and a.engine()["resident_blocks"] == 2, "held")
    w = Watch(a)
    assert set(w.until(lambda ev: ev["seq"] == 1)["residency"]["stored"]) == {"a", "b"}
    read = e.scrapes
    until(lambda: e.scrapes >= read + 2, "the counter was read")
    e.metrics = b"vllm:prompt_tokens_total 7\n"
    assert set(w.until(lambda ev: ev.get("residency", {}).get("removed"))["residency"]["removed"]) == {"a", "b"}
    w.clear()


def test_a_watcher_asks_for_a_range_again(pair):
    _, a = pair
    assert a.generate("model=m", "chain=4200000000000001,4200000000000002,ff00000000000003").code == "FINE"
    w = Watch(a, "repair=66,7")
    assert w.until(lambda ev: "check" in ev)["check"] == 3
    got = w.until(lambda ev: ev.get("residency", {}).get("ranges"))["residency"]
    assert got["reset"] and got["ranges"] == [7, 66] and set(got["stored"]) == {"4200000000000001", "4200000000000002"}
    assert w.until(lambda ev: "check" in ev and ev["seq"] > w.events[-2]["seq"])["check"] == 3
    w.clear()
    bad = Watch(a, "repair=256")
    end = bad.until(lambda ev: "code" in ev)
    assert end["code"] == "INVALID" and "256" in end["message"]
    bad.clear()


def test_a_watcher_that_stands_still_is_told_whole_ranges_once_it_goes_on(pair):
    _, a = pair
    w = Watch(a, "blocks=count", "pause=1", stdin=subprocess.PIPE)
    w.until(lambda ev: "paused" in ev)
    for seed in range(12):  # 130,000 changes each, while no change is read
        assert a.generate("model=m", f"made={seed}:65000").code == "FINE"
    assert "agent.watcher_slow" in a.log.read_text()
    w.proc.stdin.write("\n")
    w.proc.stdin.flush()
    w.until(lambda ev: ev.get("check") == 65536)
    told = [ev["residency"] for ev in w.events if ev.get("residency", {}).get("ranges")]
    assert told and all(r["reset"] for r in told)
    assert {i for r in told for i in r["ranges"]} == set(range(256))
    w.clear()


def test_many_watchers_but_not_any_number(pair):
    _, a = pair
    watches = [Watch(a) for _ in range(65)]
    lasts = [w.next() for w in watches]
    assert sum(x.get("seq") == 1 for x in lasts) == 64
    assert [x["code"] for x in lasts if "code" in x] == ["OVERLOADED"]
    for w in watches:
        w.clear()
    until(lambda: a.node()["watchers"] == 0, "forgotten")


# ---- what an engine says of itself ----
def sim_kind(e, more=""):
    return adopted(e, more).replace("openai_compat", "sim")


def events(a, name):
    return [e for e in (json.loads(line) for line in a.log.read_text().split("\n")[:-1]) if e["event"] == name]


def test_an_engine_is_ready_when_it_says_so(fake, start):
    """Until then requests are refused with the reason, which is shown and logged once."""
    e = fake()
    e.gets["/health"] = (500, b"{}")
    a = start(sim_kind(e))
    until(lambda: a.engine()["trouble"] == "/health answered 500", lambda: a.engine())
    assert a.engine()["state"] != "ready" and not a.engine()["ready"] and a.get("/readyz")[0] == 503
    assert a.metric('cgn_engine_ready{engine="sim"}') == 0
    got = a.generate("model=m")
    assert got.code == "UNAVAILABLE" and not e.requests
    w = Watch(a)
    first = w.until(lambda ev: "node" in ev)["node"]["engines"][0]
    assert not first.get("ready") and first["trouble"] == "/health answered 500"
    e.gets["/health"] = (503, b"{}")
    until(lambda: a.engine()["trouble"] == "/health answered 503", lambda: a.engine())
    w.until(lambda ev: ev.get("node", {}).get("engines", [{}])[0].get("trouble") == "/health answered 503")
    del e.gets["/health"]
    a.wait_ready()
    engine = a.engine()
    assert (engine["state"], engine["ready"], engine["trouble"], engine["models"], engine["managed"], engine["pid"]) == ("ready", True, "", ["m"], False, 0)
    assert engine["kind"] == engine["name"] == "sim" and engine["address"] == f"127.0.0.1:{e.port}" and engine["restarts"] == 0
    w.until(lambda ev: ev.get("node", {}).get("engines", [{}])[0].get("ready"))
    assert a.metric('cgn_engine_ready{engine="sim"}') == 1
    failed, changed = events(a, "engine.check_failed")
    assert changed["why"] == "/health answered 503"
    assert failed["why"] == "/health answered 500" and failed["url"] == f"127.0.0.1:{e.port}" and failed["level"] == "warn"
    assert len(events(a, "engine.ready")) == 1 and a.generate("model=m").code == "FINE"
    w.clear()


def test_an_engine_that_ends_has_no_load_and_no_blocks(fake, start):
    e = fake()
    a = start(sim_kind(e)).wait_ready()
    assert a.generate("model=m", "chain=a,b,c").code == "FINE"
    until(lambda: a.engine()["load"]["running"] == 3 and a.engine()["resident_blocks"] == 3, lambda: a.engine())
    load = a.engine()["load"]
    assert (load["running"], load["waiting"], load["kv_usage"]) == (3, 2, 0.5)
    for name, value in (("running", 3), ("waiting", 2)):
        assert a.metric(f'cgn_engine_requests_{name}{{engine="sim"}}') == value
    e.stop()
    until(lambda: not a.engine()["ready"], "it is seen")
    engine = a.engine()
    assert (engine["load"]["running"], engine["load"]["waiting"], engine["load"]["kv_usage"], engine["resident_blocks"]) == (0, 0, 0, 0)
    assert engine["trouble"] and engine["state"] != "ready"
    assert a.metric('cgn_engine_requests_running{engine="sim"}') == a.metric('cgn_engine_requests_waiting{engine="sim"}') == 0
    (unready,) = events(a, "engine.unready")
    assert unready["why"] == engine["trouble"] and a.get("/readyz")[0] == 503


def test_load_follows_the_engine(fake, start):
    e = fake()
    e.metrics = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
    a = start(sim_kind(e)).wait_ready()
    until(lambda: e.scrapes > 0, "it is read")
    assert a.engine()["load"]["running"] == 0
    e.metrics = b"vllm:num_requests_running 7\nvllm:num_requests_waiting 4\nvllm:kv_cache_usage_perc 0.25\n" + \
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="500"} 1\n'
    until(lambda: a.engine()["load"]["running"] == 7, lambda: a.engine())
    load = a.engine()["load"]
    assert (load["waiting"], load["kv_usage"], load["kv_blocks_total"], load["kv_block_tokens"]) == (4, 0.25, 500, 16)
    assert a.metric('cgn_engine_requests_running{engine="sim"}') == 7
    e.gets["/metrics"] = (404, b"")  # a source that does not exist is asked for no more
    until(lambda: a.engine()["load"]["running"] == 0, lambda: a.engine())
    read = e.scrapes
    assert a.generate("model=m").code == "FINE" and a.engine()["ready"] and e.scrapes == read


def test_models_are_asked_for_until_they_are_known(fake, start):
    e = fake()
    e.gets["/v1/models"] = (200, b'{"data": []}')
    a = start(sim_kind(e))
    until(lambda: a.engine()["trouble"] == "/v1/models lists none", lambda: a.engine())
    assert a.engine()["state"] == "ready" and not a.engine()["ready"] and a.get("/readyz")[0] == 503
    (unknown,) = events(a, "engine.models_unknown")
    assert unknown["why"] == "/v1/models lists none" and unknown["engine"] == "sim"
    e.gets["/v1/models"] = (500, b"{}")
    until(lambda: a.engine()["trouble"] == "/v1/models: not answered with 200", lambda: a.engine())
    e.gets["/v1/models"] = (200, b'{"data": [{"id": "x/one"}, {"id": "two"}]}')
    a.wait_ready()
    assert a.engine()["models"] == ["x/one", "two"] and a.engine()["trouble"] == ""
    assert [m["first"] for m in events(a, "engine.models")] == ["x/one"] and events(a, "engine.models")[0]["models"] == 2
    assert a.generate("model=two").code == "FINE" and a.generate("model=m").code == "NOT_FOUND"


# ---- supervising ----
def managed_sim(more=""):
    return (f'[engine]\nkind = "sim"\nmanaged = true\nurl = "http://127.0.0.1:{free_port()}"\nmodel = "m"\nready_interval = "20ms"\n'
            f'restart_backoff = "50ms"\nextra_args = ["--time-scale", "0"]\n{more}')


def test_a_managed_engine_is_restarted(start):
    a = start(managed_sim()).wait_ready()
    chat = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    got = a.generate("model=m", body=chat)
    assert got.code == "FINE" and json.loads(got.data)["object"] == "chat.completion"
    first = a.engine()["pid"]
    os.kill(first, signal.SIGKILL)
    until(lambda: a.engine()["restarts"] == 1 and a.engine()["ready"], "ready again")
    assert a.engine()["pid"] != first
    assert a.metric('cgn_engine_restarts_total{engine="sim"}') == 1
    assert a.generate("model=m", body=chat).code == "FINE"


def test_an_engine_that_comes_up_slowly_gets_nothing_until_it_is_ready(start):
    a = start(managed_sim().replace('"0"]', '"0", "--fault", "slow-start=1500ms"]'))
    got = a.generate("model=m")
    assert got.code == "UNAVAILABLE" and "starting" in got.message
    assert a.get("/readyz")[0] == 503
    a.wait_ready()
    assert a.engine()["restarts"] == 0


def test_kill_9_of_the_agent_takes_the_engine_along(start, tmp_path):
    wrapper = tmp_path / "engine.sh"  # a common set-up: a script that starts the real engine as its child
    wrapper.write_text(f'#!/bin/sh\n"{SIM}" "$@" &\nsetsid sleep 1000 &\necho $! > {tmp_path}/stray\nwait\n')
    wrapper.chmod(0o755)
    a = start(managed_sim(f'binary = "{wrapper}"')).wait_ready()
    pids = [a.engine()["pid"], int((tmp_path / "stray").read_text())]
    port = a.engine()["address"].split(":")[1]
    assert all(map(is_running, pids)) and is_listening(int(port))
    a.proc.kill()
    until(lambda: not any(map(is_running, pids)), "all gone")
    until(lambda: not is_listening(int(port)), "the real engine, the script's child, is gone too")


def test_a_missing_program_is_named(start):
    a = start(managed_sim('binary = "no-such-engine"'))
    until(lambda: "no-such-engine" in a.engine()["trouble"] and "PATH" in a.engine()["trouble"], "said")
    assert a.engine()["state"] in ("backoff", "starting")
    assert a.event("engine.start_failed")["level"] == "error"
    assert a.proc.poll() is None


def test_an_engine_that_never_gets_ready_is_started_again(start, tmp_path):
    deaf = tmp_path / "deaf.sh"
    deaf.write_text("#!/bin/sh\necho started\nexec sleep 1000\n")
    deaf.chmod(0o755)
    a = start(managed_sim(f'binary = "{deaf}"\nready_timeout = "300ms"'))
    until(lambda: a.engine()["restarts"] >= 2, "started again")
    assert a.event("engine.output")["line"] == "started"


def test_a_managed_engine_that_ends_is_told_with_its_last_lines(start, tmp_path):
    loud = tmp_path / "loud.sh"
    loud.write_text('#!/bin/sh\nfor i in $(seq 30); do echo "line $i"; done\nprintf "%0500d\\n" 7\nexit 3\n')
    loud.chmod(0o755)
    a = start(managed_sim(f'binary = "{loud}"').replace('"50ms"', '"60s"'))
    until(lambda: a.engine()["state"] == "backoff", lambda: a.engine())
    (ended,) = events(a, "engine.exit")
    assert "3" in ended["how"] and ended["level"] == "warn" and ended["engine"] == "sim"
    lines = [e["line"] for e in events(a, "engine.output")]
    assert lines == [f"line {i}" for i in range(20, 31)] + ["0" * 239], lines
    engine = a.engine()
    assert ended["how"] == "exit status 3" and engine["trouble"] == ended["why"] == f"exit status 3 (its last words: {'0' * 239})"
    assert engine["pid"] == 0 and not engine["ready"] and engine["restarts"] == 0
    (begun,) = events(a, "engine.start")
    assert begun["program"] == str(loud) and begun["restarts"] == 0
    got = a.generate("model=m")
    assert got.code == "UNAVAILABLE"


def test_an_engines_lines_have_a_level_of_their_own(start):
    quiet = start(managed_sim("")).wait_ready()
    assert not quiet.event("engine.output"), "a healthy engine's lines are not in the log"
    quiet.end()
    told = start(managed_sim("") + '\n[log]\nengine_output = "info"\n').wait_ready()
    assert until(lambda: told.event("engine.output"), "its lines are in the log")["level"] == "info"


@pytest.mark.parametrize("toml, says", [
    ('[engine]\nkind = "llama_cpp"\nmanaged = true\n', "model_path"),
    ('[engine]\nkind = "openai_compat"\nmanaged = true\n', "managed"),
    ('[engine]\nurl = "http://user:pw@x/"\n', "api_key_file"),
    ('[engine]\napi_key_file = "/nonexistent/key"\n', "/nonexistent/key"),
    ("", "engine"),
])
def test_a_wrong_configuration_ends_it_with_a_sentence(tmp_path, toml, says):
    (tmp_path / "c.toml").write_text(f'[agent]\nlisten = "127.0.0.1:0"\nlisten_admin = "127.0.0.1:0"\n{toml}')
    p = subprocess.run([AGENT, "--config", tmp_path / "c.toml"], capture_output=True, text=True, timeout=WAIT_S)
    assert p.returncode in (1, 3) and says in p.stderr


# ---- ending ----
def test_drain_finishes_what_runs_and_takes_nothing_new(fake, start):
    e = fake()
    a = start(adopted(e)).wait_ready()
    e.behave = lambda h: (e.release.wait(WAIT_S), e.echo(h))
    w = Watch(a)
    running = a.start("generate", "/v1/chat/completions", "model=m")
    until(lambda: e.requests, "it runs")
    assert a.node()["draining"] is False
    a.proc.send_signal(signal.SIGTERM)
    w.until(lambda ev: ev.get("node", {}).get("draining"))
    assert a.node()["draining"] is True and a.node()["inflight"] == 1
    got = a.generate("model=m")
    assert got.code == "UNAVAILABLE" and "draining" in got.message
    assert a.proc.poll() is None
    e.release.set()
    assert json.loads(running.communicate(timeout=WAIT_S)[0].strip().split("\n")[-1])["code"] == "FINE"
    assert a.proc.wait(WAIT_S) == 0
    w.clear()


def test_sigterm_stops_the_managed_engine(start):
    a = start(managed_sim()).wait_ready()
    pid = a.engine()["pid"]
    a.proc.send_signal(signal.SIGTERM)
    assert a.proc.wait(WAIT_S) == 0
    assert not is_running(pid)


def test_nothing_leaks_over_many_aborted_requests(pair):
    e, a = pair

    def behave(h):
        h.start_stream()
        while True:
            h.chunk(b"data: x\n\n")
            time.sleep(0.001)

    e.behave = behave
    descriptors = lambda: len(os.listdir(f"/proc/{a.proc.pid}/fd"))
    a.generate("model=m", "cancel=1")
    e.closed.get(timeout=WAIT_S)
    until(lambda: a.node()["inflight"] == 0, "nothing in flight")
    before = descriptors()
    for _ in range(50):
        a.generate("model=m", "cancel=1")
    until(lambda: a.node()["inflight"] == 0, "nothing in flight")
    until(lambda: descriptors() <= before + 1, "descriptors as before")

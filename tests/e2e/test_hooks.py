# SPDX-License-Identifier: Apache-2.0
"""External checks ([hooks]): one is asked before a request goes to an engine, one before the client gets the answer."""
import base64
import gzip
import http.client
import json
import signal
import socket
import subprocess
import threading
import time

import media_engine
import pytest

from clients import chat_body, set_faults
from cluster import BUILD, WAIT_S, ask, audit_lines, free_port, until
from hook_service import HookService, allow
from issuer import Issuer

CTL, ROUTER = str(BUILD / "src/ctl/cgn-ctl"), str(BUILD / "src/router/cgn-router")
FAST = ("--time-scale", "0")
LONG = "20s"  # for hooks that answer: a busy machine is no failure


@pytest.fixture
def hook():
    with HookService() as service:
        yield service


@pytest.fixture
def hooked(cluster, hook):
    """Start a router with hooks, and a node. The word "before" or "after" stands for the service's URL."""
    def begin(*kinds, node=FAST, more=None, **settings):
        hooks = {f"{kind}_url": hook.url(f"/v1/{kind}") for kind in kinds}
        cluster.router({"hooks": {"timeout": LONG, **hooks, **settings}, **(more or {})})
        cluster.node("a", *node)
        cluster.wait_ready()
        return cluster
    return begin


def error(answer):
    return answer.json()["error"]


def requests(cluster):
    """Return the lines of the access log, without those of health checks."""
    return [e for e in cluster.router_process.events("gateway.request") if e["path"] != "/readyz"]


def settings_change(cluster, **hooks):
    """Replace the hooks of the router's configuration, and let it read the file again."""
    path = cluster.folder / "router.toml"
    head, _, rest = path.read_text().partition("[hooks]\n")
    after = rest.partition("\n[")
    path.write_text(head + "[hooks]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in hooks.items()) + after[1] + after[2])
    events = ("svc.reloaded", "svc.reloaded_in_part", "svc.reload_refused")
    before = sum(len(cluster.router_process.events(e)) for e in events)
    cluster.router_process.signal(signal.SIGHUP)
    until(lambda: sum(len(cluster.router_process.events(e)) for e in events) > before, "the configuration was read again")


# ---- before ----

def test_a_hook_reads_the_text_of_a_coded_body(hooked, hook):
    c = hooked("before", more={"router": {"extra_routes": ["POST /v1/videos"]}})
    coded = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    for path in ("/v1/chat/completions", "/rerank", "/v1/videos"):
        raw = gzip.compress(json.dumps({**json.loads(chat_body("hello")), "query": "a", "documents": ["b"]}).encode())
        assert ask(c.http_port, "POST", path, raw, coded).status in (200, 404), path  # the engine has no videos
        assert hook.of("before")[-1]["body"]["messages"][0]["content"] == "hello", path


def test_the_question_says_who_asks_for_what_and_has_no_key(hooked, hook, tmp_path):
    keys = str(tmp_path / "keys")
    key = subprocess.run([CTL, "key", "create", "--file", keys, "--scopes", "chat,embed", "--tenant", "acme"], capture_output=True, text=True, check=True).stdout.strip()
    c = hooked("before", "after", more={"auth": {"enabled": True, "api_keys_file": keys}})
    headers = {"Authorization": f"Bearer {key}", "x-api-key": key, "Cookie": "session=secret", "X-Request-Id": "r-1"}
    a = c.chat("hello", {**headers}, temperature=0.5)
    assert a.status == 200 and a.json()["choices"], a.body
    before, after = hook.of("before")[0], hook.of("after")[0]
    until(lambda: requests(c), "it is logged")
    own = before["request"].pop("id")  # a client's id is not unique, so the router's own says which questions belong together
    assert own.startswith("req-") and after["request"].pop("id") == own and requests(c)[0]["own_id"] == own
    assert before["request"] == {"client_id": "r-1", "method": "POST", "path": "/v1/chat/completions", "model": "sim", "stream": False}
    who = before["principal"]
    until(lambda: requests(c), "it is logged")
    assert who == {"kind": "key", "name": requests(c)[0]["key"], "tenant": "acme", "roles": ["user"]}
    assert before["from"].startswith("127.0.0.1:") and "response" not in before
    assert before["body"] == {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "temperature": 0.5}
    assert after["request"] == before["request"] and after["principal"] == who
    assert after["response"] == {"status": 200, "content_type": "application/json", "complete": True}
    assert after["body"] == a.json()
    assert [path for path, _, _ in hook.raw] == ["/v1/before", "/v1/after"]
    for _, head, raw in hook.raw:
        assert key not in head and key.encode() not in raw and "secret" not in head and b"secret" not in raw
        assert "authorization" not in head.lower() and "x-api-key" not in head.lower() and "cookie" not in head.lower()
    assert c.ask("POST", "/v1/embeddings?key=geheim", {"model": "sim", "input": "x"}, headers).status == 200
    assert hook.seen[-1]["hook"] == "before" and hook.seen[-1]["request"]["path"] == "/v1/embeddings" and b"geheim" not in hook.raw[-1][2]
    n = len(hook.seen)
    assert c.chat("hello", {"Authorization": "Bearer cgn-no-key"}).status == 401
    assert c.ask("POST", "/v1/chat/completions", {"model": "other", "messages": []}, headers).status == 404
    assert c.ask("GET", "/v1/models", None, headers).status == 200 and len(hook.seen) == n


def test_the_holder_of_a_token_is_named(hooked, hook, tmp_path):
    issuer = Issuer(tmp_path)
    issuer.key("ES256")
    try:
        c = hooked("before", more={"auth": {"enabled": True, "oidc_issuer": issuer.url, "oidc_audience": "cognitora", "tenant_claim": "org"},
                                   'claims."students"': {"claim": "groups", "value": "students", "role": "user"}})
        token = issuer.token(issuer.keys[0], issuer.claims(sub="anna", org="acme", groups=["students"]))
        until(lambda: c.chat("hello", {"Authorization": f"Bearer {token}"}).status == 200, "the provider's keys are there")
        assert hook.seen[-1]["principal"] == {"kind": "user", "name": "anna", "tenant": "acme", "roles": ["user"]}
        assert token not in hook.raw[-1][1] and token.encode() not in hook.raw[-1][2]
    finally:
        issuer.close()


def test_a_refusal_is_the_hooks_and_no_engine_is_asked(hooked, hook, cluster, tmp_path):
    audit = tmp_path / "audit.jsonl"
    c = hooked("before", more={"security": {"audit_file": str(audit)}})
    rows = [((403, {"message": "no cats", "code": "cats"}), 403, "no cats", "cats"),
            ((200, {"allow": False, "message": 'a "quote"\nand \u0007 more'}), 403, 'a "quote" and   more', "hook_refused"),
            ((200, {"allow": False}), 403, "the request is not allowed here", "hook_refused"),
            ((429, {"message": "slowly", "code": "slow"}), 429, "slowly", "slow"),
            ((451, {"message": "law"}), 451, "law", "hook_refused"),
            ((401, {"message": "who"}), 403, "who", "hook_refused"),
            ((404, b"<html>not found"), 403, "the request is not allowed here", "hook_refused"),
            ((403, {"allow": True, "message": 5, "code": "no spaces"}), 403, "the request is not allowed here", "hook_refused"),
            ((403, {"message": "\u00e4" * 5000}), 403, "\u00e4" * 256, "hook_refused")]
    for decided, status, message, code in rows:
        hook.decide = lambda document: decided
        a = c.chat("hello")
        assert (a.status, error(a)["message"], error(a)["code"]) == (status, message, code), (decided, a.body)
        assert ("retry-after" in a.headers) == (status == 429)
    anthropic = c.ask("POST", "/v1/messages", {"model": "sim", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]})
    assert anthropic.json()["type"] == "error" and anthropic.json()["error"]["type"] == "permission_error"
    assert ask(c.nodes["a"].engine_port, "GET", "/sim/state").json()["requests"] == 0
    assert c.metric("cgn_hook_requests_total", hook="before", outcome="refused") == len(rows) + 1
    assert c.metric("cgn_rejected_total", reason="hook") == len(rows) + 1 and c.metric("cgn_hook_seconds_count", hook="before") == len(rows) + 1
    noted = until(lambda: len(found := audit_lines(audit, "hook.before")) == len(rows) + 1 and found, "all are in the audit log")
    assert (noted[0]["decision"], noted[0]["why"], noted[0]["object"]) == ("refused", "cats", "POST /v1/chat/completions")
    assert not audit_lines(audit, "gateway.request")  # each once
    hook.decide = allow
    assert c.chat("hello").status == 200


def failures(hook):
    """The ways in which a hook fails, and the outcome that is counted."""
    def slow(document):
        time.sleep(3)
        return 200, {"allow": True}
    return [(lambda d: (500, {"allow": True}), "invalid"), (lambda d: (302, b""), "invalid"), (lambda d: None, "unreachable"),
            (lambda d: (200, b"<html>welcome"), "invalid"), (lambda d: (200, {"allow": "true"}), "invalid"), (lambda d: (200, {"allowed": True}), "invalid"),
            (lambda d: (200, b" " * 100_000), "invalid"), (lambda d: (200, [True]), "invalid"), (slow, "timeout")]


@pytest.mark.parametrize("kind", ["before", "after"])
def test_a_failure_is_what_the_setting_says(hooked, hook, kind):
    c = hooked(kind, timeout="700ms")
    port = free_port()
    for on_failure, status in (("deny", 503), ("allow", 200)):
        counted = {}
        settings_change(c, **{f"{kind}_url": hook.url()}, timeout="700ms", on_failure=on_failure)
        for decide, outcome in failures(hook):
            hook.decide = decide
            a = c.chat("hello")
            assert a.status == status, (outcome, a.body)
            assert status == 200 or error(a)["code"] == "hook_unavailable" and a.headers["retry-after"] == "1" or kind == "after", a.body
            counted[outcome] = counted.get(outcome, 0) + 1
        settings_change(c, **{f"{kind}_url": f"http://127.0.0.1:{port}/x"}, on_failure=on_failure)
        a = c.chat("hello")
        assert a.status == status and c.metric("cgn_hook_requests_total", hook=kind, outcome="unreachable") >= 1
    scraped = c.scrape()
    assert all(c.metric("cgn_hook_requests_total", scraped, hook=kind, outcome=o) >= 2 * n for o, n in counted.items()), scraped
    assert c.router_process.events("gateway.hook_failed")


def test_204_and_an_empty_200_allow(hooked, hook):
    c = hooked("before")
    for decided in ((204, b""), (200, b""), (200, {"allow": True, "more": [1]})):
        hook.decide = lambda document: decided
        assert c.chat("hello").status == 200, decided


def test_connections_are_kept_and_a_closed_one_is_replaced(hooked, hook):
    c = hooked("before", more={"router": {"worker_threads": 1}})
    for _ in range(20):
        assert c.chat("hello").status == 200
    assert hook.connections == 1 and len(hook.seen) == 20
    hook.cuts_kept = True
    for _ in range(5):
        assert c.chat("hello").status == 200  # asked again on a new connection
    assert hook.cut_kept >= 3 and len(hook.seen) == 25 and c.metric("cgn_hook_requests_total", outcome="allowed") == 25


def test_bodies_that_are_not_sent_or_too_large(hooked, hook):
    c = hooked("before", send_body=False)
    assert c.chat("hello").status == 200 and "body" not in hook.seen[-1] and hook.seen[-1]["request"]["model"] == "sim"
    settings_change(c, before_url=hook.url(), max_body=2048)
    n = len(hook.seen)
    a = c.chat("x" * 4000)
    assert a.status == 413 and "hooks.max_body" in error(a)["message"] and len(hook.seen) == n
    assert c.chat("x" * 100).status == 200
    settings_change(c, before_url=hook.url(), max_body=2048, on_failure="allow")
    assert c.chat("x" * 4000).status == 200 and c.metric("cgn_hook_requests_total", outcome="too_large") == 2
    settings_change(c, before_url=hook.url(), max_body=2048, send_body=False)
    assert c.chat("x" * 4000).status == 200


def test_ollamas_requests_and_their_answers(hooked, hook):
    c = hooked("before", "after")
    body = {"model": "sim", "messages": [{"role": "user", "content": "hello"}]}
    whole = c.ask("POST", "/api/chat", {**body, "stream": False})
    assert whole.status == 200 and hook.of("after")[-1]["body"] == whole.json() and hook.of("before")[-1]["body"]["messages"] == body["messages"]
    stream = c.ask("POST", "/api/chat", body)
    assert hook.of("after")[-1]["events"] == [json.loads(line) for line in stream.body.splitlines()]
    hook.decide = lambda d: (403, {"message": "no"})
    assert c.ask("POST", "/api/chat", body).json() == {"error": "no"}
    assert c.ask("POST", "/api/show", {"model": "sim"}).status == 200  # no engine is asked


def test_the_client_leaves_while_the_hook_is_asked(hooked, hook):
    c = hooked("before", "after")
    waits, go_on = threading.Event(), threading.Event()

    def hold(document):
        waits.set()
        go_on.wait(30)
        return 200, {"allow": True}
    for i, kind in enumerate(("before", "after")):
        waits.clear(), go_on.clear()
        hook.decide = lambda d: hold(d) if d["hook"] == kind else allow(d)
        s = socket.create_connection(("127.0.0.1", c.http_port))
        body = json.dumps({"model": "sim", "messages": [{"role": "user", "content": "x"}]}).encode()
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert waits.wait(30)
        s.close()
        until(lambda: len(requests(c)) == i + 1, "the request has ended")
        assert requests(c)[i]["outcome"] == "client_gone"
        go_on.set()
    hook.decide = allow
    assert c.chat("hello").status == 200


def test_a_drain_waits_for_the_hook(hooked, hook):
    c = hooked("before")
    waits, go_on, answers = threading.Event(), threading.Event(), []

    def hold(document):
        waits.set()
        go_on.wait(30)
        return 200, {"allow": True}
    hook.decide = hold
    t = threading.Thread(target=lambda: answers.append(c.chat("hello")))
    t.start()
    assert waits.wait(30)
    c.router_process.signal(signal.SIGTERM)
    until(lambda: c.router_process.events("svc.draining") or "drain" in c.router_process.log(), "it drains")
    go_on.set()
    t.join(30)
    assert answers[0].status == 200 and c.router_process.wait() == 0


# ---- after ----

def test_answers_are_checked_whole_before_the_first_byte(hooked, hook):
    c = hooked("after")
    asked, go_on, answers = threading.Event(), threading.Event(), []

    def hold(document):
        asked.set()
        go_on.wait(30)
        return 200, {"allow": True}
    for stream in (False, True):
        asked.clear(), go_on.clear()
        hook.decide = hold
        s = socket.create_connection(("127.0.0.1", c.http_port))
        body = json.dumps({"model": "sim", "stream": stream, "max_tokens": 20, "messages": [{"role": "user", "content": "x"}]}).encode()
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert asked.wait(30)
        s.setblocking(False)
        with pytest.raises(BlockingIOError):
            s.recv(1)  # the engine's answer is whole, and the client has nothing of it
        go_on.set()
        s.setblocking(True)
        got = b""
        while piece := s.recv(65536):
            got += piece
        assert got.startswith(b"HTTP/1.1 200") and (b"[DONE]" in got) == stream
    document = hook.of("after")[-1]
    assert document["response"]["content_type"].startswith("text/event-stream") and document["response"]["complete"]
    text = "".join(e["choices"][0]["delta"].get("content") or "" for e in document["events"] if e.get("choices"))
    assert text and all(isinstance(e, dict) for e in document["events"]) and "".join(
        json.loads(line[6:])["choices"][0]["delta"].get("content") or "" for line in got.decode().splitlines() if line.startswith("data: {") and json.loads(line[6:]).get("choices")) == text


def test_a_refused_answer_is_not_shown(hooked, hook, tmp_path):
    audit = tmp_path / "audit.jsonl"
    c = hooked("after", more={"security": {"audit_file": str(audit)}})
    hook.decide = lambda d: (403, {"message": "the answer is not fit", "code": "unfit"})
    for stream in (False, True):
        a = c.chat("hello", stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}))
        assert (a.status, error(a)["message"], error(a)["code"]) == (403, "the answer is not fit", "unfit") and a.headers["content-type"] == "application/json"
        assert b"choices" not in a.body
    until(lambda: [e["why"] for e in audit_lines(audit, "hook.after")] == ["unfit", "unfit"], "both are in the audit log")
    until(lambda: len(requests(c)) == 2, "both are logged")
    assert all((e["status"], e["outcome"]) == (403, "unfit") and e["completion_tokens"] > 0 for e in requests(c))  # the tokens were computed
    hook.decide = lambda d: (500, b"")
    assert error(c.chat("hello", stream=True))["code"] == "hook_unavailable"
    hook.decide = allow
    assert c.chat("hello", stream=True).events()[-1] == (None, "[DONE]")
    assert c.status()["nodes"][0]["router_inflight"] == 0


def test_errors_and_numbers_of_engines_are_not_asked_about(hooked, hook):
    c = hooked("after")
    assert c.ask("POST", "/v1/embeddings", {"model": "sim", "input": "x"}).status == 200
    assert c.chat("hello", max_tokens=-1).status == 400
    assert hook.seen == []


def test_an_answer_that_is_too_large_to_check(hooked, hook):
    c = hooked("after", max_body=4096)
    for stream in (False, True):
        a = c.chat("hello", stream=stream, max_tokens=2000, ignore_eos=True)
        assert a.status == 502 and error(a)["code"] == "answer_too_large", a.body
    assert hook.seen == [] and c.metric("cgn_hook_requests_total", hook="after", outcome="too_large") == 2
    settings_change(c, after_url=hook.url(), max_body=4096, on_failure="allow")
    for stream in (False, True):
        a = c.chat("hello", stream=stream, max_tokens=2000, ignore_eos=True)
        assert a.status == 200 and (a.events()[-1] == (None, "[DONE]") if stream else a.json()["usage"]["completion_tokens"] == 2000)


def test_windows_of_a_stream(hooked, hook):
    c = hooked("after", after_window=1000, node=("--token-interval-us", "3000"))
    a = c.chat("hello", stream=True, max_tokens=60, ignore_eos=True)
    assert a.status == 200 and a.events()[-1] == (None, "[DONE]")
    asked = hook.of("after")
    sizes = [len(d["events"]) for d in asked]
    assert len(asked) > 3 and sizes == sorted(sizes) and [d["response"]["complete"] for d in asked] == [False] * (len(asked) - 1) + [True]
    assert asked[-1]["events"][:sizes[0]] == asked[0]["events"]  # each question has the answer from its beginning
    assert sizes[-1] == len(a.events()) - 1

    def third(document):
        return (403, {"message": "enough", "code": "stop"}) if "body" in document or len(document["events"]) >= sizes[2] else (200, b"")
    hook.decide = third
    cut = c.chat("hello", stream=True, max_tokens=60, ignore_eos=True)
    events = cut.events()
    assert cut.status == 200 and events[-1][0] == "error" and json.loads(events[-1][1])["error"] == {"message": "enough", "type": "permission_error", "param": None, "code": "stop"}
    shown = [json.loads(d) for _, d in events[:-1]]
    refused = [d["events"] for d in hook.of("after")][-1]
    assert 0 < len(shown) < len(refused) and shown == refused[:len(shown)] and "[DONE]" not in [d for _, d in events]
    until(lambda: requests(c)[-1]["outcome"] == "stop", "it is logged")
    numbered = c.ask("POST", "/v1/responses", {"model": "sim", "input": "hello", "stream": True, "max_output_tokens": 60}).events()
    numbers = [json.loads(d)["sequence_number"] for _, d in numbered]
    assert numbered[-1][0] == "response.failed" and numbers == list(range(len(numbers))) and len(numbers) > 5, numbers  # what was not shown has no number
    until(lambda: c.status()["nodes"][0]["router_inflight"] == 0, "the engine was told to stop")
    hook.decide = lambda d: (403, b"") if d.get("response", {})["complete"] else (200, b"")
    late = c.chat("hello", stream=True, max_tokens=60, ignore_eos=True).events()
    assert len(late) > 10 and late[-1][0] == "error" and "[DONE]" not in [d for _, d in late]
    whole = c.chat("hello", max_tokens=60)
    assert whole.status == 403  # an answer that is no stream is checked whole


def test_an_engine_that_dies_shows_nothing_unchecked(hooked, hook):
    c = hooked("after", node=(*FAST, "--fault", "cut-after=20"))
    for stream in (False, True):
        a = c.chat("hello", stream=stream, max_tokens=60, ignore_eos=True)
        assert a.status in (502, 503) and b"choices" not in a.body, a.body
    assert error(a)["code"] == "engine_failed" and hook.seen == []
    settings_change(c, after_url=hook.url(), after_window=500, timeout=LONG)
    a = c.chat("hello", stream=True, max_tokens=60, ignore_eos=True)
    checked = hook.seen[-1]["events"] if hook.seen else []
    shown = [json.loads(d) for name, d in a.events() if name is None] if a.status == 200 else []
    assert shown == checked[:len(shown)] and (a.status == 502 or a.events()[-1][0] == "error")


def test_a_resumed_answer_is_checked_as_one(hooked, hook):
    c = hooked("before", "after", more={"router": {"resume": True}, "router.breaker": {"failures": 0}})
    c.node("b", *FAST)
    c.wait_ready(2)
    set_faults(c.nodes["a"].engine_port, "cut-after=10")
    for i in range(20):
        a = c.chat(f"tell me of {i}", stream=True, max_tokens=40)
        assert a.status == 200 and a.events()[-1] == (None, "[DONE]"), a.body
        assert (len(hook.of("before")), len(hook.of("after"))) == (i + 1, i + 1)
        assert hook.seen[-1]["events"] == [json.loads(d) for _, d in a.events()[:-1]]
    until(lambda: len(requests(c)) == 20, "all are logged")
    assert sum(e["resumes"] for e in requests(c)) > 0


def test_a_long_answer_reaches_a_slow_client_whole(hooked, hook):
    """Longer than what is kept for a slow reader; the document is written by the thread pool."""
    c = hooked("after", max_body="32MiB")
    for window in (0, "1MiB"):
        settings_change(c, after_url=hook.url(), max_body="32MiB", after_window=window, timeout=LONG)
        slow = http.client.HTTPConnection("127.0.0.1", c.http_port, timeout=WAIT_S)
        slow.sock = socket.socket()
        slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sock.connect(("127.0.0.1", c.http_port))
        slow.request("POST", "/v1/chat/completions", chat_body("long", stream=True, max_tokens=20000, ignore_eos=True))
        until(lambda: hook.seen, "it was asked about")
        time.sleep(0.5)  # more than the sockets take waits for the client
        got = slow.getresponse().read()
        assert got.count(b"data: {") == len(hook.seen[-1]["events"]) >= 20000 and b"[DONE]" in got, len(got)
        assert (len(hook.seen) > 1) == (window != 0)
        hook.seen.clear()


def test_forms_and_sounds_are_base64(cluster, hook):
    server, port = media_engine.serve("sim")
    cluster.router({"hooks": {"before_url": hook.url(), "after_url": hook.url(), "timeout": LONG}})
    agent = cluster.agent("m", port, {"engine": {"kind": "openai_compat"}})[0]
    cluster.wait_ready(1)
    body = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nsim\r\n--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\xff\x00RIFF\r\n--x--\r\n'
    a = cluster.ask("POST", "/v1/audio/transcriptions", body, {"Content-Type": "multipart/form-data; boundary=x"})
    assert a.status == 200 and base64.b64decode(hook.of("before")[0]["body_base64"]) == body and hook.of("before")[0]["request"]["model"] == "sim"
    speech = cluster.ask("POST", "/v1/audio/speech", {"model": "sim", "input": "hello", "voice": "a"})
    assert speech.body == media_engine.SOUND == base64.b64decode(hook.of("after")[-1]["body_base64"])
    assert hook.of("before")[-1]["body"]["input"] == "hello"
    agent.stop()
    server.shutdown()


def test_memory_is_booked_and_given_back(hooked, hook):
    c = hooked("before", "after", more={"router": {"max_inflight_body": "1MiB"}}, timeout="5s")
    decisions = [(200, b""), (403, {"message": "no"}), None, (200, b""), (500, b"")]

    def decide(document):
        mine = (document["request"]["client_id"] or "--").split("-")
        return decisions[int(mine[1]) % 5] if document["hook"] == mine[2] else (200, b"")
    hook.decide = decide
    for i in range(40):  # together many times as much as may be booked
        for kind in ("before", "after"):
            a = c.chat("x" * 50_000, {"X-Request-Id": f"r-{i}-{kind}"}, stream=i % 2 == 0, max_tokens=100, ignore_eos=True)
            assert a.status == (200, 403, 503, 200, 503)[i % 5], a.body
    hook.decide = allow
    large = c.chat("hello", stream=True, max_tokens=8000, ignore_eos=True)
    assert large.status == 503 and error(large)["code"] == "overloaded" and c.metric("cgn_hook_requests_total", hook="after", outcome="no_memory") == 1
    until(lambda: c.chat("x" * 50_000).status == 200, "the memory was given back")


# ---- settings ----

def test_settings_are_live(hooked, hook):
    c = hooked("before")
    hook.decide = lambda d: (403, {"message": "no"})
    assert c.chat("hello").status == 403
    settings_change(c)
    assert c.chat("hello").status == 200
    settings_change(c, after_url=hook.url())
    assert c.chat("hello").status == 403 and hook.seen[-1]["hook"] == "after"
    settings_change(c, before_url="http://127.0.0.1:1/x?y")
    assert c.chat("hello").status == 403 and hook.seen[-1]["hook"] == "after"  # refused: the old ones stay
    with HookService() as other:
        settings_change(c, before_url=other.url("/other"))
        assert c.chat("hello").status == 200 and other.raw[0][0] == "/other"


def test_bad_settings_are_refused_by_name(cluster):
    rows = [({"before_url": "localhost:80"}, "hooks.before_url"), ({"after_url": "ftp://x/"}, "hooks.after_url"), ({"before_url": "http://u:p@h/"}, "hooks.before_url"),
            ({"after_url": "http://h/?a=b"}, "hooks.after_url"), ({"timeout": "0s"}, "hooks.timeout"), ({"on_failure": "maybe"}, "hooks.on_failure"),
            ({"max_body": 1}, "hooks.max_body"), ({"max_body": 2000, "after_window": 3000}, "hooks.after_window"), ({"ca_file": "/nowhere"}, "hooks.ca_file"),
            ({"before_url": "https://h/", "ca_file": "/nowhere"}, "hooks.ca_file"), ({"befor_url": "http://h/"}, "hooks.befor_url")]
    for hooks, name in rows:
        path = cluster.config("bad", {"hooks": hooks})
        r = subprocess.run([ROUTER, "--config", path, "--check"], capture_output=True, text=True, timeout=30)
        assert r.returncode != 0 and name in r.stderr, (hooks, r)
        assert "u:p@" not in r.stderr


def test_https_with_a_ca(cluster, tmp_path):
    pki = tmp_path / "pki"
    subprocess.run([CTL, "pki", "bootstrap", "--out", str(pki), "--leaf", "hook=viewer"], capture_output=True, text=True, check=True)
    with HookService(tls=(str(pki / "hook.pem"), str(pki / "hook.key"))) as hook:
        cluster.router({"hooks": {"before_url": hook.url(), "ca_file": str(pki / "ca.pem"), "timeout": LONG}})
        cluster.node("a", *FAST)
        cluster.wait_ready()
        assert cluster.chat("hello").status == 200 and len(hook.seen) == 1
        hook.decide = lambda d: (403, b"")
        assert cluster.chat("hello").status == 403
        other = tmp_path / "other"
        subprocess.run([CTL, "pki", "bootstrap", "--out", str(other), "--leaf", "hook=viewer"], capture_output=True, text=True, check=True)
        settings_change(cluster, before_url=hook.url(), ca_file=str(other / "ca.pem"))
        assert error(cluster.chat("hello"))["code"] == "hook_unavailable" and len(hook.seen) == 2

# SPDX-License-Identifier: Apache-2.0
"""Engines that fail without a 5xx, at once: another node answers, the breaker opens, and a good answer is not delayed."""
import contextlib
import gzip
import http.client
import json
import subprocess

import pytest

from clients import Stream
from cluster import BUILD, until
from engine_nodes import sections
from failing_engine import ANSWER, COMPLETION, DONE, ERROR, FAILURES, JSON, MESSAGE, RESPONSE, SSE, Engine, answer_of, chunk, event

ALWAYS = {"router.retry": {"budget": 1.0}, "router.breaker": {"open_for": "300s", "outliers": False}}
ROUTES = {"event_error": "/v1/messages", "response_failed": "/v1/responses"}
BROKE = ("http424", "http444")
PLAIN = [way for way, (status, kind, _) in FAILURES.items() if status // 100 == 2 and kind.startswith(JSON)]  # to requests that do not stream


@pytest.fixture
def several(cluster):
    """A router with engines that the test adds."""
    with contextlib.ExitStack() as stack:
        def start(*engines, **more):
            for e in engines:
                stack.callback(e.close)
            cluster.router(sections(engines, **{**ALWAYS, **more}))
            if engines:
                cluster.wait_ready(len(engines))
            return cluster
        yield start


def body_of(model, path="/v1/chat/completions", stream=True, text="hello", usage=False):
    """|usage|: the client asks for the usage of a stream, and so it sees what the engine tells."""
    said = {"input": text} if path == "/v1/responses" else {"messages": [{"role": "user", "content": text}], "max_tokens": 9}
    return {"model": model, "stream": stream, **said, **({"stream_options": {"include_usage": True}} if usage else {})}


def ask(cluster, model, path="/v1/chat/completions", stream=True, text="hello", headers=None, usage=False):
    return cluster.ask("POST", path, body_of(model, path, stream, text, usage), headers)


def breaker(cluster, name):
    return next(n["breaker"] for n in cluster.status()["nodes"] if n["id"] == name)


def log_of(cluster, r):
    return until(lambda: [e for e in cluster.router_process.events("gateway.request") if e["id"] == r.headers["x-request-id"]], "the log has it")[0]


def test_a_node_that_fails_at_once_does_not_attract_requests(several):
    ways = [way for way in FAILURES if way not in ("http429", "http503")]
    bad = [Engine(way, [way], way) for way in ways]
    good = Engine("good", ways)
    cluster = several(good, *bad)
    for way in ways:
        for i in range(30):
            r = ask(cluster, way, ROUTES.get(way, "/v1/chat/completions"), way not in PLAIN, f"{i} {way} {i * 7}")
            assert r.status == 200 and b'"hi"' in r.body and r.headers["x-cgn-node"] == "good", (way, i, r.body)
        until(lambda way=way: breaker(cluster, way)["state"] == "open", f"the breaker of {way} is open")
        assert len(next(e for e in bad if e.name == way).seen) == 5, way
    for e in (e for e in cluster.router_process.events("gateway.request") if e["model"]):
        way = e["model"]
        reason = "engine_5xx" if way in ("http500", "http520", "overloaded") else "failed" if way == "hangs_up" else "engine_refused" if way.startswith("http4") and way not in BROKE else "engine_error"
        assert e["status"] == 200 and (e["tries"], e["retried"]) in ((1, ""), (2, reason)), e
    assert breaker(cluster, "good")["text"] == "closed"
    tried = cluster.router_process.events("gateway.try_failed")
    assert {e["code"] for e in tried if e["node"] == "in_band"} == {"error"}, tried


def test_the_only_engine_s_word_reaches_the_client(several):
    """An error that the engine wrote is relayed to the byte; nothing, or a page, is told as a failure."""
    e = Engine("a", ["m"])
    cluster = several(e, **{"router.breaker": {"failures": 0}})
    for way in FAILURES:
        e.fails = way
        status, kind, pieces = FAILURES[way]
        r = ask(cluster, "m", ROUTES.get(way, "/v1/chat/completions"), way not in PLAIN, usage=way == "usage_alone")
        if way in ("empty_stream", "no_stream", "no_body", "page", "hangs_up", "empty_object", "null", "empty_list", "encoded_empty", "not_gzip", "damaged_gzip", "behind_many_comments"):
            assert r.status == 503 and r.json()["error"]["code"] == "engine_unavailable" and r.headers["retry-after"] == "2", (way, r.body)
        else:
            whole = b"".join(pieces)
            word = whole.lstrip(b": wait\n") if way == "behind_comments" else whole  # too many comments are not held
            assert (r.status, r.headers["content-type"], r.body[-len(word):]) == (status, kind.split("\r")[0], word) and whole.endswith(r.body), way
            told = log_of(cluster, r)
            assert told["outcome"] == ("engine_error" if status < 400 or way in BROKE else "ok") and told["completion_tokens"] == 0, told
    e.fails = None
    assert ask(cluster, "m").body == b"".join(ANSWER)


# ---- several tries are work ----

def engines_asked(engines, ask_once):
    """Return how many engines were asked, and the answer."""
    before = sum(len(e.seen) for e in engines)
    r = ask_once()
    return sum(len(e.seen) for e in engines) - before, r


COSTLY = {"/v1/images/generations": {"prompt": "a cat"}, "/v1/audio/speech": {"input": "hello", "voice": "a"}}


@pytest.mark.parametrize("agents", [False, True])
def test_costly_work_is_repeated_only_where_it_did_not_begin(several, agents):
    engines = [Engine(name, ["m"]) for name in "abc"]
    cluster = several(*([] if agents else engines), **{"router.breaker": {"failures": 0, "failure_share": 0}, "router.retry": {"budget": 1.0}})
    for e in engines if agents else ():
        cluster.agent(e.name, e.port, {"engine": {"kind": "openai_compat"}})
    cluster.wait_ready(3)
    for path, body in COSTLY.items():
        for way, tries, status in (("http500", 1, 500), ("hangs_up", 1, 502), ("json", 1, 200), ("page", 1, 502), ("http503", 3, 503), ("http429", 3, 429),
                                   ("http401", 3, 401)):
            for e in engines:
                e.fails = way
            for _ in range(3):  # on kept connections too
                asked, r = engines_asked(engines, lambda path=path, body=body: cluster.ask("POST", path, {"model": "m", **body}))
                assert (asked, r.status) == (tries, status), (path, way, asked, r.status, r.body)
                assert way != "hangs_up" or r.json()["error"]["code"] == "engine_failed" and "retry-after" not in r.headers, r.body
    for e in engines:
        e.fails = "hangs_up"
    assert engines_asked(engines, lambda: ask(cluster, "m"))[0] >= 2  # a chat is repeated


def test_a_client_may_forbid_retries(several):
    engines = [Engine(name, ["m"], "http500") for name in "abc"]
    for e in engines:
        e.settings["resume"] = "continue"
    cluster = several(*engines, **{"router.breaker": {"failures": 0, "failure_share": 0}, "router": {"resume": True}})
    for way in ("http500", "hangs_up", "in_band", "http404", "http429", "empty_stream"):
        for e in engines:
            e.fails = way
        asked, r = engines_asked(engines, lambda: ask(cluster, "m", headers={"X-Cgn-Retry": "off", "Idempotency-Key": "k-1"}))
        assert asked == 1, (way, asked, r.body)
        # A kept connection that was closed is tried again. Engines that hang up are two at most.
        assert engines_asked(engines, lambda: ask(cluster, "m"))[0] >= (2 if way == "hangs_up" else 3), way
    assert {h.get("idempotency-key") for e in engines for _, _, h in e.seen} == {"k-1", None}
    assert not any("x-cgn-retry" in h for e in engines for _, _, h in e.seen)
    for way, tries in (("http500", 1), ("hangs_up", 1), ("http503", 3)):
        for e in engines:
            e.fails = way
        assert engines_asked(engines, lambda: ask(cluster, "m", headers={"X-Cgn-Retry": "unbegun"}))[0] == tries, way
    for e in engines:
        e.fails = (200, SSE, [ANSWER[0], ANSWER[1], None])
    for rule in ("off", "unbegun"):  # an answer that began is not resumed either
        asked, r = engines_asked(engines, lambda rule=rule: ask(cluster, "m", headers={"X-Cgn-Retry": rule, "X-Cgn-Resume": "1"}))
        assert asked == 1 and b"event: error" in r.body, (rule, asked, r.body)
    r = ask(cluster, "m", headers={"X-Cgn-Retry": "on"})
    assert r.status == 400 and r.json()["error"]["param"] == "X-Cgn-Retry", r.body


# ---- refusals ----

REFUSALS = ("http401", "http403", "http404")


def reason(cluster, name):
    return next(n["reason"] for n in cluster.status()["nodes"] if n["id"] == name)


def test_a_node_that_lost_one_model_is_told_and_keeps_the_others(several):
    a, b = Engine("a", ["m", "other"]), Engine("b", ["m", "other"])
    cluster = several(a, b)
    a.fails = lambda path, asked: "http404" if asked["model"] == "m" else None
    for i in range(40):
        assert ask(cluster, "m", text=f"{i} of m").status == 200
        assert ask(cluster, "other", text=f"{i} of other").status == 200
    assert len([1 for _, asked, _ in a.seen if asked["model"] == "m"]) == 5
    assert len([1 for _, asked, _ in a.seen if asked["model"] == "other"]) > 5 and breaker(cluster, "a")["state"] == "closed"
    told = reason(cluster, "a")
    assert told.startswith("misconfigured: it answered 404 to 5 requests for m at /v1/chat/completions that another node answered, and gets none for "), told
    shown = subprocess.run([BUILD / "src/ctl/cgn-ctl", "cluster", "nodes", "--router", f"127.0.0.1:{cluster.grpc_port}"],
                           capture_output=True, text=True, timeout=60, check=True).stdout
    assert "a is ready: misconfigured: it answered 404" in shown and reason(cluster, "b") == "", shown
    assert any(e["node"] == "a" and e["status"] == 404 for e in cluster.router_process.events("gateway.misconfigured"))
    assert ask(cluster, "m", headers={"X-Cgn-Node": "a"}).status == 404  # whoever names the node gets its word
    b.fails = "http500"
    assert ask(cluster, "m").status == 500 and ask(cluster, "other").status == 200


@pytest.mark.parametrize("resumes", [False, True])
def test_a_stream_that_ends_inside_an_event_is_no_answer(several, resumes):
    """Its end in good order does not make half an event an answer: before the first event another node is asked, later it is cut, or resumed."""
    a, b = Engine("a", ["m"], (200, SSE, [ANSWER[0][:20]])), Engine("b", ["m"])
    for e in (a, b):
        e.settings["resume"] = "continue"
    cluster = several(a, b, **{"router": {"resume": resumes}, "router.breaker": {"failures": 0}})
    for i in range(6):
        assert ask(cluster, "m", text=f"{i} first {i * 7}").body == b"".join(ANSWER)
    a.fails = (200, SSE, [ANSWER[0], ANSWER[1][:-9]])
    bodies = {ask(cluster, "m", text=f"{i} later {i * 7}").body for i in range(12)} - {b"".join(ANSWER)}
    assert not bodies if resumes else bodies and all(b"event: error" in body for body in bodies), bodies
    long = event({"choices": [{"index": 0, "delta": {"content": "word " * 4000}}]})  # longer than what is kept of a stream's end
    a.fails = (200, SSE, [ANSWER[0], long[:-9]])
    bodies = {ask(cluster, "m", text=f"{i} long {i * 7}").body for i in range(12)} - {b"".join(ANSWER)}
    assert not bodies if resumes else bodies and all(b"event: error" in body and b"word" not in body for body in bodies), bodies


PARTS = {"/v1/messages": [MESSAGE[:2]], "/v1/responses": [RESPONSE[:2]],
         "/v1/chat/completions": [ANSWER[:2], [*ANSWER[:2], b"dat"], [*ANSWER[:2], b": pi"], [*ANSWER[:2], b"data: [DO"]]}


@pytest.mark.parametrize("resumes", [False, True])
def test_a_stream_that_lacks_its_end_is_a_part(several, resumes):
    """Its end in good order does not make a part the whole: each dialect says where an answer ends. No part of an event reaches the client."""
    a, b = Engine("a", ["m"]), Engine("b", ["m"])
    for e in (a, b):
        e.settings["resume"] = "continue"
    cluster = several(a, b, **{"router": {"resume": resumes}, "router.breaker": {"failures": 0, "failure_share": 0}})
    for path, parts in PARTS.items():
        for pieces in parts:
            a.fails, whole = (200, SSE, pieces), b"".join(answer_of(path, True)[2])
            before = len(a.seen)
            bodies = {ask(cluster, "m", path, text=f"{i} {len(a.seen)} {i * 7}").body for i in range(12)} - {whole}
            assert len(a.seen) > before
            if resumes and path == "/v1/chat/completions":
                assert bodies and all(body.endswith(b"".join(ANSWER[2:])) and b"error" not in body for body in bodies), bodies  # continued
                continue
            assert bodies
            for body in bodies:
                assert body.startswith(b"".join(pieces[:2])) and body.endswith(b"\n\n") and b"event: " in body[len(b"".join(pieces[:2])):], body
                assert b"error" in body and b"dat\n" not in body and b": pi" not in body and b"[DO" not in body, body
    cut = [e for e in cluster.router_process.events("gateway.request") if e["model"] and e["outcome"] == "cut"]
    assert cut or resumes


def test_a_part_of_a_huge_event_is_no_end(several):
    """What is too long to be held has reached the client in part: its body is cut."""
    cluster = several(Engine("a", ["m"], (200, SSE, [ANSWER[0], b'data: {"pad":"' + b"x" * 400000])), **{"router.breaker": {"failures": 0}})
    with pytest.raises(http.client.IncompleteRead):
        ask(cluster, "m")


def test_an_answer_with_a_reason_to_finish_is_whole(several):
    """[DONE] may be missing; what is behind the reason is no part of the answer."""
    a = Engine("a", ["m"])
    cluster = several(a, **{"router.breaker": {"failures": 1}})
    usage = event({"id": "c", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})
    for rest, told in (([], b""), ([usage], usage), ([b"data: [DONE"], b""), ([b": pi"], b""), ([b"data: [DONE]"], b"data: [DONE]")):
        a.fails = (200, SSE, ANSWER[:3] + rest)
        assert ask(cluster, "m", usage=True).body == b"".join(ANSWER[:3]) + told
        assert ask(cluster, "m").body == b"".join(ANSWER[:3]) + (told if told != usage else b"")
    assert breaker(cluster, "a")["text"] == "closed"


@pytest.mark.parametrize("path, pieces", [("/v1/chat/completions", ANSWER), ("/v1/messages", MESSAGE)])
def test_what_breaks_off_behind_the_end_marker_is_no_part_of_the_answer(several, path, pieces):
    cluster = several(Engine("a", ["m"], (200, SSE, [*pieces, None])), **{"router.breaker": {"failures": 0}})
    assert ask(cluster, "m", path).body == b"".join(pieces)


@pytest.mark.parametrize("ends", [False, True])
def test_a_first_event_that_breaks_off_is_unseen(several, ends):
    """It passes for an answer at its first choice, and is held until it is whole: the client has got nothing yet."""
    a, b = Engine("a", ["m"]), Engine("b", ["m"])
    cluster = several(a, b, **{"router.breaker": {"failures": 0, "failure_share": 0}})
    for path, pieces in (("/v1/chat/completions", ANSWER), ("/v1/messages", MESSAGE), ("/v1/responses", RESPONSE)):
        for at in range(1, len(pieces[0]) - 2, 9):
            a.fails = (200, SSE, [pieces[0][:at]] + [None] * (not ends))
            for i in range(2):
                r = ask(cluster, "m", path, text=f"{at} {i} {at * 7}")
                assert r.status == 200 and r.body == b"".join(answer_of(path, True)[2]), (path, at, r.body)
    assert len(a.seen) > 20


def test_an_error_behind_the_first_event_counts(several):
    """It can't be taken back, so the client gets it; the node does not attract requests with it."""
    late = [ANSWER[0], event({"error": ERROR}), DONE]
    a, b = Engine("a", ["m"], (200, SSE, late)), Engine("b", ["m"])
    cluster = several(a, b)
    told = 0
    for i in range(60):
        r = ask(cluster, "m", text=f"{i} of many {i * 7}")
        assert r.status == 200 and r.body in (b"".join(late), b"".join(ANSWER)), r.body
        told += r.body == b"".join(late)
    assert told == len(a.seen) == 5 and breaker(cluster, "a")["state"] == "open"
    assert breaker(cluster, "b")["text"] == "closed"


def test_a_node_that_was_mended_gets_requests_again(several):
    a, b = Engine("a", ["m"], "http401"), Engine("b", ["m"])
    cluster = several(a, b, **{"router.breaker": {"failures": 2, "open_for": "50ms"}})
    until(lambda: ask(cluster, "m", text=str(len(b.seen))).status == 200 and breaker(cluster, "a")["state"] != "closed", "the breaker is open")
    assert "answered 401" in reason(cluster, "a") and "key" in reason(cluster, "a")
    a.fails = None
    until(lambda: ask(cluster, "m", text=str(len(b.seen))).headers["x-cgn-node"] == "a" and reason(cluster, "a") == "", "a answers again")
    assert breaker(cluster, "a")["state"] == "closed"


IN_BAND_400 = event({"error": {"message": "the prompt is too long", "type": "BadRequestError", "code": 400}})


@pytest.mark.parametrize("way", [(200, SSE, [IN_BAND_400, DONE]), (200, JSON, [IN_BAND_400[len("data: "):]])])
def test_a_request_that_the_engine_refuses_behind_a_200_blames_nobody(several, way):
    """One client's bad requests open no breaker, and are computed once."""
    a, b = Engine("a", ["m"], way), Engine("b", ["m"], way)
    cluster = several(a, b, **{"router.breaker": {"failures": 1}})
    for i in range(6):
        r = ask(cluster, "m", stream=way[1] == SSE, text=f"{i}")
        assert (r.status, r.body) == (200, b"".join(way[2]))
    assert len(a.seen) + len(b.seen) == 6
    assert breaker(cluster, "a")["text"] == breaker(cluster, "b")["text"] == "closed"
    a.fails = b.fails = None
    assert ask(cluster, "m").body == b"".join(ANSWER)


@pytest.mark.parametrize("way", [*REFUSALS, "json", (400, JSON, [b'{"error":{"message":"bad"}}'])])
def test_what_every_node_refuses_is_told_and_nobody_is_blamed(several, way):
    a, b = Engine("a", ["m"], way), Engine("b", ["m"], way)
    cluster = several(a, b, **{"router.breaker": {"failures": 1}})
    status, _, pieces = FAILURES[way] if isinstance(way, str) else way
    for i in range(6):
        r = ask(cluster, "m", text=f"{i}", stream=way != "json")
        assert (r.status, r.body) == (status, pieces[0])
    assert len(a.seen) + len(b.seen) == (6 if status == 400 else 12)
    for name in "ab":
        assert breaker(cluster, name)["text"] == "closed" and reason(cluster, name) == ""


def test_first_events_in_pieces_are_understood(several):
    a, b = Engine("a", ["m"]), Engine("b", ["m"])
    cluster = several(a, b, **{"router.breaker": {"failures": 0}})
    for cut in (1, 7):
        a.cut = b.cut = cut
        for way in ("behind_a_ping", "json", "empty_stream"):
            a.fails, b.fails = way, None
            for i in range(3):
                r = ask(cluster, "m", stream=way != "json", text=f"{cut} {way} {i}")
                assert r.status == 200 and b'"hi"' in r.body, (cut, way, r.body)
        a.fails = None
        assert ask(cluster, "m").body == b"".join(ANSWER)
        assert ask(cluster, "m", stream=False).json() == COMPLETION
    assert a.seen


@pytest.mark.parametrize("first", [ANSWER[0], event({"type": "message_start", "message": {}}, "message_start"), b": comment\n\n"])
def test_a_good_answer_is_not_held(several, first):
    """The first event passes before the engine goes on, an event without content too; a comment after a second."""
    a = Engine("a", ["m"], (200, SSE, [first, ANSWER[1], DONE]))
    a.pause_after = 0
    cluster = several(a)
    s = Stream(cluster.http_port, "hello", model="m")
    s.read_until(first)
    assert a.paused.wait(60)
    a.go_on.set()
    s.read_until(b"[DONE]")


def test_comments_before_an_answer_do_not_hurt(several):
    """An engine keeps its connection alive while it computes a prompt: more of it than is held, and longer than it is held."""
    a = Engine("a", ["m"], (200, SSE, [b": wait\n\n" * 500] * 40 + ANSWER))
    cluster = several(a)
    r = ask(cluster, "m")
    assert r.body.endswith(b"".join(ANSWER)) and not r.body.replace(b"".join(ANSWER), b"").replace(b": wait\n\n", b""), r.body
    a.fails = (200, JSON, [b" " * 5000] * 8 + [json.dumps(COMPLETION).encode()])
    r = ask(cluster, "m", stream=False)
    assert r.json() == COMPLETION and len(r.body) == 40000 + len(json.dumps(COMPLETION)), r.body  # its length was told
    assert breaker(cluster, "a")["text"] == "closed"


@pytest.mark.parametrize("last", [event({"error": ERROR}), b"data: out of memory\n\n", DONE, b""])
def test_what_passed_before_it_was_understood_is_judged_at_its_end(several, last):
    """A comment passes after a second, so that the client gets what follows; the node does not attract requests with it."""
    a = Engine("a", ["m"], (200, SSE, [b": wait\n\n", *([last] if last else [])]))
    a.pause_after = 0
    cluster = several(a, **{"router.breaker": {"failures": 1, "open_for": "300s", "outliers": False}})
    s = Stream(cluster.http_port, "hello", model="m")
    s.read_until(b": wait")
    assert a.paused.wait(60)
    a.go_on.set()
    until(lambda: breaker(cluster, "a")["state"] == "open", "the breaker is open")


def test_the_end_of_a_read_waits_for_the_rest_of_its_event(several):
    """What is whole passes at once. A large event passes in pieces; if the answer breaks off in it, the client sees a cut body."""
    half = ANSWER[1][:-9]
    a = Engine("a", ["m"], (200, SSE, [ANSWER[0] + half, ANSWER[1][-9:], DONE]))
    a.pause_after = 0
    cluster = several(a, **{"router.breaker": {"failures": 0}})
    s = Stream(cluster.http_port, "hello", model="m")
    s.read_until(ANSWER[0])
    assert a.paused.wait(60)
    assert half not in s.got
    a.go_on.set()
    s.read_until(b"[DONE]")
    large = chunk({"content": "x" * 600_000})
    a.pause_after, a.fails = None, (200, SSE, [ANSWER[0], large, DONE])
    assert ask(cluster, "m").body == ANSWER[0] + large + DONE
    a.fails = (200, SSE, [ANSWER[0], large[:500_000], None])
    s = Stream(cluster.http_port, "hello", model="m")
    got = s.read_all()
    assert ANSWER[0] in got and b"x" * 1000 in got and b"event: error" not in got and not got.endswith(b"0\r\n\r\n")
    a.fails = (200, SSE, [ANSWER[0], large, half, None])
    r = ask(cluster, "m")
    assert r.body.startswith(ANSWER[0] + large + b"event: error\ndata: {"), r.body[-300:]


def test_a_client_that_leaves_while_the_beginning_is_held(several):
    a = Engine("a", ["m"], (200, SSE, [b'data: {"ch', ANSWER[1], DONE]))
    a.pause_after = 0
    cluster = several(a)
    s = Stream(cluster.http_port, "hello", model="m")
    assert a.paused.wait(60)
    s.close()
    until(lambda: any(e["outcome"] == "client_gone" for e in cluster.router_process.events("gateway.request")), "the router knows that it left")
    a.go_on.set()
    a.pause_after, a.fails = None, None
    assert ask(cluster, "m").body == b"".join(ANSWER) and breaker(cluster, "a")["text"] == "closed"


def test_an_engine_that_compresses_is_relayed(several):
    body = gzip.compress(json.dumps(COMPLETION).encode())
    a = Engine("a", ["m"], (200, f"{JSON}\r\nContent-Encoding: gzip", [body]))
    cluster = several(a)
    r = ask(cluster, "m", stream=False)
    assert r.status == 200 and r.body == body


def test_ollama_and_a_renamed_model_are_retried_too(several):
    a, b = Engine("a", ["m"], "json"), Engine("b", ["theirs"])
    cluster = several(a, b, **{'models."m"': {"aliases": ["theirs"]}})
    for i in range(12):
        r = cluster.ask("POST", "/api/chat", {"model": "m", "stream": False, "messages": [{"role": "user", "content": f"hello {i}"}]})
        assert r.status == 200 and r.json()["message"]["content"] == "hi", r.body
        r = ask(cluster, "m", stream=False, text=f"again {i}")
        assert r.status == 200 and r.json()["choices"], r.body
    assert breaker(cluster, "a")["state"] == "open"


@pytest.mark.parametrize("path, more", [("/api/chat", {"messages": [{"role": "user", "content": "hello"}]}), ("/api/generate", {"prompt": "hello"}),
                                        ("/api/embed", {"input": "hello"}), ("/api/embeddings", {"prompt": "hello"})])
def test_what_is_no_answer_is_an_error_in_ollama_s_shape(several, path, more):
    a = Engine("a", ["m"])
    cluster = several(a, **{"router.breaker": {"failures": 0}})
    for way in ("empty_object", "null", "text", "status", "message", "no_choices", "late_error", "accepted", "json", "no_body"):
        a.fails = way
        r = cluster.ask("POST", path, {"model": "m", "stream": False, **more})
        assert r.status >= 400 and r.json()["error"], (way, r.status, r.body)

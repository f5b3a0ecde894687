# SPDX-License-Identifier: Apache-2.0
"""What a stream costs does not depend on what its client asks for: engines are asked for usage, and the client that did not ask
gets the engine's bytes without it."""
import contextlib
import gzip
import json

import pytest
from clients import Stream, engine_state, set_faults
from cluster import ask, until
from engine_nodes import sections
from failing_engine import ANSWER, DONE, ENCODED, JSON, SSE, Engine, chunk, event

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 300, "stream": True}
USAGE = event({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
               "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18, "prompt_tokens_details": {"cached_tokens": 5}}})
EVENTS = [chunk({"role": "assistant", "content": ""}), b": ping\n\n", *[chunk({"content": f'"usage" {i} ' * 9}) for i in range(40)], chunk({}, "stop")]


def polite(path, body):
    """An engine that tells the usage of a stream when it is asked."""
    asked = (body.get("stream_options") or {}).get("include_usage")
    return (200, SSE, EVENTS + [USAGE] * bool(asked) + [DONE]) if body.get("stream") else None


def rows(c, by="all"):
    return {r.get(by, "all"): r for r in ask(c.admin_port, "GET", f"/usage?by={by}").json()["usage"]}


def row_of(c, requests):
    return until(lambda: (row := rows(c).get("all")) and row["requests"] == requests and row, lambda: rows(c))


@pytest.fixture
def engine(cluster):
    with contextlib.closing(Engine("e", ["m"], polite)) as e:
        cluster.router(sections([e], **{'prices."m"': {"input": 1, "cached_input": 0.5, "output": 10}}))
        cluster.wait_ready(1)
        yield e


@pytest.mark.parametrize("cut", [0, 1, 7, 1000])
def test_the_client_gets_the_engines_bytes_without_the_usage(cluster, engine, cut):
    c, engine.cut = cluster, cut
    want = b"".join(EVENTS + [DONE])
    assert c.ask("POST", CHAT, BODY).body == want
    assert c.ask("POST", CHAT, {**BODY, "stream_options": {"include_usage": True}}).body == b"".join(EVENTS + [USAGE, DONE])
    row = row_of(c, 2)
    assert (row["input_tokens"], row["cached_tokens"], row["output_tokens"], row["estimated"]) == (22, 10, 14, 0)
    assert row["money"] == pytest.approx((2 * (6 + 2.5) + 14 * 10) / 1e6)


SAID = chunk({"content": "one"})
COUNTS = {"prompt_tokens": 11, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}}


def with_usage(data, usage=COUNTS, key='"usage"'):
    """The event with a member more, written as the engine's other members are."""
    head, tail = data.rsplit(b"}\n\n", 1)
    return head + f', {key}: {json.dumps(usage)}'.encode() + b"}\n\n" + tail


@pytest.mark.parametrize("events,want", [
    ([USAGE, SAID], [SAID]),  # the first chunk, and not the last one of a read
    ([event({"usage": COUNTS}), SAID], [SAID]),
    ([SAID, with_usage(event({"choices": []}), key='"\\u0075sage"')], [SAID]),
    ([SAID, b'data: {"choices":[],\r\ndata: "usage":' + json.dumps(COUNTS).encode() + b"}\r\n\r\n"], [SAID]),
    ([with_usage(SAID, {**COUNTS, "completion_tokens": i}) for i in range(8)], [SAID] * 8),  # in each chunk
], ids=["first", "alone", "escaped", "lines", "continuous"])
@pytest.mark.parametrize("cut", [0, 1, 50])
def test_no_shape_of_the_usage_is_shown(cluster, engine, cut, events, want):
    c, engine.cut = cluster, cut
    engine.fails = (200, SSE, [*events, DONE])
    assert c.ask("POST", CHAT, BODY).body == b"".join([*want, DONE])
    assert c.ask("POST", CHAT, {**BODY, "stream_options": {"include_usage": True}}).body == b"".join([*events, DONE])
    row = row_of(c, 2)
    assert (row["input_tokens"], row["cached_tokens"], row["output_tokens"], row["estimated"]) == (22, 10, 14, 0)


def test_a_stream_that_comes_with_its_length_is_whole_without_the_usage(cluster, engine):
    c, engine.tells_length = cluster, True
    assert c.ask("POST", CHAT, BODY).body == b"".join(EVENTS + [DONE])
    assert c.ask("POST", CHAT, {**BODY, "stream_options": {"include_usage": True}}).body == b"".join(EVENTS + [USAGE, DONE])


@pytest.mark.parametrize("stream", [True, False])
def test_usage_is_found_wherever_it_stands(cluster, engine, stream):
    """Log-probabilities behind the usage, and more of them than an answer has text."""
    c = cluster
    probs = [{"token": f"t{i}", "logprob": -1.5, "bytes": [116]} for i in range(5000)]
    lists = {"prompt_logprobs": [{str(i): {"logprob": -1, "decoded_token": " text"}} for i in range(5000)]}
    choice = {"index": 0, "logprobs": {"content": [{"token": "one", "logprob": 0, "top_logprobs": probs}]}, "finish_reason": "stop"}
    if stream:
        last = event({"id": "c", "choices": [], "usage": COUNTS, **lists})
        engine.fails = (200, SSE, [event({"id": "c", "choices": [{**choice, "delta": {"content": "one"}}]}), last, DONE])
    else:
        document = {"id": "c", "choices": [{**choice, "message": {"role": "assistant", "content": "one"}}]}
        engine.fails = lambda path, body: (200, JSON, [json.dumps({**document, **({} if body.get("user") else {"usage": COUNTS}), **lists}).encode()])
    assert c.ask("POST", CHAT, {**BODY, "stream": stream}).status == 200
    row = row_of(c, 1)
    assert (row["input_tokens"], row["cached_tokens"], row["output_tokens"], row["estimated"]) == (11, 5, 7, 0)
    if not stream:  # without counts, what is not text is not charged
        assert c.ask("POST", CHAT, {**BODY, "stream": False, "user": "u"}).status == 200
        row = row_of(c, 2)
        assert row["estimated"] == 1 and row["output_tokens"] <= 7 + 7, row


def test_encoded_answers_and_several_choices_are_counted(cluster, engine):
    """An engine that encodes though nobody asked: its counts are read, and its text where it has none. Two choices have one count."""
    c = cluster
    choices = [{"index": i, "message": {"role": "assistant", "content": "word " * 20}, "finish_reason": "stop"} for i in range(2)]
    document = lambda **more: json.dumps({"id": "c", "choices": choices, **more}).encode()
    engine.fails = (200, ENCODED, [gzip.compress(document(usage={**COUNTS, "completion_tokens": 40}, prompt_logprobs=[None] * 3000))])
    assert c.ask("POST", CHAT, {**BODY, "stream": False, "n": 2}).status == 200
    row = row_of(c, 1)
    assert (row["input_tokens"], row["cached_tokens"], row["output_tokens"], row["estimated"]) == (11, 5, 40, 0)
    engine.fails = (200, ENCODED, [gzip.compress(document())])
    assert c.ask("POST", CHAT, {**BODY, "stream": False, "n": 2}).status == 200
    row = row_of(c, 2)
    assert row["estimated"] == 1 and 40 + 30 <= row["output_tokens"] <= 40 + 50, row


def test_what_the_client_asked_is_certain(cluster, engine):
    c = cluster
    raw = lambda options: c.ask("POST", CHAT, (json.dumps(BODY)[:-1] + f', "stream_options": {options}}}').encode(), {"Content-Type": JSON})
    assert raw('{"include\\u005fusage": true}').body == b"".join(EVENTS + [USAGE, DONE])
    assert raw('{"include\\u005fusage": false, "x": 1}').body == b"".join(EVENTS + [DONE])
    assert engine.seen[-1][1]["stream_options"] == {"include_usage": True, "x": 1}
    for options, param in (('"all"', "stream_options"), ('{"include_usage": 1}', "stream_options.include_usage"),
                           ('{"include_usage": true, "include\\u005fusage": false}', "stream_options.include_usage")):
        a = raw(options)
        assert (a.status, a.json()["error"]["param"]) == (400, param), a.body
    assert c.ask("POST", CHAT, {**BODY, "stream": "true"}).json()["error"]["param"] == "stream"


def test_options_of_the_client_are_kept(cluster, engine):
    c = cluster
    for own, sent in ((None, {"include_usage": True}), ({}, {"include_usage": True}), ({"include_usage": False, "x": [1]}, {"include_usage": True, "x": [1]}),
                      ({"include_usage": True, "x": 2}, {"include_usage": True, "x": 2})):
        assert c.ask("POST", CHAT, {**BODY, "stream_options": own}).status == 200
        assert engine.seen[-1][1]["stream_options"] == sent
    assert c.ask("POST", CHAT, {**BODY, "stream": False}).status == 200 and "stream_options" not in engine.seen[-1][1]
    assert c.ask("POST", "/v1/messages", BODY).status == 200 and "stream_options" not in engine.seen[-1][1]


def test_an_engine_that_refuses_the_question_is_not_asked_again(cluster, engine):
    c = cluster
    said = json.dumps({"error": {"message": "Unrecognized request argument supplied: stream_options"}}).encode()
    engine.fails = lambda path, body: (400, JSON, [said]) if "stream_options" in body else polite(path, body)
    for asked in (2, 1):
        before = len(engine.seen)
        a = c.ask("POST", CHAT, BODY)
        assert a.status == 200 and a.body == b"".join(EVENTS + [DONE]) and len(engine.seen) == before + asked
    a = c.ask("POST", CHAT, {**BODY, "stream_options": {"include_usage": True}})
    assert a.status == 400 and a.body == said, "the client's own question is the client's"
    engine.fails = (400, JSON, [b'{"error":{"message":"max_tokens is too large"}}'])
    assert c.ask("POST", CHAT, BODY).status == 400
    row = row_of(c, 4)
    assert row["estimated"] == 2 and row["output_tokens"] == 2 * 300, row  # 9 * 40 short words are more than the client asked for


def test_an_error_that_only_quotes_the_question_is_no_refusal(cluster, engine):
    """Engines echo what they were sent in errors that have another cause: the same request without the question fails too."""
    c = cluster
    engine.fails = lambda path, body: (400, JSON, [json.dumps({"error": {"message": "max_tokens", "input": body}}).encode()])
    assert c.ask("POST", CHAT, {**BODY, "max_tokens": -1}).status == 400 and "stream_options" not in engine.seen[-1][1]
    engine.fails = polite
    assert c.ask("POST", CHAT, BODY).status == 200 and "stream_options" in engine.seen[-1][1]
    assert not c.router_process.events("gateway.usage_refused")
    assert row_of(c, 2)["estimated"] == 0


@pytest.mark.parametrize("count", [40.5, -1, 1e300])
def test_a_number_that_is_no_count_is_estimated(cluster, engine, count):
    c = cluster
    odd = event({"id": "c", "choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": count}})
    engine.fails = (200, SSE, [*EVENTS, odd, DONE])
    assert c.ask("POST", CHAT, BODY).status == 200
    row = row_of(c, 1)
    assert row["estimated"] == 1 and row["output_tokens"] > 40, row
    assert c.router_process.events("gateway.usage_untrue")


def test_long_events_are_not_a_token_each(cluster, engine):
    c = cluster
    text = "word " * 3500
    engine.fails = (200, SSE, [chunk({"role": "assistant"}), chunk({"content": text}), chunk({}, "stop"), DONE])
    assert c.ask("POST", CHAT, {**BODY, "max_tokens": 9000}).status == 200
    row = row_of(c, 1)
    assert row["estimated"] == 1 and 3500 <= row["output_tokens"] <= 4600, row


@pytest.mark.parametrize("path,end", [(CHAT, DONE), ("/v1/messages", event({"type": "message_stop"}, "message_stop")),
                                      ("/v1/responses", event({"type": "response.completed", "response": {"id": "r", "usage": {"input_tokens": 3, "output_tokens": 2}}}))])
def test_a_client_that_closes_behind_the_last_event_has_it_all(cluster, engine, path, end):
    c = cluster
    pieces = {CHAT: ANSWER[:-1] + [USAGE], "/v1/messages": [
        event({"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 1}}}, "message_start"),
        event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}, "message_delta")]}.get(path, ANSWER[:0])
    engine.fails, engine.pause_after = (200, SSE, pieces + [end]), len(pieces)
    s = Stream(c.http_port, model="m", path=path, input="hello")
    s.read_until(end.strip())
    s.reset()
    row = row_of(c, 1)
    engine.go_on.set()
    assert row["estimated"] == 0 and (row["input_tokens"], row["output_tokens"]) == ((11, 7) if path == CHAT else (3, 2)), row
    assert c.metric("cgn_requests_total", model="m", code="200") == 1 and c.metric("cgn_requests_total", model="m", code="499") == 0


def test_metrics_and_usage_are_one_truth(cluster, engine):
    c = cluster
    for body in (BODY, {**BODY, "stream": False}, {**BODY, "stream_options": {"include_usage": True}}):
        assert c.ask("POST", CHAT, body).status == 200
    row = row_of(c, 3)
    for kind, field in (("prompt", "input_tokens"), ("completion", "output_tokens")):
        assert c.metric("cgn_tokens_total", kind=kind) == c.metric("cgn_tenant_tokens_total", tenant="-", kind=kind) == row[field]
    assert c.metric("cgn_tenant_tokens_total", tenant="-", kind="cached") == row["cached_tokens"]
    assert c.metric("cgn_tenant_money_total", tenant="-") == pytest.approx(row["money"], abs=3e-6) and row["money"] > 0


def test_a_client_that_leaves_pays_for_what_was_computed(cluster):
    c = cluster
    c.router({"router": {"worker_threads": 1}})
    c.node("a", "--token-interval-us", "1000")
    c.wait_ready()
    engine = c.nodes["a"].engine_port
    made = lambda: engine_counted(engine)
    assert c.chat("teach", max_tokens=400, ignore_eos=True).status == 200
    before, paid = made(), row_of(c, 1)["output_tokens"]
    s = Stream(c.http_port, "go", stream=False, max_tokens=20000, ignore_eos=True)
    until(lambda: made() - before > 300, made)
    s.reset()
    row = row_of(c, 2)
    until(lambda: engine_state(engine)["running"] == 0, lambda: engine_state(engine))
    computed = made() - before
    assert row["estimated"] == 1 and computed / 2 < row["output_tokens"] - paid < computed * 2 and row["output_tokens"] < 20000, (row, computed)


def engine_counted(port):
    text = ask(port, "GET", "/metrics").body.decode()
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if "generation_tokens_total" in line and not line.startswith("#")))

# SPDX-License-Identifier: Apache-2.0
"""The official OpenAI client for Python, through the gateway and straight at the engine's twin."""
import json
import re

import pytest

from conftest import until

openai = pytest.importorskip("openai")

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SCHEMA = {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": {
    "type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "additionalProperties": False}}}
ASK = {"model": "sim", "messages": [{"role": "user", "content": "Tell me about the sea. \u00e9\u4e16"}], "max_tokens": 20}
CHATS = {
    "plain": {},
    "logprobs": {"n": 2, "logprobs": True, "top_logprobs": 2},
    "stop": {"stop": ["a", "e"]},
    "tools": {"tools": [TOOL], "tool_choice": "required"},
    "image": {"messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]}]},
    "json_object": {"response_format": {"type": "json_object"}, "max_tokens": 100},
    "json_schema": {"response_format": SCHEMA, "max_tokens": 100},
    "unknown fields": {"extra_body": {"ignore_eos": True, "min_tokens": 5, "x_unknown": [1.50, None]}},
}
FINISH = {"stop": "stop", "tools": "tool_calls", "json_object": "stop", "json_schema": "stop"}


def client(url, gateway, key=None):
    http = openai.DefaultHttpxClient(verify=gateway.tls) if gateway.secure else None
    return openai.OpenAI(base_url=url + "/v1", api_key=key or gateway.key or "none", max_retries=0, http_client=http,
                         default_headers={"X-Request-Id": "interop"})


@pytest.fixture
def routed(gateway):
    with client(gateway.url, gateway) as c:
        yield c


@pytest.fixture
def both(gateway, routed):
    """Ask the twin and the gateway; return the gateway's answer after checking that both are equal."""
    with client(gateway.direct, gateway) as direct:
        def ask(how):
            one, other = how(direct), how(routed)
            assert bare(other) == bare(one)
            return other
        yield ask


def bare(answer):
    if isinstance(answer, list):
        return [bare(a) for a in answer]
    text = re.sub(r"interop|req-[0-9a-f]{24}", "ID", json.dumps(answer.to_dict(mode="json")))  # where keys are asked for, engines get an id of the router's own
    return json.loads(re.sub(r'"(created|created_at)": [0-9.]+', r'"\1": 0', re.sub(r"(call|msg)_[0-9a-f]{24}", r"\1_", text)))


@pytest.mark.parametrize("what", CHATS)
def test_chats(both, what):
    body = ASK | CHATS[what]
    plain = both(lambda c: c.chat.completions.create(**body))
    assert plain.choices[0].finish_reason == FINISH.get(what, "length")
    chunks = both(lambda c: list(c.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})))
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens > 0
    deltas = [x.choices[0].delta for x in chunks if x.choices and x.choices[0].index == 0]
    if plain.choices[0].message.content is not None:
        assert "".join(d.content or "" for d in deltas) == plain.choices[0].message.content
    else:
        calls = [call for d in deltas for call in d.tool_calls or []]
        assert "".join(c.function.arguments or "" for c in calls) == plain.choices[0].message.tool_calls[0].function.arguments


def test_completions(both):
    body = {"model": "sim", "prompt": "Once", "max_tokens": 9}
    plain = both(lambda c: c.completions.create(**body))
    assert plain.usage.completion_tokens == 9
    assert "".join(x.choices[0].text for x in both(lambda c: list(c.completions.create(**body, stream=True))) if x.choices) == plain.choices[0].text


def test_responses(both):
    body = {"model": "sim", "input": "Tell me about the sea.", "max_output_tokens": 9}
    plain = both(lambda c: c.responses.create(**body))
    events = both(lambda c: list(c.responses.create(**body, stream=True)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == plain.output_text != ""


def test_embeddings(both):
    assert len(both(lambda c: c.embeddings.create(model="sim", input=["a", "b"], dimensions=8)).data[1].embedding) == 8


def test_models_and_errors(gateway, routed):
    assert sorted(m.id for m in routed.models.list()) == ["sim", "slow"]
    with pytest.raises(openai.NotFoundError) as e:
        routed.chat.completions.create(**ASK | {"model": "nope"})
    assert (e.value.code, e.value.param, e.value.request_id) == ("model_not_found", "model", "interop")
    with pytest.raises(openai.BadRequestError):
        routed.chat.completions.create(**ASK | {"max_tokens": -1})
    with pytest.raises(openai.APIStatusError) as e:
        routed.chat.completions.create(model="sim", messages=[{"role": "user", "content": "x" * gateway.MAX_BODY}])
    assert e.value.status_code == 413 and e.value.code == "request_too_large"
    if gateway.key:
        with client(gateway.url, gateway, "wrong") as stranger, pytest.raises(openai.AuthenticationError):
            stranger.chat.completions.create(**ASK)


def test_closing_a_stream_ends_it_in_the_engine(gateway, routed):
    before = gateway.slow_state()
    stream = routed.chat.completions.create(**ASK | {"model": "slow", "max_tokens": 20000}, stream=True, extra_body={"ignore_eos": True})
    for _, _ in zip(range(5), stream):
        pass
    assert gateway.slow_state()["running"] == 1
    stream.close()
    until(lambda: gateway.slow_state()["running"] == 0, "the engine sees its request closed")
    after = gateway.slow_state()
    assert after["aborted"] == before["aborted"] + 1 and after["recent"][0]["tokens"] < 1000


def test_impatience_ends_it_in_the_engine(gateway, routed):
    before = gateway.slow_state()
    with pytest.raises(openai.APITimeoutError):
        routed.with_options(timeout=0.3).chat.completions.create(**ASK | {"model": "slow", "max_tokens": 20000}, extra_body={"ignore_eos": True})
    until(lambda: gateway.slow_state()["running"] == 0, "the engine sees its request closed")
    assert gateway.slow_state()["aborted"] == before["aborted"] + 1


def test_a_response_that_breaks_off_is_told_as_failed(cluster):
    cluster.router()
    cluster.node("a", "--time-scale", "0", "--fault", "cut-after=6")
    cluster.wait_ready(1)
    with openai.OpenAI(base_url=f"http://127.0.0.1:{cluster.http_port}/v1", api_key="none", max_retries=0) as c:
        events = list(c.responses.create(model="sim", input="hi", stream=True, max_output_tokens=40, extra_body={"ignore_eos": True}))
    assert events[-1].type == "response.failed" and events[-1].response.id == events[0].response.id
    assert events[-1].response.status == "failed" and events[-1].response.error.code == "server_error"
    assert [e.sequence_number for e in events] == list(range(len(events)))

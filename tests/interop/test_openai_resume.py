# SPDX-License-Identifier: Apache-2.0
"""An engine dies during an answer, and the official OpenAI client for Python does not notice it."""
import pytest

openai = pytest.importorskip("openai")

ROUTER = {"router": {"resume": True}, "router.breaker": {"failures": 0}}


@pytest.fixture
def nodes(cluster):
    cluster.router(ROUTER)
    for name in "ab":
        cluster.node(name, "--decode-ms", "10", "--max-tokens-default", "300")
    cluster.wait_ready(2)
    with openai.OpenAI(base_url=f"http://127.0.0.1:{cluster.http_port}/v1", api_key="none", max_retries=0) as client:
        yield cluster, client


def test_the_openai_client_sees_one_answer(nodes):
    cluster, client = nodes
    how = {"model": "sim", "messages": [{"role": "user", "content": "Tell me about the sea. \u00e9"}], "max_tokens": 150, "stream": True,
           "stream_options": {"include_usage": True}}
    expected = list(client.chat.completions.create(**how))
    seen = []
    raw = client.chat.completions.with_raw_response.create(**how)
    for chunk in raw.parse():
        seen.append(chunk)
        if len(seen) == 4:  # early: a slow client must not come after the end of the answer
            cluster.nodes[raw.headers["x-cgn-node"]].engine.kill()
    assert "".join(c.choices[0].delta.content or "" for c in seen if c.choices) == "".join(
        c.choices[0].delta.content or "" for c in expected if c.choices)
    assert len({c.id for c in seen}) == len({c.created for c in seen}) == 1
    assert [c.choices[0].delta.role for c in seen if c.choices and c.choices[0].delta.role] == ["assistant"]
    assert [c.choices[0].finish_reason for c in seen if c.choices and c.choices[0].finish_reason] == ["length"]
    assert seen[-1].usage.completion_tokens == 150 and seen[-1].usage.prompt_tokens == expected[-1].usage.prompt_tokens
    assert cluster.metric("cgn_resumes_total", outcome="resumed") == 1


def test_the_openai_client_of_text_completions(nodes):
    cluster, client = nodes
    how = {"model": "sim", "prompt": "Once upon a time, by the sea", "max_tokens": 150, "stream": True}
    expected = "".join(c.choices[0].text for c in client.completions.create(**how))
    raw, text = client.completions.with_raw_response.create(**how), ""
    for i, chunk in enumerate(raw.parse()):
        text += chunk.choices[0].text
        if i == 4:
            cluster.nodes[raw.headers["x-cgn-node"]].agent.kill()
    assert text == expected
    assert cluster.metric("cgn_resumes_total", outcome="resumed") == 1

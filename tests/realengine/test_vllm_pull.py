# SPDX-License-Identifier: Apache-2.0
"""What vLLM 0.32 does when a prefill engine is given the parameters that a decode leg returned (bidirectional_kv_xfer), without our programs:
why the router does not do so (docs/change/adr/0022-no-pull-of-answers.md). When one of these tests fails, vLLM has changed: read that decision again."""
import random

import pytest

import engines
from engines import MODEL, Vllm, words

ASK = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None, "remote_host": None, "remote_port": None}
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def both(made, tmp_path_factory):
    """A prefill and a decode engine that both lend their blocks."""
    folder, nixl = tmp_path_factory.mktemp("pull"), engines.NIXL
    engines.NIXL = {**nixl, "kv_connector_extra_config": {"bidirectional_kv_xfer": True, "decoder_kv_blocks_ttl": 120}}
    pair = [Vllm(folder, name, made=made, nixl=True) for name in "pd"]
    engines.NIXL = nixl
    try:
        for e in pair:
            e.start()
        yield [e.wait() for e in pair]
    finally:
        for e in pair:
            e.kill()


def body(messages, **more):
    return {"model": MODEL, "temperature": 0, "messages": messages, **more}


def prefill(p, messages, params):
    """Return (parameters for the decode leg, tokens that |p| computed, tokens that it took from another engine)."""
    def counts():
        return [p.metric("vllm:prompt_tokens_by_source_total", source=s) for s in ("local_compute", "external_kv_transfer")]
    before = counts()
    a = p.ask(PATH, body(messages, max_tokens=1, kv_transfer_params=params))
    assert a.status == 200, a.body
    return a.json()["kv_transfer_params"], *(now - then for now, then in zip(counts(), before))


def first_turn(p, d, rng):
    messages = [{"role": "user", "content": words(60, rng)}]
    params, _, _ = prefill(p, messages, ASK)
    return messages, d.ask(PATH, body(messages, max_tokens=70, ignore_eos=True, kv_transfer_params=params)).json()


def test_a_prefill_engine_takes_what_an_answer_left(both):
    """The next turn's prefill computes less: the answer's blocks come from the decode engine."""
    p, d = both
    rng = random.Random(random.SystemRandom().random())
    messages, answer = first_turn(p, d, rng)
    left = answer["kv_transfer_params"]
    assert left["do_remote_decode"] and left["remote_num_tokens"] >= answer["usage"]["total_tokens"] - 1
    messages += [{"role": "assistant", "content": answer["choices"][0]["message"]["content"]}, {"role": "user", "content": words(10, rng)}]
    _, computed, taken = prefill(p, messages, left)
    assert taken >= 60 and computed < 200, (computed, taken)


def test_it_takes_them_for_another_prompt_too(both):
    """vLLM compares no tokens: blocks of one prompt stand for another one, and nothing is said."""
    p, d = both
    rng = random.Random(random.SystemRandom().random())
    left = first_turn(p, d, rng)[1]["kv_transfer_params"]
    _, computed, taken = prefill(p, [{"role": "user", "content": "another prompt " + words(100, rng)}], left)
    assert taken >= 200, (computed, taken)


def test_a_streamed_answer_leaves_nothing(both):
    p, d = both
    messages = [{"role": "user", "content": words(60, random.Random(random.SystemRandom().random()))}]
    params, _, _ = prefill(p, messages, ASK)
    a = d.ask(PATH, body(messages, max_tokens=20, stream=True, kv_transfer_params=params))
    assert a.status == 200 and b"data:" in a.body and b"kv_transfer_params" not in a.body

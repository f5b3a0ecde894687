# SPDX-License-Identifier: Apache-2.0
"""cgn-sim's KV events through libzmq and msgspec, as in vLLM and SGLang: structures with the engines' fields
read each batch and write the same bytes again."""
import sys
from pathlib import Path
from typing import Any, Optional

import pytest

zmq = pytest.importorskip("zmq")
msgspec = pytest.importorskip("msgspec")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from test_sim import start  # noqa: E402, F401 (a fixture)
from test_sim_events import ranks  # noqa: E402

Hash = int | bytes


def vllm(lists, batch_map):
    """vllm/distributed/kv_events.py"""
    class Event(msgspec.Struct, omit_defaults=True, tag=True, array_like=lists):
        pass

    class BlockStored(Event):
        block_hashes: list[Hash]
        parent_block_hash: Optional[Hash]
        token_ids: list[int]
        block_size: int
        lora_id: Optional[int]
        medium: Optional[str]
        lora_name: Optional[str]
        extra_keys: Optional[list[Optional[tuple[Any, ...]]]] = None
        group_idx: Optional[int] = None
        kv_cache_spec_kind: Optional[str] = None
        kv_cache_spec_sliding_window: Optional[int] = None

    class BlockRemoved(Event):
        block_hashes: list[Hash]
        medium: Optional[str]
        group_idx: Optional[int] = None

    class AllBlocksCleared(Event):
        pass

    class Batch(msgspec.Struct, omit_defaults=True, array_like=not batch_map):
        ts: float
        events: list[BlockStored | BlockRemoved | AllBlocksCleared]
        data_parallel_rank: Optional[int] = None

    return Batch


def sglang(lists, old=False):
    """python/sglang/srt/disaggregation/kv_events.py"""
    class Event(msgspec.Struct, omit_defaults=old or not lists, tag=True, array_like=lists):
        pass

    class BlockStored(Event):
        block_hashes: list[int]
        parent_block_hash: Optional[int]
        token_ids: list[int]
        block_size: int
        lora_id: Optional[int]
        if not old:
            medium: Optional[str] = None
        if not lists:
            cache_salt: Optional[str] = None

    class BlockRemoved(Event):
        block_hashes: list[int]
        if not old:
            medium: Optional[str] = None

    class AllBlocksCleared(Event):
        pass

    class Batch(msgspec.Struct, omit_defaults=old, array_like=True):
        ts: float
        events: list[BlockStored | BlockRemoved | AllBlocksCleared]
        if not old:
            attn_dp_rank: Optional[int] = None

    return Batch


FORMATS = {
    "vllm": vllm(lists=False, batch_map=False), "vllm-array": vllm(lists=True, batch_map=False), "vllm-map": vllm(lists=False, batch_map=True),
    "sglang": sglang(lists=True), "sglang-old": sglang(lists=True, old=True), "sglang-map": sglang(lists=False),
}


@pytest.fixture
def context():
    c = zmq.Context()
    yield c
    c.destroy(linger=0)


def connected(context, kind, endpoint):
    s = context.socket(kind)
    s.setsockopt(zmq.RCVTIMEO, 10000)
    s.connect(endpoint)
    return s


def replayed(context, endpoint, start=0):
    s = connected(context, zmq.DEALER, endpoint)
    s.send_multipart([b"", start.to_bytes(8, "big")])
    out = []
    while True:
        empty, *topic, number, payload = s.recv_multipart()
        assert empty == b""
        if number == b"\xff" * 8:
            return out
        out.append((topic, int.from_bytes(number, "big"), payload))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("more", [[], ["--kv-events-describe", "--cpu-blocks", "32", "--disk-blocks", "20"], ["--kv-groups", "3"]])
def test_engines_structures_write_the_same_bytes(start, context, form, more):  # noqa: F811
    sim = start("--model", "base", "--model", "lora", "--time-scale", "0", "--kv-blocks", "64", "--kv-events", "tcp://127.0.0.1:0",
                "--kv-events-replay", "tcp://127.0.0.1:0", "--kv-events-topic", "t", "--kv-events-format", form, *more)
    salted = form not in ("sglang", "sglang-old")  # one of the formats has a structure of its own for salted blocks
    for i in range(20):
        salt = {"cache_salt": "pepper"} if salted and i % 3 == 0 else {}
        body = {"model": ["base", "lora"][i % 2], "prompt": [1000 + i] * 100, "max_tokens": 20, **salt}
        assert sim.ask("/v1/completions", body).status == 200
    assert sim.ask("/reset_prefix_cache", method="POST").status == 200
    batches = replayed(context, ranks(sim)[0]["replay"])
    assert len(batches) > 20
    decoder, encoder = msgspec.msgpack.Decoder(FORMATS[form]), msgspec.msgpack.Encoder()
    for _, _, payload in batches:
        assert encoder.encode(decoder.decode(payload)) == payload


def test_libzmq_subscribes(start, context):  # noqa: F811
    sim = start("--time-scale", "0", "--kv-events", "tcp://127.0.0.1:0", "--kv-events-topic", "kv@host@sim")
    sub = connected(context, zmq.SUB, ranks(sim)[0]["events"])
    sub.setsockopt_string(zmq.SUBSCRIBE, "kv@")
    while not sub.poll(50):  # until the subscription has arrived
        sim.ask("/reset_prefix_cache", method="POST")
    first = int.from_bytes(sub.recv_multipart()[1], "big")
    for i in range(50):
        assert sim.ask("/v1/completions", {"prompt": [1000 + i] * 100, "max_tokens": 1}).status == 200
    for number in range(first + 1, ranks(sim)[0]["next_batch"]):
        topic, said, _ = sub.recv_multipart()
        assert topic == b"kv@host@sim" and int.from_bytes(said, "big") == number

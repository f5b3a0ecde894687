# SPDX-License-Identifier: Apache-2.0
"""The game of tests/e2e/test_isolation.py with a real llama-server, whose slots know nothing of tenants: by the engine's own
counts the attacker finds the victim's prompts without isolation, and nothing with it; a tenant finds its own."""
import concurrent.futures
import json
import random

import pytest

from cluster import ask, free_port, until
from conftest import ctl
from test_llama_slots import TEXT, World, cached, completion, kvcached, prose

TENANTS = "victim", "attacker"
SLOTS = 3


@pytest.fixture(params=["none", "tenant", "none, slots kept", "tenant, slots kept", "tenant, one cache in RAM"])
def world(request, binary, tmp_path):
    isolation, _, how = request.param.partition(", ")
    (tmp_path / "keys").touch()
    keys = {}
    for t in TENANTS:
        keys[t] = {"Authorization": "Bearer " + json.loads(ctl("key", "create", "--file", tmp_path / "keys", "--tenant", t, "-o", "json"))["key"]}
    w = World(tmp_path, binary, {"auth": {"enabled": True, "api_keys_file": str(tmp_path / "keys")}, "security": {"isolation": isolation}})
    w.keys, w.isolated, w.mixes = keys, isolation == "tenant", "RAM" in how
    try:
        if how == "slots kept":
            # A slot is saved when another prompt takes it, not while a test waits to see it again.
            w.node("a", kvcached(w.c, "a"), slots=SLOTS, kv_save_idle="60s")
            w.ready()
        else:
            w.agents["a"], _, w.admin["a"] = w.c.agent("a", free_port(), {
                "models.tiny": {"block_bytes": 32}, "engine": {
                    "kind": "llama_cpp", "managed": True, "binary": w.binary, "model": "tiny", "model_path": str(w.model), "slots": SLOTS, "n_threads": 1,
                    "n_ctx": 4096 * SLOTS, "cache_ram": "on" if w.mixes or not w.isolated else "off"}})
            w.c.wait_ready(1)
            until(lambda: ask(w.admin["a"], "GET", "/engines").json()["engines"][0]["load"]["slots"] == SLOTS, "the agent knows the slots")
        yield w
    finally:
        w.close()


def say(w, tenant, prompt, **more):
    a = w.c.ask("POST", TEXT, completion(prompt, 1) | more, w.keys[tenant])
    assert a.status == 200, a.body
    return a


def counted(a):
    """Return the engine's counters of its cache."""
    told = a.json()
    return [cached(a), (told.get("timings") or {}).get("cache_n"), a.headers.get("x-cgn-cache-hit")]


def test_no_prompt_is_found_by_another_tenant(world):
    rng, found = random.Random(3), {True: [], False: []}
    for i in range(12):
        coin, secret = i % 2 == 0, prose(rng.random(), 60)
        say(world, "victim", secret if coin else prose(rng.random(), 60))
        found[coin].append(counted(say(world, "attacker", secret + " and then", **({"n": 2} if i % 6 > 3 else {"cache_prompt": True} if i % 6 > 1 else {}))))
    if world.isolated:
        assert {tuple(x) for x in found[True]} == {tuple(x) for x in found[False]} and {x[0] for x in found[True]} == {0}, found
    else:
        assert sum(x[0] > 100 for x in found[True]) >= 4 and all(x[0] < 20 for x in found[False]), found


def test_a_tenant_keeps_its_own_conversation(world):
    talks = {t: prose(t, 100) for t in TENANTS}
    for turn in range(4):
        for t in TENANTS:
            got = cached(say(world, t, talks[t]))
            assert got > 100 if turn > 0 and not world.mixes else got < 20, (turn, t, got)
            talks[t] += " " + prose(f"{t}{turn}", 20)
    assert len(world.agents["a"].events("engine.mixes_tenants")) == world.mixes


def test_beside_each_other(world):
    """More clients than slots, and requests with several answers: what a tenant finds cached is never another's."""
    if not world.isolated:
        pytest.skip("without isolation tenants share")

    def spy(i):
        secret, several = prose(f"secret {i}", 40), {"n": 2} if i % 9 == 4 else {}
        first, second = TENANTS if i % 2 else TENANTS[::-1]
        say(world, first, secret, **several)
        return cached(say(world, second, secret, **({"n": 2} if i % 9 == 7 else {})))
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        found = list(pool.map(spy, range(36)))
    assert max(found) < 20, found

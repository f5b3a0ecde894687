# SPDX-License-Identifier: Apache-2.0
"""A caller that may only send requests neither unloads a model that others use nor keeps it for ever."""
import pytest
from cluster import until
from hostile import HOSTILE, VICTIM
from swap_world import Machine
from test_limits import key

class Keyed(Machine):
    def __init__(self, folder, engines):
        self.keys = {t: key(folder, t, t) for t in (HOSTILE, VICTIM)} | {"boss": key(folder, "boss", "boss", "--role", "operator")}
        super().__init__(folder, engines, {"auth": {"enabled": True, "api_keys_file": str(folder / "keys")}}, max_loaded=2)

    def ollama(self, path, who, **body):
        got = self.c.ask("POST", path, {"stream": False, "model": "a", **body}, self.keys[who])
        assert got.status == 200, got.body

    def chat_of(self, who, **more):
        self.ollama("/api/chat", who, messages=[{"role": "user", "content": "hello"}], **more)


@pytest.fixture
def machine(tmp_path):
    made = []

    def make(keep_alive):
        made.append(Keyed(tmp_path, {"a": {"keep_alive": keep_alive}}))
        return made[0]
    yield make
    assert not (trouble := made[0].end()), trouble


def test_a_chat_key_does_not_unload_what_another_uses(machine):
    m = machine("1h")
    m.chat_of(VICTIM)
    for _ in range(5):
        m.ollama("/api/generate", HOSTILE, keep_alive=0)
        m.chat_of(HOSTILE, keep_alive=0)
        m.chat_of(VICTIM)
    assert m.running() == ["a"] and m.metric("cgn_swap_loads_total", engine="a", outcome="ok") == 1


def test_its_own_interest_ends_as_it_says(machine):
    m = machine("1h")
    m.chat_of(HOSTILE, keep_alive=0)
    until(lambda: m.running() == [], "nobody's interest holds")
    m.chat_of(VICTIM, keep_alive="1s")
    m.chat_of(HOSTILE, keep_alive=0)
    until(lambda: m.running() == [], "the victim's second is over")


def test_it_keeps_nothing_longer_than_the_setting(machine):
    m = machine("300ms")
    m.chat_of(HOSTILE, keep_alive=-1)
    until(lambda: m.running() == [], "the engine's setting bounds it")


def test_who_may_change_models_unloads(machine):
    m = machine("1h")
    m.chat_of(VICTIM)
    m.ollama("/api/generate", "boss", keep_alive=0)
    until(lambda: m.running() == [], "an operator's word counts for all")

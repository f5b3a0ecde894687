# SPDX-License-Identifier: Apache-2.0
"""Conversations and the slots of a llama-server that works: who gets which slot, what is saved and restored, and
what /engines and /metrics say of it."""
import concurrent.futures
import http.client
import json
import signal
import threading
import time

import pytest

from cluster import ask, until
from odd_llama import ANSWER_TOKENS, answer_to
from slots_world import PAGE, TEXT, World, prompt_of

LENGTH = 32 * PAGE  # tokens of a prompt


@pytest.fixture
def worlds(tmp_path, request):
    opened = []

    def open_world(**more):
        opened.append(World(tmp_path, **more))
        return opened[-1]
    yield open_world
    for w in opened:
        w.close(getattr(request.node, "failed", False))


def saved(w, n):
    until(lambda: w.kept()["saves"] == n and w.kept()["states"] == n, lambda: w.kept())


def test_conversations_keep_their_slots(worlds):
    """As many conversations as slots: each goes on in its own slot, and nothing is restored."""
    w = worlds(slots=2)
    one, other = prompt_of(1), prompt_of(2)
    assert w.asked(one) == 0 and w.asked(other) == 0
    for turn in range(3):
        one, other = one + answer_to(one)[:ANSWER_TOKENS] + prompt_of(10 + turn)[:24], other + answer_to(other)[:ANSWER_TOKENS] + prompt_of(20 + turn)[:24]
        for prompt in (one, other):
            w.idle()
            assert w.asked(prompt) >= LENGTH, w.kept()
    kept = w.kept()
    assert kept["restores"] == 0 and kept["strays"] == 0, kept
    assert kept["prompts"]["none"] == 2 and kept["prompts"]["held"] == 6, kept


def test_each_idle_slot_is_saved(worlds):
    """Slots that nobody uses are saved, one after the other, and /engines shows it."""
    w = worlds(slots=3)
    for i in range(3):
        w.asked(prompt_of(i))
    saved(w, 3)
    kept, held = w.kept(), LENGTH + ANSWER_TOKENS - 1
    assert kept["slots"] == [{"use": "idle", "blocks": PAGE, "tokens": held, "stored": held}] * 3, kept
    assert kept["state_blocks"] == 3 * PAGE and kept["build"] == "odd" and kept["trouble"] == "", kept
    assert kept["bytes_per_token"] == pytest.approx(1, rel=0.01) and kept["prefill_ms_per_token"] == pytest.approx(1, rel=0.01), kept
    assert w.metric("cgn_slot_saves_total", outcome="stored") == 3 and w.metric("cgn_slot_saved_bytes_total") == 3 * held
    assert w.metric("cgn_slot_states") == 3
    # What lies in the store is not saved again.
    w.asked(prompt_of(0))
    w.idle()
    assert w.engine.asked["save"] == 3


def test_a_fourth_conversation_takes_the_slot_that_was_used_least_recently(worlds):
    w = worlds(slots=3)
    for i in range(3):
        w.asked(prompt_of(i))
    saved(w, 3)  # a slot that is being saved takes no prompt
    assert w.asked(prompt_of(0)) == LENGTH - 1
    w.asked(prompt_of(3))  # takes the slot of 1
    saved(w, 4)
    assert w.asked(prompt_of(0)) == w.asked(prompt_of(2)) == w.asked(prompt_of(3)) == LENGTH - 1
    assert w.kept()["restores"] == 0
    # The state that lay in the taken slot was saved before, so it comes back.
    assert w.asked(prompt_of(1)) == LENGTH - 1
    kept = w.kept()
    assert kept["restores"] == 1 and kept["prompts"]["ram"] == 1 and kept["restored_tokens"] == LENGTH - 1, kept
    assert kept["spared_ms"] > 0 and w.metric("cgn_slot_restored_tokens_total") == LENGTH - 1
    assert w.metric("cgn_slot_restores_total", outcome="ram") == 1


def waiting(w):
    return sum(n["router_inflight"] for n in w.c.status()["nodes"]) + sum(q["requests"] for q in ask(w.c.admin_port, "GET", "/queue").json()["queues"])


def test_requests_wait_for_a_slot(worlds):
    """Requests of one slot are computed one after the other; each has its own answer, also when one of those
    that wait is given up."""
    w = worlds(slots=1)
    w.engine.may_answer.clear()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        first = pool.submit(w.asked, prompt_of(1))
        until(lambda: w.kept()["slots"][0]["use"] == "busy", lambda: w.kept())
        rest = [pool.submit(w.asked, prompt_of(i)) for i in (2, 3)]
        left = http.client.HTTPConnection("127.0.0.1", w.c.http_port)
        left.request("POST", TEXT, json.dumps({"model": "tiny", "prompt": prompt_of(4), "max_tokens": 4}))
        until(lambda: waiting(w) == 4, lambda: w.c.status())
        left.close()
        until(lambda: waiting(w) == 3, lambda: w.c.status())
        w.engine.may_answer.set()
        assert [f.result() for f in [first, *rest]] == [0, 0, 0]
    w.idle()
    kept = w.kept()
    assert kept["prompts"]["none"] == 3 and kept["prompts"]["late"] == 0 and not w.agent.events("slot.astray"), kept
    assert w.engine.computed == 3 * LENGTH


REASONS = [
    ({"cache_prompt": False}, "alone"), ({"lora": []}, "alone"),
    ({"id_slot": 0}, "astray"), ({"n": 2}, "astray"),
    ({}, "held"),
]


def test_each_prompt_is_counted_with_its_reason(worlds):
    w = worlds(slots=2)
    one = prompt_of(1)
    w.asked(one)
    saved(w, 1)
    want = {"none": 1}
    for more, reason in REASONS:
        w.asked(one, **more)
        want[reason] = want.get(reason, 0) + 1
        assert {k: n for k, n in w.kept()["prompts"].items() if n} == want, (more, w.kept())
    # Another prompt has one block in common with the stored state: less than kv_save_min_tokens.
    w.asked(prompt_of(5))
    w.asked(prompt_of(6))
    w.asked(one[:32] + prompt_of(7))
    want |= {"none": want["none"] + 2, "short": 1}
    assert {k: n for k, n in w.kept()["prompts"].items() if n} == want, w.kept()
    for reason, n in want.items():
        assert w.metric("cgn_slot_prompts_total", prefix=reason) == n, reason


def test_states_outlive_the_agent_but_not_the_model(worlds):
    w = worlds(slots=1)
    one, other = prompt_of(1), prompt_of(2)
    w.asked(one)
    w.asked(other)
    saved(w, 2)

    def again(name, states):
        w.agent.may_end = True
        w.agent.kill()
        w.engine.slots = [""]
        w.agent, _, w.admin = w.start(name)
        w.c.wait_ready(1)
        until(lambda: w.kept()["at_work"] and w.kept()["states"] == states, lambda: w.kept())
    again("b", 2)
    assert w.asked(one) == LENGTH - 1 and w.kept()["prompts"]["ram"] == 1, w.kept()
    w.engine.model.write_bytes(b"another model")
    again("c", 0)
    assert w.asked(other) == 0 and w.kept()["prompts"]["none"] == 1, w.kept()


def test_a_slot_that_somebody_else_used_is_not_trusted(worlds):
    """A request that went to the engine directly leaves another content in the slot than the agent knows."""
    w = worlds(slots=1)
    one = prompt_of(1)
    w.asked(one)
    saved(w, 1)
    until(lambda: w.kept()["slots"][0]["blocks"] == PAGE, lambda: w.kept())
    w.engine.complete({"prompt": prompt_of(9)[:LENGTH // 2]})
    until(lambda: w.kept()["strays"] == 1, lambda: w.kept())
    assert w.kept()["slots"][0]["blocks"] == 0, w.kept()
    assert w.asked(one) == LENGTH - 1 and w.kept()["prompts"]["ram"] == 1, w.kept()


def test_more_states_than_are_read_at_a_time(worlds):
    """The agent reads the entries of new states few at a time, and all of them."""
    w = worlds(slots=2)
    for i in range(24):
        w.asked(prompt_of(100 + i)[:LENGTH // 4])
        until(lambda n=i: w.kept()["saves"] > n, lambda: w.kept())
    saved(w, 24)
    assert w.asked(prompt_of(100)[:LENGTH // 4]) == LENGTH // 4 - 1 and w.kept()["prompts"]["ram"] == 1, w.kept()


def test_the_wait_of_a_save_is_not_taken_for_its_work(worlds):
    """Scaled by size, the wait would make each longer state look too dear to save. What cannot be true is not believed."""
    w = worlds(slots=1)
    w.engine.how_save = "waits"
    w.asked(prompt_of(0))
    saved(w, 1)
    assert w.kept()["save_ms_per_mib"] == pytest.approx(2, rel=0.01), w.kept()
    for n, told in enumerate(({"save_ms": 1e300}, {"save_ms": -1}, {"save_ms": "1"}, {}, None, []), 1):
        before, w.engine.save_timings = w.kept()["save_ms_per_mib"], told
        w.asked(prompt_of(n))
        saved(w, n + 1)
        assert before < w.kept()["save_ms_per_mib"] < 1e6, (told, w.kept())


def test_a_state_on_its_way_to_the_store_is_not_saved_again(worlds):
    """Another conversation takes the slot while the store is slow to take what lay there."""
    w = worlds(slots=1, start=False)
    _, _, w.admin = w.start("a", kv_restore_timeout="10s")
    w.c.wait_ready(1)
    until(lambda: w.kept()["at_work"], lambda: w.kept())
    w.engine.how_save, w.engine.before_save = "before", lambda: w.store.signal(signal.SIGSTOP)
    w.asked(prompt_of(0))
    until(lambda: w.engine.asked["save"] == 1 and w.kept()["slots"][0]["use"] == "idle", lambda: w.kept())
    assert w.kept()["slots"][0]["stored"] == 0 and w.kept()["saves"] == 0
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(w.asked, prompt_of(1))
        until(lambda: w.kept()["slots"][0]["use"] != "idle", lambda: w.kept())
        w.engine.how_save = "well"
        w.store.signal(signal.SIGCONT)
        assert other.result() < 32
    saved(w, 2)
    assert w.engine.asked["save"] == 2, w.kept()


def saving_slot(worlds):
    """A world whose first slot is being saved until go_on is set; its prompt."""
    w = worlds(slots=2, start=False)
    w.engine.prompt_ms = 50
    _, _, w.admin = w.start("a", kv_restore_timeout="60s")
    w.c.wait_ready(1)
    until(lambda: w.kept()["at_work"], lambda: w.kept())
    saving, go_on = threading.Event(), threading.Event()
    w.engine.how_save, w.engine.before_save = "before", lambda: (saving.set(), go_on.wait(30))
    one = prompt_of(1)
    w.asked(one)
    assert saving.wait(30)
    w.engine.how_save = "well"
    return w, go_on, one + answer_to(one)[:ANSWER_TOKENS] + "and then"


def test_a_turn_that_comes_while_its_slot_is_saved_waits_for_it(worlds):
    """A free slot would have to compute all of the prompt; a prompt that is not there takes the free slot at once."""
    w, go_on, turn = saving_slot(worlds)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(w.asked, turn)
        until(lambda: waiting(w) == 1, lambda: w.c.status())
        assert w.asked(prompt_of(2)) == 0
        assert waiting(w) == 1
        go_on.set()
        assert answer.result() >= LENGTH, w.kept()
    assert w.kept()["restores"] == 0 and w.metric("cgn_slot_restores_total", outcome="late") == 0, w.kept()


def test_a_client_may_leave_while_its_slot_is_saved(worlds):
    w, go_on, turn = saving_slot(worlds)
    left = http.client.HTTPConnection("127.0.0.1", w.c.http_port)
    left.request("POST", TEXT, json.dumps({"model": "tiny", "prompt": turn, "max_tokens": 4}))
    until(lambda: waiting(w) == 1, lambda: w.c.status())
    left.close()
    until(lambda: waiting(w) == 0, lambda: w.c.status())
    go_on.set()
    w.idle()
    assert w.asked(turn) >= LENGTH and w.kept()["strays"] == 0, w.kept()


def test_a_save_that_takes_longer_than_the_prompt_is_not_awaited_to_its_end(worlds):
    w = worlds(slots=2, start=False)
    _, _, w.admin = w.start("a", kv_restore_timeout="200ms")
    w.c.wait_ready(1)
    until(lambda: w.kept()["at_work"], lambda: w.kept())
    saving, go_on = threading.Event(), threading.Event()
    w.engine.how_save, w.engine.before_save = "before", lambda: (saving.set(), go_on.wait(30))
    one = prompt_of(1)
    w.asked(one)
    assert saving.wait(30)
    assert w.asked(one + "and then") == 0  # in the other slot
    go_on.set()
    w.idle()
    assert w.kept()["strays"] == 0 and w.metric("cgn_slot_restores_total", outcome="late") == 0, w.kept()


AGENT, BASH = {"X-Cgn-Session": "agent"}, [{"type": "function", "function": {"name": "bash"}}]


def learn(w, talk, pause_s):
    """Let a session call a tool that takes |pause_s|, until a forecast can be made."""
    for _ in range(5):
        w.asked(talk, AGENT, tools=BASH)
        time.sleep(pause_s)


def pauses(w, outcome):
    return w.metric("cgn_slot_pauses_total", engine="llama_cpp", outcome=outcome) or 0


def test_a_conversation_that_waits_for_a_tool_keeps_its_slot(worlds):
    """The slot that was used longest ago would be the agent's, and the other one is as good for those that come by."""
    w = worlds(slots=2)
    talk = prompt_of("agent")
    learn(w, talk, 0.4)
    w.asked(talk, AGENT, tools=BASH)
    for i in range(3):
        w.asked(prompt_of(i))
        saved(w, i + 2)  # a slot that is being saved takes no prompt
    until(lambda: pauses(w, "held") >= 2, lambda: w.kept())  # the first after the forecast, and the last
    w.asked(talk, AGENT, tools=BASH)
    assert w.kept()["restores"] == 0


def take_all(w, others):
    """Let others take both slots at once."""
    w.engine.may_answer.clear()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        crowd = [pool.submit(w.asked, prompt_of(next(others))) for _ in range(2)]
        until(lambda: all(s["use"] == "busy" for s in w.kept()["slots"]), lambda: w.kept())
        w.engine.may_answer.set()
    assert all(c.result() < 32 for c in crowd)  # less than a block


def test_a_state_is_restored_before_the_tool_has_run(worlds):
    """Others take all slots meanwhile. The next request finds its state in a slot and waits for no restore."""
    w = worlds(slots=2)
    talk, others = prompt_of("agent"), iter(range(1000))
    learn(w, talk, 0.4)

    def restored_ahead():
        w.asked(talk, AGENT, tools=BASH)
        w.idle()
        take_all(w, others)
        time.sleep(0.4)
        return pauses(w, "restored")

    until(restored_ahead, lambda: f"a state is restored before it is asked for: {w.kept()}")
    w.idle()
    before, held = w.kept()["restores"], w.kept()["prompts"]["held"]
    assert w.asked(talk, AGENT, tools=BASH) >= len(talk) - 1  # the prompt's last token is always computed
    assert w.kept()["restores"] == before and w.kept()["prompts"]["held"] == held + 1


def test_the_earlier_state_is_restored_when_the_last_one_is_not_stored(worlds):
    """A turn that adds less than kv_save_min_tokens is not saved: what the store has of the conversation is restored."""
    w = worlds(slots=2)
    others = iter(range(1000))
    learn(w, prompt_of("agent"), 0.4)

    def restored_ahead():
        talk, ended = prompt_of(f"agent {next(others)}"), sum(pauses(w, o) for o in ("held", "restored", "failed", "late"))
        w.asked(talk, AGENT, tools=BASH)
        until(lambda: any(s["tokens"] == s["stored"] == len(talk) + ANSWER_TOKENS - 1 for s in w.kept()["slots"]), lambda: w.kept())
        until(lambda: sum(pauses(w, o) for o in ("held", "restored", "failed", "late")) > ended, lambda: "its pause has ended")
        before, talk = pauses(w, "restored"), talk + "a tool's answer".ljust(32)
        w.asked(talk, AGENT, tools=BASH)
        w.idle()
        take_all(w, others)
        time.sleep(0.4)
        return talk if pauses(w, "restored") > before else None

    talk = until(restored_ahead, lambda: f"a state is restored before it is asked for: {w.kept()}")
    w.idle()
    before = w.kept()["restores"]
    assert LENGTH - 1 <= w.asked(talk, AGENT, tools=BASH) < len(talk) - 1
    assert w.kept()["restores"] == before

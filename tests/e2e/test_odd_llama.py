# SPDX-License-Identifier: Apache-2.0
"""A llama-server that does everything about slots wrong: the agent stays up, counts the faults, computes
instead, and leaves neither files nor descriptors."""
import json
import os
import subprocess

import pytest

from cluster import BUILD, ask, free_port, scaled, until
from kvpeers import bootstrap, security
from odd_llama import Engine
from slots_world import PAGE, World, prompt_of


@pytest.fixture
def world(tmp_path, request):
    w = World(tmp_path)
    yield w
    w.close(getattr(request.node, "failed", False))


def test_the_fake_works_when_it_is_not_odd(world):
    w = world
    one, other = prompt_of(1), prompt_of(2)
    assert w.asked(one) == 0
    until(lambda: w.kept()["saves"] == 1, lambda: w.kept())
    w.asked(other)
    until(lambda: w.kept()["saves"] == w.kept()["states"] == 2, lambda: w.kept())  # before the store told of a state, it would be looked up
    assert w.asked(one) > 1200 and w.asked(other) > 1200
    kept = w.kept()
    assert kept["restores"] == 2 and kept["restore_failures"] == kept["save_failures"] == 0 and kept["prompts"]["ram"] == 2 and kept["prompts"]["none"] == 2, kept
    assert w.metric("cgn_slot_prompts_total", prefix="ram") == 2 and w.metric("cgn_slot_prompts_total", prefix="none") == 2
    # The log names the reason for each computed prompt, by the request's id.
    lines = w.agent.events("slot.prompt")
    assert [e["prefix"] for e in lines] == ["none", "none"] and lines[0]["computed_tokens"] == len(one) and lines[0]["request"], lines


SAVES = ["refused", "written_and_refused", "garbage", "endless", "miscounted", "negative", "longer", "shorter", "empty", "nothing", "link", "pipe", "folder",
         "huge", "late", "silent"]


@pytest.mark.parametrize("how", SAVES)
def test_a_save_that_goes_wrong(world, how):
    w = world
    w.engine.how_save = how
    one, other = prompt_of(1), prompt_of(2)
    w.asked(one)
    before = w.agent.descriptors()
    for _ in range(3):
        w.asked(one)
        w.asked(other)
    until(lambda: w.kept()["save_failures"] >= 1, lambda: w.kept())
    kept = w.kept()
    assert kept["saves"] == 0 and kept["states"] == 0 and kept["trouble"].startswith("a slot's state can't be saved"), kept
    assert w.metric("cgn_slot_saves_total", outcome="engine") == kept["save_failures"]
    assert w.engine.asked["save"] <= 5, (kept, w.engine.asked)  # after 0, 1, 3, 7 and 15 s, not continuously
    w.clean(before)
    # When the engine works again, everything else does too.
    w.engine.how_save = "well"
    def both():
        w.asked(one)
        w.asked(other)
        return w.kept()["restores"] > 0
    until(both, lambda: w.kept(), step_s=0.2)
    w.clean(before)


RESTORES = {"refused": "refused", "none": "refused", "miscounted": "refused", "garbage": "refused", "lying": "refused", "reset": None, "silent": None}


@pytest.mark.parametrize("how", RESTORES)
def test_a_restore_that_goes_wrong(world, how):
    w = world
    one, other = prompt_of(1), prompt_of(2)
    for i, p in enumerate((one, other)):
        w.asked(p)
        until(lambda n=i: w.kept()["saves"] == n + 1, lambda: w.kept())
    before = w.agent.descriptors()
    w.engine.how_restore = how
    assert w.asked(one) == 0
    until(lambda: how == "lying" or w.kept()["restore_failures"] >= 1, lambda: w.kept())
    w.idle()
    assert w.asked(other) < 200
    w.clean(before)
    if how == "silent":
        assert w.agent.events("slot.astray")[0]["why"] == "late"
        assert w.metric("cgn_slot_restores_total", outcome="late") == 1 and w.kept()["prompts"]["late"] == 1, w.kept()
    else:
        line = w.agent.events("slot.prompt")[2]
        assert line["prefix"] == {"lying": "ram"}.get(how, "engine"), line
    asked = w.engine.asked["restore"]
    until(lambda: not w.kept()["paused"], lambda: w.kept())
    w.engine.how_restore = "well"
    cached = w.asked(one)
    if RESTORES[how]:  # that state is not tried again; the prompt was computed, and its state is saved again
        assert w.kept()["prompts"]["refused"] >= 1 and w.engine.asked["restore"] == asked, w.kept()
    else:
        assert cached > 1200, w.kept()
    w.clean(before)


@pytest.mark.both
def test_slots_without_end(world):
    w = world
    w.engine.slots_body = b"[" + b",".join([b"{}"] * 1_000_000) + b"]"
    rss = w.agent.rss_kib()
    one = prompt_of(1)
    for _ in range(3):
        w.asked(one)
    # more than the agent reads
    w.engine.slots_body = b"[" + b",".join(b'{"id":%d,"n_prompt_tokens":7,"id_task":%d}' % (i, i) for i in range(1_000_000)) + b"]"
    w.asked(one)
    assert not w.agent.events("agent.relay_failed")
    w.engine.slots_body = b'[{"id":4294967296},{"id":-1},{"id":1e99},{"id":"0"},7,null,{"id":0,"n_prompt_tokens":18446744073709551615,"id_task":-9}]'
    w.asked(one)
    assert w.agent.alive() and w.agent.rss_kib() < rss + scaled(64, 512) * 1024
    w.engine.slots_body = None
    w.asked(one)


@pytest.mark.parametrize("props", [b"{", {}, {"total_slots": 10 ** 6}, {"total_slots": 0}, {"model_path": "/nowhere/m.gguf"}, {"model_path": "/dev/zero"}, "pipe"])
def test_an_engine_that_does_not_say_what_it_is(tmp_path, props, request):
    """Without a fingerprint, no state is saved; requests pass unchanged."""
    w = World(tmp_path, start=False)
    try:
        good = {"total_slots": 1, "build_info": "odd", "model_path": str(w.engine.model), "default_generation_settings": {"n_ctx": 4096}}
        if props == "pipe":
            os.mkfifo(tmp_path / "pipe")
            props = {"model_path": str(tmp_path / "pipe")}
        w.engine.props = props if isinstance(props, bytes) or not props else good | props
        w.agent, _, w.admin = w.start("a")
        w.c.wait_ready(1)
        until(lambda: w.kept()["trouble"], lambda: w.kept())
        assert not w.kept()["at_work"] and w.asked(prompt_of(1)) == 0 and w.asked(prompt_of(1)) > 0
        assert w.kept()["prompts"]["off"] == 2, w.kept()
    finally:
        w.close(getattr(request.node, "failed", False))


def test_adapters_that_count_otherwise_while_it_runs(tmp_path, request):
    """A state that was computed with one scale is never restored for another, and is found again when the
    scale is back."""
    w = World(tmp_path, start=False)
    one, other, third = prompt_of(1), prompt_of(2), prompt_of(3)
    (tmp_path / "adapter.gguf").write_bytes(b"not much of an adapter")

    def scale(to):
        w.engine.adapters = [{"id": 0, "path": str(tmp_path / "adapter.gguf"), "scale": to}]

    def changes(n, states):
        until(lambda: len(w.agent.events("slot.adapters")) == n and w.kept()["at_work"] and w.kept()["states"] == states, lambda: w.kept())

    try:
        scale(1.0)
        w.agent, _, w.admin = w.start("a")
        w.c.wait_ready(1)
        until(lambda: w.kept()["at_work"], lambda: w.kept())
        w.asked(one)
        until(lambda: w.kept()["saves"] == 1, lambda: w.kept())
        scale(0.5)
        w.asked(other)  # the save notices the change, and saves nothing
        changes(1, 0)
        assert w.kept()["saves"] == 1, w.kept()
        assert w.asked(third) == 0 and w.asked(one) == 0  # the state from before does not match the new scale
        until(lambda: w.kept()["saves"] == 3 and w.kept()["states"] == 2, lambda: w.kept())
        scale(1.0)
        before = w.agent.descriptors()
        assert w.asked(third) == 0 and w.engine.asked["restore"] == 0  # the restore notices the change, and restores nothing
        changes(2, 1)
        assert w.asked(other) == 0 and w.asked(one) > 1200, w.kept()
        w.engine.adapters = {"error": "none today"}
        w.asked(third)
        until(lambda: "/lora-adapters can't be read" in w.kept()["trouble"], lambda: w.kept())
        w.clean(before)
    finally:
        w.close(getattr(request.node, "failed", False))


def test_a_slot_dir_is_one_engines(world):
    w = world
    second = w.start("b")[0]
    second.may_end = True
    assert second.wait() == 8
    assert "slot_dir" in second.log() and "give each engine a folder of its own" in second.log(), second.log()
    # The files of the first agent are left alone, and it goes on.
    w.asked(prompt_of(1))
    until(lambda: w.kept()["saves"] == 1, lambda: w.kept())
    # When the first agent is gone, killed or not, the folder is free and its files are removed.
    left = w.engine.folder / "cgn-slot-1-save-1"
    w.agent.kill()
    left.write_bytes(b"x")
    # The same when a new process has the first agent's pid, as in a container.
    pid = subprocess.Popen(["true"]).pid
    for p in range(pid, pid + 3000):
        (w.engine.folder / f"cgn-slot-{p}-load-7").touch()
    w.agent, _, w.admin = w.start("c")
    until(lambda: w.agent.alive() and not os.listdir(w.engine.folder), lambda: f"left behind: {os.listdir(w.engine.folder)}")
    late = w.engine.folder / f"cgn-slot-{w.agent.pid}-save-8"
    late.write_bytes(b"x")
    until(lambda: not late.exists(), "what an engine of before writes late is swept")
    w.c.wait_ready(1)


def explained(w, *args):
    return subprocess.run([BUILD / "src/ctl/cgn-ctl", "explain", *args, "--router", f"127.0.0.1:{w.c.grpc_port}"], capture_output=True, text=True, check=True).stdout


def test_an_idle_node_computes_its_prompts_itself(tmp_path, request):
    """Without colocate_below_tokens the costs decide, and they are told: on an idle node a prompt delays
    nobody, so that moving its state would only take time."""
    reachable = {"security": security(bootstrap(tmp_path / "pki", "store"), "store"), "cluster": {"router": f"127.0.0.1:{free_port()}"}}
    w = World(tmp_path, start=False, router={"router.disagg": {"enabled": True}}, store=reachable)
    (tmp_path / "other").mkdir()
    other = Engine(tmp_path / "other")
    try:
        w.start("prefill", role="prefill")
        w.start("decode", of=other, role="decode")
        w.c.wait_ready(2)
        until(lambda: all("kv" in n for n in w.c.status()["nodes"]), lambda: w.c.status())
        w.asked(prompt_of(1))
        assert w.c.metric("cgn_disagg_total", outcome="colocated") == 1 and w.engine.computed == 0
        told = explained(w, "--last", "1", "-o", "json")
        rq = json.loads(told)["requests"][0]
        split = rq["tries"][0]["split"]
        assert (split["chosen"], split["by"], split["whole"]["node"]) == ("whole", "cost", "decode"), split
        assert split["pair"] | {"cost_ms": 0} == {"prefill": "prefill", "decode": "decode", "cost_ms": 0}
        assert 0 < split["transfer_ms"] < split["pair"]["cost_ms"] - split["whole"]["cost_ms"] and split["moved_tokens"] > 0
        text = explained(w, rq["id"])
        assert "one node computes the prompt and answers: the lowest predicted cost" in text and "(prefill to decode)" in text, text
    finally:
        w.close(getattr(request.node, "failed", False))
        other.close()


def test_a_prefill_node_whose_engine_does_not_save(tmp_path, request):
    """One prompt is computed there for nothing; while the engine is avoided, the next prompts are computed on
    the node that answers them."""
    # Other nodes could reach the store, and the router requires no more; here both nodes use the same store.
    reachable = {"security": security(bootstrap(tmp_path / "pki", "store"), "store"), "cluster": {"router": f"127.0.0.1:{free_port()}"}}
    w = World(tmp_path, start=False, router={"router.disagg": {"enabled": True, "colocate_below_tokens": 64}}, store=reachable)
    (tmp_path / "other").mkdir()
    other = Engine(tmp_path / "other")
    try:
        w.agent, _, w.admin = w.start("prefill", role="prefill")
        admin = w.start("decode", of=other, role="decode")[2]
        w.c.wait_ready(2)
        for port in (w.admin, admin):
            until(lambda p=port: ask(p, "GET", "/engines").json()["engines"][0]["kept_slots"]["at_work"], "both keep their slots")
        until(lambda: all("kv" in n for n in w.c.status()["nodes"]), lambda: w.c.status())
        w.asked(prompt_of(1))
        until(lambda: w.c.metric("cgn_disagg_total", outcome="prefilled") == 1, "it works")
        split = json.loads(ask(w.c.admin_port, "GET", "/explain?last=1").body)["requests"][0]["tries"][0]["split"]
        assert (split["chosen"], split["by"]) == ("pair", "tokens") and split["pair"]["cost_ms"] > split["whole"]["cost_ms"] > 0, split
        w.engine.how_save, computed = "refused", w.engine.computed
        for i in range(6):
            w.asked(prompt_of(2 + i))
        came = {o: w.c.metric("cgn_disagg_total", outcome=o) for o in ("failed", "unsupported", "no_node")}
        assert sum(came.values()) == 6 and came["unsupported"] >= 1, came  # the agent reports the fault before a breaker opens
        assert w.engine.computed - computed < 5 * 32 * PAGE, w.kept()  # after 0, 1, 3 and 7 s, if the machine is that slow
        assert [e["disagg"] for e in w.c.router_process.tells("gateway.request", 2, method="POST")][:2] == ["prefilled", "failed"]
    finally:
        w.close(getattr(request.node, "failed", False))
        other.close()

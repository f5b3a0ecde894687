# SPDX-License-Identifier: Apache-2.0
"""Clocks of GPUs by the node's role: the agent's helper limits them through a fake libnvidia-ml (tests/helpers/fake_nvml.c), which writes
each call into a file."""
import json
import os
import signal

import pytest

from cluster import until
from test_agent import adopted, events, fake, is_running, start  # noqa: F401
from test_gpu import FULL, UUID, library, script  # noqa: F401

ONE = "count 1\npower 0 70000\nclock 0 1185\n"


@pytest.fixture
def governed(fake, start, script):
    """Return a function that starts an agent which limits clocks."""
    def go(settings="", mode="on", role="decode", engine=None, gpus=ONE, agent=""):
        script.put(gpus)
        return start(adopted(engine or fake()), agent_toml=f'{library()}\nrole = "{role}"\n{agent}\n[agent.clocks]\nmode = "{mode}"\n{settings}')
    return go


def calls(script):
    """Return what was set and lifted, in order."""
    file = script.path.with_name(script.path.name + ".calls")
    return [x for x in file.read_text().split("\n") if x] if file.exists() else []


def clocks(a):
    return json.loads(a.get("/clocks")[1])


def limit(a, gpu=0, name="limit"):
    v = a.metric(f'cgn_gpu_clock_{name}_hertz{{gpu="{gpu}",uuid="{UUID[gpu]}"}}')
    return v and v / 1e6


def record(a):
    return (a.config.parent / "state/clocks/n1").read_text()


def change(a, old, new):
    text = a.config.read_text()
    assert old in text
    a.config.write_text(text.replace(old, new))
    a.proc.send_signal(signal.SIGHUP)


LOCK, RESET = "lock 0 210 1185 0", "reset 0 0"


@pytest.mark.threads
def test_a_decode_node_runs_slower_until_the_agent_ends(governed, script):
    a = governed()
    until(lambda: limit(a) == 1185, lambda: clocks(a))
    assert calls(script) == [LOCK] and UUID[0] in record(a)
    got = until(lambda: (c := clocks(a)) and "sm_mhz" in c["gpus"][0] and c, lambda: clocks(a))
    assert (got["mode"], got["state"], got["for"]) == ("on", "running", "decode")
    assert {k: got["gpus"][0][k] for k in ("wanted_mhz", "limit_mhz", "why")} == {"wanted_mhz": 1185, "limit_mhz": 1185, "why": ""}
    assert a.event("agent.clocks")["mhz"] == 1185
    a.end()
    assert calls(script) == [LOCK, RESET] and record(a) == "", "lifted before the agent is gone"


@pytest.mark.parametrize("ends", [[signal.SIGKILL], [signal.SIGABRT], [signal.SIGSTOP, signal.SIGKILL]], ids=["kill", "abort", "stop"])
def test_limits_are_lifted_when_the_agent_dies(governed, script, ends):
    a = governed()
    until(lambda: limit(a) == 1185, lambda: clocks(a))
    helper = clocks(a)["helper_pid"]
    os.kill(helper, signal.SIGTERM)  # as a service manager does with all processes of a unit
    for s in ends:
        a.proc.send_signal(s)
    a.ends = -ends[-1]
    until(lambda: calls(script) == [LOCK, RESET] and record(a) == "" and not is_running(helper), lambda: calls(script))
    assert events(a, "agent.clocks_lifted")


def test_the_next_agent_lifts_what_both_left(governed, script):
    a = governed()
    until(lambda: limit(a) == 1185, lambda: clocks(a))
    a.proc.send_signal(signal.SIGSTOP)  # or it starts another helper
    os.kill(clocks_helper(a), signal.SIGKILL)
    a.proc.kill()
    a.proc.wait()
    assert calls(script) == [LOCK] and UUID[0] in record(a)
    b = governed(mode="off")
    until(lambda: calls(script) == [LOCK, RESET] and record(b) == "", lambda: calls(script))
    assert until(lambda: b.event("agent.clocks_recovered"), "said")["gpus"] == 1
    until(lambda: clocks(b)["helper_pid"] == 0, "no helper stays where clocks are not limited")


def clocks_helper(a):
    """Return the helper's pid, of an agent that may be stopped."""
    for pid in os.listdir("/proc"):
        try:
            if pid.isdigit() and open(f"/proc/{pid}/comm").read() == "cgn-clocks\n" and str(a.config.parent) in open(f"/proc/{pid}/cmdline").read():
                return int(pid)
        except OSError:
            pass
    raise AssertionError("no helper")


def test_a_helper_that_dies_is_replaced(governed, script):
    a = governed()
    until(lambda: limit(a) == 1185, lambda: clocks(a))
    first = clocks(a)["helper_pid"]
    os.kill(first, signal.SIGKILL)
    until(lambda: calls(script) == [LOCK, RESET, LOCK] and clocks(a)["helper_pid"] not in (0, first), lambda: (clocks(a), calls(script)))
    assert a.metric("cgn_clock_helpers_total") == 2 and "killed" in a.event("agent.clocks_stopped")["why"]


def test_without_the_right_nothing_is_limited_and_it_is_said_once(governed, script, fake):
    e = fake()
    a = governed(gpus=ONE + "fail DeviceSetGpuLockedClocks 4\n", engine=e).wait_ready()
    until(lambda: a.event("agent.clocks_refused"), lambda: clocks(a))
    assert a.generate("model=m").code == "FINE"
    (said,) = events(a, "agent.clocks_refused")
    assert "Insufficient Permissions" in said["why"] and "CAP_SYS_ADMIN" in said["then"]
    assert limit(a) == 0 and limit(a, name="wanted") == 1185 and "Insufficient" in clocks(a)["gpus"][0]["why"]
    assert len(calls(script)) == 1 and record(a) == ""
    script.put(ONE)
    a.proc.send_signal(signal.SIGHUP)
    until(lambda: limit(a) == 1185, "a reload tries again")


def test_a_gpu_whose_call_fails_costs_the_others_nothing(governed, script):
    a = governed(gpus="count 3\nfail_at DeviceSetGpuLockedClocks 3 999\n")
    until(lambda: a.event("agent.clocks_failed"), lambda: clocks(a))
    assert [g["limit_mhz"] for g in clocks(a)["gpus"]] == [1185, 1185, 0] and "Unknown Error" in clocks(a)["gpus"][2]["why"]
    a.end()
    assert sorted(calls(script)) == ["lock 0 210 1185 0", "lock 1 210 1185 0", "lock 2 210 1185 999", "reset 0 0", "reset 1 0", "reset 2 0"]


def test_shadow_shows_and_touches_nothing(governed, script):
    a = governed(mode="shadow")
    until(lambda: limit(a, name="wanted") == 1185, lambda: clocks(a))
    assert a.event("agent.clocks")["mode"] == "shadow" and limit(a) == 0
    change(a, '"shadow"', '"on"')
    until(lambda: limit(a) == 1185, lambda: clocks(a))
    change(a, '"on"', '"shadow"')
    until(lambda: calls(script) == [LOCK, RESET] and limit(a) == 0, lambda: calls(script))


def test_a_reload_to_off_lifts_and_one_to_on_limits_again(governed, script):
    a = governed("decode_mhz = 1199")
    until(lambda: limit(a) == 1185, lambda: clocks(a))
    change(a, '"on"', '"off"')
    until(lambda: calls(script) == [LOCK, RESET] and clocks(a)["helper_pid"] == 0, lambda: clocks(a))
    assert clocks(a)["gpus"] == [] and limit(a) is None
    change(a, 'mode = "off"\ndecode_mhz = 1199', 'mode = "on"\ndecode_mhz = 1000')
    until(lambda: limit(a) == 990, lambda: clocks(a))


def test_another_role_means_another_clock(governed, script):
    settings = "prefill_mhz = 1700\ndecode_mhz = 900"
    for role, mhz in (("decode", 900), ("prefill", 1695)):
        a = governed(settings, role=role)
        until(lambda: limit(a) == mhz, lambda: clocks(a))
        a.end()
    assert [x for x in calls(script) if x != RESET] == ["lock 0 210 900 0", "lock 0 210 1695 0"]


def test_a_node_of_both_is_fast_while_prompts_are_computed(governed, script, fake):
    e = fake()

    def wait(h):
        e.release.wait()
        h.start_stream()
        h.chunk(b"data: x\n\n")
        h.chunk(b"")
    e.behave = wait
    a = governed('hold = "100ms"', role="both", engine=e).wait_ready()
    until(lambda: limit(a) == 1185, lambda: clocks(a))
    p = a.start("generate", "/v1/chat/completions", "model=m")
    until(lambda: clocks(a)["for"] == "prefill" and limit(a) == 0, lambda: clocks(a))
    e.release.set()
    until(lambda: limit(a) == 1185, lambda: clocks(a))
    assert p.wait() == 0 and calls(script) == [LOCK, RESET, LOCK]


def test_the_lock_of_an_operator_is_left_alone(governed, script):
    a = governed(gpus=ONE + "slowed 0 2\n")
    until(lambda: a.event("agent.clocks_failed"), lambda: clocks(a))
    assert "take_over" in clocks(a)["gpus"][0]["why"] and calls(script) == []
    change(a, 'mode = "on"', 'mode = "on"\ntake_over = true')
    until(lambda: limit(a) == 1185, lambda: clocks(a))


@pytest.mark.parametrize("name, why", [("no-such-library", "no-such-library.so"), ("fake_nvml_few", "cannot lock clocks")])
def test_a_library_that_cannot_lock_is_said_once(fake, start, script, name, why):
    a = start(adopted(fake()), agent_toml=f'{library(name)}\n[agent.clocks]\nmode = "on"')
    until(lambda: clocks(a)["state"] == "stopped", lambda: clocks(a))
    (said,) = events(a, "agent.clocks_stopped")
    assert why in said["why"] and "reload" in said["then"]


def test_a_call_that_hangs_holds_up_nothing(governed, script, fake):
    a = governed(gpus=ONE + "hang DeviceSetGpuLockedClocks\n").wait_ready()
    until(lambda: a.event("agent.clocks_silent"), lambda: clocks(a))
    assert clocks(a)["state"] == "silent" and a.generate("model=m").code == "FINE"
    script.put(ONE)
    os.kill(clocks(a)["helper_pid"], signal.SIGKILL)
    until(lambda: limit(a) == 1185, "the next helper works")


def test_without_a_file_of_limits_nothing_is_limited(governed, script, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state/clocks").write_text("no folder")
    a = governed()
    until(lambda: a.event("agent.clocks_stopped"), lambda: clocks(a))
    assert "state/clocks/n1: Not a directory" in a.event("agent.clocks_stopped")["why"] and calls(script) == []

# SPDX-License-Identifier: Apache-2.0
"""GPUs of a node, read through a fake libnvidia-ml that a file scripts (tests/helpers/fake_nvml.c)."""
import json
import subprocess

import pytest

from cluster import BUILD, WAIT_S, Cluster, until
from test_agent import CTL, adopted, events, fake, start  # noqa: F401

FULL = """count 2
memory_total 0 85899345920
memory_used 0 4294967296
sm 0 93
power 0 612345
power_limit 0 700000
energy 0 123456789
temperature 0 67
clock 0 1980
slowed 0 36
memory_total 1 85899345920
memory_used 1 1000000000
power 1 70000
power_limit 1 700000
"""
UUID = ["GPU-000000a0-0000-0000-0000-000000000000", "GPU-000000a1-0000-0000-0000-000000000000"]


class Script:
    def __init__(self, path):
        self.path = path
        self.put(FULL)

    def put(self, text):
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        fresh.rename(self.path)


@pytest.fixture
def script(tmp_path, monkeypatch):
    s = Script(tmp_path / "gpus")
    monkeypatch.setenv("FAKE_NVML", str(s.path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return s


def library(name="fake_nvml"):
    return f'nvml = "{BUILD}/tests/helpers/{name}.so"'


def gpus(a):
    return json.loads(a.get("/gpus")[1])


def metric(a, name, gpu=0, more=""):
    return a.metric(f'cgn_gpu_{name}{{gpu="{gpu}",uuid="{UUID[gpu]}"{more}}}')


@pytest.mark.threads
def test_gpus_are_in_the_metrics(fake, start, script):
    a = start(adopted(fake()), agent_toml=library())
    until(lambda: a.metric("cgn_gpus") == 2, lambda: gpus(a))
    assert metric(a, "memory_bytes", more=',kind="used"') == 4294967296 and metric(a, "memory_bytes", more=',kind="total"') == 85899345920
    assert metric(a, "sm_ratio") == 0.93 and metric(a, "power_watts") == 612.345 and metric(a, "power_limit_watts") == 700
    assert metric(a, "temperature_celsius") == 67 and metric(a, "energy_joules_total") == 123456
    assert metric(a, "clock_hertz", more=',kind="sm"') == 1981e6 and metric(a, "clock_hertz", more=',kind="memory"') == 1982e6
    assert metric(a, "slowed", more=',reason="power_cap"') == 1 and metric(a, "slowed", more=',reason="thermal"') == 1
    assert metric(a, "slowed", more=',reason="hardware"') == 0 and metric(a, "power_watts", gpu=1) == 70
    first = gpus(a)["gpus"][0]
    assert first["uuid"] == UUID[0] and first["name"] == "NVIDIA H100 80GB HBM3" and first["slowed"] == ["power_cap", "thermal"]
    assert a.event("agent.gpus")["driver"] == "580.65.06"
    script.put(FULL.replace("123456789", "123458100"))
    until(lambda: metric(a, "energy_joules_total") == 123458, "whole joules are counted")
    script.put(FULL.replace("123456789", "5000"))
    until(lambda: metric(a, "energy_joules_total") == 123463, "a driver that was loaded again counts from 0")
    for odd in ("18446744073709551615", "123456000"):  # steps that no GPU can take, forward and back: nothing is counted
        script.put(FULL.replace("123456789", odd))
        until(lambda: gpus(a)["gpus"][0]["energy_mj"] == int(odd), lambda: gpus(a))
    script.put(FULL.replace("123456789", "123458000"))
    until(lambda: metric(a, "energy_joules_total") == 123465, lambda: a.metric("cgn_gpus"))


def test_only_the_gpus_of_the_agent_are_shown(fake, start, script):
    a = start(adopted(fake()), agent_toml=f'{library()}\ngpu_index = "1"')
    until(lambda: a.metric("cgn_gpus") == 1, lambda: gpus(a))
    assert [g["uuid"] for g in gpus(a)["gpus"]] == [UUID[1]] and metric(a, "power_watts") is None and metric(a, "power_watts", gpu=1) == 70


def test_a_machine_without_the_library_says_it_once(fake, start, script):
    a = start(adopted(fake()), agent_toml='nvml = "libno-such-library.so.1"')
    until(lambda: a.event("agent.no_gpus"), "said")
    (said,) = events(a, "agent.no_gpus")
    assert said["level"] == "info" and "libno-such-library.so.1" in said["why"]
    assert a.metric("cgn_gpus") == 0 and gpus(a)["state"] == "absent"


def test_a_library_that_lacks_functions_gives_what_it_has(fake, start, script):
    a = start(adopted(fake()), agent_toml=library("fake_nvml_few"))
    until(lambda: a.metric("cgn_gpus") == 2, lambda: gpus(a))
    assert metric(a, "memory_bytes", more=',kind="used"') == 4294967296 and metric(a, "power_watts") is None


@pytest.mark.slow
@pytest.mark.threads
def test_a_gpu_that_is_lost_is_said_and_not_shown_any_more(fake, start, script):
    a = start(adopted(fake()), agent_toml=library())
    until(lambda: a.metric("cgn_gpus") == 2, lambda: gpus(a))
    script.put(FULL + "fail DeviceGetHandleByIndex 15\n")
    until(lambda: a.metric("cgn_gpus") == 0, lambda: gpus(a))
    assert metric(a, "power_watts") is None, "no old reading is shown"
    assert "GPU is lost" in a.event("agent.gpus_unreadable")["why"] and gpus(a)["state"] == "failing"
    script.put(FULL)
    until(lambda: a.metric("cgn_gpus") == 2, lambda: gpus(a))
    assert len(events(a, "agent.gpus")) == 2 and metric(a, "power_watts") == 612.345


def test_a_library_that_hangs_holds_up_nothing(fake, start, script):
    e = fake()
    a = start(adopted(e), agent_toml=library()).wait_ready()
    until(lambda: a.metric("cgn_gpus") == 2, lambda: gpus(a))
    script.put(FULL + "hang DeviceGetTemperature\n")
    until(lambda: gpus(a)["state"] == "silent", lambda: gpus(a))
    assert "does not return" in a.event("agent.gpus_unreadable")["why"] and a.metric("cgn_gpus") == 0 and metric(a, "power_watts") is None
    assert a.generate("model=m").code == "FINE"
    # The agent ends all the same (the fixture waits for that).


def test_cluster_nodes_shows_memory_and_power(tmp_path, script):
    with Cluster(tmp_path) as c:
        c.router()
        c.node("a", "--time-scale", "0", sections={"agent": {"nvml": str(BUILD / "tests/helpers/fake_nvml.so")}})
        c.node("b", "--time-scale", "0", sections={"agent": {"nvml": ""}})
        c.wait_ready(2)

        def nodes(*more):
            return subprocess.run([CTL, "cluster", "nodes", "--router", f"127.0.0.1:{c.grpc_port}", *more], capture_output=True, text=True,
                                  timeout=WAIT_S).stdout

        until(lambda: "5.3/171.8" in nodes("-o", "wide") and "682/1400" in nodes("-o", "wide"), lambda: nodes("-o", "wide"))
        load = {n["id"]: n["load"] for n in c.status()["nodes"]}
        assert load["a"]["gpus"] == 2 and int(load["a"]["gpu_power_mw"]) == 682345 and load["b"]["gpus"] == 0


def test_gpus_are_readings_of_power_that_are_not_used_when_the_library_fails(fake, start, script):
    a = start(adopted(fake()), agent_toml=library())
    node = until(lambda: json.loads(a.get("/power")[1])["nodes"], "a node")[0]["node"]
    watts = f'cgn_power_watts{{node="{node}",component="gpu",part="{UUID[0]}",source="nvml"}}'
    until(lambda: a.metric(watts) == 612.345, lambda: a.get("/power")[1])
    nodes = json.loads(a.get("/power")[1])["nodes"]
    assert nodes[0]["source"] == "nvml" and nodes[0]["whole"] is False and nodes[0]["watts"] >= 682.345
    kinds = {(r["quantity"], r.get("kind")) for s in json.loads(a.get("/power")[1])["sources"] for r in s["readings"] if r["part"] == UUID[0]}
    assert {("hertz", "sm"), ("bytes", "used"), ("share", "sm"), ("flag", "power_cap"), ("joules", None), ("celsius", None)} <= kinds
    script.put(FULL.replace("123456789", "123458100"))
    until(lambda: a.metric(watts.replace("cgn_power_watts", "cgn_energy_joules_total")) == 1, "energy since the agent began to read")
    script.put(FULL + "fail DeviceGetPowerUsage 999\n")  # one reading fails, the others go on
    until(lambda: a.metric(watts) is None, lambda: a.get("/power")[1])
    assert a.metric(f'cgn_temperature_celsius{{node="{node}",component="gpu",part="{UUID[0]}",source="nvml"}}') == 67
    script.put(FULL + "fail DeviceGetHandleByIndex 15\n")
    until(lambda: gpus(a)["state"] == "failing", lambda: gpus(a))
    until(lambda: a.metric(f'cgn_power_source_up{{node="{node}",source="nvml"}}') == 0, lambda: a.get("/power")[1])


def test_cpus_and_meters_of_the_node_are_read_from_sysfs(fake, start, script, tmp_path):
    def put(path, text):
        file = tmp_path / "sys/class" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    rapl = "powercap/intel-rapl:0"
    for file, text in (("name", "package-0"), ("energy_uj", "999000000"), ("max_energy_range_uj", "1000000000"), ("constraint_0_power_limit_uw", "200000000")):
        put(f"{rapl}/{file}", text)
    put("hwmon/hwmon0/name", "power_meter")
    put("hwmon/hwmon0/power1_average", "344000000")
    a = start(adopted(fake()), agent_toml=f'nvml = ""\nsysfs = "{tmp_path}/sys"')
    node = until(lambda: json.loads(a.get("/power")[1])["nodes"], "a node")[0]["node"]
    until(lambda: a.metric(f'cgn_node_power_watts{{node="{node}",by="node",source="hwmon"}}') == 344, lambda: a.get("/power")[1])
    energy = f'cgn_energy_joules_total{{node="{node}",component="cpu",part="0",source="rapl"}}'
    until(lambda: a.metric(energy) == 0, lambda: a.get("/power")[1])
    put(f"{rapl}/energy_uj", "41000000")  # 1 J up to the wrap, and 41 J
    until(lambda: a.metric(energy) == 42, lambda: a.get("/power")[1])
    put("hwmon/hwmon0/power1_average", "nonsense")
    until(lambda: "no number" in a.get("/power")[1], lambda: a.get("/power")[1])
    until(lambda: a.metric(f'cgn_node_power_watts{{node="{node}",by="node",source="hwmon"}}') is None, "not used any more")

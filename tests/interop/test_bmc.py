# SPDX-License-Identifier: Apache-2.0
"""cgn-metrics with BMCs that others wrote: OpenStack's sushy-tools (Redfish) and OpenIPMI's ipmi_sim behind ipmitool."""
import json
import pathlib
import shutil
import subprocess
import sys

import pytest
from cluster import free_port, until
from ipmi_bmc import Sim
from test_power import bmcs, start  # noqa: F401

TOOLS = pathlib.Path(sys.executable).parent
needs_sushy = pytest.mark.skipif(not (TOOLS / "sushy-static").exists(), reason="sushy-tools is not installed")
needs_ipmi = pytest.mark.skipif(not (shutil.which("ipmi_sim") and shutil.which("ipmitool")), reason="openipmi or ipmitool is not installed")


@pytest.fixture
def tool(tmp_path):
    """Start one of sushy-tools' servers; returns its URL."""
    running = []

    def begin(name, *args):
        port = free_port()
        with open(tmp_path / f"{name}.log", "ab") as log:
            running.append(subprocess.Popen([TOOLS / name, "-i", "127.0.0.1", "-p", str(port), *map(str, args)], stdout=log, stderr=log, cwd=tmp_path))
        return f"http://127.0.0.1:{port}"
    yield begin
    for p in running:
        p.kill()
        p.wait()


def mockup(folder):
    """A machine in the layout of DMTF's mockups: a folder for each resource, with its index.json."""
    def link(path):
        return {"@odata.id": "/redfish/v1/" + path}

    def members(path, *names):
        return {"Members@odata.count": len(names), "Members": [link(f"{path}/{n}") for n in names]}
    supply, unit = "Chassis/1U/PowerSubsystem/PowerSupplies", "Chassis/1U"
    pages = {
        "": {"@odata.type": "#ServiceRoot.v1_15_0.ServiceRoot", "Chassis": link("Chassis"), "Links": {"Sessions": link("SessionService/Sessions")}},
        "Chassis": members("Chassis", "1U"),
        unit: {"ChassisType": "RackMount", "Power": link(f"{unit}/Power"), "PowerSubsystem": link(f"{unit}/PowerSubsystem"),
               "ThermalSubsystem": link(f"{unit}/ThermalSubsystem"), "EnvironmentMetrics": link(f"{unit}/EnvironmentMetrics"),
               "Sensors": link(f"{unit}/Sensors")},
        f"{unit}/Power": {"PowerControl": [{"MemberId": "0", "PowerConsumedWatts": 344, "PowerLimit": {"LimitInWatts": 500}}],
                          "PowerSupplies": [{"MemberId": "0", "LastPowerOutputWatts": 325}]},
        f"{unit}/PowerSubsystem": {"PowerSupplies": link(supply), "PowerSupplyRedundancy": [
            {"RedundancyType": "Failover", "Status": {"State": "UnavailableOffline", "Health": "OK"}}]},
        supply: members(supply, "Bay1", "Bay2"),
        f"{supply}/Bay1": {"Status": {"State": "Enabled", "Health": "Warning"}, "Metrics": link(f"{supply}/Bay1/Metrics")},
        f"{supply}/Bay1/Metrics": {"InputPowerWatts": {"Reading": 380.5}, "EnergykWh": {"Reading": 325675}, "TemperatureCelsius": {"Reading": 43.9}},
        f"{supply}/Bay2": {"Status": {"State": "Absent"}},
        f"{unit}/ThermalSubsystem": {"ThermalMetrics": link(f"{unit}/ThermalSubsystem/ThermalMetrics")},
        f"{unit}/ThermalSubsystem/ThermalMetrics": {"TemperatureSummaryCelsius": {"Intake": {"Reading": 24.8}, "Exhaust": {"Reading": None}}},
        f"{unit}/EnvironmentMetrics": {"PowerWatts": {"Reading": 374, "DataSourceUri": f"/redfish/v1/{unit}/Sensors/TotalPower"}},
        f"{unit}/Sensors": members(f"{unit}/Sensors", "CPU1Power", "TotalPower", "Fan1"),
        f"{unit}/Sensors/CPU1Power": {"Id": "CPU1Power", "ReadingType": "Power", "Reading": 90, "PhysicalContext": "CPU"},
        f"{unit}/Sensors/TotalPower": {"Id": "TotalPower", "ReadingType": "Power", "Reading": 374, "PhysicalContext": "Chassis"},
        f"{unit}/Sensors/Fan1": {"Id": "Fan1", "ReadingType": "Rotational", "Reading": 9000}}
    for path, page in pages.items():
        (folder / path).mkdir(parents=True, exist_ok=True)
        (folder / path / "index.json").write_text(json.dumps({"@odata.id": "/redfish/v1/" + path, "Oem": {"Contoso": {"x": [1]}}, **page}))
    return folder


def values(m, node, source="redfish"):
    return {(r["component"], r["part"], r.get("kind"), r["quantity"]): r.get("value", r["state"]) for r in m.source(node, source)["readings"]}


@needs_sushy
def test_a_mockup_of_the_new_schemas(start, tool, tmp_path):  # noqa: F811
    url = tool("sushy-static", "-m", mockup(tmp_path / "mockup"))
    m = start(bmcs(n1={"url": url}))
    # PowerControl says 344 and EnvironmentMetrics, which is newer, 374.
    until(lambda: m.metric('cgn_node_power_watts{node="n1",by="chassis",source="redfish"}') == 374, m.power)
    got = values(m, "n1")
    assert got["psu", "1U/Bay1", None, "watts"] == 380.5 and got["psu", "1U/Bay2", None, "watts"] == "absent"
    assert got["psu", "1U/0", "redundant", "flag"] == 0 and got["psu", "1U/Bay1", None, "joules"] == 325675 * 3.6e6
    assert got["cpu", "1U/CPU1Power", None, "watts"] == 90 and got["chassis", "1U/TotalPower", "sensor", "watts"] == 374
    assert got["chassis", "1U", "intake", "celsius"] == 24.8 and got["chassis", "1U", "exhaust", "celsius"] == "failing"
    assert not [k for k in got if k[2] == "output"], "supplies are not read twice"
    assert m.metric('cgn_power_redundant{node="n1",part="1U/0"}') == 0


@needs_sushy
def test_an_emulator_with_basic_authentication(start, tool, tmp_path):  # noqa: F811
    import bcrypt
    (tmp_path / "users").write_text("cgn:" + bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode() + "\n")
    (tmp_path / "emulator.conf").write_text(f"SUSHY_EMULATOR_AUTH_FILE = {str(tmp_path / 'users')!r}\n")
    (tmp_path / "password").write_text("secret\n")
    url = tool("sushy-emulator", "--fake", "--config", tmp_path / "emulator.conf")
    m = start(bmcs(n1={"url": url, "user": "cgn", "password_file": str(tmp_path / "password")}, n2={"url": url}))
    until(lambda: m.source("n1")["up"] and m.source("n1")["readings"], m.power)
    assert {(c, q, v) for (c, _, _, q), v in values(m, "n1").items()} == {("cpu", "celsius", 41), ("other", "celsius", 25)}
    until(lambda: "wants a user" in m.source("n2")["why"], m.power)
    (tmp_path / "password").write_text("guess\n")
    until(lambda: "does not let the user cgn" in m.source("n1")["why"], m.power)
    (tmp_path / "password").write_text("secret\n")
    until(lambda: m.source("n1")["up"], m.power)


@needs_ipmi
def test_ipmi_over_lan(start, tmp_path):  # noqa: F811
    sim = Sim(tmp_path)
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "guess").write_text("guess\n")
    try:
        # A BMC that does not list its cipher suites keeps ipmitool waiting for 5 s.
        m = start({"metrics": {"power_timeout": "10s"}, **bmcs(
            n1={"ipmi_host": f"127.0.0.1:{sim.port}", "ipmi_user": "cgn", "ipmi_password_file": str(tmp_path / "secret")},
            n2={"ipmi_host": f"127.0.0.1:{sim.port}", "ipmi_user": "cgn", "ipmi_password_file": str(tmp_path / "guess")})})
        until(lambda: m.metric('cgn_node_power_watts{node="n1",by="node",source="ipmi"}') == 800, m.power)
        got = values(m, "n1", "ipmi")
        assert got == {("psu", "PS1 Input Power", None, "watts"): 400, ("psu", "PS2 Input Power", None, "watts"): 360,
                       ("cpu", "CPU1 Temp", None, "celsius"): 45, ("node", "Sys Power", None, "watts"): 800}
        until(lambda: "Unable to establish" in m.source("n2", "ipmi")["why"], m.power)
        sim.kill()
        until(lambda: not m.source("n1", "ipmi")["up"], m.power)
        assert "guess" not in json.dumps(m.power()).replace("/guess", "")
    finally:
        sim.kill()

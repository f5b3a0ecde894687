# SPDX-License-Identifier: Apache-2.0
"""cgn-metrics reads BMCs: one that behaves, and those that hang, drip, lie, redirect or have expired certificates."""
import contextlib
import json
import signal
import time

import fake_bmc
import pytest
from cluster import Process, ask, free_port, toml, until
from fake_bmc import Bmc, certificate


class Metrics:
    """cgn-metrics with the given sections."""

    def __init__(self, folder, sections):
        self.port, self.folder = free_port(), folder
        self.write(sections)
        self.process = Process(folder, "metrics", "cgn-metrics", "--config", self.file, "--set", "log.format=json")

    def write(self, sections):
        own = {"listen": f"127.0.0.1:{self.port}", "power_interval": "1s", "power_timeout": "500ms", "node": "rack", **sections.pop("metrics", {})}
        self.file = self.folder / "metrics.toml"
        self.file.write_text(toml({"metrics": own, **sections}))

    def get(self, path):
        return ask(self.port, "GET", path)

    def power(self):
        try:
            return json.loads(self.get("/power").body)
        except OSError:  # it is starting
            return {"nodes": [], "sources": []}

    def source(self, node, name="redfish"):
        return next((s for s in self.power()["sources"] if (s["node"], s["source"]) == (node, name)), None) or {"up": False, "why": "", "readings": []}

    def watts(self, node):
        return next((n for n in self.power()["nodes"] if n["node"] == node), {}).get("watts")

    def metric(self, line):
        try:
            text = self.get("/metrics").body.decode()
        except OSError:
            return None
        found = [v for n, _, v in (row.rpartition(" ") for row in text.splitlines()) if n == line]
        return float(found[0]) if found else None


@pytest.fixture
def start(tmp_path, request):
    with contextlib.ExitStack() as stack:
        running = []

        def begin(sections):
            m = Metrics(tmp_path, sections)
            running.append(m)
            stack.callback(m.process.kill)
            return m
        yield begin
        if getattr(request.node, "failed", False):
            print(*(m.process.log() for m in running))
        assert not [t for m in running if (t := m.process.trouble())]


def bmcs(**of):
    return {f'bmcs."{node}"': keys for node, keys in of.items()}


def credentials(tmp_path, password="right"):
    (tmp_path / "password").write_text(password + "\n")
    return {"user": "cgn", "password_file": str(tmp_path / "password")}


def test_a_bmc_over_tls_with_a_session(start, tmp_path):
    crt, key, fingerprint = certificate(tmp_path)
    with Bmc(user="cgn", tls=(crt, key)) as bmc:
        m = start(bmcs(n1={"url": bmc.url, "fingerprint": fingerprint, **credentials(tmp_path)}))
        until(lambda: m.metric('cgn_node_power_watts{node="n1",by="chassis",source="redfish"}') == 344, m.power)
        assert m.metric('cgn_power_watts{node="n1",component="chassis",part="1U",source="redfish"}') == 344 and m.watts("n1") == 344
        assert m.metric('cgn_temperature_celsius{node="n1",component="other",part="1U/Inlet/intake",source="redfish"}') == 21.5
        assert m.metric('cgn_power_redundant{node="n1",part="1U/0"}') == 1 and m.metric('cgn_power_source_up{node="n1",source="redfish"}') == 1
        assert m.metric('cgn_power_readings{node="n1",source="redfish",state="absent"}') == 1
        first = bmc.gets
        until(lambda: bmc.gets > first + 5, "another round")
        assert bmc.logins == 1, "one session for all rounds"
        bmc.tokens.clear()  # the BMC was restarted
        until(lambda: bmc.logins == 2, "a new session")
        assert m.source("n1")["up"]  # and the program may end before it has the token
        assert m.process.stop() == 0
        assert bmc.logouts == 1 and not bmc.tokens, "the session was ended"
        assert len(m.process.events("power.source_up")) == 1 and not m.process.events("power.source_down")


def test_a_password_that_is_changed(start, tmp_path):
    with Bmc(user="cgn", password="hunter2") as bmc:
        m = start(bmcs(n1={"url": bmc.url, **credentials(tmp_path, "hunter1")}))
        until(lambda: "refuses the user cgn" in m.source("n1")["why"], m.power)
        refused = bmc.refused
        (tmp_path / "password").write_text("hunter2\n")
        until(lambda: m.watts("n1") == 344, m.power)
        assert refused <= 2, "a wrong password is not tried again and again"
        assert "hunter" not in m.process.log() + json.dumps(m.power())


def test_bmcs_that_misbehave_each_have_a_reason_and_delay_no_other(start, tmp_path):
    old, new = certificate(tmp_path, -1), certificate(tmp_path, 30)
    reasons = {"hangs": "time", "drips": "within", "garbage": "", "html": "no JSON", "redirects": "elsewhere.example", "million": "262144 bytes",
               "expired": "expired", "unknown": "is refused", "other": new[2].replace(":", "").lower()}
    with contextlib.ExitStack() as stack:
        def bmc(**kv):
            return stack.enter_context(Bmc(**kv)).url
        ca = {"ca_file": str(old[0])}
        m = start(bmcs(good={"url": bmc()}, hangs={"url": bmc(mood=fake_bmc.hang)}, drips={"url": bmc(mood=fake_bmc.drip)},
                       garbage={"url": bmc(mood=fake_bmc.garbage)}, html={"url": bmc(mood=fake_bmc.html)},
                       redirects={"url": bmc(mood=fake_bmc.redirect)}, million={"url": bmc(mood=fake_bmc.million)},
                       expired={"url": bmc(tls=old), **ca}, unknown={"url": bmc(tls=new), **ca}, other={"url": bmc(tls=new), "fingerprint": old[2]},
                       pinned={"url": bmc(tls=old), "fingerprint": old[2]}))
        for node, why in reasons.items():
            until(lambda: m.source(node)["why"] and why in m.source(node)["why"], lambda: (node, m.source(node)))
            assert not m.source(node)["up"] and m.watts(node) is None, "no reading is not 0 W"
            until(lambda: m.watts("good") == 344 and m.watts("pinned") == 344, m.power)
        assert m.source("good")["age_seconds"] < 5, "the others do not delay it"
        until(lambda: all(m.metric(f'cgn_power_source_up{{node="{n}",source="redfish"}}') == 0 for n in reasons), "told as down")
        assert m.get("/healthz").status == 200
        assert m.process.rss_kib() < 100 * 1024, "a million members are not kept"
        until(lambda: set(reasons) <= {e["node"] for e in m.process.events("power.source_down")}, "each is said")


def test_readings_of_a_bmc_that_dies_become_stale(start, tmp_path):
    bmc = Bmc()
    m = start(bmcs(n1={"url": bmc.url}))
    until(lambda: m.metric('cgn_node_power_watts{node="n1",by="chassis",source="redfish"}') == 344, m.power)
    bmc.mood = fake_bmc.html
    until(lambda: not m.source("n1")["up"], m.power)
    assert m.watts("n1") == 344 or m.watts("n1") is None  # for three intervals more
    until(lambda: m.watts("n1") is None, m.power)
    until(lambda: {r["state"] for r in m.source("n1")["readings"]} == {"stale", "absent"}, m.power)
    assert any(r.get("value") == 344 for r in m.source("n1")["readings"])
    until(lambda: m.metric('cgn_power_watts{node="n1",component="chassis",part="1U",source="redfish"}') is None, "the series is gone")
    assert m.metric('cgn_power_readings{node="n1",source="redfish",state="stale"}') > 0
    bmc.mood = None
    until(lambda: m.watts("n1") == 344, m.power)
    bmc.__exit__()


def test_bmcs_may_be_added_without_a_restart(start, tmp_path):
    with Bmc() as one, Bmc(fake_bmc.machine(500)) as other:
        m = start(bmcs(n1={"url": one.url}))
        until(lambda: m.watts("n1") == 344, m.power)
        m.write(bmcs(n2={"url": other.url}))
        m.process.signal(signal.SIGHUP)
        until(lambda: m.watts("n2") == 500, m.power)
        assert [n["node"] for n in m.power()["nodes"]] == ["n2"]
        assert m.metric('cgn_power_watts{node="n1",component="chassis",part="1U",source="redfish"}') is None
        m.write(bmcs(n2={"url": "nonsense"}))
        m.process.signal(signal.SIGHUP)
        until(lambda: m.process.events("svc.reloaded_in_part"), m.process.log)
        assert 'bmcs."n2"' in json.dumps(m.process.events("svc.reloaded_in_part")[0]).replace("\\", "")


def test_ipmitool_that_is_missing_is_said_once(start, tmp_path):
    m = start({"metrics": {"ipmi": "local", "ipmitool": str(tmp_path / "ipmitool")}})
    until(lambda: m.source("rack", "ipmi")["why"], m.power)
    assert "ipmitool" in m.source("rack", "ipmi")["why"]
    time.sleep(2.5)  # two rounds more
    assert len(m.process.events("power.source_down")) == 1


def test_ipmitool_that_hangs_is_killed(start, tmp_path):
    tool = tmp_path / "ipmitool"
    tool.write_text("#!/bin/sh\ntrap '' TERM\necho $$ >>" + str(tmp_path / "pids") + "\nsleep 1000\n")
    tool.chmod(0o755)
    with Bmc() as bmc:
        m = start({"metrics": {"ipmi": "local", "ipmitool": str(tool)}, **bmcs(good={"url": bmc.url})})
        until(lambda: "did not end" in m.source("rack", "ipmi")["why"], m.power)
        assert m.watts("good") == 344
        pid = int((tmp_path / "pids").read_text().split()[0])
        until(lambda: not alive(pid), "the program is gone")


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False

# SPDX-License-Identifier: Apache-2.0
"""cgn-metrics reads BMCs: one that behaves, and those that hang, drip, lie, redirect or have expired certificates."""
import contextlib
import json
import signal

import fake_bmc
import pytest
from cluster import BUILD, SANITIZER, Process, ask, free_port, toml, until
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
    reasons = {"hangs": "time", "drips": "within", "garbage": "", "html": "not a JSON document", "redirects": "elsewhere.example", "million": "262144 bytes",
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


def test_bmcs_may_be_added_and_left_out_without_a_restart(start, tmp_path):
    with Bmc(user="cgn") as one, Bmc(fake_bmc.machine(500)) as other:
        kept = {"url": one.url, **credentials(tmp_path)}
        m = start(bmcs(n1=kept))
        until(lambda: m.watts("n1") == 344, m.power)
        one.mood = fake_bmc.hang  # what is known of n1 now is what was read before
        m.write(bmcs(n2={"url": other.url}, n1=kept))
        m.process.signal(signal.SIGHUP)
        until(lambda: m.process.events("svc.reloaded"), m.process.log)
        assert m.watts("n1") == 344 and m.metric('cgn_node_power_watts{node="n1",by="chassis",source="redfish"}') == 344
        until(lambda: m.watts("n2") == 500, m.power)
        one.mood = None
        m.write(bmcs(n2={"url": other.url}))
        m.process.signal(signal.SIGHUP)
        until(lambda: [n["node"] for n in m.power()["nodes"]] == ["n2"], m.power)
        until(lambda: m.metric('cgn_power_watts{node="n1",component="chassis",part="1U",source="redfish"}') is None, "its series are gone")
        until(lambda: one.logouts == 1, "its session is ended")
        assert one.logins == 1, "a reload opens no session to a BMC that stays"


def test_bmcs_that_cannot_be_used_leave_all_as_it_was(start, tmp_path):
    with Bmc() as one, Bmc(fake_bmc.machine(500)) as other:
        m = start(bmcs(n1={"url": one.url}))
        until(lambda: m.watts("n1") == 344, m.power)
        m.write(bmcs(n0={"url": other.url}, n2={"url": "nonsense"}))
        m.process.signal(signal.SIGHUP)
        until(lambda: m.process.events("svc.reloaded_in_part"), m.process.log)
        assert 'bmcs."n2"' in json.dumps(m.process.events("svc.reloaded_in_part")[0]).replace("\\", "")
        assert [(n["node"], n["watts"]) for n in m.power()["nodes"]] == [("n1", 344)]
        asked, before = other.gets, one.gets
        until(lambda: one.gets > before + 4, "n1 is read on")
        assert other.gets == asked, "nothing of the new configuration is kept"


def dcgm(watts, host="gpu-01"):
    """DCGM's text for GPUs that draw |watts|."""
    return "".join(f'DCGM_FI_DEV_POWER_USAGE{{gpu="{i}",UUID="GPU-{i}",device="nvidia{i}",Hostname="{host}"}} {w}\n'
                   f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu="{i}",UUID="GPU-{i}",device="nvidia{i}",Hostname="{host}"}} {w * 1e6:.0f}\n'
                   f'DCGM_FI_DEV_GPU_TEMP{{gpu="{i}",UUID="GPU-{i}",device="nvidia{i}",Hostname="{host}"}} 41\n' for i, w in enumerate(watts)).encode()


def test_the_exporter_of_dcgm(start):
    pages = {"/metrics": dcgm([300, 310.5]), "/other": dcgm([200])}
    with Bmc(pages) as exporter:
        m = start({"metrics": {"dcgm_url": exporter.url}, **bmcs(n1={"metrics_url": exporter.url + "/other"})})
        until(lambda: m.metric('cgn_node_power_watts{node="rack",by="other",source="dcgm"}') == 610.5, m.power)
        until(lambda: m.metric('cgn_node_power_watts{node="n1",by="other",source="dcgm"}') == 200, m.power)
        assert m.metric('cgn_power_watts{node="rack",component="gpu",part="GPU-1",source="dcgm"}') == 310.5
        assert m.metric('cgn_temperature_celsius{node="rack",component="gpu",part="GPU-0",source="dcgm"}') == 41
        assert m.metric('cgn_power_source_up{node="rack",source="text"}') == 1
        pages["/metrics"] = dcgm([300, 310.5]).replace(b"300000000", b"300050000")  # 50 J
        until(lambda: m.metric('cgn_energy_joules_total{node="rack",component="gpu",part="GPU-0",source="dcgm"}') == 50, m.power)
        pages["/metrics"] = dcgm([300, 310.5]).replace(b"300000000", b"1000000")  # the driver was loaded again
        pages["/other"] += dcgm([1000], "gpu-02")
        until(lambda: "gpu-02 is left out" in m.source("n1", "text")["why"], m.power)
        assert m.watts("n1") == 200
        assert m.metric('cgn_energy_joules_total{node="rack",component="gpu",part="GPU-0",source="dcgm"}') == 50
        pages["/metrics"] = b"up 1\n"
        until(lambda: "neither DCGM" in m.source("rack", "text")["why"], m.power)
        assert m.source("rack", "text")["readings"], "those of before are kept until they are stale"


def test_texts_that_misbehave_each_have_a_reason_and_delay_no_other(start, tmp_path):
    old = certificate(tmp_path, -1)
    reasons = {"hangs": "within 0.5 s", "drips": "within 0.5 s", "garbage": "", "html": "neither DCGM", "redirects": "redirects are not followed",
               "endless": "4194304 bytes", "expired": "expired", "missing": "status 404"}
    with contextlib.ExitStack() as stack:
        def text(**kv):
            return stack.enter_context(Bmc({"/metrics": dcgm([500])}, **kv)).url
        m = start(bmcs(good={"metrics_url": text()}, hangs={"metrics_url": text(mood=fake_bmc.hang)}, drips={"metrics_url": text(mood=fake_bmc.drip)},
                       garbage={"metrics_url": text(mood=fake_bmc.garbage)}, html={"metrics_url": text(mood=fake_bmc.html)},
                       redirects={"metrics_url": text(mood=fake_bmc.redirect)}, endless={"metrics_url": text(mood=fake_bmc.endless)},
                       expired={"metrics_url": text(tls=old), "metrics_ca_file": str(old[0])}, missing={"metrics_url": text() + "/none"},
                       pinned={"metrics_url": text(tls=old), "metrics_fingerprint": old[2]}))
        for node, why in reasons.items():
            until(lambda: m.source(node, "text")["why"] and why in m.source(node, "text")["why"], lambda: (node, m.source(node, "text")))
            assert not m.source(node, "text")["up"] and m.watts(node) is None
        until(lambda: m.watts("good") == 500 and m.watts("pinned") == 500, m.power)
        assert m.source("good", "text")["age_seconds"] < 5, "the others do not delay it"
        assert m.process.rss_kib() < 100 * 1024


def test_one_answer_for_a_node_of_several_sources(start):
    """The meter of the machine, its supplies, the GPUs as DCGM and as the agent tell them: each watt is counted once."""
    agent = b"".join(b'cgn_power_watts{node="n1",component="%s",part="%s",source="%s"} %d\n' % row for row in
                     ((b"gpu", b"GPU-0", b"nvml", 200), (b"cpu", b"0", b"rapl", 90)))
    with Bmc() as bmc, Bmc({"/metrics": agent}) as exporter:
        m = start(bmcs(n1={"url": bmc.url, "metrics_url": exporter.url}))
        until(lambda: m.watts("n1") == 344, m.power)
        until(lambda: m.source("n1", "text")["up"], m.power)
        node = m.power()["nodes"][0]
        assert (node["watts"], node["by"], node["source"], node["whole"]) == (344, "chassis", "redfish", True)
        bmc.mood = fake_bmc.html  # the BMC's readings become stale; the agent's are what is left
        until(lambda: m.watts("n1") == 290, m.power)
        node = m.power()["nodes"][0]
        assert (node["by"], node["whole"], node["readings"]) == ("other", False, 2)
        until(lambda: m.metric('cgn_node_power_watts{node="n1",by="other",source="nvml"}') == 290, m.power)
        assert m.metric('cgn_node_power_watts{node="n1",by="chassis",source="redfish"}') is None
        bmc.mood = None
        exporter.pages["/metrics"] = agent.replace(b" 200\n", b" 5600\n")  # GPUs in a chassis of their own, which has no meter
        until(lambda: m.watts("n1") == 5690, m.power)
        assert (m.power()["nodes"][0]["by"], m.power()["nodes"][0]["whole"]) == ("other", False)


def test_ipmitool_that_is_missing_is_said_once(start, tmp_path):
    with Bmc({"/metrics": dcgm([300])}) as other:
        m = start({"metrics": {"ipmi": "local", "ipmitool": str(tmp_path / "ipmitool")}, **bmcs(n1={"metrics_url": other.url})})
        until(lambda: m.source("rack", "ipmi")["why"], m.power)
        assert "ipmitool" in m.source("rack", "ipmi")["why"]
        asked = other.gets
        until(lambda: other.gets > asked + 2, lambda: f"not two rounds more: {other.gets}")
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


def test_what_is_scraped_is_read_too_and_counted_once(start):
    """A target that is scraped anyway, an agent or an exporter by the name of its node, needs no other setting."""
    agent = b'cgn_power_watts{node="n1",component="gpu",part="GPU-0",source="nvml"} 200\n' + b'cgn_energy_joules_total{node="n1",component="gpu",part="GPU-0",source="nvml"} %d\n'
    with Bmc({"/metrics": agent % 5, "/dcgm": dcgm([300])}) as e:
        targets = {f'scrape_targets."{n}"': {"url": e.url + path} for n, path in (("n1", "/metrics"), ("n2", "/dcgm"), ("n3", "/metrics"))}
        m = start({"metrics": {"scrape_interval": "300ms", "scrape_timeout": "300ms"}, **targets, **bmcs(n1={"metrics_url": e.url})})
        until(lambda: m.watts("n1") == 200 and m.watts("n2") == 300, m.power)
        until(lambda: m.source("n1", "scrape")["up"] and m.source("n1", "text")["up"], m.power)
        assert m.watts("n1") == 200 and m.watts("n3") is None, "a text of another node is not taken for this one"
        until(lambda: m.metric('cgn_node_power_watts{node="n2",by="other",source="dcgm"}') == 300, m.power)
        e.pages["/metrics"] = agent % 75
        until(lambda: m.metric('cgn_energy_joules_total{node="n1",component="gpu",part="GPU-0",source="nvml"}') == 70, m.power)
        e.pages["/dcgm"] = b"up 1\n"
        until(lambda: m.source("n2", "scrape")["why"] and m.watts("n2") is None, m.power)
        assert {r["state"] for r in m.source("n2", "scrape")["readings"]} == {"stale"}


def test_agents_that_routers_know_tell_their_nodes_power(start, cluster, tmp_path):
    meter = tmp_path / "sys/class/hwmon/hwmon0"
    meter.mkdir(parents=True)
    (meter / "name").write_text("power_meter\n")
    (meter / "power1_average").write_text("812000000\n")
    cluster.router()
    cluster.node("a", "--time-scale", "0", sections={"agent": {"nvml": "", "sysfs": str(tmp_path / "sys")}})
    cluster.wait_ready(1)
    m = start({"metrics": {"scrape_routers": [f"127.0.0.1:{cluster.grpc_port}"], "scrape_interval": "300ms", "scrape_timeout": "300ms"}})
    until(lambda: m.metric('cgn_node_power_watts{node="a",by="node",source="hwmon"}') == 812, m.power)
    assert m.source("a", "scrape")["up"] and m.watts("a") == 812


@pytest.mark.plain
def test_a_clock_that_jumps_changes_no_reading(start, tmp_path, monkeypatch):
    if SANITIZER:
        pytest.skip("a sanitizer's runtime wants to be loaded first")
    shift = tmp_path / "shift"
    shift.write_text("0")
    monkeypatch.setenv("LD_PRELOAD", str(BUILD / "tests/helpers/clock_shift.so"))
    monkeypatch.setenv("CGN_CLOCK_SHIFT", str(shift))
    with Bmc() as bmc, Bmc({"/metrics": dcgm([300])}) as exporter:
        m = start(bmcs(n1={"url": bmc.url}, n2={"metrics_url": exporter.url}))
        monkeypatch.delenv("LD_PRELOAD")
        until(lambda: m.watts("n1") == 344 and m.watts("n2") == 300, m.power)
        for seconds in (-10 * 365 * 86400, 10 * 365 * 86400):
            shift.write_text(str(seconds))
            gets = bmc.gets, exporter.gets
            until(lambda: bmc.gets > gets[0] + 8 and exporter.gets > gets[1], "rounds go on")
            assert m.watts("n1") == 344 and m.watts("n2") == 300
            assert all(s["up"] and s["age_seconds"] < 5 for s in m.power()["sources"]), m.power()
            assert {r["state"] for s in m.power()["sources"] for r in s["readings"]} <= {"fresh", "absent"}


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False

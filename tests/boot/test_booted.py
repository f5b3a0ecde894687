# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl install single-node on a machine that a systemd boots: the units start, are supervised, restart without a refused connection, and come back after a
reboot."""
import os
import re
import shutil

import pytest
from booted import BUILD, PROGRAMS, Load, Machine, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="booting a root of its own needs root")
UNITS = [f"cgn-{p}.service" for p in PROGRAMS]


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    m = Machine(tmp_path_factory.mktemp("machine"))
    m.ctl("install", "single-node", "--engine", "openai_compat", "--engine-url", "http://127.0.0.1:8000", "--store-ram", "64MiB", "--apply")
    m.enable("engine.service", "cognitora.target", *UNITS)
    m.boot()
    yield m
    m.close()


def test_the_machine_boots_and_answers(machine):
    machine.all_run(UNITS)
    machine.answers()
    assert machine.failed() == []


def test_programs_have_their_user_and_their_own_certificate(machine):
    for unit, role in zip(UNITS, ("router", "agent", "agent", "metrics")):
        pid = machine.property(unit, "MainPID")
        assert machine.run("stat", "-c", "%U", f"/proc/{pid}").stdout.strip() == "cognitora"
        held = machine.run("ls", f"/run/credentials/{unit}").stdout.split()
        assert held == ["ca.pem", "program.key", "program.pem"]
        used = machine.run("cat", f"/run/credentials/{unit}/program.pem").stdout
        assert used == (machine.root / f"etc/cognitora/pki/{role}.pem").read_text()


@pytest.mark.parametrize("unit", ["cgn-router.service", "cgn-kvcached.service", "cgn-metrics.service"])
def test_the_sandbox_is_as_tight_as_we_say(machine, unit):
    said = machine.run("systemd-analyze", "security", "--no-pager", unit).stdout
    exposure = float(re.search(r"Overall exposure level for \S+: ([\d.]+)", said).group(1))
    assert exposure < 2.0, said


def test_a_killed_program_is_started_again(machine):
    pid = machine.property("cgn-router.service", "MainPID")
    machine.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "cgn-router.service")
    until(lambda: machine.property("cgn-router.service", "MainPID") not in ("0", pid), machine.journal, wait_s=60, step_s=0.5)
    machine.answers()


def test_a_program_that_hangs_is_ended_by_the_watchdog(machine):
    (machine.root / "etc/systemd/system/cgn-metrics.service.d/short.conf").write_text("[Service]\nWatchdogSec=3s\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "cgn-metrics.service")
    pid = machine.property("cgn-metrics.service", "MainPID")
    machine.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", "cgn-metrics.service")
    until(lambda: machine.property("cgn-metrics.service", "MainPID") not in ("0", pid), machine.journal, wait_s=90, step_s=0.5)
    assert machine.property("cgn-metrics.service", "NRestarts") == "1" and "atchdog" in machine.journal()
    (machine.root / "etc/systemd/system/cgn-metrics.service.d/short.conf").unlink()
    machine.run("systemctl", "daemon-reload")


def test_a_program_that_cannot_start_is_tried_until_it_can(machine):
    """Its certificate is missing for more starts than systemd tries by itself."""
    cert = machine.root / "etc/cognitora/pki/metrics.pem"
    away = cert.rename(cert.with_suffix(".away"))
    machine.run("systemctl", "restart", "--no-block", "cgn-metrics.service")
    until(lambda: int(machine.property("cgn-metrics.service", "NRestarts")) >= 7, machine.journal, wait_s=60, step_s=0.5)
    away.rename(cert)
    machine.all_run(["cgn-metrics.service"])


def test_a_restart_under_load_refuses_no_connection(machine, tmp_path):
    machine.answers()
    with Load(machine, tmp_path) as load:
        for _ in range(3):
            before = machine.property("cgn-router.service", "MainPID")
            machine.run("systemctl", "restart", "cgn-router.service")
            assert machine.property("cgn-router.service", "MainPID") != before
            load.more(5)
    assert load.failed == 0 and load.asked >= 20, load.said


@pytest.mark.parametrize("way", ["upgrade", "downgrade"])
def test_other_programs_replace_those_that_run(machine, tmp_path, way):
    """The same programs with other bytes at their end, and those before; their units restart one after the other, as docs/operate/upgrade.md says."""
    before = {u: machine.property(u, "MainPID") for u in UNITS}
    with Load(machine, tmp_path) as load:
        for program in (*PROGRAMS, "ctl"):
            new = machine.root / f"usr/bin/cgn-{program}.new"
            shutil.copy(BUILD / f"src/{program}/cgn-{program}", new)
            if way == "upgrade":
                with open(new, "ab") as f:
                    f.write(b"other")
            new.rename(machine.root / f"usr/bin/cgn-{program}")
        done = machine.run("cgn-ctl", "install", "single-node", "--engine", "openai_compat", "--engine-url", "http://127.0.0.1:8000", "--store-ram", "64MiB", "--apply")
        assert done.stdout == "nothing to do: the machine has these files\n"
        for unit in ("cgn-kvcached", "cgn-agent", "cgn-router", "cgn-metrics"):
            machine.run("systemctl", "restart", unit)
        load.more(10)
    assert load.failed == 0 and load.asked >= 10, load.said
    assert all(machine.property(u, "MainPID") != before[u] for u in UNITS)
    machine.all_run(UNITS)


def test_the_doctor_finds_no_problem(machine):
    done = machine.run("cgn-ctl", "doctor", check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_survives_a_reboot(machine):
    machine.poweroff()
    machine.boot()
    machine.all_run(UNITS)
    machine.answers()


def test_it_survives_the_loss_of_power(machine):
    machine.cut_power()
    machine.boot()
    machine.all_run(UNITS)
    machine.answers()


def test_uninstall_leaves_a_machine_without_us(machine):
    machine.run("systemctl", "disable", "--now", "cognitora.target", *UNITS)
    machine.run("cgn-ctl", "uninstall", "--apply")
    machine.run("systemctl", "daemon-reload")
    assert not list((machine.root / "etc").rglob("*cgn-*")) and not (machine.root / "etc/cognitora").exists()
    assert machine.unit_files() == [] and machine.units("--state=failed") == []

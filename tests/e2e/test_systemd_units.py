# SPDX-License-Identifier: Apache-2.0
"""Engines that are units of systemd (engine.systemd_unit): a real systemd, as user manager in a mount namespace of its own, runs them."""
import os
import shutil
import subprocess

import pytest

from cluster import BUILD, ask, free_port, until

SYSTEMD = "/lib/systemd/systemd"
CTL = str(BUILD / "src/ctl/cgn-ctl")
pytestmark = [pytest.mark.plain, pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists(SYSTEMD) or not shutil.which("unshare"),
                                                    reason="a user manager in a mount namespace needs root, systemd and unshare")]


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    """Start a user manager; systemctl --user reaches it from here on."""
    home, run = tmp_path / "home", tmp_path / "run"
    units = home / ".config/systemd/user"
    units.mkdir(parents=True)
    run.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run))
    # It starts only where /run/systemd/system is, as on a machine that systemd has booted.
    script = f"mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec {SYSTEMD} --user"
    with open(tmp_path / "systemd.log", "wb") as log:
        manager = subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(lambda: manager.poll() is not None or systemctl("show", "--property=Version").returncode == 0, "the manager runs")
        if manager.poll() is not None:
            pytest.skip(f"no user manager: {(tmp_path / 'systemd.log').read_text()[-200:]}")
        yield units
    finally:
        systemctl("exit")
        manager.kill()
        manager.wait()


def systemctl(*args):
    return subprocess.run(["systemctl", "--user", *args], capture_output=True, text=True, timeout=60)


def engines(admin):
    return {e["name"]: e for e in ask(admin, "GET", "/engines").json()["engines"]}


def model(cluster, *args, code=0):
    done = subprocess.run([CTL, "model", *args, "--router", f"127.0.0.1:{cluster.grpc_port}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done
    return done.stdout + done.stderr


def test_an_agent_stops_and_starts_its_units(cluster, systemd):
    port = free_port()
    (systemd / "sim.service").write_text(f"[Service]\nExecStart={BUILD}/src/sim/cgn-sim --listen 127.0.0.1:{port}\n")
    assert systemctl("start", "sim").returncode == 0
    cluster.router({"router.admission": {"node_wait": "300ms"}})
    _, _, admin = cluster.agent("a", port, {"agent": {"systemctl": ["systemctl", "--user"]}, "engine": {"systemd_unit": "sim.service", "ready_interval": "20ms"}})
    cluster.wait_ready(1)
    assert cluster.chat("hello", max_tokens=1).status == 200
    model(cluster, "unload", "sim", "--wait", "--timeout", "30s")
    assert systemctl("is-active", "sim").stdout.strip() == "inactive" and "stopped" in model(cluster, "ls")
    assert cluster.chat("hello", max_tokens=1).status == 503
    model(cluster, "load", "sim", "--wait", "--timeout", "30s")
    assert systemctl("is-active", "sim").stdout.strip() == "active" and cluster.chat("hello", max_tokens=1).status == 200
    # A unit that is gone: the reason is systemd's, and the engine serves on.
    (systemd / "sim.service").unlink()
    systemctl("daemon-reload")
    systemctl("stop", "sim")
    until(lambda: not list(engines(admin).values())[0]["ready"], "it is gone")
    model(cluster, "unload", "sim")
    until(lambda: "not loaded" in model(cluster, "ls") or "not found" in model(cluster, "ls"), lambda: model(cluster, "ls"))


@pytest.mark.parametrize("engine, says", [
    ({"systemd_unit": "sim.service", "managed": True, "kind": "sim", "model_path": "sim"}, "so managed = true is not for engine"),
    ({"systemd_unit": "--now"}, "is not the name of a unit"),
    ({"systemd_unit": "a b.service"}, "is not the name of a unit"),
])
def test_units_that_cannot_be_are_refused(cluster, engine, says):
    path = cluster.config("bad", {"engine": engine})
    done = subprocess.run([str(BUILD / "src/agent/cgn-agent"), "--check", "--config", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and says in done.stderr + done.stdout

# SPDX-License-Identifier: Apache-2.0
"""Recipes brought up and down as a user does: the quickstart on its own ports, so that a cluster that runs here is left alone."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess

import pytest

from cluster import BUILD, ROOT, free_port

PORTS = {8080: "HTTP", 9090: "gRPC", 9091: "admin", 7080: "a", 7081: "a", 7180: "b", 7181: "b", 8000: "engine a", 8001: "engine b"}


@pytest.fixture
def recipe(tmp_path):
    """A copy of the recipes and scripts with other ports; run() runs a script of it, down at the end."""
    tree = tmp_path / "tree"
    for part in ("recipes", "scripts"):
        shutil.copytree(ROOT / part, tree / part)
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for program in ("router", "agent", "sim", "ctl"):
        (bin_dir / f"cgn-{program}").symlink_to(BUILD / "src" / program / f"cgn-{program}")
    ports = {p: free_port() for p in PORTS}
    for f in tree.glob("recipes/quickstart/sim/agg/*.toml"):
        f.write_text(re.sub(r"127\.0\.0\.1:(\d+)", lambda m: f"127.0.0.1:{ports[int(m.group(1))]}", f.read_text()))
    env = {**os.environ, "CGN_RUN_DIR": str(tmp_path / "run"), "CGN_BIN": str(bin_dir), "CGN_PREBUILT": "1", "CGN_UP_TIMEOUT": "60",
           "PATH": f"{bin_dir}:{os.environ['PATH']}"}

    class Recipe:
        folder, run_dir = tree / "recipes/quickstart/sim/agg", tmp_path / "run"
        port = ports

        @staticmethod
        def run(*argv):
            return subprocess.run(argv, cwd=tree, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)

        def processes(self):
            """Pids of ours whose command line is in this tree, or that listen on our engine ports."""
            out = subprocess.run(["pgrep", "-f", f"{bin_dir}|127.0.0.1:{ports[8000]}|127.0.0.1:{ports[8001]}"], capture_output=True, text=True).stdout
            return [int(p) for p in out.split()]

    yield Recipe()
    subprocess.run(["bash", tree / "scripts/down"], env=env, capture_output=True, timeout=60)


def test_up_hello_status_down_twice(recipe):
    up = recipe.run("bash", "recipes/quickstart/sim/agg/up.sh")
    assert up.returncode == 0, up.stdout + up.stderr
    assert "2 nodes are ready" in up.stdout
    hello = recipe.run("scripts/run/hello.sh")
    assert hello.returncode == 0 and re.search(r"answered by node sim-[ab]", hello.stdout), hello.stdout + hello.stderr
    status = recipe.run("cgn-ctl", "recipe", "status", "--recipes", "recipes")
    assert status.returncode == 0 and status.stdout.count("running, pid") == 3, status.stdout
    again = recipe.run("bash", "recipes/quickstart/sim/agg/up.sh")
    assert again.returncode == 1 and "already running" in again.stderr
    for text in ("stopped router", "nothing is running"):
        down = recipe.run("scripts/down")
        assert down.returncode == 0 and text in down.stdout, down.stdout + down.stderr
    assert recipe.processes() == []


def test_ctl_brings_it_up(recipe):
    up = recipe.run("cgn-ctl", "recipe", "up", "quickstart/sim/agg", "--recipes", "recipes")
    assert up.returncode == 0 and "answered by node" in up.stdout, up.stdout + up.stderr
    down = recipe.run("cgn-ctl", "recipe", "down", "quickstart/sim/agg", "--recipes", "recipes")
    assert down.returncode == 0 and "stopped agent-b" in down.stdout
    assert recipe.processes() == []


def test_a_port_in_use_is_named_and_nothing_is_left(recipe):
    with socket.socket() as s:
        s.bind(("127.0.0.1", recipe.port[8080]))
        s.listen()
        up = recipe.run("bash", "recipes/quickstart/sim/agg/up.sh")
    assert up.returncode == 1
    assert str(recipe.port[8080]) in up.stderr and "in use" in up.stderr, up.stderr
    assert recipe.processes() == []


def test_a_broken_file_is_named_and_nothing_is_left(recipe):
    (recipe.folder / "agent-b.toml").write_text("[agent]\nrole = 7\n")
    up = recipe.run("bash", "recipes/quickstart/sim/agg/up.sh")
    assert up.returncode == 1 and "agent-b.toml:2" in up.stderr, up.stderr
    assert recipe.processes() == []


def test_down_kills_nothing_else(recipe):
    """A pid file whose number was given to somebody else."""
    other = subprocess.Popen(["sleep", "60"])
    recipe.run_dir.mkdir()
    (recipe.run_dir / "router.pid").write_text(f"{other.pid} 1\n")
    assert recipe.run("scripts/down").returncode == 0
    assert other.poll() is None
    other.send_signal(signal.SIGKILL)
    other.wait()


def test_missing_programs_and_recipes(recipe):
    assert "there is no recipe 'no/such/thing'" in recipe.run("scripts/up", "no/such/thing").stderr
    r = recipe.run("env", "CGN_BIN=/nonexistent", "bash", "recipes/quickstart/sim/agg/up.sh")
    assert r.returncode == 1 and "/nonexistent/cgn-router is not there" in r.stderr
    assert json.loads(recipe.run("cgn-ctl", "recipe", "ls", "-o", "json", "--recipes", "recipes").stdout)

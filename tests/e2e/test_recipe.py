# SPDX-License-Identifier: Apache-2.0
"""Recipes brought up and down as by a user: the quickstart on ports of its own, so that a running cluster is
left alone."""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess

import pytest

from cluster import ROOT
from recipe_tree import Recipe
from terminal import on_terminal


@pytest.fixture
def recipe(tmp_path):
    r = Recipe(tmp_path, "quickstart/sim/agg")
    yield r
    r.close()


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


def ctl(recipe, *words):
    return recipe.run("cgn-ctl", "recipe", *words, "--recipes", "recipes")


def test_down_stops_the_named_recipe_only_and_json_is_json(recipe):
    nothing = ctl(recipe, "status", "-o", "json")
    assert nothing.returncode == 1 and json.loads(nothing.stdout) == {"recipe": None, "gateway": None, "programs": []}
    up = ctl(recipe, "up", "quickstart/sim/agg", "-o", "json")
    assert up.returncode == 0 and json.loads(up.stdout)["recipe"] == "quickstart/sim/agg", up.stdout + up.stderr
    other = ctl(recipe, "down", "tiny/llama-cpp/cpu")
    assert other.returncode == 1 and "tiny/llama-cpp/cpu does not run: quickstart/sim/agg does" in other.stderr, other
    status = json.loads(ctl(recipe, "status", "-o", "json").stdout)
    assert {(p["program"], p["state"]) for p in status["programs"]} == {("router", "running"), ("agent-a", "running"), ("agent-b", "running")}
    assert status["gateway"] == f"http://127.0.0.1:{recipe.port[8080]}"
    down = ctl(recipe, "down", "quickstart/sim/agg", "-o", "json")
    assert sorted(json.loads(down.stdout)["stopped"]) == ["agent-a", "agent-b", "router"], down
    assert json.loads(ctl(recipe, "down", "quickstart/sim/agg", "-o", "json").stdout) == {"recipe": None, "stopped": []}
    assert recipe.processes() == []


SCRIPTS = sorted(str(p.relative_to(ROOT)) for p in [*ROOT.glob("scripts/*"), *ROOT.glob("scripts/run/*"), *ROOT.glob(".ci/*"), *ROOT.glob("bench/*.py")]
                 if p.is_file() and os.access(p, os.X_OK) and p.name not in ("_run.sh", "llama-server"))  # sourced; hands its arguments on
UPS = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("recipes/**/up.sh"))


@pytest.mark.plain
@pytest.mark.parametrize("script", [*SCRIPTS, *UPS])
def test_a_script_explains_itself_and_does_nothing_else(script, recipe):
    """--help prints a text and exits 0, an unknown flag exits 2; neither starts, stops, builds or writes anything."""
    recipe.run_dir.mkdir()
    other = subprocess.Popen(["sleep", "60"])
    start = pathlib.Path(f"/proc/{other.pid}/stat").read_text().rpartition(") ")[2].split()[19]
    (recipe.run_dir / "router.pid").write_text(f"{other.pid} {start}\n")  # a running cluster
    for part in (".ci", "bench"):
        shutil.copytree(ROOT / part, recipe.tree / part)
    before = sorted(recipe.tree.rglob("[!_]*"))
    run = ("bash", script) if script in UPS else (script,)
    try:
        for flags, code in ((["--help"], 0), (["-h"], 0), (["--no-such-flag"], 2)):
            r = recipe.run(*run, *flags)
            assert r.returncode == code, (flags, r)
            assert pathlib.Path(script).name.split(".")[0] in (r.stderr if code else r.stdout), (flags, r)
        assert other.poll() is None and sorted(recipe.tree.rglob("[!_]*")) == before
    finally:
        other.kill()
        other.wait()


OPERATORS = r"""export PATH="$PWD/build/release/bin:$PATH"
cgn-router --check --config recipes/quickstart/sim/agg/router.toml
cgn-ctl config show
cgn-ctl cluster status
cgn-ctl cluster nodes
cgn-ctl cluster drain sim-a
cgn-ctl cluster uncordon sim-a
cgn-ctl bench chat --rate 20 --duration 10s
cgn-ctl top --count 1
cgn-ctl explain
cgn-ctl cluster set-policy --policy weighted
cgn-ctl cluster set-policy --reset
cgn-ctl bench workload chat --requests 5000 --out trace.jsonl
cgn-ctl bench replay trace.jsonl --nodes 8 --policy kv,round_robin
cgn-ctl bench index
cgn-ctl bench pick
source <(cgn-ctl completion bash)
"""  # what an operator types in the folder of the source tree


@pytest.mark.slow
def test_an_operators_commands_work_as_typed(recipe):
    assert recipe.up().returncode == 0
    release = recipe.tree / "build/release"
    release.mkdir(parents=True)
    (release / "bin").symlink_to(recipe.bin_dir)
    commands = OPERATORS.splitlines()
    script = ["set -euo pipefail"]
    for c in commands:
        small = {"cgn-ctl bench index": " --memberships 20000 --updates 60000 --rate 2000 --duration 100ms --nodes 2",
                 "cgn-ctl bench pick": " --tokens 2048 --duration 100ms --nodes 2"}
        c += small.get(c, "")  # the defaults take some seconds
        c = c.replace("--requests 5000", "--requests 500").replace("--duration 10s", f"--duration 500ms --url http://127.0.0.1:{recipe.port[8080]}")  # this test's ports are others
        c = c.replace("config show", f"config show --admin 127.0.0.1:{recipe.port[9091]}")
        script += [f"echo '+ {c}' >&2", c]
    r = recipe.run("env", f"CGN_ROUTER=127.0.0.1:{recipe.port[9090]}", "bash", "-c", "\n".join(script))
    assert r.returncode == 0, (r.stderr, r.stdout[-500:])
    for seen in ("sim-a drained", "sim-a uncordoned", "0 failed", "traffic   ", "policy    weighted", "round_robin"):
        assert seen in r.stdout, (seen, r.stdout)


FAKE_NINJA = """#!/bin/sh
[ -z "$FAIL" ] || { echo "FAILED: b.o"; echo "b.c:1: error: no"; exit 1; }
echo "ninja: Entering directory"; echo "[1/3] Compiling C object a.o"; sleep 0.3; echo "warning: something"; echo "[2/3] Compiling C object $(printf %0200d 7).o"
sleep 2.2; echo "[3/3] Linking target x"
"""
BUILD_TREE = "set -euo pipefail; . scripts/_lib.sh; build_tree $PWD/out; echo built"


@pytest.fixture
def builder(recipe):
    """A tree that is configured, with a ninja that takes its time."""
    (recipe.tree / "out/src/x").mkdir(parents=True)
    (recipe.tree / "out/build.ninja").write_text("")
    ninja = recipe.bin_dir / "ninja"
    ninja.write_text(FAKE_NINJA)
    ninja.chmod(0o755)
    return recipe


def test_a_build_shows_that_it_goes_on(builder):
    r = builder.run("env", "CGN_HEARTBEAT=1", "bash", "-c", BUILD_TREE)
    assert r.returncode == 0 and r.stdout.splitlines()[-1] == "built", r
    beats = [line for line in r.stdout.splitlines() if "out, steps of the build 2 of 3, " in line and line.endswith(" s left")]
    assert beats and "Compiling" not in r.stdout and r.stderr == "", r  # a pipe gets heartbeats, also during one long step
    failed = builder.run("env", "FAIL=1", "bash", "-c", BUILD_TREE)
    assert failed.returncode == 1 and "b.c:1: error: no" in failed.stderr and "the whole log: " in failed.stderr, failed


def test_the_links_of_a_build_lead_to_its_programs(builder):
    """Also where the folder is named by a relative path."""
    (builder.tree / "out/src/x/cgn-x").write_text("")
    r = builder.run("bash", "-c", BUILD_TREE.replace("$PWD/out", "out"))
    assert r.returncode == 0 and (builder.tree / "out/bin/cgn-x").exists(), (r, os.readlink(builder.tree / "out/bin/cgn-x"))


@pytest.mark.parametrize("wrong", ["source", "build"])
def test_a_copied_build_folder_is_refused(builder, tmp_path, wrong):
    """Its files name the tree that it was made for, where ninja would compile."""
    names = builder.tree / "out/meson-info/meson-info.json"
    names.parent.mkdir()
    own = {"source": str(builder.tree), "build": str(builder.tree / "out")}
    names.write_text(json.dumps({"directories": own}))
    assert builder.run("bash", "-c", BUILD_TREE).returncode == 0
    names.write_text(json.dumps({"directories": {**own, wrong: str(tmp_path)}}))
    r = builder.run("bash", "-c", BUILD_TREE)
    assert r.returncode == 1 and f"out was made for {tmp_path}: ninja would compile there" in r.stderr and "rm -r " in r.stderr and r.stdout == "", r


def test_a_build_on_a_terminal_has_one_live_line(builder):
    code, text, _ = on_terminal("bash", "-c", f"exec 2>&1; {BUILD_TREE}", columns=60, cwd=builder.tree, path=f"{builder.bin_dir}:")
    assert code == 0 and text.endswith("\r\x1b[Kbuilt\n"), text
    live = text.split("\r\x1b[K")
    assert live[1] == "[1/3] Compiling C object a.o" and len(live[2]) < 80 and "steps" not in text, text


def test_ctl_brings_it_up(recipe):
    up = recipe.run("cgn-ctl", "recipe", "up", "quickstart/sim/agg", "--recipes", "recipes")
    assert up.returncode == 0 and "answered by node" in up.stdout, up.stdout + up.stderr
    down = recipe.run("cgn-ctl", "recipe", "down", "quickstart/sim/agg", "--recipes", "recipes")
    assert down.returncode == 0 and "stopped agent-b" in down.stdout
    assert recipe.processes() == []


def test_a_port_in_use_is_named_and_nothing_is_left(recipe):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a connection of an earlier test may linger at the port
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


def test_a_store_that_never_listens_is_named_and_nothing_is_left(recipe):
    (recipe.folder / "kv-a.toml").write_text("")
    store = recipe.bin_dir / "cgn-kvcached"
    store.write_text("#!/bin/sh\n[ \"$1\" = --check ] || exec sleep 60\n")
    store.chmod(0o755)
    recipe.env["CGN_UP_TIMEOUT"] = "2"
    up = recipe.run("bash", "recipes/quickstart/sim/agg/up.sh")
    assert up.returncode == 1 and "kv-a does not listen after 2 s" in up.stderr, up.stderr
    assert recipe.processes() == []


def test_down_kills_nothing_else(recipe):
    """A pid file whose pid now belongs to another process."""
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
    assert r.returncode == 1 and "/nonexistent/cgn-router does not exist; build first" in r.stderr
    assert json.loads(recipe.run("cgn-ctl", "recipe", "ls", "-o", "json", "--recipes", "recipes").stdout)

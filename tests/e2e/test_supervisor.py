# SPDX-License-Identifier: Apache-2.0
"""Managed engines: how they end and what is said of it, their logs, who survives whom, start order, draining, and many of
them. Engines of other makers are stand-ins here: scripts that print their last words."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess

import pytest

from cluster import WAIT_S, Cluster, ask, free_port, until
from test_agent import CTL, SIM, adopted, events, fake, is_listening, is_running, managed_sim, start  # noqa: F401


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def stand_in(path, text, more=""):
    return managed_sim(f'binary = "{script(path, text)}"\n{more}')


def trapping(a, tmp_path):
    """Wait until the stand-in has set its trap, and return its pid, which is known before it runs."""
    until((tmp_path / "begun").exists, "the stand-in runs")
    return a.engine()["pid"]


def crashed(a, wait_backoff="60s"):
    return until(lambda: (e := a.engine())["state"] == "backoff" and e, lambda: a.engine())


def engine_log(tmp_path, ending="", name="sim"):
    return tmp_path / "state/engines/n1" / f"{name}.log{ending}"


def log_text(tmp_path, *args, **kw):
    try:
        return engine_log(tmp_path, *args, **kw).read_text()
    except OSError:
        return ""


# ---- why an engine ended ----
LAST_WORDS = [
    ("vllm-kv", 1, "(EngineCore pid=9) ERROR 11-22 10:00:00 [core.py:1] ValueError: No available memory for the cache blocks. Try increasing it\n"
     "(APIServer pid=8) RuntimeError: Engine core initialization failed. See root cause above.", "raise engine.memory_fraction"),
    ("vllm-len", 1, "ValueError: To serve at least one request with the model's max seq len (262144), 16.0 GiB KV cache is needed", "lower engine.n_ctx"),
    ("vllm-busy", 1, "ValueError: Free memory on device cuda:0 (2.6/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB).",
     "end that process (nvidia-smi lists them)"),
    ("sglang", 1, "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "raise engine.memory_fraction"),
    ("torch", 1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "the GPU has no memory left"),
    ("llama-gpu", 1, "0.01.000.000 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9 MiB on device 0: cudaMalloc failed: out of memory", "lower engine.n_gpu_layers"),
    ("llama-file", 1, "0.00.009.034 E gguf_init_from_file: failed to open GGUF file '/no.gguf' (No such file or directory)", "correct engine.model_path"),
    ("gated", 1, "huggingface_hub.errors.GatedRepoError: 401 Client Error.\nCannot access gated repo for url https://huggingface.co/x/resolve/main/config.json.", "set HF_TOKEN"),
    ("unknown-model", 1, "OSError: no/model is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'", "there is no such model"),
    ("no-folder", 1, "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/nonexistent/model'. Use `repo_type` argument if needed.",
     "the model's folder does not exist; correct engine.model_path"),
    ("argparse", 2, "usage: vllm serve [-h]\nvllm: error: unrecognized arguments: --no-such-flag", "correct engine.extra_args"),
    ("llama-flag", 1, "error: invalid argument: --no-such-flag", "correct engine.extra_args"),
    ("uvicorn", 1, "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use", "its port is in use"),
    ("python", 1, "ModuleNotFoundError: No module named 'vllm'", "a Python module is missing"),
    ("no-gpu", 1, "RuntimeError: No CUDA GPUs are available", "the engine sees no GPU"),
]


@pytest.mark.parametrize("code, words, says", [row[1:] for row in LAST_WORDS], ids=[row[0] for row in LAST_WORDS])
def test_the_last_words_are_understood(start, tmp_path, code, words, says):
    (tmp_path / "words").write_text(words + "\n")
    a = start(stand_in(tmp_path / "engine.sh", f'cat "{tmp_path}/words" >&2\nexit {code}').replace('"50ms"', '"60s"'))
    trouble = crashed(a)["trouble"]
    assert trouble.startswith(f"exit status {code}: ") and says in trouble, trouble
    assert a.event("engine.exit")["why"] == trouble


def test_a_signal_is_explained(start, tmp_path):
    a = start(stand_in(tmp_path / "engine.sh", "kill -SEGV $$").replace('"50ms"', '"60s"'))
    assert re.match(r"killed by signal 11 .*: the program crashed; ", crashed(a)["trouble"])


def test_a_port_in_use_is_said(start):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        conf = re.sub(r"127.0.0.1:\d+", f"127.0.0.1:{s.getsockname()[1]}", managed_sim()).replace('"50ms"', '"60s"')
        a = start(conf)
        trouble = crashed(a)["trouble"]
    assert trouble.startswith("exit status 7: its port is in use; ") and "pid" in trouble, trouble


def test_a_wrong_flag_is_said(start):
    a = start(managed_sim().replace('"--time-scale"', '"--no-such-flag"').replace('"50ms"', '"60s"'))
    trouble = crashed(a)["trouble"]
    assert "engine does not know an argument" in trouble and "--no-such-flag" in trouble, trouble


@pytest.fixture
def small_memory():
    """A control group with 24 MiB of memory (cgroups version 1 or 2)."""
    for root, bound in ((pathlib.Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (pathlib.Path("/sys/fs/cgroup"), "memory.max")):
        group = root / f"cgn-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / bound).write_text(str(24 << 20))
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        yield group
        until(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
        group.rmdir()
        return
    pytest.skip("no control group can be made here")


def test_the_kernels_kill_for_memory_is_said(start, tmp_path, small_memory):
    a = start(stand_in(tmp_path / "engine.sh", f"echo $$ > {small_memory}/cgroup.procs\necho loading\n"
                       "exec python3 -c 'x = b\"x\" * (1 << 28)'").replace('"50ms"', '"60s"'))
    trouble = crashed(a)["trouble"]
    assert "killed by signal 9" in trouble and "had no memory left" in trouble, trouble


def test_a_crash_loop_is_told_with_its_last_words(start, tmp_path):
    a = start(stand_in(tmp_path / "engine.sh", "echo 'torch.OutOfMemoryError: CUDA out of memory.'\nexit 1"))
    until(lambda: a.engine()["restarts"] >= 3, "it crashes again and again")
    trouble = crashed(a)["trouble"]
    assert re.match(r"failed \d+ times in a row: exit status 1: the GPU has no memory left; ", trouble), trouble
    pauses = [e["why"] for e in events(a, "engine.exit")]
    assert pauses[0].startswith("exit status 1") and pauses[1].startswith("failed 2 times in a row")


def test_a_start_after_a_crash_still_says_why(start, tmp_path):
    text = f'[ -e "{tmp_path}/again" ] && exec sleep 1000\ntouch "{tmp_path}/again"\necho "cudaMalloc failed: out of memory"\nexit 1'
    a = start(stand_in(tmp_path / "engine.sh", text))
    trouble = until(lambda: (e := a.engine())["state"] == "starting" and e["restarts"] == 1 and e["pid"] and e["trouble"], "it starts again")
    assert "; before: exit status 1: the GPU has no memory left" in trouble, trouble


def test_an_engine_that_is_never_ready_is_told_as_such(start, tmp_path):
    a = start(stand_in(tmp_path / "engine.sh", "echo loading weights\nexec sleep 1000", 'ready_timeout = "300ms"').replace('"50ms"', '"60s"'))
    assert crashed(a)["trouble"] == "it was not ready within engine.ready_timeout, and was ended; its last words: loading weights"


def test_cluster_nodes_shows_what_is_wrong_with_an_engine(tmp_path):
    with Cluster(tmp_path) as c:
        c.router()
        engine = script(tmp_path / "engine.sh", "echo 'torch.OutOfMemoryError: CUDA out of memory.'\nexit 1")
        c.agent("a", free_port(), {"engine": {"managed": True, "binary": str(engine), "restart_backoff": "60s"}})

        def nodes(*more):
            return subprocess.run([CTL, "cluster", "nodes", "--router", f"127.0.0.1:{c.grpc_port}", *more], capture_output=True, text=True,
                                  timeout=WAIT_S).stdout

        until(lambda: "the GPU has no memory left" in nodes(), nodes)
        assert "the GPU has no memory left" in nodes("-o", "wide")


def test_an_engine_in_trouble_is_told_though_its_node_is_ready(tmp_path):
    with Cluster(tmp_path) as c:
        c.router()
        _, port = c.engine("well")
        ill = script(tmp_path / "engine.sh", "echo 'torch.OutOfMemoryError: CUDA out of memory.'\nexit 1")
        conf = c.config("agent-a", {"agent": {"listen": f"127.0.0.1:{free_port()}", "listen_admin": f"127.0.0.1:{free_port()}", "node_id": "a"}})
        with open(conf, "a") as f:
            f.write(f'[[engines]]\nname = "well"\nkind = "sim"\nurl = "http://127.0.0.1:{port}"\n'
                    f'[[engines]]\nname = "ill"\nkind = "sim"\nmanaged = true\nurl = "http://127.0.0.1:{free_port()}"\nbinary = "{ill}"\n')
        c.run("agent-a", "cgn-agent", "--config", conf)
        c.wait_ready(1)
        nodes = lambda: subprocess.run([CTL, "cluster", "nodes", "--router", f"127.0.0.1:{c.grpc_port}"], capture_output=True, text=True).stdout
        until(lambda: "a is ready: engine ill: " in nodes() and "the GPU has no memory left" in nodes(), nodes)
        assert c.chat("hello", max_tokens=2).status == 200


def test_last_words_may_be_any_bytes(start, tmp_path):
    a = start(stand_in(tmp_path / "engine.sh", "printf 'died of \\377\\200 \\033[31m and more\\n'\nexit 1").replace('"50ms"', '"60s"'))
    assert crashed(a)["trouble"] == "exit status 1 (its last words: died of ??  [31m and more)"


# ---- logs ----
def test_an_engine_has_a_log_of_its_own(start, tmp_path):
    text = "echo hello from stdout\necho hello from stderr >&2\nexec sleep 1000"
    a = start(stand_in(tmp_path / "engine.sh", text))
    until(lambda: "hello from stderr" in log_text(tmp_path) and "hello from stdout" in log_text(tmp_path), lambda: log_text(tmp_path))
    assert re.match(r"--- cgn-agent \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ: the engine starts: ", log_text(tmp_path))
    assert not a.event("engine.output"), "chatter is not in the agent's log"


def test_an_engines_errors_are_warnings_of_the_agent(start, tmp_path):
    text = "echo 'INFO 11-22 10:00:00 [a.py:1] fine'\necho 'ERROR 11-22 10:00:00 [a.py:2] broken'\nexec sleep 1000"
    a = start(stand_in(tmp_path / "engine.sh", text))
    told = until(lambda: a.event("engine.output"), "the error is told")
    assert told["level"] == "warn" and told["line"].endswith("broken") and len(events(a, "engine.output")) == 1


@pytest.mark.threads
def test_an_engines_log_is_rotated_and_bounded(start, tmp_path):
    text = "i=0\nwhile [ $i -lt 40 ]; do i=$((i+1)); printf '%03d %0300d\\n' $i 0; sleep 0.06; done\nexec sleep 1000"
    start(stand_in(tmp_path / "engine.sh", text), agent_toml='engine_log_size = "4KiB"\nengine_log_files = 3')
    until(lambda: "\n040 " in log_text(tmp_path) or log_text(tmp_path).startswith("040 "), lambda: log_text(tmp_path))
    files = sorted(engine_log(tmp_path).parent.glob("sim.log*"))
    assert [f.name for f in files] == ["sim.log", "sim.log.1", "sim.log.2"]
    assert all(f.stat().st_size <= 4096 for f in files)
    kept = "".join(log_text(tmp_path, e) for e in (".2", ".1", ""))
    numbers = [int(n) for n in re.findall(r"^(\d{3}) 0", kept, re.M)]
    assert numbers == list(range(numbers[0], 41)), "the newest lines are kept, in order"


def test_a_full_disk_does_not_stop_the_engine(start, tmp_path):
    engine_log(tmp_path).parent.mkdir(parents=True)
    engine_log(tmp_path).symlink_to("/dev/full")
    text = f'i=0\nwhile [ $i -lt 3000 ]; do i=$((i+1)); echo "line $i of many, which fill any pipe that is not read"; done\nexec "{SIM}" "$@"'
    a = start(stand_in(tmp_path / "engine.sh", text)).wait_ready()
    assert a.generate("model=m", body=b'{"model":"m","messages":[{"role":"user","content":"hi"}]}').code == "FINE"


def test_without_a_folder_the_engine_runs_all_the_same(start, tmp_path):
    (tmp_path / "file").write_text("")
    a = start(managed_sim(KEEP), agent_toml=f'engine_dir = "{tmp_path}/file/below"').wait_ready()
    assert a.event("agent.engine_dir_unusable")["level"] == "warn" and a.event("engine.ends_with_agent")["level"] == "warn"
    pid = a.engine()["pid"]
    kill_agent(a)
    until(lambda: not is_running(pid), "it ended with its agent")


# ---- the agent dies ----
KEEP = 'orphan_time = "30s"'
CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


def kill_agent(a):
    a.proc.kill()
    a.proc.wait()


@pytest.mark.threads
def test_a_restarted_agent_adopts_the_engine(start, tmp_path):
    conf = managed_sim(KEEP)
    a = start(conf).wait_ready()
    pid = a.engine()["pid"]
    kill_agent(a)
    assert is_running(pid)
    b = start(conf).wait_ready()
    e = b.engine()
    assert e["pid"] == pid and e["restarts"] == 0 and b.event("engine.adopted")["pid"] == pid and not b.event("engine.start")
    assert b.generate("model=m", body=CHAT).code == "FINE"
    os.kill(pid, signal.SIGKILL)
    until(lambda: (e := b.engine())["ready"] and e["pid"] not in (0, pid), "an adopted engine that dies is started again")
    assert "killed by signal 9" in b.event("engine.exit")["how"]


def test_an_adopted_engine_ends_with_its_new_agent(start):
    conf = managed_sim(KEEP)
    a = start(conf).wait_ready()
    pid = a.engine()["pid"]
    kill_agent(a)
    b = start(conf).wait_ready()
    assert b.engine()["pid"] == pid
    b.proc.send_signal(signal.SIGTERM)
    assert b.proc.wait(WAIT_S) == 0
    assert not is_running(pid)


def test_an_engine_that_prints_without_an_agent_does_not_stop(start, tmp_path):
    text = (f'"{SIM}" "$@" &\ni=0\nwhile :; do i=$((i+1)); echo "line $i of a great many lines of this engine"; [ $i = 20000 ] && touch "{tmp_path}/much"; '
            f'[ $i -gt 20000 ] && sleep 0.05; [ -e "{tmp_path}/go" ] || {{ i=0; sleep 0.05; }}; done')
    conf = stand_in(tmp_path / "engine.sh", text, KEEP)
    a = start(conf).wait_ready()
    kill_agent(a)
    (tmp_path / "go").touch()
    until((tmp_path / "much").exists, "a megabyte was printed, and no reader came")
    b = start(conf).wait_ready()
    assert b.event("engine.adopted")["output_lost"] > 200000
    size = engine_log(tmp_path).stat().st_size
    until(lambda: engine_log(tmp_path).stat().st_size > size, "its lines are logged again")


def test_an_engine_with_other_settings_is_not_adopted(start):
    conf = managed_sim(KEEP)
    a = start(conf).wait_ready()
    pid = a.engine()["pid"]
    kill_agent(a)
    b = start(conf.replace('"--time-scale", "0"', '"--time-scale", "0", "--max-batch", "7"')).wait_ready()
    assert b.engine()["pid"] != pid and not is_running(pid)
    assert b.event("engine.not_adopted")["pid"] == pid


def test_an_engine_that_no_agent_adopts_ends(start, tmp_path):
    text = f'trap "touch {tmp_path}/told; exit 0" TERM\ntouch {tmp_path}/begun\nwhile :; do sleep 0.05; done'
    a = start(stand_in(tmp_path / "engine.sh", text, 'orphan_time = "300ms"'))
    pid = trapping(a, tmp_path)
    until(lambda: "the engine starts" in log_text(tmp_path), "its place is known")
    kill_agent(a)
    until(lambda: not is_running(pid), "it is gone")
    assert (tmp_path / "told").exists(), "it got SIGTERM first"


def test_two_agents_do_not_share_an_engine(start):
    conf = managed_sim(KEEP)
    a = start(conf).wait_ready()
    b = start(conf)
    until(lambda: "belongs to another agent" in b.engine()["trouble"], lambda: b.engine())
    assert a.engine()["ready"] and a.engine()["restarts"] == 0


def keeper_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_what_a_killed_keeper_leaves_is_found_by_the_next_agent(start, tmp_path):
    text = f'sh -c "echo \\$\\$ > {tmp_path}/child; exec sleep 1000" &\nset -m\nsh -c "echo \\$\\$ > {tmp_path}/group; exec sleep 1000" &\nexec "{SIM}" "$@"'
    conf = stand_in(tmp_path / "engine.sh", text, KEEP)
    a = start(conf).wait_ready()
    pids = [int((tmp_path / n).read_text()) for n in ("child", "group")]
    keeper = keeper_of(a.engine()["pid"])
    os.kill(a.proc.pid, signal.SIGSTOP)  # so that it cannot clean up after its keeper
    os.kill(keeper, signal.SIGKILL)
    kill_agent(a)
    assert all(map(is_running, pids)), "children of a program outlive the keeper"
    b = start(conf).wait_ready()
    assert b.event("engine.strays_killed")["processes"] == 2
    assert not any(map(is_running, pids))


# ---- stopping ----
def test_sigkill_comes_only_after_the_grace(start, tmp_path):
    text = f'trap "sleep 0.7; touch {tmp_path}/saved; exit 0" TERM\ntouch {tmp_path}/begun\nwhile :; do sleep 0.05; done'
    a = start(stand_in(tmp_path / "engine.sh", text, 'stop_grace = "60s"'), agent_toml='drain_timeout = "100ms"')
    trapping(a, tmp_path)
    for _ in range(3):
        a.proc.send_signal(signal.SIGTERM)
        until(lambda: a.event("engine.stop"), "it is told to stop")
    assert a.proc.wait(WAIT_S) == 0
    assert (tmp_path / "saved").exists()


@pytest.mark.threads
def test_a_deaf_engine_is_killed_after_its_grace(start, tmp_path):
    a = start(stand_in(tmp_path / "engine.sh", f"trap '' TERM\ntouch {tmp_path}/begun\nwhile :; do sleep 0.05; done", 'stop_grace = "200ms"'))
    pid = trapping(a, tmp_path)
    a.proc.send_signal(signal.SIGTERM)
    assert a.proc.wait(WAIT_S) == 0 and not is_running(pid)


def test_sigint_ends_a_drain_that_waits_for_an_engine(start, tmp_path):
    a = start(stand_in(tmp_path / "engine.sh", f"trap '' TERM\ntouch {tmp_path}/begun\nwhile :; do sleep 0.05; done", 'stop_grace = "60s"'))
    pid = trapping(a, tmp_path)
    a.proc.send_signal(signal.SIGTERM)
    until(lambda: a.event("engine.stop"), "the engine is told to stop")
    a.proc.send_signal(signal.SIGINT)
    assert a.proc.wait(WAIT_S) == 130, a.log.read_text()
    a.ends = 130
    assert not is_running(pid)


@pytest.mark.threads
def test_requests_are_cut_before_engines_are_stopped(fake, start):
    e = fake()
    a = start(adopted(e), agent_toml='drain_timeout = "200ms"').wait_ready()
    e.behave = lambda h: (e.release.wait(WAIT_S), e.echo(h))
    running = a.start("generate", "/v1/chat/completions", "model=m")
    until(lambda: e.requests, "it runs")
    a.proc.send_signal(signal.SIGTERM)
    assert a.proc.wait(WAIT_S) == 0
    assert a.event("agent.drain_timeout")["requests_cut"] == 1
    end = json.loads(running.communicate(timeout=WAIT_S)[0].strip().split("\n")[-1])
    assert end["code"] != "FINE" and "agent.drain_timeout" in end["message"], end
    e.release.set()


# ---- order ----
def several(*more):
    return "\n".join(f'[[engines]]\nname = "{n}"\nkind = "sim"\nmanaged = true\nurl = "http://127.0.0.1:{free_port()}"\nmodel = "m{n}"\n'
                     f'ready_interval = "20ms"\n{t}' for n, t in more)


def test_engines_start_in_order(start):
    slow = 'extra_args = ["--time-scale", "0", "--fault", "slow-start=400ms"]\n'
    a = start(several(("c", f'start_after = ["a", "b"]\n{slow}'), ("a", slow), ("b", f'start_after = ["a"]\n{slow}')))
    waits = {e["name"]: e for e in a.node()["engines"]}
    assert "waits for engine a" in waits["b"]["trouble"] and waits["b"]["state"] == "stopped"
    until(lambda: all(e["ready"] for e in a.node()["engines"]), "all are ready")
    order = [(e["event"], e["engine"]) for e in map(json.loads, a.log.read_text().splitlines()) if e["event"] in ("engine.start", "engine.ready")]
    assert order == [(what, n) for n in "abc" for what in ("engine.start", "engine.ready")]


@pytest.mark.parametrize("engines, says", [
    ([("a", 'start_after = ["b"]'), ("b", 'start_after = ["a"]')], "circle"),
    ([("a", 'start_after = ["a"]')], "circle"),
    ([("a", 'start_after = ["x"]')], "no engine has that name"),
])
def test_an_order_that_cannot_be_is_refused(tmp_path, engines, says):
    (tmp_path / "c.toml").write_text(several(*engines))
    p = subprocess.run([SIM.parents[1] / "agent/cgn-agent", "--check", "--config", tmp_path / "c.toml"], capture_output=True, text=True, timeout=WAIT_S)
    assert p.returncode == 3 and "start_after" in p.stderr and says in p.stderr, p.stderr


# ---- engines that are not managed ----
def test_an_engine_that_cannot_be_reached_is_said_and_said_again_when_it_changes(start):
    """A closed port, then a server that does not answer, then one that answers 500."""
    port = free_port()
    a = start(f'[engine]\nkind = "sim"\nurl = "http://127.0.0.1:{port}"\nready_interval = "20ms"\nmodel = "m"')
    first = until(lambda: a.event("engine.check_failed"), "said")
    assert "refused" in first["why"]
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("127.0.0.1", port))
        s.listen(64)
        until(lambda: "no answer yet to /health" in a.event("engine.check_failed")["why"], lambda: events(a, "engine.check_failed"))
        assert "no answer yet to /health" in a.engine()["trouble"]
    whys = [e["why"] for e in events(a, "engine.check_failed")]
    assert len(whys) == len({w for w in whys}) or len(whys) <= 3, whys


def test_the_end_of_a_local_engine_is_said_soon(fake, start):
    """Kind openai_compat is asked every 15 s where it is a hosted API, but not on the machine itself."""
    e = fake()
    a = start(adopted(e)).wait_ready()
    e.stop()
    until(lambda: a.event("engine.unready"), "said", wait_s=10)


# ---- many ----
def test_64_engines_on_one_agent(start):
    conf = several(*((f"e{i:02}", 'extra_args = ["--time-scale", "0", "--kv-blocks", "64"]\n') for i in range(64)))
    a = start(conf)
    until(lambda: all(e["ready"] for e in a.node()["engines"]), lambda: [e["state"] for e in a.node()["engines"]], wait_s=2 * WAIT_S)
    victim = a.engine(63)
    assert a.generate("model=me63", "engine=e63", body=CHAT.replace(b'"m"', b'"me63"')).code == "FINE"
    os.kill(victim["pid"], signal.SIGKILL)
    until(lambda: (e := a.engine(63))["ready"] and e["restarts"] == 1, "one of them is started again")
    assert sum(e["restarts"] for e in a.node()["engines"]) == 1
    pids = [e["pid"] for e in a.node()["engines"]]
    a.proc.send_signal(signal.SIGTERM)
    assert a.proc.wait(WAIT_S) == 0 and not any(map(is_running, pids))

# SPDX-License-Identifier: Apache-2.0
"""What operators change, on disks that are slow, full, or another router's: the router goes on, and memory is what the disk has."""
import json
import signal
import subprocess

import pytest

from cluster import BUILD, ROOT, SANITIZER, ask, free_port, until
from kvdisks import Hog, tmpfs  # noqa: F401 (a fixture)
from test_model_load import LORA, VLLM
from test_policy import CTL, FAST, begin, ctl, policy


@pytest.fixture
def held(cluster, tmp_path, monkeypatch):
    """A router and a node. While the file that is returned exists, no sync in the router's state folder ends."""
    if SANITIZER:
        pytest.skip("a sanitizer must be loaded before any other library")
    library, switch = tmp_path / "failing_disk.so", tmp_path / "hold"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, ROOT / "tests/helpers/failing_disk.c", "-ldl"], check=True)
    with monkeypatch.context() as patch:
        for name, to in (("LD_PRELOAD", library), ("FAIL_DIR", cluster.state_dir), ("HOLD_SWITCH", switch)):
            patch.setenv(name, str(to))
        begin(cluster)
    cluster.node("a", *FAST)
    cluster.wait_ready()
    yield switch
    switch.unlink(missing_ok=True)  # a router that ends waits for its writes


def asks(cluster, *args):
    return subprocess.Popen([CTL, "cluster", *args, "--router", f"127.0.0.1:{cluster.grpc_port}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def written(cluster, name):
    """A file is written beside its place first."""
    return list(cluster.state_dir.glob(f"cognitora.{name}.*"))


@pytest.mark.plain
def test_the_router_goes_on_while_the_disk_hangs(cluster, held):
    held.touch()
    asked = [asks(cluster, "set-policy", "--policy", "random")]
    until(lambda: written(cluster, "policy"), "the policy is being written")
    asked += [asks(cluster, "set-policy", "--weights", "kv=0.5,load=0.3"), asks(cluster, "cordon", "a")]
    reloads = len(cluster.router_process.events("svc.reloaded"))
    cluster.router_process.signal(signal.SIGHUP)
    until(lambda: len(cluster.router_process.events("svc.reloaded")) > reloads, "it reloads")
    for _ in range(5):
        assert ask(cluster.admin_port, "GET", "/healthz").status == 200
        assert cluster.chat("hello").status == 200
        assert policy(cluster)["policy_from"] == "configuration"
    # Large bodies are read on the threads that wait for the disk, too.
    assert cluster.chat("long " * 100000, max_tokens=1).status in (200, 400)
    assert all(p.poll() is None for p in asked), [p.communicate()[0] for p in asked if p.poll() is not None]
    held.unlink()
    for p in asked:
        assert p.wait(60) == 0, p.communicate()[0]
    kept = json.loads((cluster.state_dir / "cognitora.policy").read_text())
    assert kept["policy"] == "random" and kept["weights"]["kv"] == 0.5  # neither change is lost
    assert (policy(cluster)["policy"], policy(cluster)["weights"]["kv"]) == ("random", 0.5)
    assert (cluster.state_dir / "cognitora.cordons").read_text() == "a\n"


@pytest.mark.plain
def test_a_kill_before_the_write_ends_leaves_the_last_policy(cluster, held):
    assert ctl(cluster, "set-policy", "--policy", "round_robin").returncode == 0
    held.touch()
    asked = asks(cluster, "set-policy", "--policy", "random")
    until(lambda: written(cluster, "policy"), "the policy is being written")
    cluster.router_process.kill()
    assert asked.wait(60) != 0  # nobody was told that it is stored
    cluster.router_process.start()  # without the library
    cluster.wait_ready()
    assert policy(cluster)["policy"] == "round_robin"


@pytest.mark.plain
def test_many_changes_at_once_are_all_kept(cluster, held):
    cluster.node("b", *LORA, sections=VLLM)
    cluster.wait_ready()
    held.touch()
    names = [f"m{i}" for i in range(12)]
    asked = [subprocess.Popen([CTL, "model", "load", n, "--lora", f"/adapters/{n}", "--base", "sim", "--router", f"127.0.0.1:{cluster.grpc_port}"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for n in names]
    until(lambda: written(cluster, "models"), "one of them is being written")
    held.unlink()
    said = [p.communicate(timeout=60)[0] for p in asked]
    assert [p.returncode for p in asked] == [0] * len(asked), said
    kept = json.loads((cluster.state_dir / "cognitora.models").read_text())
    assert sorted(m["name"] for m in kept["models"]) == sorted(names)


def test_a_full_disk_changes_nothing(cluster, tmpfs):  # noqa: F811
    cluster.common = {"cluster": {"state_dir": str(tmpfs)}}
    begin(cluster)
    assert ctl(cluster, "set-policy", "--policy", "round_robin").returncode == 0
    hog = Hog(tmpfs)
    hog.take()
    r = ctl(cluster, "set-policy", "--policy", "random")
    assert r.returncode == 1 and f"{tmpfs}/cognitora.policy" in r.stderr and "No space left" in r.stderr, r.stderr
    assert policy(cluster)["policy"] == "round_robin"
    assert json.loads((tmpfs / "cognitora.policy").read_text())["policy"] == "round_robin"
    assert not list(tmpfs.glob("cognitora.policy.*"))
    hog.free()
    assert ctl(cluster, "set-policy", "--policy", "random").returncode == 0
    assert policy(cluster)["policy"] == "random"


def test_a_second_router_says_whose_the_folder_is(cluster):
    first = begin(cluster)
    ports = cluster.http_port, cluster.grpc_port, cluster.admin_port
    cluster.http_port, cluster.grpc_port, cluster.admin_port = free_port(), free_port(), free_port()
    second = begin(cluster)
    (said,) = second.events("state.dir_shared")
    assert f"{cluster.state_dir}/cognitora.lock is locked by process {first.popen.pid}" in said["why"]
    r = ctl(cluster, "set-policy", "--policy", "random")
    assert r.returncode == 1 and f"locked by process {first.popen.pid}" in r.stderr, r.stderr
    cluster.grpc_port, mine = ports[1], cluster.grpc_port
    assert ctl(cluster, "set-policy", "--policy", "round_robin").returncode == 0
    first.stop()
    cluster.processes.remove(first)
    cluster.grpc_port = mine
    assert ctl(cluster, "set-policy", "--weights", "kv=0.5,load=0.3").returncode == 0  # made from what the first one left
    kept = json.loads((cluster.state_dir / "cognitora.policy").read_text())
    assert kept["policy"] == "round_robin" and kept["weights"]["kv"] == 0.5


def test_a_router_that_can_not_start_touches_no_file_of_the_one_that_runs(cluster):
    first = begin(cluster, {"batch": {"enabled": True}, "router.autoscaler": {"time_of_day": True}})

    def files():
        return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in cluster.state_dir.iterdir()}
    until(lambda: list(cluster.state_dir.glob("*.age")), "its files are there")
    first.signal(signal.SIGSTOP)  # it writes nothing meanwhile
    before = files()
    done = subprocess.run([BUILD / "src/router/cgn-router", "--config", cluster.folder / "router.toml", "--set", f"router.listen_admin=127.0.0.1:{free_port()}",
                           "--set", f"router.listen_grpc=127.0.0.1:{free_port()}"], capture_output=True, text=True, timeout=60)
    assert files() == before
    first.signal(signal.SIGCONT)
    assert done.returncode != 0 and f"127.0.0.1:{cluster.http_port}.lock is locked by process {first.pid}" in done.stderr, done.stderr


@pytest.mark.plain
def test_a_file_that_was_emptied_is_told(cluster):
    """It counts as none. What the router leaves behind for no cordon and no policy is no such file."""
    cluster.router()
    cluster.node("a")
    cluster.wait_ready()
    for words in (("cordon", "a"), ("uncordon", "a"), ("set-policy", "--policy", "random"), ("set-policy", "--reset")):
        r = ctl(cluster, *words)
        assert r.returncode == 0, r
    files = {f: cluster.state_dir / f"cognitora.{f}" for f in ("cordons", "policy")}

    def told():
        cluster.router_process.stop()
        cluster.router_process.start()
        cluster.wait_ready()
        return [len(cluster.router_process.events(e)) for e in ("state.cordons_empty", "state.document_empty")]
    assert told() == [0, 0]
    for f in files.values():
        f.write_text("")
    assert told() == [1, 1]

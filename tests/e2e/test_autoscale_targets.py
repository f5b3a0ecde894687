# SPDX-License-Identifier: Apache-2.0
"""router.autoscaler.target: programs and web servers that add and remove nodes, and the ways in which they fail."""
import contextlib
import hashlib
import hmac
import json
import signal
import subprocess
import threading
import time

import pytest

from clients import Stream
from cluster import BUILD, ask, until
from hook_service import HookService

CTL = str(BUILD / "src/ctl/cgn-ctl")
QUICK = {"enabled": True, "up_window": "1s", "down_window": "1s", "wake_time": "7s", "ttft": "0s", "itl": "0s", "max_replicas": 3,
         "target_timeout": "10s", "target_attempts": 2, "target_backoff": "20ms"}


def settings_change(cluster, **settings):
    """Replace settings of the autoscaler, and let the router read them again."""
    path = cluster.folder / "router.toml"
    head, _, rest = path.read_text().partition("[router.autoscaler]\n")
    after = rest.partition("\n[")
    path.write_text(head + "[router.autoscaler]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in {**QUICK, **settings}.items()) + after[1] + after[2])
    before = len(cluster.router_process.events("svc.reloaded"))
    cluster.router_process.signal(signal.SIGHUP)
    until(lambda: len(cluster.router_process.events("svc.reloaded")) > before, cluster.logs)


def scaler(cluster):
    return ask(cluster.admin_port, "GET", "/autoscaler").json()


def tries(cluster, says, **settings):
    """Change the settings, and wait until the last decision ends in that way."""
    n = len(scaler(cluster)["decisions"])
    settings_change(cluster, **settings)
    until(lambda: len(scaler(cluster)["decisions"]) > n and says in scaler(cluster)["decisions"][0]["then"],
          lambda: (says, scaler(cluster)["decisions"][:2]))
    return scaler(cluster)["decisions"][0]


def script(folder, body):
    path = folder / "scale"
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return str(path)


@pytest.mark.slow
def test_a_target_that_fails_is_told_and_asked_again(cluster, tmp_path):
    cluster.router({"router.autoscaler": {**QUICK, "min_replicas": 1}})
    cluster.node("a")
    cluster.wait_ready()
    two = {"min_replicas": 2}  # one is there: an order follows at once
    d = tries(cluster, "failed after 1 attempt: ", target="exec", exec=["/no/such/program"], **two)
    assert "/no/such/program" in d["then"] and (d["action"], d["have"], d["want"]) == ("up", 1, 2)
    tries(cluster, "failed after 2 attempts: the command took longer than router.autoscaler.target_timeout and was ended",
          target="exec", exec=[script(tmp_path, "sleep 60\n")], target_timeout="200ms", **two)
    tries(cluster, "failed after 2 attempts: the command ended with status 3: no quota for $HOME", target="exec",
          exec=[script(tmp_path, 'echo "no quota for $1" >&2; exit 3\n'), "$HOME"], **two)
    tries(cluster, "failed after 1 attempt: the command ended with status 78 (EX_CONFIG", target="exec", exec=[script(tmp_path, "exit 78\n")], **two)
    shown = subprocess.run([CTL, "cluster", "scale", "--router", f"127.0.0.1:{cluster.grpc_port}"], capture_output=True, text=True, timeout=60, check=True)
    assert "router.autoscaler: on, target exec" in shown.stdout and "no quota for $HOME" in shown.stdout and "EX_CONFIG" in shown.stdout
    pki = tmp_path / "pki"
    for folder in (pki, tmp_path / "other"):
        subprocess.run([CTL, "pki", "bootstrap", "--out", str(folder), "--leaf", "hook=viewer"], capture_output=True, text=True, check=True)
    secret = tmp_path / "secret"
    secret.write_text("a secret\n")
    with HookService(tls=(str(pki / "hook.pem"), str(pki / "hook.key"))) as hook:
        web = {"target": "webhook", "webhook_url": hook.url("/scale/gpu"), "webhook_secret_file": str(secret), **two}
        d = tries(cluster, "failed after 2 attempts: the webhook cannot be asked: ", webhook_ca_file=str(tmp_path / "other/ca.pem"), **web)
        assert "certificate" in d["then"] and not hook.seen, d
        web["webhook_ca_file"] = str(pki / "ca.pem")
        hold = threading.Event()
        hook.decide = lambda _: hold.wait(60) and None
        tries(cluster, "failed after 2 attempts: the webhook did not answer within router.autoscaler.target_timeout", target_timeout="200ms", **web)
        hold.set()
        hook.decide = lambda _: (404, b"no such group")
        tries(cluster, "failed after 1 attempt: the webhook answered 404: no such group", **web)
        hook.decide = lambda _: (500, b"") if len(hook.seen) < 5 else (202, b"i-17 starts")
        assert len(hook.seen) == 3
        tries(cluster, "the webhook answered 202: i-17 starts", **web)
        (path, first, body), (_, second, again) = hook.raw[-2:]
        assert path == "/scale/gpu" and body == again
        order = json.loads(body)
        assert {k: order[k] for k in ("model", "role", "action", "have", "replicas", "nodes")} == {
            "model": "sim", "role": "both", "action": "up", "have": 1, "replicas": 2, "nodes": []}
        assert f"idempotency-key: {order['id']}" in first and f"idempotency-key: {order['id']}" in second
        assert f"x-cgn-signature: sha256={hmac.new(b'a secret', body, hashlib.sha256).hexdigest()}" in first
    until(lambda: scaler(cluster)["models"][0]["coming"] == 1, lambda: scaler(cluster))  # promised, so no second order follows
    counts = {o: cluster.metric("cgn_autoscaler_target_attempts_total", target="webhook", outcome=o) for o in ("done", "again", "failed")}
    assert counts == {"done": 1, "again": 3, "failed": 3}
    cluster.node("b")
    until(lambda: scaler(cluster)["models"][0]["ready"] == 2, cluster.logs)
    assert scaler(cluster)["models"][0]["coming"] == 0 and scaler(cluster)["models"][0]["wake_seconds"] < 7  # measured


@pytest.mark.slow
def test_a_program_removes_a_node_when_its_streams_have_ended(cluster, tmp_path):
    orders = tmp_path / "orders"
    run = [script(tmp_path, f'env | grep ^CGN_SCALE_ >{orders}.new; echo "$1" >>{orders}.new; mv {orders}.new {orders}\n'), "--group=gpu"]
    cluster.router({"router.autoscaler": {**QUICK, "mode": "shadow", "target": "exec", "exec": run}})
    for name in "ab":
        cluster.node(name, "--decode-ms", "20")
    cluster.wait_ready()
    until(lambda: scaler(cluster)["decisions"], cluster.logs)
    assert "shadow" in scaler(cluster)["decisions"][0]["then"] and not orders.exists()
    with contextlib.ExitStack() as all_of:
        streams = [all_of.enter_context(contextlib.closing(Stream(cluster.http_port, f"{i} {time.monotonic()}", max_tokens=100, ignore_eos=True)))
                   for i in range(2)]
        for s in streams:
            s.read_until(b"data: ")
        settings_change(cluster, target="exec", exec=run)
        until(lambda: any(n["cordoned"] for n in cluster.status()["nodes"]), lambda: scaler(cluster))
        assert "cordoned" in scaler(cluster)["decisions"][0]["then"] and not orders.exists()
        for s in streams:
            s.read_until(b"[DONE]")
    until(orders.exists, lambda: scaler(cluster))
    *env, argument = orders.read_text().splitlines()
    env = dict(line.split("=", 1) for line in env)
    victim = env["CGN_SCALE_NODES"]
    assert argument == "--group=gpu" and env["CGN_SCALE_ACTION"] == "down" and (env["CGN_SCALE_HAVE"], env["CGN_SCALE_REPLICAS"]) == ("2", "1")
    assert victim == scaler(cluster)["decisions"][0]["nodes"] and [n["id"] for n in cluster.status()["nodes"] if n["cordoned"]] == [victim]
    cluster.nodes[victim].agent.stop()
    until(lambda: list(cluster.states()) == [n for n in "ab" if n != victim], lambda: cluster.states())
    settings_change(cluster, mode="shadow", target="exec", exec=run)
    cluster.nodes[victim].agent.start()  # a machine of the same name comes later: nothing is left of its cordon
    until(lambda: [n["cordoned"] for n in cluster.status()["nodes"] if n["id"] == victim and n["state"] == "ready"] == [False], lambda: cluster.status())


def test_a_router_that_ends_while_nodes_drain_lifts_its_cordons(cluster, tmp_path):
    """At its next start, and no other cordon: an operator's stays."""
    orders = tmp_path / "orders"
    run = [script(tmp_path, f"touch {orders}\n")]
    cluster.router({"router.autoscaler": {**QUICK, "target": "exec", "exec": run}})
    for name in "abc":
        cluster.node(name, "--decode-ms", "20")
    cluster.wait_ready()

    def cordoned():
        return sorted(n["id"] for n in cluster.status()["nodes"] if n["cordoned"])
    with contextlib.ExitStack() as all_of:
        streams = [all_of.enter_context(contextlib.closing(Stream(cluster.http_port, f"{i} {time.monotonic()}", max_tokens=2000, ignore_eos=True)))
                   for i in range(3)]
        for s in streams:
            s.read_until(b"data: ")
        victims = until(cordoned, lambda: scaler(cluster))
        theirs = next(n for n in "abc" if n not in victims)
        assert ask(cluster.admin_port, "POST", f"/nodes/{theirs}/cordon", headers={"x-cgn-page": "1"}).status == 200
        path = cluster.folder / "router.toml"
        head, _, rest = path.read_text().partition("[router.autoscaler]")
        path.write_text(head + "[router.autoscaler]" + rest.replace("enabled = true", "enabled = false", 1))
        cluster.router_process.kill()
    cluster.router_process.start()
    until(lambda: cluster.listens(cluster.admin_port, cluster.router_process), cluster.logs)
    until(lambda: cordoned() == [theirs], lambda: (cluster.status(), cluster.logs()))
    until(lambda: all(not f.read_text().splitlines()[1:-1] for f in cluster.state_dir.glob("*.scaler-cordons")), "the file is empty")


@pytest.mark.parametrize("settings, says", [
    ({"target": "exec"}, "router.autoscaler.exec names no program"),
    ({"target": "webhook"}, "router.autoscaler.webhook_url is not set"),
    ({"target": "webhook", "webhook_url": "ftp://x/"}, "must be http://HOST"),
    ({"target": "exec", "exec": ["x"], "max_replicas": 0}, "max_replicas have to be at least 1"),
])
def test_targets_that_cannot_be_are_refused(cluster, settings, says):
    path = cluster.config("bad", {"router.autoscaler": {**QUICK, **settings}})
    done = subprocess.run([str(BUILD / "src/router/cgn-router"), "--check", "--config", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and says in done.stderr + done.stdout

# SPDX-License-Identifier: Apache-2.0
"""Everything that can delay a request, at once: a queue, rates, breakers, clients that leave, faults and
reloads. Afterwards no place, booking or memory is left taken."""
import http.client
import json
import random
import signal
import socket
import threading
import time

import pytest

from clients import set_faults
from cluster import ask, scaled, until

pytestmark = pytest.mark.threads

HOSTILE = ("9" * 400, "-1", "", " ", "high, low", "\u00ff\u00fe", "%00", "1e9", "'\"\\", "{}", "0x1", "+5")


def settings(limit, n):
    return {"router": {"worker_threads": 4, "explain_size": "4MiB", "shadow": ["weighted", "random"], "resume": True},
            "router.admission": {"max_concurrent_per_replica": 2, "max_queue": n, "queue_timeout": "2s"},
            "router.rate_limit": {"rps": limit, "burst": int(limit), "tokens_per_minute": 100000000},
            "router.breaker": {"failures": 2, "open_for": "100ms"}}


def one(cluster, dice):
    """Send a request as clients do, some of which do not wait for the answer."""
    body = json.dumps({"model": "sim", "stream": dice.random() < 0.5, "max_tokens": dice.randrange(1, 8), "ignore_eos": True,
                       "messages": [{"role": "user", "content": "w " * dice.randrange(1, 200)}]}).encode()
    head = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": len(body)}
    for name in ("X-Cgn-Priority", "X-Cgn-Deadline-Ms", "X-Cgn-Explain", "X-Request-Id", "X-Cgn-Resume", "Cookie", "X-Cgn-Session"):
        if dice.random() < 0.1:
            head[name] = dice.choice(HOSTILE)
    if dice.random() < 0.3:
        head["X-Cgn-Explain"] = "1"
    if dice.random() < 0.2:
        head["X-Cgn-Deadline-Ms"] = dice.randrange(1, 3000)
    with socket.create_connection(("127.0.0.1", cluster.http_port), timeout=60) as s:
        lines = "".join(f"{k}: {v}\r\n" for k, v in head.items()).encode("latin-1")
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n" + lines + b"\r\n" + body)
        if dice.random() < 0.4:
            time.sleep(dice.random() * 0.05)
            return 0
        got = b""
        while b"\r\n\r\n" not in got:
            more = s.recv(65536)
            if not more:
                return -1
            got += more
        for line in got.split(b"\r\n\r\n")[0].lower().split(b"\r\n"):
            if line.startswith(b"retry-after:"):
                assert 1 <= int(line.split(b":")[1]) <= 3600, line
        return int(got.split()[1])


@pytest.mark.both
def test_a_storm_leaves_nothing_taken(cluster):
    cluster.router(settings(1000.0, 6))
    for name in "ab":
        cluster.node(name, "--token-interval-us", "1000", "--max-batch", "2", "--kv-blocks", "4096")
    cluster.wait_ready(2)
    seen, end = {}, time.monotonic() + 4
    trouble = []

    def client(seed):
        dice = random.Random(seed)
        while time.monotonic() < end:
            try:
                status = one(cluster, dice)
            except OSError:
                status = -2
            except AssertionError as e:
                trouble.append(e)
                return
            seen[status] = seen.get(status, 0) + 1

    threads = [threading.Thread(target=client, args=(i,)) for i in range(scaled(24, 16))]
    for t in threads:
        t.start()
    dice = random.Random(99)
    mine = {"listen": f"127.0.0.1:{cluster.http_port}", "listen_grpc": f"127.0.0.1:{cluster.grpc_port}",
            "listen_admin": f"127.0.0.1:{cluster.admin_port}"}
    while time.monotonic() < end:
        s = settings(dice.choice((1000.0, 20.0)), dice.choice((0, 2, 6, 50)))
        s["router"].update(mine)
        cluster.config("router", s)
        cluster.router_process.signal(signal.SIGHUP)
        set_faults(cluster.nodes[dice.choice("ab")].engine_port, *dice.choice(((), (), ("http500",), ("http503",))))
        for path in ("/explain?last=100", "/explain/%00", "/explain/" + "%ff" * 140, "/explain/x%22%0d%0a", "/queue", "/metrics"):
            ask(cluster.admin_port, "GET", path)
        time.sleep(0.05)
    for t in threads:
        t.join(120)
        assert not t.is_alive(), "a client was forgotten"
    assert not trouble, trouble
    for name in "ab":
        set_faults(cluster.nodes[name].engine_port)
    until(lambda: sum(q["requests"] for q in ask(cluster.admin_port, "GET", "/queue").json()["queues"]) == 0, "the queue is empty")
    until(lambda: all(n["router_inflight"] == 0 for n in cluster.status()["nodes"]), "nothing is in flight")
    s = settings(1000.0, 6)
    s["router"].update(mine)
    cluster.config("router", s)
    reloads = len(cluster.router_process.events("svc.reloaded"))
    cluster.router_process.signal(signal.SIGHUP)
    cluster.router_process.tells("svc.reloaded", reloads + 1)

    for n in cluster.status()["nodes"]:
        assert n["breaker"]["text"] != "half-open: a request is trying it", "there is none"
    print(seen)
    assert seen.get(200, 0) > 0
    answers = []
    late = [threading.Thread(target=lambda: answers.append(cluster.chat("x", max_tokens=3).status)) for _ in range(10)]
    for t in late:
        t.start()
    for t in late:
        t.join(60)
    assert answers.count(200) >= 4, answers
    assert cluster.router_process.stop() == 0


def test_a_router_ends_in_a_storm(cluster):
    """SIGTERM with a full queue, half-open breakers, rates in an absent Redis, and tokenize requests in
    flight."""
    s = settings(1000.0, 50)
    s["router"]["drain_timeout"] = "1s"
    s["router.rate_limit"]["redis_url"] = "redis://127.0.0.1:1"
    cluster.router(s)
    for name in "ab":
        cluster.node(name, "--token-interval-us", "20000", "--max-batch", "2", "--kv-blocks", "4096")
    cluster.wait_ready(2)
    over = threading.Event()

    def client(seed):
        dice = random.Random(seed)
        while not over.is_set():
            try:
                if seed < 4:
                    ask(cluster.admin_port, "GET", "/explain?last=100")
                else:
                    one(cluster, dice)
            except (OSError, http.client.HTTPException):
                time.sleep(0.01)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(30)]
    for t in threads:
        t.start()
    until(lambda: sum(q["requests"] for q in ask(cluster.admin_port, "GET", "/queue").json()["queues"]) > 4, "some wait")
    assert cluster.router_process.stop() == 0
    over.set()
    for t in threads:
        t.join(90)
        assert not t.is_alive(), "a client was forgotten"

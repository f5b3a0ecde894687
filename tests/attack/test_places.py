# SPDX-License-Identifier: Apache-2.0
"""Streams that nobody reads, and floods of requests, leave places on the nodes to other tenants."""
import concurrent.futures
import contextlib
import json
import socket

from cluster import ask, until
from hostile import HOSTILE, VICTIM, head, idle, says_share, start
from test_direct import add
from test_limits import key

PLACES = 20
LIMIT = {"router.admission": {"max_concurrent_per_replica": PLACES, "queue_timeout": "3s"}}
STREAM = json.dumps({"model": "sim", "stream": True, "max_tokens": 7000, "ignore_eos": True, "messages": [{"role": "user", "content": "for ever"}]}).encode()


@contextlib.contextmanager
def unread(port, headers, n):
    """Ask for |n| streams without an end, and read nothing of them."""
    with contextlib.ExitStack() as stack:
        for _ in range(n):
            s = stack.enter_context(socket.socket())
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.connect(("127.0.0.1", port))
            s.sendall(head("/v1/chat/completions", headers, {"Content-Type": "application/json", "Content-Length": len(STREAM)}.items()) + STREAM)
        yield


def held(c, tenant):
    for t in ask(c.admin_port, "GET", "/tenants").json()["tenants"]:
        if t["name"] == tenant:
            return next(s["held"] for s in t["shares"] if s["share"] == "requests")
    return 0


def test_unread_streams_leave_places_to_others(cluster):
    mallory, victim = start(cluster, node=("--token-interval-us", "5000"), **LIMIT)
    with unread(cluster.http_port, mallory, 3 * PLACES):
        until(lambda: held(cluster, HOSTILE) == PLACES * 9 // 10, lambda: held(cluster, HOSTILE))
        for _ in range(5):
            assert cluster.chat("hello", victim, max_tokens=2).status == 200
        assert held(cluster, HOSTILE) == PLACES * 9 // 10
        assert says_share(cluster.chat("hello", mallory, max_tokens=2), "requests at the nodes", PLACES * 9 // 10)
    idle(cluster)
    assert held(cluster, VICTIM) == 0 and cluster.chat("hello", mallory, max_tokens=2).status == 200


def test_a_tenant_that_is_alone_waits_and_is_served(cluster):
    """Beyond its share its requests wait for its own, and each is answered."""
    mallory, _ = start(cluster, node=("--decode-ms", "5"), **{"router.admission": {"max_concurrent_per_replica": 4, "queue_timeout": "30s"}})
    import concurrent.futures
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        assert list(pool.map(lambda i: cluster.chat(f"hello {i}", mallory, max_tokens=8).status, range(48))) == [200] * 48
    idle(cluster)


def test_reservations_are_places_too(cluster):
    mallory, victim = (key(cluster.folder, t, t) for t in (HOSTILE, VICTIM))
    cluster.router({"router.selection": {"enabled": True}, "auth": {"enabled": True, "api_keys_file": str(cluster.folder / "keys")}, **LIMIT})
    add(cluster, "a")
    cluster.wait_ready(1)
    until(lambda: len(cluster.ask("GET", "/workers", headers=victim).json()) == 1, "the node can be chosen")

    def reserve(headers, i):
        return cluster.ask("POST", "/select_and_reserve", {"model_name": "sim", "token_ids": [1, 2, 3], "selection_id": f"r-{i}"}, headers).status
    assert [reserve(mallory, i) for i in range(PLACES * 9 // 10)] == [200] * (PLACES * 9 // 10)
    assert reserve(victim, 1) == 200 and reserve(mallory, 99) == 429
    for i in range(PLACES):
        cluster.ask("DELETE", f"/reservations/r-{i}", headers=mallory)
        cluster.ask("DELETE", f"/reservations/r-{i}", headers=victim)
    idle(cluster)

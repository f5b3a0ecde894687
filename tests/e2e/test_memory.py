# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests: the memory of router and agent stays within the bound that is set, and is given back."""
import socket

import pytest

from clients import head_of
from cluster import SANITIZER, WAIT_S, Cluster, until

BOUND_MIB = 64
BODY_MIB = 2
CLIENTS = 60
BASE_KIB = 20 * 1024  # stacks, connections, answers of errors, and what the allocator keeps
BODY = b'{"model":"sim","max_tokens":1,"messages":[{"role":"user","content":"' + b"lorem ipsum " * (BODY_MIB * 1024 * 1024 // 12) + b'"}]}'
HEAD = head_of(len(BODY))


def peak_kib(process):
    with open(f"/proc/{process.pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM:"))


def open_many(port):
    """Send each client's whole body; the engine answers none of them."""
    clients = []
    for _ in range(CLIENTS):
        s = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        try:
            s.sendall(HEAD + BODY)
        except ConnectionError:
            pass  # refused before all of it was read
        clients.append(s)
    return clients


def refusal_of(s):
    """Return (status, fields) of an answer that is there now, or None."""
    s.settimeout(0.001)
    try:
        lines = s.recv(65536, socket.MSG_PEEK).decode().partition("\r\n\r\n")[0].split("\r\n")
    except (TimeoutError, BlockingIOError):
        return None
    return int(lines[0].split()[1]), dict(line.lower().split(": ", 1) for line in lines[1:])


@pytest.mark.plain
@pytest.mark.skipif(bool(SANITIZER), reason="a sanitizer keeps freed memory")
@pytest.mark.parametrize("who", ["router", "agent"])
def test_bodies_stay_within_their_bound_and_are_given_back(tmp_path, who):
    bound = {"max_inflight_body": f"{BOUND_MIB}MiB"}
    with Cluster(tmp_path) as c:
        c.common['models."sim"'] = {"tokens": "bytes"}
        c.router({"router": {**(bound if who == "router" else {}), "worker_threads": 2}, "router.admission": {"max_concurrent_per_replica": 4096}})
        node = c.node("a", "--time-scale", "0", "--fault", "hang", sections={"agent": bound if who == "agent" else {}})
        c.wait_ready(1)
        process = c.router_process if who == "router" else node.agent
        idle = process.rss_kib()
        clients = open_many(c.http_port)
        until(lambda: sum(refusal_of(s) is not None for s in clients) >= CLIENTS - BOUND_MIB // BODY_MIB, "those for whom there is no room are answered")
        refused = [r for r in map(refusal_of, clients) if r is not None]
        assert all(status == 503 and int(headers["retry-after"]) > 0 for status, headers in refused)
        assert len(refused) < CLIENTS * 3 // 4, "the bound is used"
        assert peak_kib(process) - idle < BOUND_MIB * 1024 * 1.1 + BASE_KIB
        for s in clients:
            s.close()
        until(lambda: c.metric("cgn_inflight") == 0, "all requests have ended")
        until(lambda: process.rss_kib() - idle < BASE_KIB, "the memory is given back")

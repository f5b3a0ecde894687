# SPDX-License-Identifier: Apache-2.0
"""Limits that routers share through Redis, where a test says what Redis answers."""
import contextlib
import socket
import socketserver
import threading
import time

import pytest
from cluster import until
from test_limits import key


class Redis(socketserver.ThreadingTCPServer):
    """A Redis whose script answers |says|, a list of numbers."""
    daemon_threads = allow_reuse_address = True

    def __init__(self, says):
        super().__init__(("127.0.0.1", 0), Talk)
        self.says, self.calls, self.talks = says, 0, []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self):
        return f"redis://127.0.0.1:{self.server_address[1]}/0"

    def end(self):
        """Listen no more, and cut the connections."""
        self.shutdown()
        self.server_close()
        for t in self.talks:
            with contextlib.suppress(OSError):
                t.shutdown(socket.SHUT_RDWR)


class Talk(socketserver.StreamRequestHandler):
    def words(self):
        line = self.rfile.readline()
        return [self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2] for _ in range(int(line[1:] or 0))]

    def handle(self):
        self.server.talks.append(self.connection)
        while words := self.words():
            if words[0] == b"SCRIPT":
                self.wfile.write(b"$40\r\n" + b"a" * 40 + b"\r\n")
            elif words[0] == b"EVALSHA":
                self.server.calls += 1
                self.wfile.write(b"*%d\r\n" % len(self.server.says) + b"".join(b":%d\r\n" % n for n in self.server.says))
            else:
                self.wfile.write(b"+OK\r\n")


@pytest.fixture
def start(cluster):
    """Start a router that shares |limits| through a Redis; return (cluster, Redis)."""
    made = []

    def begin(says, limits, **sections):
        made.append(redis := Redis(says))
        cluster.router({"router": {"worker_threads": 1}, "router.rate_limit": {"redis_url": redis.url(), "redis_timeout": "10s", **limits}, **sections})
        cluster.node("a", "--time-scale", "0")
        cluster.wait_ready()
        until(lambda: cluster.metric("cgn_rate_limit_store", store="redis") == 1, "Redis is there")
        return cluster, redis

    yield begin
    for r in made:
        r.end()


@pytest.mark.parametrize("says", [[1, 0, 5, 0], [0, 0, 0, 0], [1, 0, 0]])
def test_an_answer_that_makes_no_sense_is_none(start, says):
    """Granted although a limit refuses; refused although none does; too short. The router applies its limits alone then."""
    cluster, redis = start(says, {"rps": 0.001, "burst": 2})
    assert [cluster.chat("hello", max_tokens=2).status for _ in range(3)] == [200, 200, 429]
    assert redis.calls >= 1


def test_a_router_that_loses_redis_knows_what_was_spent(start, tmp_path):
    month = (time.gmtime().tm_year - 1970) * 12 + time.gmtime().tm_mon - 1
    headers = key(tmp_path, "one", "acme")
    cluster, redis = start([1, 9, 0, month], {}, auth={"enabled": True, "api_keys_file": str(tmp_path / "keys")},
                           **{'tenants."acme"': {"budgets": ["9 requests/month"]}})
    assert cluster.chat("hello", headers, max_tokens=2).status == 200 and redis.calls >= 1
    redis.end()
    until(lambda: cluster.metric("cgn_rate_limit_store", store="local") == 1, "Redis is gone")
    refused = cluster.chat("hello", headers, max_tokens=2)
    assert refused.status == 429 and refused.json()["error"]["code"] == "insufficient_quota", refused.body

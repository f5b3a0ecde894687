# SPDX-License-Identifier: Apache-2.0
"""A hostile tenant, a victim, and what one takes from the other. bench/hostile.py measures with the same."""
import contextlib
import socket

from cluster import ask, until
from test_batch import BOUNDARY, form, line, jsonl, upload
from test_limits import key

HOSTILE, VICTIM = "mallory", "victim"


def start(c, router=None, node=("--time-scale", "0"), nodes=1, auth=None, **sections):
    """Start a router and nodes. Return the headers of the hostile tenant and of the victim."""
    headers = {t: key(c.folder, t, t) for t in (HOSTILE, VICTIM)}
    c.router({"router": {"worker_threads": 2, **(router or {})}, "auth": {"enabled": True, "api_keys_file": str(c.folder / "keys"), **(auth or {})}, **sections})
    for i in range(nodes):
        c.node(f"n{i}", *node)
    c.wait_ready(nodes)
    return headers[HOSTILE], headers[VICTIM]


def says_share(answer, nouns, held=None):
    """Is it the refusal of a tenant that has its share?"""
    assert answer.status == 429, (answer.status, answer.body)
    assert answer.headers["x-cgn-refused-by"] == "share" and int(answer.headers["retry-after"]) >= 1
    error = answer.json()["error"]
    assert error["code"] == "tenant_share" and f"{HOSTILE} holds {'' if held is None else held}" in error["message"] and nouns in error["message"], error
    return True


def head(path, headers, more=()):
    fields = "".join(f"{k}: {v}\r\n" for k, v in {**headers, **dict(more)}.items())
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n".encode()


@contextlib.contextmanager
def held_open(port, first, n):
    """Open |n| connections that send |first| and no more."""
    with contextlib.ExitStack() as stack:
        socks = []
        for _ in range(n):
            s = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            s.sendall(first)
            socks.append(s)
        yield socks


def slow_uploads(c, headers, n):
    """Begin |n| uploads that do not end."""
    more = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}", "Content-Length": 100000}
    return held_open(c.http_port, head("/v1/files", headers, more.items()) + form(b"x" * 4000)[:3000], n)


def idle(c):
    """All shares are given back."""
    def none_held():
        scraped = c.scrape()
        return all(c.metric("cgn_share_held", scraped, share=s) == 0 for s in ("requests", "body_bytes", "file_calls", "reservations"))
    until(none_held, "all shares are 0 when idle")


__all__ = ["HOSTILE", "VICTIM", "ask", "form", "head", "held_open", "idle", "jsonl", "key", "line", "says_share", "slow_uploads", "start", "until", "upload"]

# SPDX-License-Identifier: Apache-2.0
"""Request smuggling through a real nginx and a real HAProxy that keep their connections to the router and share them between clients. Each
shape of tests/e2e/smuggling.py comes in at each door; then a victim at the same door must get exactly its own answers, and the router must
have served no request that no client sent."""
import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

import h2raw
from cluster import WAIT_S, Cluster, ask, free_port, until
from h2raw import H2, frame
from smuggling import BAD_HEADS, BODY, HIDDEN, odd_shapes, request, shapes
from test_keys import ctl

OUTER_ID = "outer"
SHAPES = [*shapes(), *odd_shapes()]
DOORS = {"nginx": "nginx", "nginx-lax": "nginx", "nginx-h2": "nginx", "haproxy": "haproxy", "haproxy-lax": "haproxy", "haproxy-h2": "haproxy"}
H1_DOORS = [d for d in DOORS if not d.endswith("h2")]
VICTIMS = 3  # requests of the victim after a shape
serial = itertools.count()


def nginx_conf(folder, ports, router):
    """The doors: as Debian's documents set it up; one that passes odd fields and streams bodies; one with HTTP/2."""
    temps = " ".join(f"{x}_temp_path {folder}/{x};" for x in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    proxy = 'proxy_pass http://router; proxy_http_version 1.1; proxy_set_header Connection "";'
    return f"""daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr; user root; events {{}}
http {{ access_log off; {temps} keepalive_timeout 300ms; client_header_timeout 300ms; client_body_timeout 300ms;
upstream router {{ server 127.0.0.1:{router}; keepalive 1; }}
server {{ listen 127.0.0.1:{ports['nginx']}; location / {{ {proxy} }} }}
server {{ listen 127.0.0.1:{ports['nginx-lax']}; ignore_invalid_headers off; underscores_in_headers on; merge_slashes off;
  location / {{ {proxy} proxy_request_buffering off; proxy_buffering off; proxy_pass_request_headers on; }} }}
server {{ listen 127.0.0.1:{ports['nginx-h2']} http2; ignore_invalid_headers off; underscores_in_headers on; location / {{ {proxy} proxy_request_buffering off; }} }}
}}
"""


def haproxy_conf(ports, router):
    doors = "\n".join(f"""frontend {name}
  bind 127.0.0.1:{ports[name]} {more}
  {option}
  default_backend router""" for name, more, option in (("haproxy", "", ""), ("haproxy-lax", "", "option accept-invalid-http-request"), ("haproxy-h2", "proto h2", "")))
    return f"""global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 300ms
  timeout http-request 300ms
  timeout http-keep-alive 300ms
  timeout server 20s
{doors}
backend router
  http-reuse always
  option accept-invalid-http-response
  server one 127.0.0.1:{router}
"""


def begin(stack, folder, name, argv):
    with open(folder / f"{name}.err", "ab") as log:
        p = subprocess.Popen(list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def end():
        p.terminate()
        try:
            p.wait(20)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGKILL)  # workers that outlive their master
    stack.callback(end)


class World:
    def __init__(self, stack, folder):
        self.folder, self.ports = folder, {name: free_port() for name in DOORS}
        self.access, self.read = folder / "access.log", 0
        made = [json.loads(ctl("key", "create", "--file", folder / "keys", "--scopes", "chat", "--name", name, "-o", "json")) for name in ("victim", "attacker")]
        self.victim, self.attacker = made
        self.c = c = stack.enter_context(Cluster(folder))
        c.router({"router": {"worker_threads": 1, "access_log": str(self.access)}, "auth": {"enabled": True, "api_keys_file": str(folder / "keys")}})
        c.node("a", "--time-scale", "0")
        c.wait_ready(1)
        for name, conf in (("nginx", nginx_conf(folder, self.ports, c.http_port)), ("haproxy", haproxy_conf(self.ports, c.http_port))):
            (folder / f"{name}.conf").write_text(conf)
        begin(stack, folder, "nginx", ["nginx", "-e", "stderr", "-p", folder, "-c", folder / "nginx.conf"])
        begin(stack, folder, "haproxy", ["haproxy", "-db", "-f", folder / "haproxy.conf"])
        for port in self.ports.values():
            until(lambda: self.listens(port), self.said)
        more = b"Authorization: Bearer %s\r\nX-Request-Id: %s\r\n" % (self.attacker["key"].encode(), OUTER_ID.encode())
        self.shapes = {**shapes(more), **odd_shapes(more)}
        self.fair = request(b"Content-Length: %d\r\n" % len(BODY), more=more)
        self.served({self.ask_as_victim("nginx")})  # lines of the log until here came from this test's own waiting

    @staticmethod
    def listens(port):
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", port)) == 0

    def said(self):
        return "\n".join((self.folder / f"{p}.err").read_text() for p in ("nginx", "haproxy"))

    def logged(self):
        """Return what the router logged since the last call of served()."""
        text = self.access.read_bytes()[self.read:] if self.access.exists() else b""
        return [json.loads(x) for x in text[:text.rfind(b"\n") + 1].splitlines()]

    def served(self, ids):
        """Wait until the requests |ids| are logged; return all that was logged since the last call."""
        until(lambda: ids <= {x["id"] for x in self.logged()}, lambda: f"{ids} in {self.logged()}")
        lines = self.logged()
        self.read += self.access.read_bytes()[self.read:].rfind(b"\n") + 1
        return lines

    def ask_as_victim(self, door):
        """One request on a connection of its own; it must get its own answer. Return its id."""
        me = f"victim-{next(serial)}"
        text = f"{me} says " + "and " * (next(serial) % 7)
        a = ask(self.ports[door], "POST", "/v1/chat/completions", {"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 4},
                {"Authorization": f"Bearer {self.victim['key']}", "X-Request-Id": me})
        assert a.status == 200 and a.headers["x-request-id"] == me, (door, a.status, a.headers, a.body[:300])
        direct = ask(self.c.nodes["a"].engine_port, "POST", "/v1/chat/completions", {"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 4}).json()
        mine = a.json()
        assert mine["choices"] == direct["choices"] and mine["usage"]["prompt_tokens"] == direct["usage"]["prompt_tokens"], (mine, direct)
        return me


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    lacking = [p for p in ("nginx", "haproxy") if shutil.which(p) is None]
    if lacking and not os.environ.get("CI"):
        pytest.skip(f"not installed: {', '.join(lacking)}")
    with contextlib.ExitStack() as stack:
        yield World(stack, tmp_path_factory.mktemp("doors"))


def read_for(s, got, wait_s):
    """Read what comes within |wait_s|; return the bytes so far, and whether the door has closed."""
    s.settimeout(wait_s)
    while True:
        try:
            more = s.recv(65536)
        except TimeoutError:
            return got, False
        except ConnectionError:
            return got, True
        if not more:
            return got, True
        got += more


def ids_in(answers):
    """Return the ids of the requests that these bytes answer."""
    return {line.split(b":", 1)[1].strip().decode(errors="replace") for line in answers.split(b"\r\n") if line.lower().startswith(b"x-request-id:")}


def judge(w, door, victims, answered):
    """Were all requests sent by a client? |answered()| returns the ids of the answers that the attacker got so far."""
    lines = w.served(set(victims))
    own = [x for x in lines if x["key"] == w.victim["id"]]
    assert sorted(x["id"] for x in own) == sorted(victims), own
    assert all(x["status"] == 200 and x["path"] == "/v1/chat/completions" and x["method"] == "POST" for x in own), own
    others = {x["id"]: x for x in lines if x not in own and x["id"] != OUTER_ID}
    until(lambda: set(others) <= answered(), lambda: f"{door}: requests that no client sent: {[x for i, x in others.items() if i not in answered()]}")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("door", H1_DOORS)
def test_a_shape_reaches_no_other_client(world, door, shape):
    world.served({world.ask_as_victim(door)})  # the door has a connection to the router that it will use again
    victims = []
    with socket.create_connection(("127.0.0.1", world.ports[door]), timeout=WAIT_S) as s:
        with contextlib.suppress(ConnectionError):
            s.sendall(world.shapes[shape])
        got, over = read_for(s, b"", 0.03)  # a victim comes while the rest of the shape may lie on the shared connection
        for _ in range(VICTIMS):
            victims.append(world.ask_as_victim(door))

        def answered():
            nonlocal got, over
            if not over:
                got, over = read_for(s, got, 0.05)
            return ids_in(got)
        judge(world, door, victims, answered)


@pytest.mark.parametrize("head", BAD_HEADS)
@pytest.mark.parametrize("door", [d for d in DOORS if d.endswith("h2")])
def test_a_head_over_http2_reaches_no_other_client(world, door, head):
    """The door makes HTTP/1.1 of it."""
    world.served({world.ask_as_victim(DOORS[door])})
    victims = []
    h = H2(world.ports[door])
    fields = [("authorization", f"Bearer {world.attacker['key']}"), ("x-request-id", OUTER_ID), *BAD_HEADS[head]]
    h.send(frame(h2raw.HEADERS, h2raw.END_HEADERS, 1, h2raw.request_block(more=fields)) + frame(h2raw.DATA, h2raw.END_STREAM, 1, BODY + b"0\r\n\r\n" + HIDDEN))
    h.answer(1)
    for _ in range(VICTIMS):
        victims.append(world.ask_as_victim(DOORS[door]))
    h.close()
    judge(world, door, victims, set)


@pytest.mark.parametrize("door", H1_DOORS)
def test_clients_share_a_connection_to_the_router(world, door):
    """Without it, the tests above would prove nothing: a request of one client and one of another come over one connection."""
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", world.ports[door]), timeout=WAIT_S) as s:
            s.sendall(world.fair)
            assert b"chat.completion" in until(lambda: s.recv(65536), "an answer")
        me = world.ask_as_victim(door)
        peers = {x["id"]: x["peer"] for x in world.served({me, OUTER_ID})}
        if peers[me] == peers[OUTER_ID]:
            return
        time.sleep(0.01)
    raise AssertionError("no connection is shared")

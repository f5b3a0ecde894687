# SPDX-License-Identifier: Apache-2.0
"""Names that clients choose and that would become names in an engine: of requests, stored answers, sessions, pictures, and of what a hosted API repeats."""
import http.server
import json
import threading
import uuid

import pytest

from cluster import Cluster, until
from engine_nodes import JsonHandler
from test_limits import key



class Named(http.server.ThreadingHTTPServer):
    """An engine that keeps answers under the names that clients give, as vLLM does (request_id of a body, X-Request-Id)."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.stored, self.heads, self.bodies = {}, [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()


class Handler(JsonHandler):
    def do_GET(self):
        name = self.path.removeprefix("/v1/responses/")
        if name in self.server.stored:
            self.reply(self.server.stored[name])
        elif self.path == "/v1/models":
            self.reply({"object": "list", "data": [{"id": "sim", "object": "model"}]})
        else:
            self.reply({})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.heads.append(self.headers)
        self.server.bodies.append(body)
        name = body.get("request_id") or body.get("rid") or f"resp_{uuid.uuid4().hex}"
        before = self.server.stored.get(body.get("previous_response_id"), {}).get("text", "")
        answer = {"id": name, "object": "response", "model": "sim", "status": "completed", "text": before + "|" + str(body.get("input") or "chat"),
                  "output": [], "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
                  "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "prompt_tokens": 1, "completion_tokens": 1}}
        self.server.stored[name] = answer
        self.reply(answer)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    engine = Named()
    with Cluster(folder) as c:
        c.keys = {name: key(folder, name, name) for name in ("victim", "attacker")}
        c.router({"router": {"worker_threads": 1}, "auth": {"enabled": True, "api_keys_file": str(folder / "keys")}, "security": {"isolation": "none"}})
        c.agent("a", engine.server_port, {"engine": {"kind": "openai_compat"}})
        until(lambda: list(c.states().values()) == ["ready"], c.logs)
        c.stub = engine
        yield c
    engine.close()


def post(c, who, path, body, **headers):
    a = c.ask("POST", path, {"model": "sim", **body}, {**c.keys[who], **headers})
    return a


@pytest.mark.parametrize("member", ["request_id", "rid"])
def test_a_client_overwrites_no_stored_answer(world, member):
    """The attacker knows the id of the victim's answer, and makes an answer of that name. The victim goes on with its own text."""
    first = post(world, "victim", "/v1/responses", {"input": "the victim's secret"})
    assert first.status == 200, first.body
    stolen = first.json()["id"]
    poison = post(world, "attacker", "/v1/responses", {"input": "poison", member: stolen})
    assert poison.status == 200 and poison.json()["id"] != stolen, poison.body
    assert member not in world.stub.bodies[-1]
    on = post(world, "victim", "/v1/responses", {"input": "and on", "previous_response_id": stolen})
    assert on.status == 200 and on.json()["text"] == "|the victim's secret|and on", on.body
    for escaped in (member[:-1] + f"\\u{ord(member[-1]):04x}",):
        raw = json.dumps({"model": "sim", "input": "poison"})[:-1] + f', "{escaped}": "{stolen}"}}'
        a = world.ask("POST", "/v1/responses", raw.encode(), {**world.keys["attacker"], "Content-Type": "application/json"})
        assert a.status == 200 and a.json()["id"] != stolen and member not in world.stub.bodies[-1]
    for odd in (member.upper(), member.capitalize()):
        a = post(world, "attacker", "/v1/responses", {"input": "poison", odd: stolen})
        assert a.status == 400 and a.json()["error"]["code"] == "ambiguous_key", a.body


def test_requests_with_one_id_have_different_names_at_the_engine(world):
    """vLLM ends all requests of a name when one of their clients leaves."""
    n = len(world.stub.heads)
    for who in ("victim", "attacker", "attacker"):
        a = post(world, who, "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, **{"X-Request-Id": "the-same"})
        assert a.status == 200 and a.headers["x-request-id"] == "the-same"
    names = [h["X-Request-Id"] for h in world.stub.heads[n:]]
    assert len(set(names)) == 3 and "the-same" not in names, names
    lines = until(lambda: (got := [e for e in world.router_process.events("gateway.request") if e["id"] == "the-same"]) and len(got) == 3 and got, "they are logged")
    assert sorted(e["own_id"] for e in lines) == sorted(names), "the log says which is which"


def test_idempotency_keys_are_the_tenants(world):
    n = len(world.stub.heads)
    for who in ("victim", "attacker", "victim"):
        assert post(world, who, "/v1/chat/completions", {"messages": []}, **{"Idempotency-Key": "pay-1"}).status == 200
    mine, theirs, again = (h["Idempotency-Key"] for h in world.stub.heads[n:])
    assert mine == again != theirs and "pay-1" not in (mine, theirs)


@pytest.mark.parametrize("body, key", [
    ({"messages": [], "session_params": {"id": "s"}}, "session_params"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": None, "uuid": "theirs"}]}]}, "uuid"),
    ({"input": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "input_image", "uuid": "theirs"}]}]}, "uuid")])
def test_what_an_engine_keeps_for_all_is_not_named(world, body, key):
    n = len(world.stub.bodies)
    a = post(world, "attacker", "/v1/responses" if "input" in body else "/v1/chat/completions", body)
    assert a.status == 400 and a.json()["error"]["code"] == "reserved_key" and key in a.json()["error"]["message"], a.body
    assert len(world.stub.bodies) == n
    text = json.dumps(body).replace("uuid", "u\\u0075id") if key == "uuid" else json.dumps(body)
    a = world.ask("POST", "/v1/chat/completions", ('{"model": "sim", ' + text[1:]).encode(), {**world.keys["attacker"], "Content-Type": "application/json"})
    assert a.status == 400 and len(world.stub.bodies) == n, a.body


def test_without_keys_names_pass(tmp_path):
    """Who needs no key has nothing that is another's: the engine gets the body and the id as they were."""
    engine = Named()
    with Cluster(tmp_path) as c:
        c.router({"router": {"worker_threads": 1}})
        c.agent("a", engine.server_port, {"engine": {"kind": "openai_compat"}})
        until(lambda: list(c.states().values()) == ["ready"], c.logs)
        a = c.ask("POST", "/v1/responses", {"model": "sim", "input": "x", "request_id": "resp_mine"}, {"X-Request-Id": "mine"})
        assert a.status == 200 and a.json()["id"] == "resp_mine" and engine.heads[-1]["X-Request-Id"] == "mine"
    engine.close()

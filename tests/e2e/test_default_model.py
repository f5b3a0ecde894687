# SPDX-License-Identifier: Apache-2.0
"""router.default_model: requests without a model, or for one that does not exist."""
import json
import subprocess

import media_engine
from cluster import BUILD, free_port, until
from engine_nodes import url_of

FAST = ("--time-scale", "0")
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
WITHOUT = ({}, {"model": ""}, {"model": None})


def names_of(answer):
    return {json.loads(line[6:])["model"] for line in answer.body.decode().splitlines() if line.startswith("data: {")}


def code(r):
    return r.status, r.json()["error"]["code"]


def test_it_serves_what_names_no_model(cluster):
    cluster.router({"router": {"default_model": "gpt-4o", "worker_threads": 1}, 'models."sim"': {"aliases": ["gpt-4o"]}})
    cluster.node("a", *FAST)
    cluster.wait_ready()
    for body, name in [*((b, "gpt-4o") for b in WITHOUT), ({"model": "no-such"}, "no-such"), ({"model": "sim"}, "sim")]:
        plain = cluster.ask("POST", "/v1/chat/completions", body | CHAT)
        assert plain.status == 200 and plain.json()["model"] == name, (body, plain.body)
        stream = cluster.ask("POST", "/v1/chat/completions", CHAT | {"stream": True} | body)
        assert stream.status == 200 and names_of(stream) == {name}, (body, stream.body)
        assert cluster.ask("POST", "/v1/embeddings", {"input": "x"} | body).json()["model"] == name
    assert code(cluster.ask("POST", "/v1/chat/completions", CHAT | {"model": 7})) == (400, "missing_model")
    # What is counted is the model that served.
    assert cluster.metric("cgn_requests_total", model="sim", code="200") == 15
    # Ollama's clients
    for body, name in (({}, "gpt-4o"), ({"model": "llama9"}, "llama9")):
        r = cluster.ask("POST", "/api/chat", CHAT | {"stream": False} | body)
        assert r.status == 200 and r.json()["model"] == name and r.json()["done"]
    assert cluster.ask("POST", "/api/show", {"model": "llama9"}).status == 200
    # Lists tell what there is.
    assert code(cluster.ask("GET", "/v1/models/no-such")) == (404, "model_not_found")
    assert sorted(m["id"] for m in cluster.ask("GET", "/v1/models").json()["data"]) == ["gpt-4o", "sim"]


def test_a_node_that_never_comes_up_does_not_keep_it_away(cluster):
    cluster.router({"router": {"default_model": "sim", "worker_threads": 1}, "router.admission": {"node_wait": "300ms"}, "engine_nodes.down": {"url": url_of(free_port())}})
    cluster.node("a", *FAST)
    until(lambda: cluster.ask("POST", "/v1/chat/completions", CHAT | {"model": "no-such"}).status == 200, "the membership was heard")
    waited = [cluster.ask("POST", "/v1/chat/completions", CHAT | {"model": f"no-such-{i}"}) for i in range(3)]
    assert [r.status for r in waited] == [200] * 3, [r.body for r in waited]
    assert cluster.metric("cgn_requests_total", model="sim", code="200") >= 4


def test_it_gives_no_caller_more_than_its_key_does(cluster, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("")

    def key(role):
        made = subprocess.run([BUILD / "src/ctl/cgn-ctl", "key", "create", "--file", keys, "--role", role, "-o", "json"], capture_output=True, text=True,
                              timeout=60, check=True)
        return {"Authorization": "Bearer " + json.loads(made.stdout)["key"]}
    fields = {role: key(role) for role in ("all", "big", "small")}
    cluster.router({"router": {"default_model": "small"}, "auth": {"enabled": True, "api_keys_file": str(keys)},
                    'roles."all"': {"allow": ["model.use:*"]}, 'roles."big"': {"allow": ["model.use:big"]}, 'roles."small"': {"allow": ["model.use:sm*"]}})
    cluster.node("a", *FAST, model="small")
    cluster.node("b", *FAST, model="big")
    until(lambda: len(cluster.ask("GET", "/v1/models", headers=fields["all"]).json().get("data", [])) == 2, "both are known")

    def ask(role, **body):
        return cluster.ask("POST", "/v1/chat/completions", CHAT | body, fields[role])
    assert ask("all", model="none").headers["x-cgn-node"] == ask("all").headers["x-cgn-node"] == "a"
    assert ask("big", model="big").headers["x-cgn-node"] == "b"
    assert code(ask("big", model="none")) == (404, "model_not_found") and code(ask("big")) == (400, "missing_model")
    # A model that the key does not allow answers like one that does not exist.
    for name in ("big", "none"):
        r = ask("small", model=name)
        assert (r.status, r.json()["model"], r.headers["x-cgn-node"]) == (200, name, "a")


def test_forms_get_it_too(cluster):
    seen = []
    server, port = media_engine.serve("speech", seen=seen)
    cluster.router({"router": {"default_model": "speech"}, 'engine_nodes."m"': {"url": url_of(port), "ready_interval": "50ms"}})
    cluster.wait_ready(1)
    part = '--B\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    for fields in ([], [("model", "")]):
        body = "".join(part.format(*f) for f in [*fields, ("language", "en")]) + "--B--\r\n"
        r = cluster.ask("POST", "/v1/audio/transcriptions", body.encode(), {"Content-Type": "multipart/form-data; boundary=B"})
        assert r.status == 200 and r.json()["text"].count('name="model"') == 1 and "\r\n\r\nspeech\r\n" in r.json()["text"], r.body
    server.shutdown()

# SPDX-License-Identifier: Apache-2.0
"""router.default_model: requests without a model, or for one that does not exist."""
import json
import subprocess

import media_engine
import test_batch as batch
import test_budgets as budgets
import test_cascade as cascade
from cluster import BUILD, ask, free_port, until
from engine_nodes import url_of
from test_limits import key

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


def test_a_key_for_the_default_alone_gets_it_before_all_nodes_have_told_their_models(cluster):
    """A model that the key does not allow answers as one that does not exist, and needs no node's word for it."""
    headers = {name: key(cluster.folder, name, name, "--models", models) for name, models in (("small", "small"), ("other", "big"))}
    cluster.router({"router": {"default_model": "small", "worker_threads": 1}, "auth": {"enabled": True, "api_keys_file": str(cluster.folder / "keys")},
                    "router.admission": {"node_wait": "300ms"}, "engine_nodes.down": {"url": url_of(free_port())}})

    def asked(name, model):
        return cluster.ask("POST", "/v1/chat/completions", CHAT | {"model": model}, headers[name])
    for model in ("big", "none"):  # the default may come
        assert code(asked("small", model)) == (503, "no_node") and code(asked("other", "none")) == (404, "model_not_found")
    cluster.node("a", *FAST, model="small")
    until(lambda: asked("small", "small").status == 200, "the default is there")
    for model in ("big", "none"):
        r = asked("small", model)
        assert (r.status, r.json().get("model"), r.headers.get("x-cgn-node")) == (200, model, "a"), r.body


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


# ---- with what is counted and decided by model ----

def test_money_and_usage_are_those_of_the_model_that_served(cluster):
    headers = budgets.start(cluster, ["1000 USD/day"], **{"router": {"default_model": "sim"}, 'prices."sim"': {"input": 1000, "output": 2000},
                                                          'prices."*"': {"input": 900_000, "output": 900_000}})
    for i, body in enumerate(({}, {"model": ""}, {"model": "no-such"}, {"model": "sim"})):
        r = cluster.ask("POST", "/v1/chat/completions", CHAT | body, headers)
        assert r.status == 200, r.body
        until(lambda i=i: (budgets.spent_today(cluster) or {}).get("requests") == i + 1, "it is counted")
    assert 0 < budgets.spent_today(cluster)["money"] < 1  # by the price of other models a token is 0.9 USD
    assert {r["model"] for r in ask(cluster.admin_port, "GET", "/usage?by=model").json()["usage"]} == {"sim"}


def test_a_default_of_two_sizes_is_a_cascade(cluster):
    cluster.router({"router": {"default_model": "large"}, "router.cascade": cascade.CASCADE})
    cluster.node("s", *FAST, "--skill", "0.5", model="small")
    cluster.node("l", *FAST, "--skill", "1", model="large")
    cluster.wait_ready(2)
    for body in ({"model": "large"}, *WITHOUT, {"model": "no-such"}):
        for difficulty, step in ((cascade.EASY, "1/2; outcome=released"), (cascade.HARD, "2/2; outcome=escalated")):
            r = cluster.ask("POST", "/v1/chat/completions", {"messages": CHAT["messages"], "max_tokens": 12, "difficulty": difficulty} | body)
            assert r.status == 200 and cascade.step(r).startswith(step), (body, difficulty, r.headers, r.body)


def test_lines_of_a_batch_without_a_model_get_it(cluster):
    acme = batch.start(cluster, **{"router": {"default_model": "sim"}})["acme"]
    lines = [batch.line(0), batch.line(1, model=""), batch.line(2, model="no-such"), batch.line(3)]
    del lines[3]["body"]["model"]
    done = batch.ended(cluster, batch.create(cluster, batch.jsonl(lines), acme), acme)
    good, bad = batch.results(cluster, done, acme)
    assert done["request_counts"] == {"total": 4, "completed": 4, "failed": 0} and not bad, (done, bad)
    assert {row["custom_id"] for row in good} == {f"line-{i}" for i in range(4)}
    assert {row["response"]["body"]["model"] for row in good} <= {"sim", "no-such"}
    assert cluster.metric("cgn_requests_total", model="sim", code="200") >= 4


def test_a_key_without_the_default_model_is_refused_as_by_its_name(cluster):
    """In batches, too: a line without a model gives a key no more than one with it."""
    headers = key(cluster.folder, "narrow", "acme", "--models", "other")
    cluster.router({"router": {"default_model": "sim"}, "auth": {"enabled": True, "api_keys_file": str(cluster.folder / "keys")}, "batch": {"enabled": True}})
    cluster.node("a", *FAST)
    cluster.wait_ready()
    by_name = code(cluster.ask("POST", "/v1/chat/completions", CHAT | {"model": "sim"}, headers))
    assert by_name == (404, "model_not_found")
    assert code(cluster.ask("POST", "/v1/chat/completions", CHAT | {"model": "no-such"}, headers)) == by_name
    assert code(cluster.ask("POST", "/v1/chat/completions", CHAT, headers)) == (400, "missing_model")
    lines = [batch.line(0), batch.line(1, model="no-such")]
    done = batch.ended(cluster, batch.create(cluster, batch.jsonl(lines), headers), headers)
    _, bad = batch.results(cluster, done, headers)
    told = {row["response"]["body"]["error"]["code"] for row in bad if row["response"]}
    assert len(bad) == 2 and told == {"model_not_found"}, bad

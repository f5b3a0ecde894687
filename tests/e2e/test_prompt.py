# SPDX-License-Identifier: Apache-2.0
"""How prompts become blocks: the mode of each model and where it is shown, tokens from the model's own files
and from its engines, and the behaviour when either fails. The request to the agent shows the chain: the
chain of the same token ids, sent as a completion, has the same digests, and so have the blocks that cgn-
sim hashed."""
import json
import os
import signal
import subprocess
import time

import pytest

import toy_tokens
from cluster import BUILD, ask, until
from clients import Stream, set_faults

FAST = ("--time-scale", "0", "--kv-digests")
WORDS = "the quick brown fox jumps over the lazy dog " * 12


def up(cluster, models=None, router=None, *engine_args):
    sections = {f'models."{name}"': keys for name, keys in (models or {}).items()}
    cluster.router({**sections, **({"router": router} if router else {})})
    node = cluster.node("a", *FAST, *engine_args)
    cluster.wait_ready(1)
    return node


def models(cluster):
    return {m["name"]: m for m in ask(cluster.admin_port, "GET", "/models").json()["models"]}


def access(cluster, n):
    """Return |n| lines of the access log, of requests that an engine answered."""
    def lines():
        return [e for e in cluster.router_process.events("gateway.request") if e.get("node")]
    until(lambda: len(lines()) >= n, "the access log has the requests")
    return lines()


def sent(node):
    """Return the digests that the agent received with its requests."""
    port = node.agent.argv[node.agent.argv.index("--config") + 1]
    addr = next(line.split('"')[1] for line in open(port) if line.startswith("listen ="))
    watch = subprocess.Popen([str(BUILD / "agent_ask"), addr, "watch"], stdout=subprocess.PIPE, text=True)
    try:
        got = set()
        while True:
            event = json.loads(watch.stdout.readline())
            got |= set((event.get("residency") or {}).get("stored", []))
            if event.get("check"):
                return got
    finally:
        watch.kill()
        watch.wait()


def complete(cluster, ids):
    return cluster.ask("POST", "/v1/completions", {"model": "sim", "prompt": ids, "max_tokens": 1})


# ---- modes ----

def test_a_model_of_engines_that_tell_tokens_has_them(cluster):
    up(cluster)
    assert cluster.chat(WORDS).headers["x-cgn-cache-hit"].startswith("0/")
    model = models(cluster)["sim"]
    assert (model["tokens"], model["block_tokens"], model["ready_nodes"]) == ("engine", 16, 1), model
    assert access(cluster, 1)[0]["tokens"] == "engine"
    assert cluster.metric("cgn_prompt_chain_total", model="sim", mode="engine") == 1
    said = cluster.router_process.events("router.model_tokens")
    assert [(e["model"], e["tokens"], e["block"]) for e in said] == [("sim", "engine", 16)]


def test_modes_can_be_chosen(cluster, tmp_path):
    files = toy_tokens.write(tmp_path / "toy")
    up(cluster, {"sim": {"tokens": "bytes", "block_bytes": 64}, "other": {"tokenizer": str(files)}, "third": {"tokens": "engine"}})
    got = models(cluster)
    assert got["sim"]["tokens"] == "bytes" and got["sim"]["block_bytes"] == 64
    assert got["other"]["tokens"] == "file" and got["other"]["tokenizer"] == str(files) and got["other"]["content_format"] == "string"
    assert got["third"]["tokens"] == "bytes" and got["third"]["why"] == "no node has it"
    cluster.chat(WORDS)
    assert access(cluster, 1)[0]["tokens"] == "bytes"
    assert cluster.metric("cgn_prompt_fallback_total") == 0
    out = subprocess.run([str(BUILD / "src/ctl/cgn-ctl"), "cluster", "status", "--router", f"127.0.0.1:{cluster.grpc_port}"],
                         capture_output=True, text=True, timeout=30)
    assert "sim: blocks of 64 bytes (as configured)" in out.stdout, out
    out = subprocess.run([*out.args, "-o", "json"], capture_output=True, text=True, timeout=30)
    assert json.loads(out.stdout)["prompts"] == [{"model": "sim", "tokens": "bytes", "why": "as configured", "block": 64, "ready_nodes": 1, "queued": 0}]


@pytest.mark.parametrize("keys, words", [
    ({"tokens": "file"}, ["sim", "tokenizer"]),
    ({"chat_template": "/nowhere.jinja"}, ["sim", "chat_template", "tokenizer"]),
    ({"tokenizer": "/nowhere/tokenizer.json"}, ["sim", "/nowhere/tokenizer.json"]),
    ({"tokenizer": "BAD"}, ["sim", "model", "WordPiece"]),
    ({"tokenizer": "GOOD", "chat_template": "BAD"}, ["sim", "bad.jinja", "line 1"]),
])
def test_what_can_not_be_loaded_is_a_configuration_error(cluster, tmp_path, keys, words):
    good, bad = toy_tokens.write(tmp_path / "good"), toy_tokens.write(tmp_path / "bad", model={"type": "WordPiece", "vocab": {}})
    (tmp_path / "bad.jinja").write_text("{% frobnicate %}")
    named = {("tokenizer", "GOOD"): good, ("tokenizer", "BAD"): bad, ("chat_template", "BAD"): tmp_path / "bad.jinja"}
    keys = {k: str(named.get((k, v), v)) for k, v in keys.items()}
    config = cluster.config("router", {"router": {"listen": f"127.0.0.1:{cluster.http_port}", "listen_grpc": "127.0.0.1:0", "listen_admin": "127.0.0.1:0"},
                                       'models."sim"': keys})
    p = cluster.run("router", "cgn-router", "--config", config)
    assert p.wait() == 3, p.log()
    assert all(w in p.log() for w in words), p.log()


# ---- tokens of the model's own files ----

def test_a_chat_is_the_ids_of_its_rendered_text(cluster, tmp_path):
    node = up(cluster, {"sim": {"tokenizer": str(toy_tokens.write(tmp_path / "toy"))}})
    talk = [("system", "You are \u00e4 fox."), ("user", WORDS)]
    ids = toy_tokens.ids_of(toy_tokens.rendered(*talk))
    body = {"model": "sim", "max_tokens": 1, "messages": [{"role": r, "content": c} for r, c in talk]}
    assert cluster.ask("POST", "/v1/chat/completions", body).headers["x-cgn-cache-hit"] == f"0/{len(ids) // 16}"
    chat = sent(node)
    assert len(chat) == len(ids) // 16
    assert complete(cluster, ids).headers["x-cgn-cache-hit"] == f"{len(ids) // 16}/{len(ids) // 16}"
    assert sent(node) == chat
    # the text of a completion gets a <s>, and the same messages in other shapes are the same prompt
    text = toy_tokens.rendered(*talk)
    for path, body in [("/v1/completions", {"prompt": text, "add_special_tokens": False}),
                       ("/v1/messages", {"system": talk[0][1], "messages": [{"role": "user", "content": [{"type": "text", "text": WORDS}]}], "max_tokens": 1}),
                       ("/v1/responses", {"instructions": talk[0][1], "input": WORDS, "max_output_tokens": 1})]:
        assert cluster.ask("POST", path, {"model": "sim", "max_tokens": 1, **body}).headers["x-cgn-cache-hit"] == f"{len(ids) // 16}/{len(ids) // 16}", path
    assert cluster.ask("POST", "/v1/completions", {"model": "sim", "prompt": text, "max_tokens": 1}).headers["x-cgn-cache-hit"].startswith("0/")
    assert cluster.metric("cgn_prompt_chain_total", mode="file") == 6
    assert {e["tokens"] for e in access(cluster, 6)} == {"file"}


def test_turns_of_a_conversation_are_tokenised_once(cluster, tmp_path):
    up(cluster, {"sim": {"tokenizer": str(toy_tokens.write(tmp_path / "toy"))}}, {"worker_threads": 1})
    talk = []
    for turn in range(6):
        talk.append({"role": "user", "content": f"{turn}: {WORDS}"})
        r = cluster.ask("POST", "/v1/chat/completions", {"model": "sim", "messages": talk, "max_tokens": 1})
        held, blocks = map(int, r.headers["x-cgn-cache-hit"].split("/"))
        ids = toy_tokens.ids_of(toy_tokens.rendered(*[(m["role"], m["content"]) for m in talk]))
        assert blocks == len(ids) // 16
        assert turn == 0 or held > 0.7 * blocks * turn / (turn + 1)
        talk.append({"role": "assistant", "content": r.json()["choices"][0]["message"]["content"]})
    assert cluster.metric("cgn_prompt_cache_lookups_total", outcome="hit") == 5
    assert cluster.metric("cgn_prompt_cache_lookups_total", outcome="miss") == 1
    assert cluster.metric("cgn_prompt_cache_bytes") > 0


def test_a_long_prompt_is_tokenised_beside_the_worker(cluster, tmp_path):
    up(cluster, {"sim": {"tokenizer": str(toy_tokens.write(tmp_path / "toy"))}}, {"tokenize_timeout": "60s"}, "--max-model-len", "200000")
    text = WORDS * 100  # 54 KB
    first = cluster.chat(text, max_tokens=1)
    assert first.status == 200 and first.headers["x-cgn-cache-hit"].startswith("0/")
    assert int(first.headers["x-cgn-cache-hit"].split("/")[1]) > 3000
    assert cluster.metric("cgn_prompt_chain_total", mode="file") == 1
    for _ in range(5):  # a client that leaves during tokenization harms no other client
        Stream(cluster.http_port, text + str(time.monotonic())).reset()
    assert cluster.chat("hello").status == 200


def test_a_prompt_that_takes_too_long_to_tokenise_has_bytes(cluster, tmp_path):
    up(cluster, {"sim": {"tokenizer": str(toy_tokens.write(tmp_path / "toy"))}}, {"tokenize_timeout": "10ms"}, "--kv-blocks", "65536", "--max-model-len", "1000000")
    huge = cluster.chat(WORDS * 4000, max_tokens=1)  # 2 MB
    assert huge.status == 200 and huge.headers["x-cgn-cache-hit"].startswith("0/"), huge.body
    assert cluster.metric("cgn_prompt_fallback_total", model="sim", reason="timeout") == 1
    assert cluster.chat("hello", max_tokens=1).status == 200
    assert [e["tokens"] for e in access(cluster, 2)] == ["bytes", "file"]


def test_what_the_engine_would_not_take_the_same_way_has_bytes(cluster, tmp_path):
    up(cluster, {"sim": {"tokenizer": str(toy_tokens.write(tmp_path / "toy", template=toy_tokens.TEMPLATE + "{{ raise_exception('no') if messages|length > 3 }}"))}})
    for reason, more in [("request_template", {"chat_template": "{{ 1 }}"}), ("shape", {"tools": [5]}),
                         ("template", {"messages": [{"role": "user", "content": WORDS}] * 4})]:
        cluster.chat(WORDS, max_tokens=1, **more)
        assert cluster.metric("cgn_prompt_fallback_total", model="sim", reason=reason) == 1, reason
    cluster.ask("POST", "/v1/responses", {"model": "sim", "input": WORDS, "previous_response_id": "r1"})
    assert cluster.metric("cgn_prompt_fallback_total", reason="previous_response") == 1
    assert {e["tokens"] for e in access(cluster, 4)} == {"bytes"}


def test_pictures_keep_the_text_before_them(cluster, tmp_path):
    up(cluster, {"sim": {"tokenizer": str(toy_tokens.write(tmp_path / "toy"))}})

    def show(*urls):
        parts = [{"type": "image_url", "image_url": {"url": u}} for u in urls] + [{"type": "text", "text": "What is it?"}]
        body = {"model": "sim", "max_tokens": 1, "messages": [{"role": "system", "content": WORDS}, {"role": "user", "content": parts}]}
        return tuple(map(int, cluster.ask("POST", "/v1/chat/completions", body).headers["x-cgn-cache-hit"].split("/")))

    before = len(toy_tokens.ids_of(f"<|im_start|>system\n{WORDS}<|im_end|>\n<|im_start|>user\n")) // 16
    _, blocks = show("data:image/png;base64,AAAA")
    assert show("data:image/png;base64,AAAA") == (blocks, blocks)
    assert show("data:image/png;base64,BBBB")[0] == before
    assert cluster.chat(WORDS).status == 200
    assert cluster.metric("cgn_prompt_fallback_total") == 0


def test_salt_and_lora_keep_prompts_apart(cluster, tmp_path):
    up(cluster, {"sim": {"tokenizer": str(toy_tokens.write(tmp_path / "toy"))}})
    for more in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"lora_path": "l"}, {"lora": [{"id": 0, "scale": 1.0}]}):
        assert cluster.chat(WORDS, max_tokens=1, **more).headers["x-cgn-cache-hit"].startswith("0/"), more
        assert not cluster.chat(WORDS, max_tokens=1, **more).headers["x-cgn-cache-hit"].startswith("0/"), more


def test_a_bad_file_at_a_reload_keeps_the_old_one(cluster, tmp_path):
    files = toy_tokens.write(tmp_path / "toy")
    up(cluster, {"sim": {"tokenizer": str(files)}})
    hit = cluster.chat(WORDS, max_tokens=1).headers["x-cgn-cache-hit"].split("/")[1]
    files.write_text("{")
    os.utime(files, (1, 1))
    cluster.router_process.signal(1)
    until(lambda: cluster.router_process.events("router.tokenizer_refused"), "the file was refused")
    refused = cluster.router_process.events("router.tokenizer_refused")[0]
    assert refused["model"] == "sim" and refused["then"] == "the old one stays" and str(files) in refused["why"]
    assert cluster.chat(WORDS, max_tokens=1).headers["x-cgn-cache-hit"] == f"{hit}/{hit}"
    assert models(cluster)["sim"]["tokens"] == "file"
    toy_tokens.write(tmp_path / "toy", template="other{{ messages[0].content }}")
    cluster.router_process.signal(1)
    until(lambda: cluster.chat(WORDS, max_tokens=1).headers["x-cgn-cache-hit"] != f"{hit}/{hit}", "the new template counts")


# ---- tokens from the engine ----

def test_an_engines_chain_is_what_it_has_hashed(cluster):
    node = up(cluster)
    cluster.chat(WORDS, max_tokens=1)
    cluster.ask("POST", "/v1/completions", {"model": "sim", "prompt": "once upon a time " * 40, "max_tokens": 1})
    cluster.ask("POST", "/v1/messages", {"model": "sim", "system": "Be brief.", "messages": [{"role": "user", "content": WORDS}], "max_tokens": 1})
    chains = sent(node)
    has = {d.lstrip("0") for d in ask(node.engine_port, "GET", "/sim/blocks").json()["ranks"][0]["GPU"]}
    assert len(chains) > 20 and chains <= has, (chains - has, len(chains), len(has))


def test_an_engine_is_asked_once_for_equal_prompts(cluster):
    node = up(cluster, None, {"worker_threads": 1})
    for _ in range(4):
        assert cluster.chat(WORDS, max_tokens=1).status == 200
    state = ask(node.engine_port, "GET", "/sim/state").json()
    assert sum(r["id"].startswith("req-") for r in state["recent"]) == 1, state["recent"]
    assert cluster.metric("cgn_prompt_cache_lookups_total", outcome="hit") == 3


def test_an_engine_that_tells_no_tokens_costs_blocks_and_no_request(cluster):
    node = up(cluster, None, {"worker_threads": 1})
    set_faults(node.engine_port, "http500")
    cluster.chat(WORDS, max_tokens=1)  # an error for the chat too: the fault is not specific to one prompt
    set_faults(node.engine_port)
    until(lambda: cluster.metric("cgn_prompt_fallback_total", model="sim", reason="status") == 1, "it was counted")
    assert cluster.chat(WORDS + "again", max_tokens=1).status == 200
    said = cluster.router_process.events("gateway.tokens_fallback")
    assert len(said) == 1 and said[0]["reason"] == "status" and said[0]["status"] == 500
    until(lambda: cluster.router_process.events("gateway.tokens_again"), "it works again, and that is said")


EITHER = ("{% for m in messages %}<{{ m['role'] }}>{% if m['content'] is string %}{{ m['content'] | trim }}{% else %}{% for p in m['content'] %}{{ p['text'] }}"
          "{% endfor %}{% endif %}{% endfor %}<assistant>")


@pytest.mark.parametrize("kind", ["sim", "sglang"])
def test_a_template_gets_strings_or_parts_as_the_engine_gives_them(cluster, tmp_path, kind):
    """vLLM makes parts of a string for a template that loops over parts, SGLang leaves it a string: here it is trimmed then."""
    cluster.router({'models."sim"': {"tokenizer": str(toy_tokens.write(tmp_path / "toy", EITHER))}})
    cluster.node("a", *FAST, sections={"engine": {"kind": kind}})
    cluster.wait_ready(1)

    def count(content):
        a = cluster.ask("POST", "/v1/chat/completions", {"model": "sim", "max_tokens": 1, "messages": [{"role": "user", "content": content}]})
        assert a.status == 200, a.body
        return int(a.headers["x-cgn-cache-hit"].split("/")[1])
    padded = " " * 2000 + "fox"
    assert (count(padded) == count("fox")) == (kind == "sglang")
    assert count([{"type": "text", "text": padded}]) > count("fox")


@pytest.mark.parametrize("agents", [True, False])
def test_an_engine_that_stands_still_costs_one_request_its_tokens(cluster, agents):
    if agents:
        up(cluster, router={"tokenize_timeout": "500ms"})
        cluster.node("b", *FAST)
        stopped = cluster.nodes["b"].engine
    else:
        engines = {name: cluster.engine(name, *FAST) for name in "ab"}
        stopped = engines["b"][0]
        cluster.router({"router": {"tokenize_timeout": "500ms"},
                        **{f'engine_nodes."{name}"': {"kind": "sim", "url": f"http://127.0.0.1:{port}"} for name, (_, port) in engines.items()}})
    cluster.wait_ready(2)

    def late():
        return cluster.metric("cgn_prompt_fallback_total", reason="timeout")
    asked = iter(range(1000))

    def one():
        r = cluster.chat(f"{next(asked)} words of a prompt", {"X-Cgn-Node": "a"}, max_tokens=1)
        assert r.status == 200 and r.headers["x-cgn-node"] == "a"
        return r
    one()
    stopped.signal(signal.SIGSTOP)
    until(lambda: one() and late() == 1, "a request asked the engine that was stopped")
    for _ in range(12):
        one()
    assert late() == 1 and cluster.metric("cgn_prompt_chain_total", mode="bytes") == 1
    stopped.signal(signal.SIGCONT)
    cluster.wait_ready(2)

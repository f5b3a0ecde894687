# SPDX-License-Identifier: Apache-2.0
"""Seeded conversations of every shape that clients send: tools, tool calls, parts, names, reasoning, and
missing or wrong fields."""
import json
import random

TEXTS = ["Hello!", "  two spaces before, and a line after\n", "", "naïve café — 漢字かな 👍🏽", "a\tb\\c \"quoted\" 'single'", "<think>\nI wonder.\n</think>\n\nYes.", "line\r\nbreaks\n\nhere",
         "{{ not a template }} {% if %}", "\u00a0nbsp\u3000", "<tool_response>\n42\n</tool_response>", "0", "x" * 300, "</think> only the end", "\n\n", "a</think>b</think>c", "\x7f\u2028é",
         "\n\n  lines before and after  \n\n", "<think>\n\n  spaces \n</think>\n  answer\n"]
NAMES = ["get_weather", "search", "añadir", "run.code"]


def text(r):
    return r.choice(TEXTS) if r.random() < 0.8 else " ".join(r.choice(TEXTS) for _ in range(r.randint(2, 6)))


def parts(r):
    out = []
    for _ in range(r.randint(0, 4)):
        kind = r.randint(0, 4)
        out.append({"type": "image"} if kind == 0 else {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}} if kind == 1 else {"type": "text", "text": text(r)})
    return out


def value(r, depth=0):
    kind = r.randint(0, 6 if depth < 3 else 4)
    if kind == 5:
        return [value(r, depth + 1) for _ in range(r.randint(0, 3))]
    if kind == 6:
        return {k: value(r, depth + 1) for k in r.sample(["city", "n", "ünit", "a b", "items", "get", "q\"", "type"], r.randint(0, 4))}
    return [text(r), r.randint(-5, 2000), r.random() < 0.5, None, r.choice([0.5, -1.25, 3.14159, 1e-7, 2.5e20, 0.1])][kind]


def arguments(r):
    args = {k: value(r) for k in r.sample(["city", "days", "units", "nested", "über"], r.randint(0, 4))}
    return args if r.random() < 0.6 else json.dumps(args, ensure_ascii=r.random() < 0.5)


def tool(r):
    types = ["string", "integer", "number", "boolean", "array", "object"]
    properties = {n: {"type": r.choice(types), "description": text(r)} | ({"enum": ["a", "b"]} if r.random() < 0.3 else {}) | ({"default": value(r)} if r.random() < 0.3 else {})
                  for n in r.sample(["city", "days", "unit"], r.randint(0, 3))}
    f = {"name": r.choice(NAMES), "description": text(r), "parameters": {"type": "object", "properties": properties, "required": list(properties)[:1]}}
    if r.random() < 0.2:
        del f["parameters"]
    return {"type": "function", "function": f} if r.random() < 0.9 else f


def tool_call(r):
    call = {"id": f"call_{r.randint(0, 999)}", "type": "function", "function": {"name": r.choice(NAMES), "arguments": arguments(r)}}
    return call if r.random() < 0.85 else call["function"]


def message(r, role):
    m = {"role": role, "content": parts(r) if r.random() < 0.15 else text(r)}
    if role == "assistant":
        if r.random() < 0.35:
            m["tool_calls"] = [tool_call(r) for _ in range(r.randint(0 if r.random() < 0.2 else 1, 3))]
            m["content"] = r.choice([None, "", m["content"]])
        if r.random() < 0.2:
            m["reasoning_content"] = r.choice([text(r), "", None])
    if role == "tool":
        m |= {"tool_call_id": "call_1"} | ({"name": r.choice(NAMES)} if r.random() < 0.5 else {})
    if r.random() < 0.05:
        m["name"] = "ann"
    if r.random() < 0.03:
        del m["content"]
    if r.random() < 0.03:
        m["content"] = r.choice([None, 7, 2.5, True, {"a": 1}, []])
    return m


def roles(r):
    """Make a conversation, mostly as models expect it, sometimes not."""
    out = ["system"] if r.random() < 0.4 else []
    for _ in range(r.randint(1, 4)):
        out += ["user", "assistant"]
        if r.random() < 0.25:
            out += ["tool"] * r.randint(1, 2) + (["assistant"] if r.random() < 0.7 else [])
    if r.random() < 0.5:
        out.append("user")
    if r.random() < 0.1:
        r.shuffle(out)
    if r.random() < 0.05:
        out.append("developer")
    return out


def kwargs(r):
    out = {}
    if r.random() < 0.3:
        out["enable_thinking"] = r.random() < 0.5
    if r.random() < 0.1:
        out["custom_tools"] = [tool(r)]
    if r.random() < 0.1:
        out["date_string"] = "26 Jul 2024"
    if r.random() < 0.1:
        out["reasoning_effort"] = r.choice(["low", "high"])
    return out


def conversations(seed, n):
    r = random.Random(seed)
    for _ in range(n):
        yield {"messages": [message(r, role) for role in roles(r)], "tools": [tool(r) for _ in range(r.randint(0, 3))] if r.random() < 0.35 else None,
               "documents": [{"title": text(r), "text": text(r)} for _ in range(r.randint(1, 2))] if r.random() < 0.15 else None, "kwargs": kwargs(r),
               "add_generation_prompt": r.random() < 0.5}

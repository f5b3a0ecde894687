# SPDX-License-Identifier: Apache-2.0
"""Audio, images and moderations: relayed byte for byte to an engine that has them, by the model in the body or in a
form's field."""
import contextlib
import hashlib
import json
import random

import pytest

import media_engine

FAST = ("--time-scale", "0")
FORMS = ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits", "/v1/images/variations")
OBJECTS = ("/v1/audio/speech", "/v1/images/generations", "/v1/moderations")


def form(*parts, boundary="----x7f3"):
    """Return (content type, body) of a form with (name, value) or (name, value, filename)."""
    out = b""
    for name, value, *file in parts:
        extra = f'; filename="{file[0]}"\r\nContent-Type: audio/wav' if file else ""
        out += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'.encode() + value + b"\r\n"
    return {"Content-Type": f"multipart/form-data; boundary={boundary}"}, out + f"--{boundary}--\r\n".encode()


@pytest.fixture
def media(cluster):
    """A cluster with a node that has an engine for media, and the way to add others."""
    with contextlib.ExitStack() as stack:
        def add(name, model="sim", **how):
            server, port = media_engine.serve(model, **how)
            stack.callback(server.shutdown)
            stack.callback(cluster.agent(name, port, {"engine": {"kind": "openai_compat"}})[0].stop)
        cluster.add_media = add
        yield cluster


def test_a_form_is_routed_by_its_field_and_relayed_unchanged(media):
    media.router()
    media.add_media("m")
    media.wait_ready(1)
    sound = random.Random(1).randbytes(300_000) + b"\r\n--other\r\n"
    for path in FORMS:
        kind, body = form(("file", sound, 'a "name".wav'), ("model", b"sim"), ("language", b"de"))
        a = media.ask("POST", path, body, kind)
        got = a.json()
        assert a.status == 200 and a.headers["x-cgn-node"] == "m", a.body
        assert (got["path"], got["type"], got["bytes"]) == (path, kind["Content-Type"], len(body))
        assert got["sha"] == hashlib.sha256(body).hexdigest()


def test_objects_are_routed_by_their_model_and_binary_answers_are_whole(media):
    media.router()
    media.add_media("m")
    media.wait_ready(1)
    speech = media.ask("POST", "/v1/audio/speech", {"model": "sim", "input": "hello", "voice": "a"})
    assert (speech.status, speech.headers["content-type"], speech.body) == (200, "audio/mpeg", media_engine.SOUND)
    for path in OBJECTS[1:]:
        body = json.dumps({"model": "sim", "prompt": "a cat", "input": "a cat"}).encode()
        got = media.ask("POST", path, body, {"Content-Type": "application/json"}).json()
        assert got["sha"] == hashlib.sha256(body).hexdigest() and got["path"] == path
    media.counts(3, "cgn_requests_total", model="sim", code="200")


def test_an_event_stream_of_a_transcription(media):
    media.router()
    media.add_media("m")
    media.wait_ready(1)
    kind, body = form(("stream", b"true"), ("model", b"sim"), ("file", b"RIFF", "a.wav"))
    a = media.ask("POST", FORMS[0], body, kind)
    assert a.headers["content-type"] == "text/event-stream" and len(a.events()) == 3


def test_an_alias_in_a_form_becomes_the_engines_name(media):
    media.common = {'models."sim"': {"aliases": ["whisper-1"]}}
    media.router()
    media.add_media("m")
    media.wait_ready(1)
    kind, body = form(("model", b"whisper-1"), ("file", b"RIFF", "a.wav"))
    got = media.ask("POST", FORMS[0], body, kind).json()
    assert got["text"] == body.replace(b"whisper-1", b"sim").decode() and got["model"] == "sim"


def test_nodes_that_lack_the_route_are_not_asked(media):
    media.router()
    media.node("a", *FAST)
    media.node("b", *FAST)
    media.add_media("m")
    media.wait_ready(3)
    for _ in range(6):
        assert media.ask("POST", "/v1/audio/speech", {"model": "sim", "input": "x"}).headers["x-cgn-node"] == "m"


def test_where_no_engine_has_the_route_the_answer_is_501(media):
    media.router()
    media.node("a", *FAST)
    media.wait_ready(1)
    for path in OBJECTS:
        a = media.ask("POST", path, {"model": "sim", "input": "x"})
        assert a.status == 501 and a.json()["error"]["code"] == "not_supported" and path in a.json()["error"]["message"]
    kind, body = form(("model", b"sim"), ("file", b"RIFF", "a.wav"))
    assert media.ask("POST", FORMS[0], body, kind).status == 501
    assert media.status()["nodes"][0]["state"] == "ready"  # no breaker opens for it


def test_a_servers_404_for_a_route_becomes_a_clear_501(media):
    media.router()
    media.add_media("m", lacks=(OBJECTS[0], FORMS[0]))
    media.wait_ready(1)
    speech = media.ask("POST", OBJECTS[0], {"model": "sim", "input": "x"})
    assert speech.status == 501 and OBJECTS[0] in speech.json()["error"]["message"] and "node m" in speech.json()["error"]["message"]
    kind, body = form(("model", b"sim"), ("file", b"RIFF", "a.wav"))
    assert media.ask("POST", FORMS[0], body, kind).status == 501
    assert media.ask("POST", FORMS[1], body, kind).status == 200
    counted = media.ask("POST", "/v1/messages/count_tokens", {"model": "sim", "messages": []})
    assert counted.status == 404 and counted.json()["error"]["message"] == "no such route"  # an error in an API's shape stays
    assert media.status()["nodes"][0]["router_inflight"] == 0


def test_bad_forms_are_refused(media):
    media.router()
    media.node("a", *FAST)
    media.wait_ready(1)
    good, body = form(("model", b"sim"))
    rows = [(form(("file", b"x", "a")), 400, "model"), (form(("model", b"none")), 404, "none"), (form(("model", b"")), 400, "model"),
            (form(("model", b"sim"), ("model", b"other")), 400, "several"), ((good, body[:-10]), 400, "does not end"),
            ((good, b"no form"), 400, "boundary"), ((good, b""), 400, "boundary"), (form(*[("a", b"")] * 1100), 400, "parts"),
            (({"Content-Type": "multipart/form-data"}, body), 400, "JSON")]
    for (kind, sent), status, what in rows:
        a = media.ask("POST", FORMS[0], sent, kind)
        assert a.status == status and what in a.json()["error"]["message"], a.body
    assert media.ask("POST", "/v1/chat/completions", body, good).status == 400  # only where forms are spoken

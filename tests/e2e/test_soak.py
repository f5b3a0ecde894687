# SPDX-License-Identifier: Apache-2.0
"""A minute of scripts/soak: all programs in namespaces, load, every kind of fault, and nothing is violated. And that it would notice."""
import json
import os
import subprocess
import sys
import types

import pytest

from cluster import BUILD, ROOT

sys.path.append(str(ROOT / "tests" / "soak"))
import faults  # noqa: E402 (beside the soak's other files)
import load  # noqa: E402
import watch  # noqa: E402
import world  # noqa: E402

REASON = world.why_not()
pytestmark = pytest.mark.plain


def soak(*args):
    return subprocess.run([sys.executable, ROOT / "tests/soak/soak.py", *map(str, args)], capture_output=True, text=True, timeout=600,
                          env={**os.environ, "CGN_BUILD": str(BUILD)})


def test_what_cannot_be_is_refused():
    for args, word in ((("--only", "weather"), "there is no fault weather"), (("--minutes", "0.1"), "at least 1 minute")):
        done = soak(*args)
        assert done.returncode == 2 and word in done.stderr, done


@pytest.mark.slow
@pytest.mark.skipif(REASON is not None, reason=REASON or "")
def test_a_minute_of_everything(tmp_path):
    done = soak("--minutes", 1, "--seed", 1, "--folder", tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == 0 and report["whole"] and not report["violations"], done.stdout[-6000:] + done.stderr[-2000:]
    assert report["requests"]["sent"] == sum(n for end, n in report["requests"].items() if end != "sent")
    assert report["requests"]["answered"] > 50 and report["rests"] == 1 and report["counted_exactly"] >= 30 and len(report["faults"]) >= 6


# ---- what it would notice ----
def test_a_seed_draws_one_plan_with_every_kind():
    one, same, other = (faults.plan(seed, 1, 240, list(faults.Faults.KINDS)) for seed in (7, 7, 8))
    assert one == same != other and {kind for _, kind, _ in one} == set(faults.Faults.KINDS)


WANT = ("The river.", 3)
CHUNKS = [{"choices": [{"delta": {"content": "The "}}]}, {"choices": [{"delta": {"content": "river."}}]}, {"choices": [], "usage": {"completion_tokens": 3}}]
STREAM = b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in CHUNKS)
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("body, whole, ending", [
    (STREAM + DONE, True, "answered"), (STREAM, True, "Cut"), (STREAM + b'event: error\ndata: {"error":{"message":"x"}}\n\n', True, "Cut"),
    (STREAM.replace(b"river", b"lake") + DONE, True, "Wrong"), (STREAM.replace(b": 3}", b": 4}") + DONE, True, "Wrong"), (STREAM + DONE, False, "Wrong")])
def test_a_stream_is_right_or_visibly_cut(body, whole, ending):
    r = types.SimpleNamespace(status=200, path=load.CHAT, stream=True, ending="", tokens=0)
    item = types.SimpleNamespace(want=WANT, prompt="1: tell me")
    try:
        load.Load.judge(r, item, {}, body, whole)
    except (load.Cut, load.Wrong) as e:
        r.ending = type(e).__name__
    assert r.ending == ending


def test_an_error_has_the_shape_of_its_api():
    assert load.error_of(load.CHAT, b'{"error":{"message":"m","code":"no_node"}}') == "no_node"
    assert load.error_of(load.OLLAMA, b'{"error":"full"}') == "full"
    for path, body in ((load.CHAT, b'{"error":"full"}'), (load.MESSAGES, b'{"error":{"message":"m","type":"t"}}'), (load.CHAT, b"<html>"), (load.OLLAMA, b"{}")):
        with pytest.raises(load.Wrong):
            load.error_of(path, body)


@pytest.mark.parametrize("grown, hours, said", [(0, 2, []), (200, 2, []), (600, 2, ["memory"]), (-600, 2, []), (600, 0.1, [])])
def test_memory_that_grows_is_noticed(grown, hours, said):
    seen = []
    m = watch.Memory(None, lambda kind, _: seen.append(kind))
    for i in range(24):
        sample = types.SimpleNamespace(at=i * hours * 3600 / 23, private=10000 + grown * i / 23, descriptors=20, threads=4)
        m.samples["r1", 1].append(sample)
    m.judge()
    assert seen == said


def test_descriptors_and_threads_that_grow_are_noticed():
    seen = []
    m = watch.Memory(None, lambda kind, _: seen.append(kind))
    m.samples["r1", 1] = [types.SimpleNamespace(at=i * 60, private=10000, descriptors=20 + i, threads=4 + i // 12) for i in range(24)]
    m.judge()
    assert seen == ["descriptors", "threads"]


def test_a_warning_needs_a_fault_that_explains_it(tmp_path):
    seen, now = [], []
    noted = types.SimpleNamespace(any_during=lambda *_: now)
    p = types.SimpleNamespace(name="r0", kind="router", log_file=tmp_path / "r0.log", read_to=0)
    logs = watch.Logs(types.SimpleNamespace(programs={"r0": p}, helpers=[]), noted, lambda kind, text: seen.append((kind, text.split()[1])))

    def says(line):
        with open(p.log_file, "a") as f:
            f.write(line + "\n")
        logs.read()
        return seen
    assert says('{"level":"info","event":"svc.ready"}') == []
    now.append(types.SimpleNamespace(kind="disk"))
    assert says('{"level":"error","event":"statefile.write_failed"}') == []
    assert says('{"level":"warn","event":"router.watch_lost"}') == [("log", "router.watch_lost")]
    now.clear()
    assert says('{"level":"error","event":"statefile.write_failed"}')[1:] == [("log", "statefile.write_failed")]
    assert says("==1==ERROR: AddressSanitizer: heap-use-after-free")[2:][0][0] == "report"

# SPDX-License-Identifier: Apache-2.0
"""Files and batches on disks that fail: full ones, and those with I/O errors. Nothing is lost, and each line is in the result once."""
import subprocess
import time

import pytest
from cluster import ROOT, SANITIZER, until
from kvdisks import Hog, tmpfs  # noqa: F401 (a fixture)
from test_batch import create, ended, get, jsonl, line, results, start, upload

LINES = [line(i, max_tokens=20, ignore_eos=True) for i in range(120)]


def begin(c, folder, content=jsonl(LINES), **more):
    """Start a slow cluster whose batches are in |folder|, and a batch of LINES of which some are done."""
    start(c, {"dir": str(folder), "max_concurrent": 4, **more}, node=("--time-scale", "1"), auth=False)
    batch = create(c, content)
    until(lambda: get(c, batch)["request_counts"]["completed"] > 5, "lines are done")
    return batch


def again(c):
    c.router_process.kill()
    c.router_process.start()
    until(lambda: c.listens(c.http_port, c.router_process), "the router listens")


def each_line_is_there_once(c, batch, rows=LINES):
    batch = ended(c, batch)
    assert batch["status"] == "completed", batch
    assert batch["request_counts"] == {"total": len(rows), "completed": len(rows), "failed": 0}, batch
    good, bad = results(c, batch)
    assert sorted(r["custom_id"] for r in good) == sorted(r["custom_id"] for r in rows) and not bad
    assert all(r["response"]["status_code"] == 200 and r["response"]["body"]["choices"] for r in good)


def test_a_full_disk_refuses_and_takes_again(cluster, tmpfs):  # noqa: F811
    c = cluster
    start(c, {"dir": str(tmpfs)}, auth=False)
    file = upload(c, jsonl(LINES)).json()
    wish = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    hog = Hog(tmpfs)
    hog.take()
    before = sorted(p.name for p in tmpfs.iterdir())
    for answer in (upload(c, b"x" * 300000), upload(c, b"x"), c.ask("POST", "/v1/batches", wish)):
        assert answer.status == 507 and answer.json()["error"]["code"] == "insufficient_storage", answer.body
        assert "No space left" in answer.json()["error"]["message"]
    assert sorted(p.name for p in tmpfs.iterdir()) == before
    assert c.ask("GET", "/v1/batches").json()["data"] == []
    assert c.ask("GET", f"/v1/files/{file['id']}/content").body == jsonl(LINES)
    hog.free()
    assert upload(c, b"x" * 300000).status == 200
    made = c.ask("POST", "/v1/batches", wish)
    assert made.status == 200
    each_line_is_there_once(c, made.json())


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_a_journal_that_cannot_be_written_holds_its_batch(cluster, tmpfs, killed):  # noqa: F811
    c = cluster
    batch = begin(c, tmpfs)
    hog = Hog(tmpfs)
    hog.take()
    until(lambda: c.router_process.events("batch.journal_not_written"), "the journal is full")
    assert "No space left" in c.router_process.events("batch.journal_not_written")[0]["why"]
    done = get(c, batch)["request_counts"]["completed"]
    refused = c.ask("POST", f"/v1/batches/{batch['id']}/cancel", {})
    assert refused.status == 507 and get(c, batch)["status"] == "in_progress"
    if killed:  # it starts although the disk is full, and knows what the journal has
        again(c)
        # The write that failed may have stored some of its records whole: four, and four that were with engines then.
        assert done <= until(lambda: get(c, batch)["request_counts"]["completed"], "the journal was read") <= done + 8
    until(lambda: c.metric("cgn_batch_lines_asked") == 0, "no further line is asked")
    hog.free()
    each_line_is_there_once(c, batch)


def test_a_batch_that_expires_on_a_full_disk_loses_no_answer(cluster, tmpfs):  # noqa: F811
    """Answers that came and are in no journal yet must not be forgotten when the batch ends meanwhile."""
    c = cluster
    start(c, {"dir": str(tmpfs), "max_concurrent": 4}, node=("--time-scale", "1"), auth=False)
    batch = create(c, jsonl(LINES), window="3s")
    until(lambda: get(c, batch)["request_counts"]["completed"] > 3, "lines are done")
    hog = Hog(tmpfs)
    hog.take()
    until(lambda: c.router_process.events("batch.journal_not_written"), "the journal is full")
    until(lambda: c.metric("cgn_batch_lines_asked") == 0, "no line is with an engine")
    # two retries, after which the window is over
    until(lambda: get(c, batch)["expires_at"] < time.time(), "the window is over")
    hog.free()
    batch = ended(c, batch)
    assert batch["status"] == "expired"
    good, bad = results(c, batch)
    assert sorted(r["custom_id"] for r in good + bad) == sorted(r["custom_id"] for r in LINES)
    assert len(good) == batch["request_counts"]["completed"] > 3 and {r["error"]["code"] for r in bad} == {"batch_expired"}


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_results_that_do_not_fit_are_written_later(cluster, tmpfs, killed):  # noqa: F811
    c = cluster
    batch = begin(c, tmpfs)
    hog = Hog(tmpfs)
    hog.take()
    with open(hog.path, "r+b") as f:  # room for the journal, of about 900 bytes a line, and not for the results too
        f.truncate(hog.path.stat().st_size - len(LINES) * 1300)
    until(lambda: c.router_process.events("batch.result_not_written"), lambda: f"the results do not fit: {get(c, batch)}")
    assert get(c, batch)["status"] == "finalizing" and get(c, batch)["output_file_id"] is None
    if killed:
        again(c)
        until(lambda: len(c.router_process.events("batch.result_not_written")) > 1, "the results do not fit again")
    hog.free()
    each_line_is_there_once(c, batch)


@pytest.fixture
def shim(tmp_path, monkeypatch):
    """A switch for I/O errors below tmp_path/batches, for programs started meanwhile."""
    if SANITIZER:
        pytest.skip("a sanitizer must be loaded before any other library")
    library, switch = tmp_path / "failing_disk.so", tmp_path / "switch"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, ROOT / "tests/helpers/failing_disk.c", "-ldl"], check=True)
    for name, to in (("LD_PRELOAD", library), ("FAIL_DIR", tmp_path / "batches"), ("FAIL_SWITCH", switch), ("FAIL_TRUNCATE", 1)):
        monkeypatch.setenv(name, str(to))
    yield switch
    monkeypatch.undo()


@pytest.mark.slow
@pytest.mark.plain
def test_input_output_errors_and_kills(cluster, shim):
    """Writes, syncs and cuts of the journal fail now and then, and the router is killed between them."""
    c = cluster
    batch = begin(c, c.folder / "batches")
    for percent in (100, 50, 80):
        failed = len(c.router_process.events("batch.journal_not_written"))
        shim.write_text(str(percent))
        until(lambda n=failed: len(c.router_process.events("batch.journal_not_written")) > n or get(c, batch)["status"] != "in_progress", "a write failed")
        if percent == 80:
            again(c)
        shim.unlink()
        done = get(c, batch)["request_counts"]["completed"]
        until(lambda n=done: get(c, batch)["request_counts"]["completed"] > n or get(c, batch)["status"] != "in_progress", "it goes on")
    shim.write_text("70")
    until(lambda: get(c, batch)["status"] != "in_progress" or len(c.router_process.events("batch.journal_not_written")) > 6, "more writes failed")
    shim.unlink()
    each_line_is_there_once(c, batch)


@pytest.mark.plain
def test_new_batches_while_writes_fail(cluster, shim):
    """The first steps of a batch are written too: that its lines are fine, or what is wrong with them."""
    c = cluster
    start(c, {"dir": str(c.folder / "batches")}, auth=False)
    good, bad = upload(c, jsonl(LINES)).json(), upload(c, b"nonsense\n").json()
    shim.write_text("40")
    wishes = [{"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"} for file in (good, bad) * 5]
    made = [until(lambda w=wish: (a := c.ask("POST", "/v1/batches", w)).status == 200 and a.json(), "the batch is taken") for wish in wishes]
    shim.unlink()
    for batch in made[::2]:
        each_line_is_there_once(c, batch)
    for batch in made[1::2]:
        batch = ended(c, batch)
        assert batch["status"] == "failed" and [e["code"] for e in batch["errors"]["data"]] == ["invalid_json_line"]

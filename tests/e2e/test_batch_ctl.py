# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl batch: batches made, watched, cancelled and fetched from the command line."""
import json
import subprocess

from cluster import BUILD, WAIT_S, free_port, until
from test_batch import create, ended, get, jsonl, line, start

CTL = BUILD / "src/ctl/cgn-ctl"


def ctl(c, *args, key=None):
    """Run a verb on the cluster's gateway; return its exit code, output and errors."""
    more = []
    if key is not None:
        (c.folder / "key").write_text(key["Authorization"].removeprefix("Bearer ") + "\n")
        more = ["--key-file", c.folder / "key"]
    done = subprocess.run([CTL, "batch", *args, "--url", f"http://127.0.0.1:{c.http_port}", *more],
                          capture_output=True, text=True, timeout=2 * WAIT_S)
    return done.returncode, done.stdout, done.stderr


def test_a_batch_from_its_file_to_its_results(cluster):
    c = cluster
    acme, umbra = start(c).values()
    source = c.folder / 'in "1".jsonl'
    # more than what is in flight at once, so that the upload waits for the gateway
    source.write_bytes(b"\n" + jsonl(line(i, user="x" * 3000) for i in range(500)) + jsonl([line(500, model="none")]))
    rc, out, said = ctl(c, "create", source, "--metadata", "run=7=a", "--watch", "--every", "50ms", key=acme)
    assert rc == 0, said
    assert "status     completed: 501 of 501 lines, 1 failed" in out and "endpoint   /v1/chat/completions" in out
    listed = json.loads(ctl(c, "ls", "-o", "json", key=acme)[1])["data"]
    assert len(listed) == 1 and listed[0]["metadata"] == {"run": "7=a"}
    batch = listed[0]
    file = c.ask("GET", f"/v1/files/{batch['input_file_id']}", headers=acme).json()
    assert file["filename"] == "in _1_.jsonl" and file["bytes"] == source.stat().st_size
    assert c.ask("GET", f"/v1/files/{file['id']}/content", headers=acme).body == source.read_bytes()
    rc, out, said = ctl(c, "results", batch["id"], "--out", c.folder / "out.jsonl", key=acme)
    assert (rc, out, said) == (0, "", "")
    rows = [json.loads(row) for row in (c.folder / "out.jsonl").read_text().splitlines()]
    assert sorted(r["custom_id"] for r in rows) == sorted(f"line-{i}" for i in range(500))
    assert not list(c.folder.glob("*.part"))
    rc, out, said = ctl(c, "results", batch["id"], "--errors", key=acme)
    assert rc == 0 and [json.loads(row)["custom_id"] for row in out.splitlines()] == ["line-500"]
    table = ctl(c, "ls", key=acme)[1].splitlines()
    assert table[0].split()[:5] == ["BATCH", "STATUS", "LINES", "COMPLETED", "FAILED"]
    assert table[1].split()[:5] == [batch["id"], "completed", "501", "500", "1"] and len(table) == 2
    assert json.loads(ctl(c, "show", batch["id"], "-o", "json", key=acme)[1]) == batch
    rc, out, said = ctl(c, "cancel", batch["id"], key=acme)
    assert rc == 2 and "cannot be cancelled any more" in said
    rc, out, said = ctl(c, "show", batch["id"], key=umbra)
    assert rc == 1 and "404" in said


def test_faults_and_refusals_say_what_to_do(cluster):
    c = cluster
    acme = start(c, {"max_file": 1 << 20})["acme"]
    source = c.folder / "in.jsonl"
    source.write_bytes(jsonl([line(1), line(1)]))
    rc, out, said = ctl(c, "create", source, "--watch", "--every", "50ms", key=acme)
    assert rc == 1 and "fault      line 2: custom_id is the same as that of line 1 (duplicate_custom_id)" in out and "is failed" in said
    batch = json.loads(ctl(c, "ls", "-o", "json", key=acme)[1])["data"][0]
    rc, out, said = ctl(c, "results", batch["id"], key=acme)
    assert rc == 1 and not out and "is failed and has no results" in said
    n_files = len(c.ask("GET", "/v1/files", headers=acme).json()["data"])
    for args, words in (([source, "--window", "soon"], "completion_window"), ([source, "--endpoint", "/v1/models"], "endpoint must be"),
                        ([source, "--metadata", "novalue"], "KEY=VALUE")):
        rc, out, said = ctl(c, "create", *args, key=acme)
        assert rc == 2 and words in said, said
    assert len(c.ask("GET", "/v1/files", headers=acme).json()["data"]) == n_files  # no refused batch leaves its file
    rc, out, said = ctl(c, "create", source)
    assert rc == 1 and "--key-file" in said
    rc, out, said = ctl(c, "create", c.folder / "none.jsonl", key=acme)
    assert rc == 1 and "cannot open" in said and "none.jsonl" in said
    source.write_bytes(b"words\n")
    rc, out, said = ctl(c, "create", source, key=acme)
    assert rc == 2 and "the first line" in said
    source.write_bytes(jsonl(line(i, user="x" * 1000) for i in range(3000)))
    rc, out, said = ctl(c, "create", source, key=acme)
    assert rc == 1 and "batch.max_file" in said, said
    assert ctl(c, "show", "../files", key=acme)[0] == 2
    done = subprocess.run([CTL, "batch", "ls", "--url", f"http://127.0.0.1:{free_port()}"], capture_output=True, text=True)
    assert done.returncode == 4 and "--url" in done.stderr


def test_a_watch_survives_a_restart_and_sees_the_cancellation(cluster):
    c = cluster
    start(c, {"max_concurrent": 2}, node=("--time-scale", "1"), auth=False)
    batch = create(c, jsonl(line(i, max_tokens=50, ignore_eos=True) for i in range(300)))
    log = c.folder / "watch.out"
    with open(log, "wb") as out:
        watch = subprocess.Popen([CTL, "batch", "watch", batch["id"], "--every", "50ms", "-o", "json", "--url", f"http://127.0.0.1:{c.http_port}"],
                                 stdout=out, stderr=subprocess.PIPE)
    until(lambda: get(c, batch)["request_counts"]["completed"] > 0 and log.read_bytes(), "the watch shows a line that is done")
    rc, out, said = ctl(c, "results", batch["id"])
    assert rc == 1 and "has no results yet" in said
    c.router_process.kill()
    before = log.read_bytes()
    c.router_process.start()
    until(lambda: c.listens(c.http_port, c.router_process), "the router listens")
    until(lambda: len(log.read_bytes()) > len(before), lambda: f"the watch goes on: {watch.poll()} {watch.stderr.read() if watch.poll() is not None else ''}")
    rc, out, said = ctl(c, "cancel", batch["id"])
    assert rc == 0 and "status     cancelling" in out, said
    assert watch.wait(WAIT_S) == 1
    watch.stderr.close()
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["status"] == "cancelled" and last == ended(c, batch)


def test_a_router_without_batches_is_told_by_name(cluster):
    cluster.router()
    rc, out, said = ctl(cluster, "ls")
    assert rc == 1 and "404" in said and "batch.enabled" in said, said

# SPDX-License-Identifier: Apache-2.0
"""A router whose wall clock is weeks ahead for a while, as before a machine has asked a time server: nothing is deleted by it."""
import datetime
import time

import pytest

from cluster import until
from test_batch import create, ended, jsonl, line, start, upload
from test_kv_chaos import DAY, clock  # noqa: F401 (a fixture)
from test_usage import usage


def days(c):
    return sorted(f.name for f in c.state_dir.glob("*.usage-*"))


def restart(c, shift, clock):  # noqa: F811
    c.router_process.stop()
    clock.set(shift)
    c.router_process.start()
    until(lambda: c.listens(c.http_port, c.router_process), c.logs)
    until(lambda: c.chat("hello", headers=c.headers).status == 200, c.logs)


@pytest.mark.plain
def test_nothing_is_deleted_by_a_clock_that_is_wrong(cluster, clock):  # noqa: F811
    c = cluster
    c.headers = start(c, {"keep": "720h"})["acme"]
    for _ in range(3):
        assert c.chat("hello", headers=c.headers).status == 200
    batch = ended(c, create(c, jsonl(line(i) for i in range(3)), c.headers), c.headers)
    open_one = create(c, jsonl(line(i, max_tokens=2000, ignore_eos=True) for i in range(3)), c.headers, metadata={"is": "open"})
    kept = upload(c, b'{"a": 1}\n', c.headers).json()["id"]
    until(lambda: usage(c).get("acme", {}).get("requests", 0) >= 6, lambda: usage(c))
    c.router_process.stop()
    before = days(c)
    name, _, today = before[-1].rpartition("-")
    old = c.state_dir / f"{name}-{int(today) - 40}"  # older than 32 days: the next start deletes it rightly
    old.write_text("cognitora-usage 1\n")
    c.router_process.start()
    until(lambda: c.listens(c.http_port, c.router_process), c.logs)
    assert days(c) == before
    assert [e["file"] for e in c.router_process.events("router.usage_deleted")] == [str(old)]

    restart(c, 40 * DAY, clock)
    ahead = until(lambda: c.router_process.events("router.clock_ahead"), c.logs)
    assert ahead[0]["ahead_s"] > 39 * DAY and "check the machine's clock" in ahead[0]["do"]
    time.sleep(1.2)  # the sweeps of the first turns
    assert set(before) <= set(days(c))

    def all_there():
        files = [f["id"] for f in c.ask("GET", "/v1/files", headers=c.headers).json()["data"]]
        batches = {b["id"]: b["status"] for b in c.ask("GET", "/v1/batches", headers=c.headers).json()["data"]}
        assert {kept, batch["input_file_id"], batch["output_file_id"]} <= set(files), files
        assert batches[batch["id"]] == "completed" and batches[open_one["id"]] in ("in_progress", "completed", "finalizing"), batches
    all_there()

    clock.set(0)  # while it runs: the day's file is met again, and keeps what it has
    until(lambda: usage(c).get("acme", {}).get("requests", 0) >= 6, lambda: usage(c))
    requests = usage(c)["acme"]["requests"]
    assert c.chat("hello", headers=c.headers).status == 200
    until(lambda: usage(c)["acme"]["requests"] > requests, lambda: usage(c))
    requests = usage(c)["acme"]["requests"]
    restart(c, 0, clock)
    assert usage(c)["acme"]["requests"] >= requests
    all_there()
    assert len(c.router_process.events("router.usage_deleted")) == 1


@pytest.mark.plain
def test_what_is_old_is_deleted_when_the_clock_is_right(cluster, clock):  # noqa: F811
    """The clock of deletions catches up by 24 s in each second, over restarts."""
    c = cluster
    c.headers = start(c, {"keep": "60s"})["acme"]
    began = time.time()
    kept = upload(c, b'{"a": 1}\n', c.headers).json()["id"]
    restart(c, DAY, clock)
    until(lambda: c.router_process.events("router.clock_ahead"), c.logs)

    def is_gone():
        time.sleep(0.2)  # what is kept of the clock is whole seconds: a router that lives for less than one of them, 40 ms, does not advance it
        restart(c, DAY, clock)  # a start deletes what is old; after it, each minute does
        return c.ask("GET", f"/v1/files/{kept}", headers=c.headers).status == 404
    until(is_gone, c.logs)
    deleted = until(lambda: c.router_process.events("filestore.deleted"), c.logs)[0]
    lived = datetime.datetime.fromisoformat(deleted["time"]).timestamp() - DAY - began
    assert lived > 60 / 25, (lived, deleted)

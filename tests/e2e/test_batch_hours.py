# SPDX-License-Identifier: Apache-2.0
"""Batches wait for their hours and for cheap energy, say so, and never so long that their window would end."""
import datetime
import subprocess
import time

import pytest
from cluster import BUILD, toml, until
from test_batch import create, ended, get, jsonl, line, results, start

LINES = [line(i) for i in range(8)]


def hours(first, last):
    """A span of hours, in hours from now, as batch.hours has it."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return "-".join((now + datetime.timedelta(hours=h)).strftime("%H:%M") for h in (first, last))


def asked(c):
    return c.metric("cgn_batch_lines_total") + c.metric("cgn_batch_lines_asked")


@pytest.mark.slow
def test_a_batch_waits_for_its_hours(cluster):
    c = cluster
    start(c, {"hours": [hours(3, 4), hours(12, 13)]}, auth=False)
    batch = create(c, jsonl(LINES))
    waiting = until(lambda: get(c, batch).get("waiting"), "the batch waits")
    assert waiting["for"] == "hours" and 2.9 < (waiting["until"] - time.time()) / 3600 < 3.1
    until(lambda: c.metric("cgn_batch_waiting", **{"for": "hours"}) == 1, "the metric says so")
    assert [e["for"] for e in c.router_process.events("batch.waits")] == ["hours"]
    shown = subprocess.run([BUILD / "src/ctl/cgn-ctl", "batch", "show", batch["id"], "--url", f"http://127.0.0.1:{c.http_port}"],
                           capture_output=True, text=True, check=True).stdout
    assert "waits for  hours, until" in shown
    # a batch whose window ends before the hours begin is carried out in time, while the other one waits on
    soon = ended(c, create(c, jsonl(LINES), window="20s"))
    assert soon["status"] == "completed" and "waiting" not in soon and len(results(c, soon)[0]) == 8
    assert soon["in_progress_at"] + 9 <= soon["completed_at"] <= soon["expires_at"]  # not before half its window was over
    assert get(c, batch)["waiting"]["for"] == "hours" and get(c, batch)["request_counts"]["completed"] == 0
    assert asked(c) == 8
    # cancelled while it waits
    assert c.ask("POST", f"/v1/batches/{batch['id']}/cancel", {}).status == 200
    batch = ended(c, batch)
    assert batch["status"] == "cancelled" and len(results(c, batch)[1]) == 8


def test_within_the_hours_it_goes(cluster):
    c = cluster
    start(c, {"hours": [hours(3, 4), hours(-1, 1)]}, auth=False)
    batch = ended(c, create(c, jsonl(LINES)))
    assert batch["status"] == "completed" and not c.router_process.events("batch.waits")


def test_a_batch_waits_for_cheap_energy(cluster):
    c = cluster
    series = c.folder / "price"
    series.write_text(f"{int(time.time()) - 60} 0.40\n")
    start(c, {"max_price": 1.0, "deadline_margin": "6h"}, auth=False,
          **{"router.energy": {"series": str(series), "series_reference": 0.31}})
    until(lambda: c.metric("cgn_energy_price_ratio") > 1.2, "the price is known")
    batch = create(c, jsonl(LINES))
    waiting = until(lambda: get(c, batch).get("waiting"), "the batch waits")
    assert waiting == {"for": "price", "until": batch["expires_at"] - 6 * 3600}
    assert asked(c) == 0
    c.router_process.kill()  # the wait goes on after a restart
    c.router_process.start()
    until(lambda: c.listens(c.http_port, c.router_process), "the router listens")
    assert until(lambda: get(c, batch).get("waiting"), "the batch waits again") == waiting
    series.write_text(f"{int(time.time()) - 60} 0.30\n")
    batch = ended(c, batch)
    assert batch["status"] == "completed" and len(results(c, batch)[0]) == 8


def test_a_price_that_is_not_known_holds_nothing_up(cluster):
    c = cluster
    series = c.folder / "price"
    series.write_text("1000 9\n")  # long ago
    start(c, {"max_price": 0.5}, auth=False, **{"router.energy": {"series": str(series)}})
    until(lambda: c.router_process.events("router.energy_price_unknown"), "the price is not known")
    assert ended(c, create(c, jsonl(LINES)))["status"] == "completed"


@pytest.mark.parametrize("keys, words", [({"hours": ["22:00-06:00", "22-06"]}, '"22-06" is not HH:MM-HH:MM'),
                                         ({"max_price": 0.5}, "batch.max_price needs router.energy.series")])
def test_faulty_settings_are_named(tmp_path, keys, words):
    path = tmp_path / "router.toml"
    path.write_text(toml({"batch": {"enabled": True, **keys}}))
    done = subprocess.run([BUILD / "src/ctl/cgn-ctl", "config", "check", path], capture_output=True, text=True)
    assert done.returncode == 3 and words in done.stderr + done.stdout

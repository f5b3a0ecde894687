# SPDX-License-Identifier: Apache-2.0
"""One tenant takes as much as it gets of each thing that tenants share: others still get theirs, the refusals are its own, and
all is given back."""
import json
import re
import signal
import subprocess

from cluster import BUILD, until
from hostile import HOSTILE, head, held_open, idle, jsonl, line, says_share, slow_uploads, start, upload
from test_batch_disk import again
from test_batch_hours import hours
from test_direct import add
from test_limits import key

IDS = list(range(64))


def shown(c, tenant):
    return subprocess.run([BUILD / "src/ctl/cgn-ctl", "tenant", "show", tenant, "--admin", f"127.0.0.1:{c.admin_port}"], check=True, capture_output=True, text=True).stdout


def refused(c, share):
    return c.metric("cgn_share_refused_total", tenant=HOSTILE, share=share)


def test_slow_uploads(cluster):
    mallory, victim = start(cluster, batch={"enabled": True})
    with slow_uploads(cluster, mallory, 64) as socks:
        cluster.counts(32, "cgn_share_refused_total", tenant=HOSTILE, share="file_calls")
        cluster.counts(32, "cgn_share_held", share="file_calls")
        assert says_share(upload(cluster, jsonl([line(0)]), mallory), "requests for files and batches", 32)
        for _ in range(4):
            assert upload(cluster, jsonl([line(0)]), victim).status == 200
        assert re.search(r"^file_calls +32 +32$", shown(cluster, HOSTILE), re.M), shown(cluster, HOSTILE)
        for s in socks[:16]:
            s.close()
        until(lambda: cluster.metric("cgn_share_held", share="file_calls") < 32, "those of clients that left are given back")
    idle(cluster)
    assert upload(cluster, jsonl([line(0)]), mallory).status == 200


def create(c, file, headers):
    return c.ask("POST", "/v1/batches", {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}, headers)


def test_batches_and_files(cluster):
    mallory, victim = start(cluster, batch={"enabled": True, "max_batches": 12, "max_files": 60})
    file = upload(cluster, jsonl([line(0)]), mallory).json()["id"]
    made = [create(cluster, file, mallory) for _ in range(7)]
    assert [m.status for m in made[:6]] == [200] * 6 and says_share(made[6], "batches", 6)
    for _ in range(3):
        own = upload(cluster, jsonl([line(0)]), victim)
        assert own.status == 200 and create(cluster, own.json()["id"], victim).status == 200
    while (last := upload(cluster, b"{}\n", mallory)).status == 200:
        pass
    assert says_share(last, "files")
    assert upload(cluster, jsonl([line(0)]), victim).status == 200
    assert refused(cluster, "batches") == 1 and refused(cluster, "files") == 1


def files_held(c, tenant):
    held, limit = re.search(r"^files +(\d+) +(\d+)$", shown(c, tenant), re.M).groups()
    return int(held), int(limit)


def test_results_have_places_in_the_share(cluster):
    """A batch holds places for its two files from its beginning on, and gives back the one that it does not need."""
    mallory, victim = start(cluster, batch={"enabled": True, "max_batches": 10, "max_files": 20, "hours": [hours(6, 10)]}, **{f'tenants."{HOSTILE}"': {"weight": 1}})
    file = upload(cluster, jsonl([line(0)]), mallory).json()["id"]
    made = [create(cluster, file, mallory) for _ in range(4)]
    assert [m.status for m in made] == [200] * 4 and files_held(cluster, HOSTILE) == (9, 10)
    assert says_share(create(cluster, file, mallory), "files", 9)
    assert upload(cluster, b"{}\n", mallory).status == 200 and says_share(upload(cluster, b"{}\n", mallory), "files", 10)
    again(cluster)
    assert files_held(cluster, HOSTILE) == (10, 10)
    own = upload(cluster, jsonl([line(0)]), victim)
    assert own.status == 200 and create(cluster, own.json()["id"], victim).status == 200
    for m in made:
        cluster.ask("POST", f"/v1/batches/{m.json()['id']}/cancel", {}, mallory)
    until(lambda: all(cluster.ask("GET", f"/v1/batches/{m.json()['id']}", headers=mallory).json()["status"] == "cancelled" for m in made), "the batches are over")
    assert files_held(cluster, HOSTILE)[0] == 6  # two of its own, and a file of errors of each batch


def test_one_that_comes_when_all_is_full_is_told_to_come_again(cluster):
    mallory, victim = start(cluster, batch={"enabled": True, "max_files": 1})
    assert upload(cluster, b"{}\n", mallory).status == 200
    answer = upload(cluster, b"{}\n", victim)
    assert answer.status == 503 and int(answer.headers["retry-after"]) >= 1 and answer.json()["error"]["code"] == "overloaded", answer.body


def test_uploads_and_batches_count_in_limits_and_budgets(cluster):
    mallory, victim = start(cluster, batch={"enabled": True}, **{f'tenants."{HOSTILE}"': {"rps": 0.001, "burst": 3}, 'tenants."victim"': {"budgets": ["2 requests/month"]}})
    statuses = [upload(cluster, jsonl([line(0)]), mallory).status for _ in range(4)]
    assert statuses == [200, 200, 200, 429]
    files = [upload(cluster, jsonl([line(0)]), victim) for _ in range(3)]
    assert [f.status for f in files] == [200, 200, 429] and files[2].json()["error"]["code"] == "insufficient_quota"
    assert cluster.ask("GET", "/v1/files", headers=mallory).status == 200  # a look costs nothing


def test_reservations(cluster):
    mallory = key(cluster.folder, HOSTILE, HOSTILE)
    victim = key(cluster.folder, "victim", "victim")
    cluster.router({"router.selection": {"enabled": True, "max": 16}, "auth": {"enabled": True, "api_keys_file": str(cluster.folder / "keys")},
                    "tenants.\"victim\"": {"rps": 0.001, "burst": 3}})
    add(cluster, "a")
    cluster.wait_ready(1)
    until(lambda: len(cluster.ask("GET", "/workers", headers=victim).json()) == 1, "the node can be chosen")

    def reserve(headers, i):
        return cluster.ask("POST", "/select_and_reserve", {"model_name": "sim", "token_ids": IDS, "selection_id": f"r-{i}"}, headers)
    got = [reserve(mallory, i) for i in range(9)]
    assert [g.status for g in got[:8]] == [200] * 8 and says_share(got[8], "reservations", 8)
    assert [reserve(victim, i).status for i in range(4)] == [200, 200, 200, 429]  # each counts in the rate
    assert cluster.ask("DELETE", "/reservations/r-0", headers=mallory).status == 200
    assert reserve(mallory, 20).status == 429  # the victim's have made the rest smaller
    for i in range(8):
        cluster.ask("DELETE", f"/reservations/r-{i}", headers=mallory)
        cluster.ask("DELETE", f"/reservations/r-{i}", headers=victim)
    idle(cluster)


def test_bodies(cluster):
    mallory, victim = start(cluster, router={"max_body": "1MiB", "max_inflight_body": "8MiB"})
    part = head("/v1/chat/completions", mallory, {"Content-Length": 900000, "Content-Type": "application/json"}.items()) + b"x" * 800000
    with held_open(cluster.http_port, part, 9) as socks:
        until(lambda: refused(cluster, "body_bytes") > 0, "the share is held")
        assert cluster.metric("cgn_share_held", share="body_bytes") <= 4 << 20
        body = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1, "user": "u" * 500000}
        for _ in range(3):
            assert cluster.ask("POST", "/v1/chat/completions", body, victim).status == 200
        for s in socks:
            s.close()
    idle(cluster)


def test_shares_are_given_back_when_a_router_is_told_to_reload(cluster):
    mallory, _ = start(cluster, batch={"enabled": True})
    with slow_uploads(cluster, mallory, 3):
        cluster.counts(3, "cgn_share_held", share="file_calls")
        cluster.router_process.signal(signal.SIGHUP)
        until(lambda: cluster.router_process.events("svc.reload") or cluster.router_process.events("svc.reloaded"), "the reload")
        cluster.counts(3, "cgn_share_held", share="file_calls")
    idle(cluster)


def test_where_nobody_needs_a_key_one_may_have_all(cluster):
    cluster.router({"batch": {"enabled": True, "max_batches": 3}})
    cluster.node("a", "--time-scale", "0")
    cluster.wait_ready()
    file = upload(cluster, jsonl([line(0)]))
    made = [create(cluster, file.json()["id"], None) for _ in range(4)]
    assert [m.status for m in made] == [200, 200, 200, 503], json.dumps([m.json() for m in made])
    assert int(made[3].headers["retry-after"]) >= 1

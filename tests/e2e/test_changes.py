# SPDX-License-Identifier: Apache-2.0
"""Each change that docs/change tells how to make is made in a copy of the tree, by the page's own text, built, and used."""
import json
import subprocess

import pytest

import changes
import cluster
from cluster import Cluster, ask, until

pytestmark = pytest.mark.plain
PROGRAMS = ("cgn-router", "cgn-agent", "cgn-ctl")
# How many files a person changes for each.
FILES = {"A setting": 1, "A metric": 2, "A route of the gateway": 2, "A field of `cluster nodes`": 2, "A verb of `cgn-ctl`": 2, "An engine kind": 2, "A routing policy": 2}


def test_a_change_touches_few_files():
    assert {title: len({file for _, file, _ in blocks}) for title, blocks in changes.sections().items()} == FILES


def test_a_block_that_does_not_fit_is_refused():
    assert changes.edited("a\nb\n", " b\n+c\n") == "a\nb\nc\n"
    assert changes.edited("a\nb\n", "+c\n-b\n") == "a\nc\n"
    for text in ("a\n", "b\nb\n", "bb\n"):
        with pytest.raises(AssertionError, match="do not stand there once"):
            changes.edited(text, " b\n+c\n")


@pytest.mark.slow
@pytest.mark.skipif(changes.usable() is not None, reason=str(changes.usable()))
def test_the_changes_do_what_their_pages_say(tmp_path, monkeypatch):
    """One case, because all changes are built at once."""
    build = changes.build(tmp_path, PROGRAMS)
    setting_is_read_and_bounded(build)
    verb_runs(build)
    reference_has_them(build)
    with Cluster(tmp_path) as c:
        engines = [c.engine(f"engine-{name}", "--time-scale", "0")[1] for name in "ab"]
        monkeypatch.setattr(cluster, "BUILD", build)
        c.router({"router": {"policy": "last"}})
        admin = c.agent("a", engines[0])[2]
        c.wait_ready(1)  # its slot is before that of b
        c.agent("b", engines[1], {"engine": {"kind": "example"}})
        c.wait_ready(2)
        metric_counts(admin)
        route_is_relayed(c)
        field_is_a_column(build, c)
        kind_is_known(build, c)
        policy_picks(build, c)


def said(build, name, *words):
    return subprocess.run([build / "src" / name.removeprefix("cgn-") / name, *words], capture_output=True, text=True, timeout=60)


def ctl(build, *words):
    done = said(build, "cgn-ctl", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def setting_is_read_and_bounded(build):
    assert "example = 7" in said(build, "cgn-router", "--check", "--set", "router.example=7").stdout
    refused = said(build, "cgn-router", "--check", "--set", "router.example=11")
    assert refused.returncode == 3 and "a whole number from 1 to 10" in refused.stderr


def verb_runs(build):
    assert ctl(build, "cluster", "example", "gpu-1") == "gpu-1\n"
    assert "cluster example NAME" in ctl(build, "--help")


def reference_has_them(build):
    text = "".join((build / "reference" / name).read_text() for name in ("configuration.md", "metrics.md", "cgn-ctl.md"))
    assert [word for word in ("`example`", "cgn_example_total", "cgn-ctl cluster example", '"last"', "an example: the last node") if word not in text] == []


def metric_counts(admin):
    def counted():
        lines = ask(admin, "GET", "/metrics").body.decode().splitlines()
        return [line for line in lines if line.startswith("cgn_example_total{") and float(line.split()[-1]) > 0]
    until(counted, "the agent has read the engine's load")


def route_is_relayed(c):
    def node_of(path):
        return c.ask("POST", path, {"model": c.MODEL, "prompt": "a"}).headers.get("x-cgn-node")
    assert node_of("/v1/exampl") is None and node_of("/v1/example") in ("a", "b")


def field_is_a_column(build, c):
    at = ("--router", f"127.0.0.1:{c.grpc_port}")
    assert "SLOT" in ctl(build, "cluster", "nodes", "-o", "wide", *at).splitlines()[0].split()
    assert sorted(n["slot"] for n in json.loads(ctl(build, "cluster", "nodes", "-o", "json", *at))) == [0, 1]


def kind_is_known(build, c):
    assert " example" in said(build, "cgn-agent", "--help").stdout
    assert {n["id"]: n["engines"][0]["kind"] for n in c.status()["nodes"]} == {"a": "sim", "b": "example"}


def policy_picks(build, c):
    at = ("--router", f"127.0.0.1:{c.grpc_port}")
    assert [c.chat("hello").headers["x-cgn-node"] for _ in range(4)] == ["b"] * 4
    ctl(build, "cluster", "set-policy", "--policy", "least_loaded", *at)
    ctl(build, "cluster", "set-policy", "--policy", "last", *at)
    assert json.loads(ctl(build, "cluster", "set-policy", "-o", "json", *at))["policy"] == "last"
    assert "an example: the last node that has room" in ctl(build, "cluster", "set-policy", "--help")

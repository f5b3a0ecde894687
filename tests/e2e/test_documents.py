# SPDX-License-Identifier: Apache-2.0
"""The documents of the router's admin port: their keys, the order of the keys and the types of their values stay as they are."""
import json
import pathlib
import subprocess

import pytest

from clients import Stream
from cluster import BUILD, ask, until
from test_autoscaler import fleet
from test_away import World
from test_cascade import EASY, LEARNS, learned, pair, twice  # noqa: F401

SHAPES = pathlib.Path(__file__).with_name("documents.json")
DOCUMENTS = ["/nodes", "/models", "/policy", "/queue", "/peers", "/tenants", "/sessions", "/usage?by=key&step=hour", "/usage?by=all", "/explain?last=100",
             "/explain?last=100&detail=brief", "/index"]
SECTIONS = {"router": {"shadow": ["round_robin"]},
            "tenants.acme": {"weight": 2, "rps": 5, "budgets": ["1M tokens/day", "9 USD/month"]}, "tenants.other": {"weight": 1}}


def shape(v):
    """Return the keys and types of a value; of a list each kind of element once."""
    if isinstance(v, dict):
        return {k: shape(x) for k, x in v.items()}
    if isinstance(v, list):
        kinds = {json.dumps(shape(x)): shape(x) for x in v}
        return [kinds[k] for k in sorted(kinds)]
    return None if v is None else {bool: "bool", int: "number", float: "number", str: "text"}[type(v)]


def ctl(c, *args):
    return subprocess.run([BUILD / "src/ctl/cgn-ctl", *args, "--router", f"127.0.0.1:{c.grpc_port}"], check=True, capture_output=True, text=True).stdout


def document(c, path):
    return ask(c.admin_port, "GET", path).json()


@pytest.fixture
def busy(cluster, tmp_path):
    """A cluster in which each document has rows: a node without an agent, one that is down, requests that wait, ended and run, a peer."""
    w = World(cluster, tmp_path)
    with w.cloud:
        w.start_cloud()
        engine, port = cluster.engine("bare", "--time-scale", "0", model="bare")
        sections = {**SECTIONS, "engine_nodes.bare": {"kind": "sim", "url": f"http://127.0.0.1:{port}"}}
        w.start_home(**sections)
        for name, speed in (("small", ("--decode-ms", "5")), ("large", ("--decode-ms", "5")), ("left", ("--time-scale", "0"))):
            cluster.node(name, *speed, model=name)
            until(lambda: cluster.states().get(name) == "ready", "nodes join in this order")  # noqa: B023
        cluster.wait_ready(5)
        cluster.nodes["left"].agent.kill()
        cluster.MODEL = "large"
        for i in range(2):
            assert cluster.chat(f"hello {i} " * 100, {"X-Cgn-Session": "s-1"}, max_tokens=16).status == 200
        until(lambda: cluster.states()["left"] == "down", cluster.states)
        held = w.hold()
        small = [Stream(cluster.http_port, f"hold the small one {i}", model="small", max_tokens=4000, ignore_eos=True) for i in range(2)]
        until(lambda: any(q["tenants"] for q in document(cluster, "/queue")["queues"]), "a request waits")
        yield w
        for stream in (held, *small):
            stream.close()


def agrees(world, found):
    """Compare with the shapes that were kept. Keys that come anew are added to documents.json by hand."""
    kept = json.loads(SHAPES.read_text())[world]
    for path, d in found.items():
        assert json.dumps(shape(d), indent=1) == json.dumps(kept[path], indent=1), path


def test_documents_keep_their_shape(busy):
    agrees("busy", {path: document(busy.home, path) for path in DOCUMENTS})


def test_cascades_keep_their_shape(pair):
    c = pair(cascade=LEARNS)
    assert twice(c, "one", difficulty=EASY)[1] == "compared"
    agrees("compared", {"/cascades": document(c, "/cascades")})


def test_learned_cascades_keep_their_shape(pair):
    agrees("learned", {"/cascades": document(learned(pair), "/cascades")})


def test_the_autoscaler_keeps_its_shape(cluster):
    fleet(cluster, "ab", mode="shadow")
    until(lambda: document(cluster, "/autoscaler")["decisions"], cluster.logs)
    agrees("scaled", {"/autoscaler": document(cluster, "/autoscaler")})

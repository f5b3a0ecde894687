# SPDX-License-Identifier: Apache-2.0
"""Host names that come to stand for another address while the old process lives."""
import http.server
import os
import pathlib
import subprocess
import threading

import pytest

from cluster import Cluster, Process, ask, free_port, until
from test_resume import CHAT, Stream

QUICK = {"cluster": {"lookup_interval": "200ms"}}
ONE, TWO, NOBODY = "127.0.0.2", "127.0.0.3", "127.0.0.4"


class Named(Process):
    """A program whose /etc/hosts is a file of the test."""

    def __init__(self, hosts, *args):
        self.hosts = hosts
        super().__init__(*args)

    def start(self):
        self.argv = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(self.hosts), *self.argv]
        super().start()


class Place(Cluster):
    """A cluster whose router and agents know the name engine.test."""

    def __init__(self, folder):
        super().__init__(folder)
        self.hosts, self.port = self.folder / "hosts", free_port()
        self.common = {**QUICK}
        self.name_is(ONE)

    def name_is(self, *addresses):
        self.hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{a} engine.test\n" for a in addresses))

    def run(self, name, program, *args):
        p = Process(self.folder, name, program, *args) if program == "cgn-sim" else Named(self.hosts, self.folder, name, program, *args)
        self.processes.append(p)
        return p

    def engine_at(self, address, model, *args):
        p = self.run(f"engine-{address}", "cgn-sim", "--listen", f"{address}:{self.port}", "--model", model, *args)
        until(lambda: "listen" in p.log() or not p.alive(), "the engine listens")
        return p

    def models(self):
        return [m["id"] for m in self.ask("GET", "/v1/models").json().get("data", [])]

    def asked(self, model):
        return self.ask("POST", "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}).status


@pytest.fixture
def place(tmp_path):
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("no mount namespaces here")
    with Place(tmp_path) as p:
        yield p


@pytest.mark.slow
def test_an_engine_node_follows_its_name(place):
    place.engine_at(ONE, "old", "--decode-ms", "20", "--max-tokens-default", "2000")
    two = place.engine_at(TWO, "new", "--time-scale", "0")
    place.router({'engine_nodes."n"': {"url": f"http://engine.test:{place.port}", "ready_interval": "50ms"}})
    until(lambda: place.models() == ["old"], "the engine is ready")
    s = Stream(place, "/v1/chat/completions", {**CHAT, "model": "old", "max_tokens": 150})
    assert s.wait_for(5) == "n"

    place.name_is(TWO)  # the old process lives, and its stream goes on
    until(lambda: place.models() == ["new"], place.models)
    until(lambda: place.asked("new") == 200, "the new address answers")
    assert place.asked("old") == 404
    assert s.end().endswith(b"data: [DONE]\n\n")
    moved = place.router_process.events("lookup.moved")
    assert any((e["from"], e["to"]) == (f"{ONE}:{place.port}", f"{TWO}:{place.port}") for e in moved), moved

    place.name_is()  # a name that is unknown for a time: the address stays
    until(lambda: place.router_process.events("lookup.failed"), "the look-up failed")
    assert all(place.asked("new") == 200 for _ in range(5)) and place.states() == {"n": "ready"}

    place.name_is(NOBODY)
    until(lambda: place.states()["n"] != "ready", "nobody is at the new address")
    reason = until(lambda: [n["reason"] for n in place.status()["nodes"] if NOBODY in n["reason"]], place.status)
    assert f"engine.test:{place.port}" in reason[0]
    until(lambda: place.asked("new") == 503, "no request goes to the old address")

    place.name_is(ONE, TWO)  # of two addresses one is chosen, and kept while it works
    until(lambda: place.states()["n"] == "ready", "one of them answers")
    chosen = until(place.models, "its model is known")
    until(lambda: all(place.asked(chosen[0]) == 200 for _ in range(3)), "requests go where the checks go")
    place.name_is(TWO, ONE)
    if chosen == ["old"]:
        place.name_is(TWO)
        until(lambda: place.models() == ["new"], place.models)
        place.name_is(ONE, TWO)
    assert all(place.asked("new") == 200 for _ in range(3))
    two.kill()
    until(lambda: place.models() == ["old"] and place.asked("old") == 200, "the other address took over")


class Sick(http.server.BaseHTTPRequestHandler):
    """A server that is there, and no engine."""

    def do_GET(self):
        self.send_error(500)

    def log_message(self, *_):
        pass


def test_an_address_where_no_check_succeeds_is_left(place):
    sick = http.server.ThreadingHTTPServer((ONE, place.port), Sick)
    threading.Thread(target=sick.serve_forever, args=(0.01,), daemon=True).start()
    place.engine_at(TWO, "new", "--time-scale", "0")
    place.router({'engine_nodes."n"': {"url": f"http://engine.test:{place.port}", "ready_interval": "50ms"}})
    try:
        until(lambda: [n for n in place.status()["nodes"] if "500" in n["reason"]], place.status)
        place.name_is(ONE, TWO)
        until(lambda: place.models() == ["new"] and place.asked("new") == 200, place.status)
    finally:
        sick.shutdown()
        sick.server_close()


def connected(address, port):
    """Return true if a connection to the port stands."""
    to = "".join(f"{int(b):02X}" for b in reversed(address.split("."))) + f":{port:04X}"
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[2] == to and row[3] == "01" for row in rows)


@pytest.mark.slow
def test_kv_events_follow_the_name_too(place):
    """The old engine lives, and its connection stands: its events say nothing of prompts that go to the new one."""
    events, replay = free_port(), free_port()
    for address in (ONE, TWO):
        place.engine_at(address, "sim", "--time-scale", "0", "--kv-events", f"tcp://{address}:{events}", "--kv-events-replay", f"tcp://{address}:{replay}")
    place.router({'engine_nodes."n"': {"url": f"http://engine.test:{place.port}", "ready_interval": "50ms", "kv_events": f"tcp://engine.test:{events}",
                                       "kv_events_replay": f"tcp://engine.test:{replay}"}})
    place.wait_ready(1)

    def told():
        place.chat("a prompt of some length " * 60, max_tokens=2)
        return place.status()["nodes"][0]["cache"]["source"] == "events"
    until(told, "the events of the first are heard")
    assert connected(ONE, events) and not connected(TWO, events)
    place.name_is(TWO)
    until(lambda: connected(TWO, events) and not connected(ONE, events), "the router listens to the second")
    until(told, "its events are heard")


def test_an_agent_follows_its_engines_name(place):
    place.engine_at(ONE, "old", "--time-scale", "0")
    place.engine_at(TWO, "new", "--time-scale", "0")
    place.router()
    _, _, admin = place.agent("a", place.port, {"engine": {"kind": "sim", "url": f"http://engine.test:{place.port}", "ready_interval": "50ms"}})
    until(lambda: place.models() == ["old"] and place.asked("old") == 200, "the engine is ready")
    place.name_is(TWO)
    until(lambda: place.models() == ["new"] and place.asked("new") == 200, place.models)
    place.name_is(NOBODY)
    until(lambda: place.states()["a"] != "ready" and NOBODY in ask(admin, "GET", "/engines").json()["engines"][0]["trouble"], "the agent sees that nobody is there")


def test_the_router_follows_an_agents_name(place):
    """Its watch is a call without an end: it moves too."""
    agents = {}
    for name, address in (("one", ONE), ("two", TWO)):
        _, port = place.engine(f"engine-{name}", "--time-scale", "0")
        agents[name], _, _ = place.agent(name, port, {"agent": {"listen": f"{address}:{place.port}", "node_id": name}})
    place.router({"cluster": {"state_backend": "static", "nodes": [f"engine.test:{place.port}"]}})
    until(lambda: place.states() == {"one": "ready"}, place.states)
    assert place.chat("hello", max_tokens=2).headers["x-cgn-node"] == "one"
    place.name_is(TWO)
    until(lambda: place.states() == {"two": "ready"}, place.states)
    until(lambda: place.chat("hello", max_tokens=2).headers.get("x-cgn-node") == "two", "requests go there too")
    assert agents["one"].alive()

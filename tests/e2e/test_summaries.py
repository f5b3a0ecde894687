# SPDX-License-Identifier: Apache-2.0
"""What clusters tell each other of themselves: a request leaves for the cluster that has its prefix in cache; changes
arrive, sets that differ are repaired, and a peer whose summary is wrong does not count."""
import contextlib
import http.client
import http.server
import itertools
import json
import signal
import ssl
import subprocess
import threading

import pytest

from clients import Stream
from cluster import BUILD, WAIT_S, Cluster, ask, free_port, until
from test_federation import SLOW, Fed
from test_kv_events import endpoints

PROMPT_TOKENS = 1600  # 100 blocks
ENGINE = ("--prefill-tokens-per-s", "4000", "--decode-ms", "1", "--kv-blocks", "4096")
RULES = {"router.federation": {"summary_interval": "200ms"}, "router.admission": {"max_concurrent_per_replica": 8}}


class Tap:
    """A way to a peer's port on which its answers can be changed: change(path, body) returns the body."""

    def __init__(self, fed, x, y):
        self.port, self.change, self.gate = free_port(), lambda path, body: body, lambda: fed.gates[x, y]
        here = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(fed.pki[x] / "ca.pem"))
        here.load_cert_chain(fed.pki[y] / "router.pem", fed.pki[y] / "router.key")
        here.verify_mode = ssl.CERT_REQUIRED
        tap = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def relay(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                there = ssl.create_default_context(cafile=str(fed.pki[y] / "ca.pem"))
                there.load_cert_chain(fed.pki[x] / "router.pem", fed.pki[x] / "router.key")
                c = http.client.HTTPSConnection("localhost", tap.gate(), timeout=WAIT_S, context=there)
                try:
                    c.request(self.command, self.path, body or None, {k: v for k, v in self.headers.items() if k.lower() != "host"})
                    r = c.getresponse()
                    answer = r.read()
                    if r.status == 200:
                        answer = tap.change(self.path, answer)
                    self.send_response(r.status)
                    for k, v in r.getheaders():
                        if k.lower() not in ("transfer-encoding", "content-length", "connection", "date", "server"):
                            self.send_header(k, v)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                except OSError:
                    self.close_connection = True
                finally:
                    c.close()

            do_GET = do_POST = relay

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def finish_request(self, request, client_address):  # in the thread of the connection
                with contextlib.suppress(OSError):
                    super().finish_request(here.wrap_socket(request, server_side=True), client_address)

        self.server = Server(("localhost", self.port), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        fed.rows[x][f'peers."{y}"']["url"] = f"https://localhost:{self.port}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class World(Fed):
    def begin(self, *peers, tap=None, prices=None, rules=None):
        """Cluster `a` with one busy node, and |peers| whose engines tell what they cache. Return the tap before |tap|. |prices|: of a
        million tokens, by peer; |rules|: of `a`'s federation."""
        self.add("a", *peers)
        for name in peers:
            self.link("a", name)
        way = self.stack.enter_context(contextlib.closing(Tap(self, "a", tap))) if tap else None
        for name in peers:
            money = {'prices."sim"': {"input": prices[name], "output": prices[name]}} if prices else {}
            c = self.start(name, **RULES, **money)
            self.engine(name)
            c.wait_ready()
        self.start("a", SLOW, **{"router.federation": RULES["router.federation"] | (rules or {})})
        self.c["a"].wait_ready()
        for name in peers:
            self.met("a", name)
        return way

    def engine(self, name):
        events = endpoints()
        self.c[name].node(f"{name}1", *ENGINE, "--kv-events", events[0], "--kv-events-replay", events[1],
                          sections={"engine": {"kv_events": events[0], "kv_events_replay": events[1]}})

    def hold(self):
        """Let requests at `a` have to wait."""
        self.held = Stream(self.c["a"].http_port, "hold", model="sim", max_tokens=4000, ignore_eos=True).read_until(b"data:")
        return self.held

    @staticmethod
    def body(seed, **more):
        return {"model": "sim", "prompt": [seed * 10000 + i for i in range(PROMPT_TOKENS)], "max_tokens": 2, **more}

    def warm(self, name, *seeds):
        """Let the engines of |name| cache prompts, and its router learn how fast it computes them."""
        for seed in seeds:
            assert ask(self.c[name].http_port, "POST", "/v1/completions", self.body(seed, stream=True)).status == 200

    def ctl(self, *args):
        """Return what cgn-ctl shows of cluster a."""
        words = [BUILD / "src" / "ctl" / "cgn-ctl", *args, "--router", f"127.0.0.1:{self.c['a'].grpc_port}"]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    def send(self, seed, headers=None, **more):
        a = ask(self.c["a"].http_port, "POST", "/v1/completions", self.body(seed, **more), headers)
        assert a.status == 200, a.body
        return a

    def knows(self, name, blocks, what=lambda row: True):
        """Wait until `a` knows of |blocks| blocks at |name| at least, and its speed."""
        def told():
            row = self.peer("a", name)
            return row if row.get("blocks", 0) >= blocks and row["models"] and row["models"][0]["prefill_ms_per_token"] > 0 and what(row) else None
        return until(told, lambda: f"a knows {blocks} blocks of {name}: {self.peer('a', name)}")

    def counted(self, name, outcome, least=1):
        until(lambda: self.c["a"].metric("cgn_federation_summaries_total", peer=name, outcome=outcome) >= least,
              lambda: f"{outcome}: {self.peer('a', name)}")


@pytest.fixture
def world(tmp_path, request):
    with contextlib.ExitStack() as stack:
        w = World(stack, tmp_path)
        yield w
        if getattr(request.node, "failed", False):
            print(*(c.logs() for c in w.c.values()), sep="\n")


def test_a_prompt_goes_to_the_peer_that_has_its_prefix_in_cache(world):
    world.begin("b", "c")
    world.warm("b", 1)
    world.warm("c", 2)
    world.knows("b", 100)
    first = world.knows("c", 100)
    world.hold()
    for seed, peer in ((1, "b"), (2, "c"), (1, "b")):
        assert world.send(seed).headers["x-cgn-peer"] == peer, seed
    asked = world.send(2, headers={"X-Cgn-Explain": "1"})
    rows = {p["peer"]: p for p in json.loads(asked.headers["x-cgn-explain"])["peers"]}
    assert [rows[p]["left"] for p in "bc"] == [False, True] and [rows[p]["held_blocks"] for p in "bc"] == [0, 100], rows
    assert {p["by"] for p in rows.values()} == {"summary"} and rows["b"]["ttft_ms"] > 200 > rows["c"]["ttft_ms"]
    shown = world.ctl("explain", asked.headers["x-request-id"])
    assert "peer c, which got it: first byte after" in shown and "by its summary; holds 100 blocks" in shown, shown
    table = world.ctl("cluster", "peers").splitlines()
    assert table[0].split("  ")[0] == "PEER" and "GENERATION" in table[0] and [line.split()[0] for line in table[1:]] == ["b", "c"]
    world.warm("c", 3)  # what is new there arrives as a change
    later = world.knows("c", 200, lambda row: not row["summary_whole"])
    assert later["generation"] > first["generation"] and later["summary_bytes"] < 700 and later["sampled_1_in"] == 1
    assert world.send(3, stream=True).headers["x-cgn-peer"] == "c"
    until(lambda: world.c["a"].metric("cgn_federation_predictions_total", peer="c", outcome="good") >= 3, "answers were compared")
    scraped = world.c["a"].scrape()
    predicted, actual = (world.c["a"].metric("cgn_federation_cached_tokens_total", scraped, peer="c", kind=k) for k in ("predicted", "actual"))
    assert 4700 <= predicted <= 4800 and abs(predicted - actual) <= 96
    assert world.c["a"].metric("cgn_federation_predictions_total", scraped, outcome="bad") == 0


@pytest.mark.parametrize("weight, peer", [(0, "b"), (1000, "c")])
def test_the_price_that_a_peer_tells_counts_as_time(world, weight, peer):
    """The prompt is cached at b, and c computes it for a hundredth of the price."""
    world.begin("b", "c", prices={"b": 100, "c": 1}, rules={"price_weight": weight})
    world.warm("b", 1)
    world.warm("c", 2)
    world.knows("b", 100)
    world.knows("c", 100)
    world.hold()
    asked = world.send(1, headers={"X-Cgn-Explain": "1"})
    rows = {p["peer"]: p for p in json.loads(asked.headers["x-cgn-explain"])["peers"]}
    assert asked.headers["x-cgn-peer"] == peer, rows
    assert rows["b"]["price"] > 90 * rows["c"]["price"] > 0 and rows["b"]["held_blocks"] == 100 and "joules" not in rows["b"], rows
    assert "; price 0." in world.ctl("explain", asked.headers["x-request-id"])


def number(v):
    """|v| as a number of a summary: seven bits a byte."""
    return bytes([v & 0x7f | 0x80]) + number(v >> 7) if v > 0x7f else bytes([v])


@pytest.mark.parametrize("weight, peer", [(0, "b"), (1000, "c")])
def test_joules_that_a_peer_tells_count_as_time(world, weight, peer):
    """The prompt but for its end is cached at b, whose summary is changed on the way: a token that is not takes 50 joules."""
    tap = world.begin("b", "c", tap="b", rules={"energy_weight": weight})

    def power(path, body):
        at = body.find(b"\x03sim") if path.startswith("/federation/") else -1
        if at < 0:
            return body
        at += 4
        for _ in range(8):  # six numbers of the load, and two prices
            while body[at] & 0x80:
                at += 1
            at += 1
        return body[:at] + number(50000000) + body[at + 1:] if body[at] == 0 else body

    tap.change = power
    world.warm("b", 1)
    world.warm("c", 2)
    world.knows("b", 100, lambda row: row["models"][0]["joules_per_token"] == 50)
    world.knows("c", 100)
    world.hold()
    body = world.body(1)
    a = ask(world.c["a"].http_port, "POST", "/v1/completions", body | {"prompt": body["prompt"] + list(range(64))}, {"X-Cgn-Explain": "1"})
    assert a.status == 200, a.body
    rows = {p["peer"]: p for p in json.loads(a.headers["x-cgn-explain"])["peers"]}
    assert a.headers["x-cgn-peer"] == peer, rows
    assert rows["b"]["joules"] == 64 * 50 and rows["b"]["held_blocks"] == 100 and "joules" not in rows["c"], rows
    assert "; 3200 J" in world.ctl("explain", a.headers["x-request-id"])


def test_the_summary_is_for_the_peer_alone(world):
    world.begin("b")
    get = "/federation/v1/summary"
    a = world.knock("a", "b", "GET", f"{get}?since=0", world.pki["a"])
    assert a.status in (200, 503) and a.headers["content-type"] == ("application/octet-stream" if a.status == 200 else "application/json")
    assert world.knock("a", "b", "GET", f"{get}?since=x", world.pki["a"]).status == 400
    assert world.knock("a", "b", "GET", f"{get}?version=0", world.pki["a"]).status == 400
    assert ask(world.c["b"].http_port, "GET", get, headers={"X-Cgn-Via": "a"}).status == 404
    assert world.c["b"].metric("cgn_rejected_total", reason="auth") == 0


def test_peers_are_judged_by_their_measured_time_where_summaries_are_off(world):
    world.add("a", "b")
    world.link("a", "b")
    off = {"router.federation": {"summary_interval": "0s"}}
    world.start("b", ("--time-scale", "0"), **off)
    world.start("a", **off)
    world.met("a", "b")
    assert world.knock("a", "b", "GET", "/federation/v1/summary", world.pki["a"]).status == 404
    assert "trust" not in world.peer("a", "b")
    assert world.c["a"].chat("hello", max_tokens=2).headers["x-cgn-peer"] == "b"


def test_sets_that_differ_are_repaired(world):
    tap = world.begin("b", tap="b")
    world.warm("b", 1)
    world.knows("b", 100)

    asked = []

    def note(path, body):
        asked.append(path)
        return body

    def flip(path, body):
        """A change whose sum is another one's: as if one before it had been lost."""
        if path.startswith("/federation/") and body[4] == 2 and body[16] != 0:  # changes, one model
            tap.change = note
            return body[:17] + bytes([body[17] ^ 1]) + body[18:]
        return body

    tap.change = flip
    world.warm("b", 2)
    world.counted("b", "diverged")
    world.knows("b", 200)
    world.counted("b", "whole", 2)
    assert "since=0&" in next(path for path in asked if path.startswith("/federation/")), asked
    [event] = world.c["a"].router_process.events("router.summary_diverged")
    assert event["peer"] == "b" and event["then"] == "the whole is asked for"
    world.hold()
    assert world.send(2).headers["x-cgn-peer"] == "b"


def second_router(world, name):
    """Start another router of the cluster, with the same nodes. Return the port where requests of cluster a come in."""
    folder, port = world.folder / f"{name}-2", free_port()
    folder.mkdir()
    c = world.stack.enter_context(Cluster(folder))
    c.common = {"cluster": {"name": name, "state_backend": "static", "nodes": [f"127.0.0.1:{n.agent_port}" for n in world.c[name].nodes.values()]}}
    rows = {section: dict(keys) for section, keys in world.rows[name].items()}
    rows['peers."a"']["listen"] = f"127.0.0.1:{port}"
    c.router({**RULES, "router.federation": {"enabled": True, **RULES["router.federation"]}, **rows})
    c.wait_ready(len(world.c[name].nodes))
    return port


@pytest.mark.slow
def test_routers_that_answer_in_turn_tell_changes_all_the_same(world):
    """Each router has sets and generations of its own; what balances the load between them sends each question to the next one."""
    tap = world.begin("b", tap="b")
    gates = itertools.cycle([world.gates["a", "b"], second_router(world, "b")])
    tap.gate = lambda: next(gates)
    world.warm("b", 1)
    world.counted("b", "changes", 6)
    whole = world.c["a"].metric("cgn_federation_summaries_total", peer="b", outcome="whole")
    seeds = itertools.count(2)

    def warmed(n):
        world.warm("b", next(seeds))
        return world.c["a"].metric("cgn_federation_summaries_total", peer="b", outcome="changes") >= n
    until(lambda: warmed(40), lambda: world.peer("a", "b"))
    world.knows("b", 100 * (next(seeds) - 1) // 2)
    assert world.c["a"].metric("cgn_federation_summaries_total", peer="b", outcome="whole") == whole, world.peer("a", "b")
    assert world.c["a"].metric("cgn_federation_summaries_total", peer="b", outcome="diverged") == 0
    bad = world.knock("a", "b", "GET", "/federation/v1/summary?since=1&also=2,x&version=2", world.pki["a"])
    assert bad.status == 400 and "also" in bad.json()["error"]["message"]


def test_a_router_that_reads_version_1_alone_is_told_in_it(world):
    world.begin("b")
    world.warm("b", 1)
    world.knows("b", 100)
    get = "/federation/v1/summary?since=0"

    def told(version):
        """The blocks of a whole set in that version; 0: none."""
        r = world.knock("a", "b", "GET", get, world.pki["a"])
        if r.status != 200 or r.body[4] != version:
            return 0
        return int.from_bytes(r.body[32:36], "little")

    assert world.knock("a", "b", "GET", f"{get}&version=99", world.pki["a"]).status in (200, 503)
    until(lambda: told(1) == 100, "the set is told in version 1")
    world.warm("b", 2)
    world.knows("b", 200)  # a's router reads both
    assert world.c["a"].metric("cgn_federation_summaries_total", peer="b", outcome="refused") == 0


def test_an_answer_that_is_no_summary_is_refused_and_the_peer_is_judged_as_before(world):
    tap = world.begin("b", tap="b")
    world.warm("b", 1)
    world.knows("b", 100)
    tap.change = lambda path, body: body[:-1] if path.startswith("/federation/") else body
    world.counted("b", "refused")
    until(lambda: "generation" not in world.peer("a", "b"), "nothing is known of b")
    assert world.c["a"].router_process.events("router.summary_refused")[0]["peer"] == "b"
    world.hold()
    assert world.send(1).headers["x-cgn-peer"] == "b"
    assert world.c["a"].metric("cgn_federation_predictions_total", peer="b") == 0


@pytest.mark.slow
def test_a_peer_that_lies_is_demoted(world):
    """The set that the peer tells is an old one: its engine has lost what it names."""
    tap = world.begin("b", "c", tap="b")
    world.warm("b", *range(1, 9))
    world.warm("c", 100)
    world.knows("b", 800)
    world.knows("c", 100)
    kept = world.knock("a", "b", "GET", "/federation/v1/summary?since=0&version=2", world.pki["a"])
    while kept.status == 503:
        kept = world.knock("a", "b", "GET", "/federation/v1/summary?since=0&version=2", world.pki["a"])
    tap.change = lambda path, body: kept.body if path.startswith("/federation/") else body
    ask(world.c["b"].nodes["b1"].engine_port, "POST", "/reset_prefix_cache")
    world.hold()
    for seed in range(1, 9):
        world.send(seed)
        if world.c["a"].router_process.events("router.peer_demoted"):
            break
    [event] = until(lambda: world.c["a"].router_process.events("router.peer_demoted"), lambda: f"b is demoted: {world.peer('a', 'b')}")
    assert event["peer"] == "b" and event["cached_predicted"] > event["cached"]
    row = world.peer("a", "b")
    assert row["trust"] == 0 and row["demoted_for_s"] > 0 and row["bad"] >= 4
    assert world.c["a"].metric("cgn_federation_demotions_total", peer="b") == 1
    assert world.send(8).headers["x-cgn-peer"] == "c"  # one that is believed goes first


def test_a_partition_leaves_requests_here_and_heals(world):
    world.begin("b")
    world.warm("b", 1)
    world.knows("b", 100)
    held = world.hold()
    assert world.send(1).headers["x-cgn-peer"] == "b"
    world.c["b"].router_process.signal(signal.SIGSTOP)
    until(lambda: world.peer("a", "b")["state"] == "lost", "b is lost")
    waiting = Stream(world.c["a"].http_port, "wait", model="sim", max_tokens=2)
    until(lambda: world.c["a"].metric("cgn_queue_depth", model="sim") == 1, "it waits here")
    held.close()
    assert b"x-cgn-node: a1" in waiting.read_until(b"[DONE]").got.lower()
    world.c["b"].router_process.signal(signal.SIGCONT)
    world.met("a", "b")
    world.warm("b", 2)
    world.knows("b", 200)
    world.hold()
    assert world.send(2).headers["x-cgn-peer"] == "b"
    assert world.peer("a", "b")["trust"] > 0.5

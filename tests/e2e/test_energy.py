# SPDX-License-Identifier: Apache-2.0
"""Energy of nodes and requests: agents read a fake libnvidia-ml (tests/helpers/fake_nvml.c), whose counter follows the load of the node's
simulated engine on the published curve of an H100. The counter is read once a second, so these tests take seconds."""
import http.client
import http.server
import json
import math
import signal
import subprocess
import threading
import time

import pytest

from cluster import BUILD, SANITIZER, WAIT_S, Cluster, ask, until

LIBRARY = str(BUILD / "tests/helpers/fake_nvml.so")
CTL = BUILD / "src/ctl/cgn-ctl"
LIMIT_W = 700


def watts(running, above_idle=1):
    """Return what an H100 draws with so many streams; a lower clock takes a share of what is above idle."""
    return 120 if running == 0 else 120 + (147 + 36 * math.log2(running)) * above_idle


def put(path, text):
    """Write a file of sysfs; readers see it whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)


class Gpu(threading.Thread):
    """A GPU whose energy counter follows an engine's running requests."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.port, self.joules, self.busy_joules, self.more, self.ended = path, None, 0, 0, "", False
        self.limits, self.above_idle = "", 1  # what the library was told to do with the clocks, and its effect on the power
        self.beside_w = None  # what the machine's own meter shows beside the GPU; None: it has no meter
        self.write(0)

    def write(self, now_w):
        fresh = self.path.with_suffix(".new")
        fresh.write_text(f"count 1\npower_limit 0 {LIMIT_W * 1000}\npower 0 {int(now_w * 1000)}\nenergy 0 {int(1e6 + self.joules * 1000)}\n"
                         f"{self.more}temperature 0 60\n")
        fresh.rename(self.path)
        if self.beside_w is not None:
            put(self.path.with_suffix(".sys") / "class/hwmon/hwmon0/power1_average", f"{int((now_w + self.beside_w) * 1e6)}\n")

    def running(self):
        try:
            text = ask(self.port, "GET", "/metrics").body.decode()
        except (OSError, http.client.HTTPException):
            return 0
        return sum(float(x.rsplit(" ", 1)[1]) for x in text.splitlines() if x.startswith("vllm:num_requests_running"))

    def follow_limit(self):
        """Let the engine run at the clock that the agent limits the GPU to."""
        calls = self.path.with_name(self.path.name + ".calls")
        text = calls.read_text() if self.port and calls.exists() else ""
        if text == self.limits:
            return
        last = text.splitlines()[-1].split()
        share = int(last[3]) / 1980 if last[0] == "lock" and last[-1] == "0" else 1
        self.limits, self.above_idle = text, ask(self.port, "POST", "/sim/clock", {"share": share}).json()["watts_above_idle"]

    def run(self):
        at = time.monotonic()
        while not self.ended:
            self.follow_limit()
            n = self.running() if self.port else 0
            now, w = time.monotonic(), watts(n, self.above_idle)
            self.joules += w * (now - at)
            self.busy_joules += w * (now - at) if n else 0
            at = now
            self.write(w)
            time.sleep(0.03)


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Return a function that starts a cluster of nodes with a GPU each."""
    clusters, gpus = [], []

    def start(names, router=None, engine=("--decode-ms", "10"), beside_w=None, more="", counts=True, clocks=(), engine_kind="sim", **sections):
        c = Cluster(tmp_path)
        clusters.append(c)
        c.router({"router.energy": router or {}, "router": {"policy": "kv"}, **sections})
        by = {}
        for name in names:
            g = by[name] = Gpu(tmp_path / f"gpu-{name}")
            gpus.append(g)
            g.beside_w, g.more = beside_w, more
            put(g.path.with_suffix(".sys") / "class/hwmon/hwmon0/name", "power_meter\n")
            g.write(0)
            monkeypatch.setenv("FAKE_NVML", str(g.path))
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
            c.node(name, *engine, sections={"agent": {"nvml": LIBRARY, "sysfs": str(g.path.with_suffix(".sys"))}, "engine": {"kind": engine_kind},
                                                "agent.clocks": {"mode": "on" if name in clocks else "off", "prefill_mhz": 1185}})
            g.port = c.nodes[name].engine_port
            g.start()
        c.wait_ready(len(names))
        for name in names if counts else ():
            until(lambda: known(c, name), c.logs)
        return c, by

    yield start
    for g in gpus:
        g.ended = True
    for g in gpus:
        if g.is_alive():
            g.join()
    for c in clusters:
        c.__exit__(None)


def agent_metric(c, name, metric, more=""):
    text = ask(c.nodes[name].admin_port, "GET", "/metrics").body.decode()
    for x in text.splitlines():
        if x.startswith(metric + more + " "):
            return float(x.rsplit(" ", 1)[1])
    return None


def known(c, name):
    """Has the router heard of the node's power?"""
    return any(n["id"] == name and n["watts"] for n in c.status()["nodes"])


def all_joules(c, name):
    return {p: agent_metric(c, name, "cgn_node_joules_total", f'{{phase="{p}"}}') or 0 for p in ("prefill", "decode", "idle")}


def readings(c, name, n):
    """Wait until the node has read its counter |n| times more: an idle GPU counts too."""
    for _ in range(n):
        was = all_joules(c, name)
        until(lambda: all_joules(c, name) != was, c.logs)


def at_once(c, n, tokens, gap=0.0, **more):
    """Send streamed requests beside each other; return their nodes."""
    nodes, threads = [], []

    def one(i):
        r = c.chat(f"conversation {i} " + "x" * 400, max_tokens=tokens, stream=True, **more)
        assert r.status == 200, r.body
        nodes.append(r.headers["x-cgn-node"])

    for i in range(n):
        threads.append(threading.Thread(target=one, args=(i,)))
        threads[-1].start()
        time.sleep(gap)
    for t in threads:
        t.join()
    return nodes


def logged(c, n):
    """Return the access log's lines of |n| requests."""
    router = next(p for p in c.processes if p.name == "router")
    return until(lambda: (x := [e for e in router.events("gateway.request") if e["model"]]) and len(x) >= n and x, c.logs)


def one_round(c, gpu, logged_before):
    """Send ten requests; return what they, the node and its counter say they took."""
    before, counter, busy = all_joules(c, "a"), gpu.joules, gpu.busy_joules
    for wave in range(3):
        at_once(c, 2 + wave, 100, gap=0.1)
    whole = c.chat("one more", max_tokens=100)
    lines = logged(c, logged_before + 10)[logged_before:]
    assert all(x["joules"] > 10 for x in lines), [x["joules"] for x in lines]
    assert float(whole.headers["x-cgn-joules"]) == pytest.approx(lines[-1]["joules"], rel=0.05)
    readings(c, "a", 2)
    used, busy = sum(x["joules"] for x in lines), gpu.busy_joules - busy
    end = time.monotonic() + 8
    while True:  # the counter is read each second
        after, told = all_joules(c, "a"), gpu.joules - counter
        shared = {p: after[p] - before[p] for p in after}
        exact = sum(shared.values()) == pytest.approx(told, rel=0.1) and shared["prefill"] + shared["decode"] == pytest.approx(used, rel=0.05) \
            and used == pytest.approx(busy, rel=0.4)  # the curve has had a few seconds to learn from
        if exact or time.monotonic() > end:
            return {"exact": exact, "used": used, "busy": busy, "shared": shared, "counter": told}
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.both
def test_joules_of_requests_add_up_to_the_counter(world):
    """The shares of all requests are what the node's counter counted while they ran."""
    c, gpus = world(["a"])
    for _ in range(2):  # the curve is learned
        at_once(c, 3, 100, gap=0.1)
        c.chat("as a whole", max_tokens=100)
    readings(c, "a", 2)  # until the counter's last reading has come
    # On a busy machine a reading of the counter may be late, and shares go to other requests: one round of three must be exact, of six where
    # the programs are slow themselves.
    rounds = [one_round(c, gpus["a"], 8)]
    while not rounds[-1]["exact"] and len(rounds) < (6 if SANITIZER else 3):
        rounds.append(one_round(c, gpus["a"], 8 + 10 * len(rounds)))
    assert rounds[-1]["exact"], "\n".join(map(str, rounds))
    counted = sum(c.metric("cgn_joules_total", model="sim", tenant="-", phase=p) or 0 for p in ("prefill", "decode"))
    n = 8 + 10 * len(rounds)
    assert counted == pytest.approx(sum(x["joules"] for x in logged(c, n)), abs=20 * len(rounds))
    assert agent_metric(c, "a", "cgn_node_power_error_ratio") < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("names, whole", [("a", True), ("a", False), ("ab", True)], ids=["whole", "streamed", "whole, two nodes"])
def test_joules_of_requests_apart_are_what_their_nodes_gave(world, names, whole):
    """Requests with half a second between them, as a client that asks now and then sends them."""
    c, gpus = world(list(names))

    def given():
        return sum(j["prefill"] + j["decode"] for j in (all_joules(c, n) for n in names))

    def a_round():
        before, n = given(), len([e for e in c.router_process.events("gateway.request") if e["model"]])
        for i in range(8):
            time.sleep(0.5)  # the traffic
            assert c.chat(f"now and then {i} " + "x" * 2000, max_tokens=30, stream=not whole).status == 200
        told = [x["joules"] for x in logged(c, n + 8)[n:]]
        assert all(j > 0 for j in told), told
        for name in names:
            readings(c, name, 2)
        return sum(told), given() - before
    a_round()  # the curve is learned
    rounds = [a_round()]
    while rounds[-1][0] != pytest.approx(rounds[-1][1], rel=0.05) and len(rounds) < 4:  # a reading that is late on a busy machine
        rounds.append(a_round())
    assert rounds[-1][0] == pytest.approx(rounds[-1][1], rel=0.05), rounds


def test_no_request_is_told_more_than_its_node_can_draw(world):
    """Before each request its router asks the engine for the prompt's tokens. The joules of that are few, but a long prompt has thousands of tokens, so
    as those of a token they would be thousands of joules."""
    c, _ = world(["a"])
    n = 12

    def given():
        j = all_joules(c, "a")
        return j["prefill"] + j["decode"]

    def a_round(k):
        before = given()
        one_by_one()
        lines = logged(c, n * (k + 1))[n * k:]
        assert any(x["tokens"] == "engine" for x in lines)
        assert all(0 < x["joules"] <= LIMIT_W * x["total_ms"] / 1e3 for x in lines), [(x["joules"], x["total_ms"]) for x in lines]
        readings(c, "a", 2)
        return sum(x["joules"] for x in lines), given() - before

    def one_by_one():
        for i in range(n):
            words = (5, 3000, 200)[i % 3]
            assert c.chat(" ".join(f"w{time.monotonic()}-{k}" for k in range(words)), max_tokens=10, stream=i % 2 == 0).status == 200
            time.sleep(0.3)  # the traffic
    rounds = [a_round(0)]
    while rounds[-1][0] != pytest.approx(rounds[-1][1], rel=0.05) and len(rounds) < 4:  # a reading that is late on a busy machine
        rounds.append(a_round(len(rounds)))
    assert rounds[-1][0] == pytest.approx(rounds[-1][1], rel=0.05), rounds


@pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge"])
def test_a_stream_tells_its_joules_in_a_trailer(world, version):
    """Who reads trailers gets the joules of a stream after its last byte; everyone else gets the stream alone."""
    c, _ = world(["a"])
    body = json.dumps({"model": c.MODEL, "messages": [{"role": "user", "content": "joules"}], "max_tokens": 20, "stream": True})

    def stream(*fields):
        said = subprocess.run(["curl", "-sS", "-D", "-", "-o", "/dev/null", version, "-H", "Content-Type: application/json", *fields, "-d", body,
                               f"http://127.0.0.1:{c.http_port}/v1/chat/completions"], check=True, capture_output=True, text=True, timeout=WAIT_S)
        return [x.split(":")[1] for x in said.stdout.lower().splitlines() if x.startswith("x-cgn-joules:")]
    assert stream() == []
    (told,) = stream("-H", "TE: trailers")
    assert float(told) == pytest.approx(logged(c, 2)[1]["joules"], rel=0.05) and float(told) > 0


def test_a_whole_answer_of_ollamas_api_tells_its_joules(world):
    """The router gathers it from a stream, so its joules are known when its head is sent."""
    c, _ = world(["a"])
    for i, (path, prompt) in enumerate((("/api/chat", {"messages": [{"role": "user", "content": "joules"}]}), ("/api/generate", {"prompt": "joules"}))):
        body = {"model": c.MODEL, "options": {"num_predict": 20}, **prompt}
        whole = c.ask("POST", path, {**body, "stream": False}, {"TE": "trailers"})
        assert whole.status == 200 and whole.json()["done"], whole.body
        assert float(whole.headers["x-cgn-joules"]) == pytest.approx(logged(c, 2 * i + 1)[2 * i]["joules"], rel=0.05)
        assert float(whole.headers["x-cgn-joules"]) > 0
        assert "x-cgn-joules" not in c.ask("POST", path, {**body, "stream": True}).headers
        logged(c, 2 * i + 2)


@pytest.mark.parametrize("mode", ["off", "on"])
def test_requests_gather_where_energy_counts(world, mode):
    """Four requests spread over two idle nodes; with a price of energy, they go where one runs already."""
    c, _ = world(["a", "b"], {"mode": mode, "ms_per_joule": 50})
    at_once(c, 2, 30)  # the second node has been asked once
    until(lambda: len(set(at_once(c, 4, 80, gap=0.1))) == (1 if mode == "on" else 2), c.logs)


def test_shadow_only_counts(world):
    """In the mode shadow requests go where they would go without energy; what it would have done is counted and explained."""
    c, _ = world(["a", "b"], {"mode": "shadow", "ms_per_joule": 50})
    nodes = at_once(c, 4, 80, gap=0.1)
    assert len(set(nodes)) == 2
    would, did = (c.metric("cgn_shadow_joules_total", of=x) for x in ("shadow", "chosen"))
    assert 0 < would < did
    assert c.metric("cgn_shadow_decisions_total", policy="energy", agree="no") > 0
    tries = [t for r in ask(c.admin_port, "GET", "/explain?last=4").json()["requests"] for t in r["tries"]]
    assert any(s["policy"] == "energy" for t in tries for s in t["shadows"]), tries
    assert all(x["joules"] > 0 for t in tries for x in t["candidates"])


def test_price_follows_a_series_while_it_is_fresh(tmp_path):
    """A joule costs value / reference times as much; without a fresh value it has its usual price, and the log says why."""
    series = tmp_path / "price"
    with Cluster(tmp_path) as c:
        series.write_text(f"{int(time.time()) - 60} 0.62\n{int(time.time()) + 9999} 9\n")
        c.router({"router.energy": {"mode": "on", "series": str(series), "series_reference": 0.31}})
        until(lambda: c.metric("cgn_energy_price_ratio") == pytest.approx(2), c.logs)
    with Cluster(tmp_path) as c:
        series.write_text("1000 0.62\n")
        c.router({"router.energy": {"mode": "on", "series": str(series)}})
        until(lambda: c.metric("cgn_energy_price_ratio") == 1, c.logs)
        (said,) = c.router_process.events("router.energy_price_unknown")
        assert "s old" in said["why"]


def test_price_by_a_url(tmp_path):
    """The last good series is used while it is fresh, whatever the server answers afterwards."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            status, body = self.server.say
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, Cluster(tmp_path) as c:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        server.say = 503, b""
        url = f"http://127.0.0.1:{server.server_port}/de/price"
        c.router({"router.energy": {"mode": "on", "series": url, "series_reference": 0.31, "series_interval": "200ms"}})
        until(lambda: c.router_process.events("router.energy_price_failed"), c.logs)
        assert "status 503" in c.router_process.events("router.energy_price_failed")[0]["why"] and c.metric("cgn_energy_price_ratio") == 1
        server.say = 200, b"%d 0.62\n" % (time.time() - 60)
        until(lambda: c.metric("cgn_energy_price_ratio") == pytest.approx(2), c.logs)
        for say, why in (((200, b"<html>\n"), "not a series"), ((302, b""), "redirects are not followed"), ((200, b"1 1\n" * 300000), "")):
            server.say = say
            n = len(c.router_process.events("router.energy_price_failed"))
            until(lambda: why in "".join(e["why"] for e in c.router_process.events("router.energy_price_failed")[n:]) if len(c.router_process.events("router.energy_price_failed")) > n else False, c.logs)
            assert c.metric("cgn_energy_price_ratio") == pytest.approx(2)
        server.say = 200, b"1000 0.62\n"
        until(lambda: c.metric("cgn_energy_price_ratio") == 1, c.logs)
        assert "s old" in c.router_process.events("router.energy_price_unknown")[-1]["why"]
        server.shutdown()


def test_hot_nodes_are_left_out(world):
    c, gpus = world(["a", "b"], {"mode": "on", "ms_per_joule": 0})
    gpus["a"].more = "slowed 0 64\n"  # hardware_thermal
    until(lambda: {c.chat(f"hot {time.monotonic()}", max_tokens=2).headers["x-cgn-node"] for _ in range(6)} == {"b"}, c.logs)
    gpus["a"].more, gpus["b"].more = "", "slowed 0 32\n"  # thermal
    until(lambda: {c.chat(f"hot {time.monotonic()}", max_tokens=2).headers["x-cgn-node"] for _ in range(6)} == {"a"}, c.logs)


def test_budget_keeps_nodes_idle(world):
    """The budget has room for one node that answers and one that is idle, not for two that answer (534 W): requests gather although a joule costs
    nothing."""
    c, _ = world(["a", "b"], {"mode": "on", "ms_per_joule": 0, "budget": 530})
    until(lambda: len(set(at_once(c, 4, 60, gap=0.1))) == 1, c.logs)


def test_budget_counts_what_the_meters_of_machines_show(world):
    """By their GPUs alone both nodes may run (534 W); fans and boards draw 200 W more in each, so only one may."""
    c, _ = world(["a", "b"], {"mode": "on", "ms_per_joule": 0, "budget": 930}, beside_w=200)
    until(lambda: 600 < c.metric("cgn_energy_nodes_watts") < 700, lambda: c.metric("cgn_energy_nodes_watts"))
    assert c.metric("cgn_energy_budget_watts") == 930
    assert all(300 < n["node_watts"] < 340 for n in c.status()["nodes"]), c.status()
    until(lambda: len(set(at_once(c, 4, 60, gap=0.1))) == 1, c.logs)


def test_hot_nodes_whose_energy_is_not_counted_are_left_out(world):
    silent = "fail DeviceGetTotalEnergyConsumption 3\nfail DeviceGetPowerUsage 3\n"
    c, gpus = world(["a", "b"], {"mode": "on"}, more=silent, counts=False)
    gpus["a"].more = silent + "slowed 0 8\n"  # hardware
    until(lambda: {c.chat(f"hot {time.monotonic()}", max_tokens=2).headers["x-cgn-node"] for _ in range(6)} == {"b"}, c.logs)
    assert all(n["watts"] is None and n["node_watts"] is None for n in c.status()["nodes"])
    gpus["a"].more, gpus["b"].more = silent, silent + "temperature 0 90\n"  # it will slow down soon
    until(lambda: {c.chat(f"hot {time.monotonic()}", max_tokens=2).headers["x-cgn-node"] for _ in range(6)} == {"a"}, c.logs)


def test_requests_wait_for_the_budget_and_are_served(world):
    """The node that computes is full and the budget keeps the other one idle: requests wait for each other."""
    c, _ = world(["a", "b"], {"mode": "on", "ms_per_joule": 0, "budget": 530}, **{"router.admission": {"max_concurrent_per_replica": 1}})
    assert len(at_once(c, 4, 30, gap=0.02)) == 4
    assert any(x["queued_ms"] > 0 for x in logged(c, 4)), [x["queued_ms"] for x in logged(c, 4)]


def test_a_short_prompt_counts_for_its_part_of_a_second(world):
    """Two idle nodes draw 240 W and one stream brings 387: a budget of 600 W has room for it, although a prompt that went on would draw 800."""
    c, _ = world(["a", "b"], {"mode": "on", "budget": 600})
    assert [c.chat(f"short {i}", max_tokens=2).status for i in range(3)] == [200] * 3


def test_a_budget_that_no_request_fits_into_is_named(world, tmp_path):
    """In the refusal, which comes at once, in the log, in cluster status, and by --check before the next start."""
    c, _ = world(["a", "b"], {"mode": "on", "budget": 350})
    until(lambda: c.chat("tried, as no request was measured", max_tokens=60, ignore_eos=True).status == 503, c.logs)
    before = c.metric("cgn_rejected_total", reason="power_budget")
    r = c.chat("too much", max_tokens=2)
    error = r.json()["error"]
    assert r.status == 503 and error["code"] == "power_budget" and "router.energy.budget, 350 W" in error["message"], r.body
    assert c.metric("cgn_rejected_total", reason="power_budget") == before + 1
    assert c.router_process.events("gateway.power_budget")[0]["budget_w"] == 350
    until(lambda: c.router_process.events("router.power_budget_too_low"), c.logs)
    order = [CTL, "cluster", "status", "--router", f"127.0.0.1:{c.grpc_port}"]
    status = subprocess.run(order, check=True, capture_output=True, text=True, timeout=WAIT_S).stdout
    assert "of a budget of 350 W (router.energy.budget)" in status and "NO POWER  the budget lets no request pass" in status, status

    def check():
        return subprocess.run([BUILD / "src/router/cgn-router", "--config", tmp_path / "router.toml", "--check"], capture_output=True, text=True,
                              timeout=WAIT_S)
    until(lambda: "lets no request pass" in check().stderr, lambda: check())
    assert check().returncode != 0
    file = tmp_path / "router.toml"
    file.write_text(file.read_text().replace("budget = 350", "budget = 600"))
    assert check().returncode == 0, check().stderr
    c.router_process.signal(signal.SIGHUP)
    until(lambda: c.chat("enough", max_tokens=2).status == 200, c.logs)
    until(lambda: c.router_process.events("router.power_budget_enough"), c.logs)


def test_a_lower_clock_spares_joules_and_attracts_requests(world):
    """The agent of b limits the clock to 60 %: the counter and the learned curve show it, and both policies that know of joules prefer the
    node."""
    c, gpus = world(["a", "b"], {"mode": "on", "ms_per_joule": 50}, clocks=["b"])
    until(lambda: gpus["b"].above_idle == pytest.approx(0.65, abs=0.01) and gpus["a"].above_idle == 1, c.logs)

    def both(n, tokens):
        beside = [threading.Thread(target=at_once, args=(c, n, tokens), kwargs={"headers": {"X-Cgn-Node": name}}) for name in "ab"]
        for t in beside:
            t.start()
        for t in beside:
            t.join()
    for n in (1, 3):  # the curves are learned, from whole seconds in which the load does not change
        both(n, 300)
    assert 0 < gpus["b"].busy_joules < 0.95 * gpus["a"].busy_joules

    def curves():
        return {n["id"]: n["watts"]["decode"][0] for n in c.status()["nodes"]}

    def learned():
        """A busy machine spoils single readings; the curves get over that with more of them."""
        at = curves()
        return at["b"] < 0.9 * at["a"] or both(1, 400)
    until(learned, curves)

    def preferred():
        """A node that looked slow on a busy machine is measured again only when it is asked."""
        return {c.chat(f"predicted {time.monotonic()}", max_tokens=20).headers["x-cgn-node"] for _ in range(4)} == {"b"} or both(1, 300)
    until(preferred, lambda: (curves(), c.logs()))
    subprocess.run([CTL, "cluster", "set-policy", "--policy", "weighted", "--weights", "kv=0,load=0,power=1,capacity=0", "--router",
                    f"127.0.0.1:{c.grpc_port}"], check=True, capture_output=True, timeout=WAIT_S)
    until(lambda: {c.chat(f"weighted {time.monotonic()}", max_tokens=2).headers["x-cgn-node"] for _ in range(4)} == {"b"}, c.logs)


def parked(c):
    listed = json.loads(subprocess.run([CTL, "model", "ls", "-o", "json", "--router", f"127.0.0.1:{c.grpc_port}"], capture_output=True, text=True,
                                       timeout=WAIT_S, check=True).stdout)
    return {p["node"]: p["state"] for m in listed.get("models", []) for p in m["places"]}


@pytest.mark.slow
def test_nodes_that_are_not_needed_are_parked_and_woken(world, tmp_path):
    """With little load one of three nodes stays; with more they wake; a node that is lost is replaced by one, however long that one takes; what an
    operator put to sleep stays asleep; off wakes all of ours. The router has another name for the model."""
    c, _ = world(["a", "b", "c"], {"mode": "on", "park": "sleep", "park_window": "1s", "park_spare": 0}, engine=("--decode-ms", "20", "--sleep"),
                 engine_kind="vllm", **{"router.admission": {"max_concurrent_per_replica": 2}, 'models."shown"': {"aliases": ["sim"]}})
    until(lambda: sorted(parked(c).values()) == ["asleep", "asleep", "ready"], lambda: parked(c))
    until(lambda: (c.metric("cgn_energy_nodes_parked"), c.metric("cgn_energy_nodes_wanted")) == (2, 1), "it is in the metrics")
    assert c.chat("one is there", max_tokens=2).status == 200
    threads = [threading.Thread(target=c.chat, args=(f"load {i}",), kwargs={"max_tokens": 150, "ignore_eos": True}) for i in range(6)]
    for t in threads:
        t.start()
    until(lambda: list(parked(c).values()).count("ready") >= 2, lambda: parked(c))
    for t in threads:
        t.join()
    until(lambda: sorted(parked(c).values()) == ["asleep", "asleep", "ready"], lambda: parked(c))
    last = next(n for n, s in parked(c).items() if s == "ready")
    others = [c.nodes[n].engine for n in parked(c) if n != last]
    for engine in others:
        engine.signal(signal.SIGSTOP)  # a wake that takes 2.5 s
    threading.Timer(2.5, lambda: [engine.signal(signal.SIGCONT) for engine in others]).start()
    woken = len(c.router_process.events("router.unpark"))
    c.nodes[last].engine.kill()
    until(lambda: [n for n, s in parked(c).items() if s == "ready" and n != last], lambda: parked(c))  # another one takes its place
    assert len(c.router_process.events("router.unpark")) == woken + 1, "one is enough"
    c.nodes[last].engine.start()
    until(lambda: sorted(parked(c).values()) == ["asleep", "asleep", "ready"], lambda: parked(c))
    mine = next(n for n, s in parked(c).items() if s == "asleep")
    order = [CTL, "model", "sleep", "sim", "--node", mine, "--router", f"127.0.0.1:{c.grpc_port}"]
    subprocess.run(order, check=True, capture_output=True, timeout=WAIT_S)
    file = tmp_path / "router.toml"
    file.write_text(file.read_text().replace('park = "sleep"', 'park = "off"'))
    c.router_process.signal(signal.SIGHUP)
    until(lambda: sorted(parked(c).values()) == ["asleep", "ready", "ready"] and parked(c)[mine] == "asleep", lambda: parked(c))

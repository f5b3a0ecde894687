# SPDX-License-Identifier: Apache-2.0
"""The frame of the daemons, end to end, on the smallest daemon there is: flags, config errors, admin port, reload, drain, exit codes."""
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

import pytest

BUILD = pathlib.Path(os.environ.get("CGN_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
DEMO = BUILD / "svc_demo"
WAIT_S = 20


def clean_env(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("COGNITORA__", "CGN_CONFIG", "NOTIFY_", "WATCHDOG_"))}
    env.update(more)
    return env


def run(*args, **env):
    return subprocess.run([DEMO, *args], env=clean_env(**env), capture_output=True, text=True, timeout=WAIT_S)


def until(what, why):
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        got = what()
        if got:
            return got
        time.sleep(0.01)
    raise AssertionError(f"never: {why}")


class Demo:
    def __init__(self, tmp_path, *args, **env):
        self.log = tmp_path / "log"
        env.setdefault("COGNITORA__LOG__FORMAT", "json")
        with open(self.log, "w") as err:
            self.proc = subprocess.Popen([DEMO, "--listen-admin", "127.0.0.1:0", *args], env=clean_env(**env), stderr=err)
        self.port = until(lambda: self.event("svc.ready") or self.dead(), "ready")["admin_port"]

    def dead(self):
        assert self.proc.poll() is None, self.log.read_text()

    def events(self, name):
        lines = [json.loads(line) for line in self.log.read_text().split("\n")[:-1]]
        return [e for e in lines if e["event"] == name]

    def event(self, name):
        return (self.events(name) or [None])[-1]

    def ask(self, method, path, body=None, headers={}):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            c.request(method, path, body, headers)
            r = c.getresponse()
            return r.status, r.read()
        finally:
            c.close()

    def state(self):
        status, body = self.ask("GET", "/state")
        assert status == 200
        return json.loads(body)

    def exit_code(self):
        return self.proc.wait(WAIT_S)


@pytest.fixture
def start(tmp_path):
    running = []

    def go(*args, **env):
        running.append(Demo(tmp_path, *args, **env))
        return running[-1]

    yield go
    for d in running:
        if d.proc.poll() is None:
            d.proc.kill()
        d.proc.wait()


def one_line(r):
    assert r.stdout == ""
    assert r.stderr.startswith("svc-demo: ") and r.stderr.count("\n") == 1, r.stderr
    return r.stderr


def test_usage_is_exit_2():
    r = run("--lisen-admin", "x")
    assert r.returncode == 2
    assert "did you mean --listen-admin?" in one_line(r)
    r = run("--set")
    assert r.returncode == 2 and "needs a value" in one_line(r)


def test_help_and_version():
    r = run("--help")
    assert r.returncode == 0 and "--listen-admin ADDR" in r.stdout and r.stderr == ""
    r = run("--version")
    assert r.returncode == 0 and r.stdout.startswith("svc-demo ") and r.stderr == ""


def test_config_errors_are_exit_3(tmp_path):
    f = tmp_path / "c.toml"
    f.write_text("[router]\nlisen = 'x'\n")
    r = run("--config", f)
    assert r.returncode == 3
    assert f"{f}:2:1: unknown key router.lisen; did you mean router.listen?" in one_line(r)
    r = run("--config", tmp_path / "missing.toml")
    assert r.returncode == 3 and "configuration: cannot read" in one_line(r)
    r = run("--set", "router.max_body=many")
    assert r.returncode == 3 and "--set router.max_body" in one_line(r)
    r = run(COGNITORA__ROUTER__MAX_BODY="many")
    assert r.returncode == 3 and "COGNITORA__ROUTER__MAX_BODY" in one_line(r)


def test_check_prints_each_origin(tmp_path):
    f = tmp_path / "c.toml"
    f.write_text("[router]\nmax_body = '1MiB'\nlisten = 'h:1'\n")
    r = run("--check", "--set", "router.listen_grpc=h:2", CGN_CONFIG=str(f), COGNITORA__ROUTER__LISTEN="h:3")
    assert r.returncode == 0 and r.stderr == ""
    lines = [" ".join(line.split()) for line in r.stdout.split("\n")]
    assert f'max_body = "1MiB" # {f}:2:12' in lines
    assert 'listen = "h:3" # COGNITORA__ROUTER__LISTEN' in lines
    assert 'listen_grpc = "h:2" # --set router.listen_grpc' in lines
    assert "worker_threads = 0 # default" in lines
    (tmp_path / "again.toml").write_text(r.stdout)
    assert run("--check", "--config", tmp_path / "again.toml").returncode == 0


def test_a_port_in_use_is_exit_7():
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
        r = run("--listen-admin", f"127.0.0.1:{port}")
    assert r.returncode == 7
    assert f"127.0.0.1:{port}" in one_line(r)


def test_a_failed_start_has_its_own_code():
    r = run("--listen-admin", "127.0.0.1:0", "--set", "auth.api_keys_file=/no/keys", "--set", "log.level=error")
    assert r.returncode == 1 and "svc_demo never can" in one_line(r)


def test_admin_port(start):
    d = start()
    assert d.ask("GET", "/healthz") == (200, b'{"status":"ok"}')
    assert d.ask("GET", "/readyz") == (200, b'{"ready":true}')
    status, text = d.ask("GET", "/metrics")
    assert status == 200 and b'cgn_build_info{program="svc-demo",version="' in text and b"process_open_fds" in text
    status, text = d.ask("GET", "/config")
    assert status == 200 and b"--set router.listen_admin" in text
    assert json.loads(d.ask("GET", "/version")[1])["program"] == "svc-demo"
    assert d.ask("GET", "/nowhere")[0] == 404
    assert d.ask("POST", "/metrics")[0] == 405
    assert d.ask("HEAD", "/healthz") == (200, b"")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_page(start):
    page = start().ask("GET", "/metrics")[1]
    r = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True)
    assert r.returncode == 0, r.stderr.decode()


def test_bodies_up_to_a_mebibyte(start):
    d = start()
    most = b"x" * (1 << 20)
    assert d.ask("POST", "/echo", most, {"X-Prefix": "p"}) == (200, b"p" + most)
    with socket.create_connection(("127.0.0.1", d.port), WAIT_S) as s:
        s.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048577\r\n\r\n")
        assert s.recv(64).startswith(b"HTTP/1.1 413 ")


def test_a_chunked_body_is_bounded_too(start):
    d = start()
    with socket.create_connection(("127.0.0.1", d.port), WAIT_S) as s:
        s.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        for _ in range(16):
            s.sendall(chunk)
        s.sendall(b"1\r\nx\r\n")
        assert s.recv(64).startswith(b"HTTP/1.1 413 ")
    assert d.ask("GET", "/healthz")[0] == 200


def test_readiness_is_the_programs(start):
    d = start()
    for _ in range(3):
        assert d.ask("POST", "/work/open")[0] == 200
    assert d.ask("GET", "/readyz") == (503, b'{"ready":false,"why":"too much open work"}')
    assert d.ask("GET", "/healthz")[0] == 200


def test_reload(start, tmp_path):
    f = tmp_path / "c.toml"
    f.write_text("[router]\nmax_body = 4096\n")
    d = start("--config", f)
    assert d.state() == {"open": 0, "reloads": 0, "max_body": 4096}
    f.write_text("[router]\nmax_body = 8192\nlisten = 'h:1'\n[log]\nlevel = 'debug'\n")
    d.proc.send_signal(signal.SIGHUP)
    e = until(lambda: d.event("svc.reloaded"), "reloaded")
    assert e["needs_restart"] == "router.listen"
    assert d.state() == {"open": 0, "reloads": 1, "max_body": 8192}
    f.write_text("[router]\nmax_body = 'x'\n")
    d.proc.send_signal(signal.SIGHUP)
    assert "router.max_body" in until(lambda: d.event("svc.reload_failed"), "refused")["why"]
    assert d.state() == {"open": 0, "reloads": 1, "max_body": 8192}
    assert b'"8KiB"' in d.ask("GET", "/config")[1]
    # a restart is requested until it happened, not only when the key changed
    f.write_text("[router]\nmax_body = 4096\nlisten = 'h:1'\n")
    d.proc.send_signal(signal.SIGHUP)
    until(lambda: len(d.events("svc.reloaded")) == 2, "reloaded again")
    assert d.event("svc.reloaded")["needs_restart"] == "router.listen"
    # what runs, what waits
    shown = d.ask("GET", "/config")[1].decode().splitlines()
    assert shown[0] == "# PENDING until restart: router.listen"
    at = next(i for i, line in enumerate(shown) if line.startswith("listen = "))
    assert shown[at].startswith('listen = "127.0.0.1:8080"') and shown[at].endswith("# default")
    assert shown[at + 1].startswith('# PENDING until restart: listen = "h:1"') and f"{f}:3:1" in shown[at + 1]
    assert any(line.startswith('max_body = "4KiB"') for line in shown)
    whole = json.loads(d.ask("GET", "/config.json")[1])
    by_key = {s["key"]: s for s in whole["settings"]}
    assert whole["pending"] == ["router.listen"] and "pending" not in by_key["router.max_body"]
    assert by_key["router.listen"] == {"key": "router.listen", "value": "127.0.0.1:8080", "origin": "default", "pending": "h:1", "pending_origin": f"{f}:3:10"}
    ctl = subprocess.run([BUILD / "src/ctl/cgn-ctl", "config", "show", "--admin", f"127.0.0.1:{d.port}"], capture_output=True, text=True)
    assert ctl.stdout.splitlines() == shown, ctl
    ctl = subprocess.run([BUILD / "src/ctl/cgn-ctl", "config", "show", "--admin", f"127.0.0.1:{d.port}", "-o", "json"], capture_output=True, text=True)
    assert json.loads(ctl.stdout) == whole
    d.proc.send_signal(signal.SIGTERM)
    assert d.exit_code() == 0


def test_drain_waits_for_open_work(start):
    d = start()
    d.ask("POST", "/work/open")
    d.proc.send_signal(signal.SIGTERM)
    until(lambda: d.ask("GET", "/readyz") == (503, b'{"ready":false,"why":"draining"}'), "draining")
    assert d.proc.poll() is None
    d.proc.send_signal(signal.SIGHUP)  # too late to have an effect
    assert d.ask("GET", "/healthz")[0] == 200
    d.ask("POST", "/work/close")
    assert d.exit_code() == 0
    assert d.event("svc.exit")["code"] == 0


def test_drain_times_out(start):
    d = start("--set", "router.drain_timeout=100ms")
    d.ask("POST", "/work/open")
    d.proc.send_signal(signal.SIGINT)
    assert d.exit_code() == 0
    assert d.event("svc.drain_timeout")


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_sigint_ends_a_drain(start, first):
    d = start()
    d.ask("POST", "/work/open")
    d.proc.send_signal(first)
    until(lambda: d.event("svc.drain"), "draining")
    d.proc.send_signal(signal.SIGINT)
    assert d.exit_code() == 130


def test_a_second_sigterm_cuts_nothing(start):
    d = start()
    d.ask("POST", "/work/open")
    for _ in range(5):
        d.proc.send_signal(signal.SIGTERM)
        until(lambda: d.event("svc.drain"), "draining")
    assert until(lambda: d.event("svc.drain_goes_on"), "it says so")["to_end_now"]
    assert d.ask("GET", "/healthz")[0] == 200 and d.proc.poll() is None
    d.ask("POST", "/work/close")
    assert d.exit_code() == 0


def test_clients_that_hang_on_do_not_hold_the_end(start):
    d = start()
    addr = ("127.0.0.1", d.port)
    with socket.create_connection(addr, WAIT_S) as idle, socket.create_connection(addr, WAIT_S) as half, \
            socket.create_connection(addr, WAIT_S) as body:
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(12) == b"HTTP/1.1 200"
        half.sendall(b"GET /hea")
        body.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc")
        assert d.state()["open"] == 0
        d.proc.send_signal(signal.SIGTERM)
        assert d.exit_code() == 0


def test_the_service_manager_is_told(start, tmp_path):
    f = tmp_path / "c.toml"
    f.write_text("")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(tmp_path / "notify"))
        s.settimeout(WAIT_S)
        d = start("--config", f, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="200000")
        assert s.recv(100) == b"READY=1"
        assert s.recv(100) == b"WATCHDOG=1"
        assert s.recv(100) == b"WATCHDOG=1"

        def hears(want):
            while (got := s.recv(100)) == b"WATCHDOG=1":
                pass
            assert got.startswith(want)

        d.proc.send_signal(signal.SIGHUP)
        hears(b"RELOADING=1\nMONOTONIC_USEC=")
        hears(b"READY=1")
        d.proc.send_signal(signal.SIGTERM)
        hears(b"STOPPING=1")
        assert d.exit_code() == 0


def test_open_files_are_raised_to_the_hard_limit():
    out = subprocess.Popen(["sh", "-c", f"ulimit -Sn 100; ulimit -Hn 4000; exec {DEMO} --listen-admin 127.0.0.1:0"],
                           env=clean_env(COGNITORA__LOG__FORMAT="json"), stderr=subprocess.PIPE, text=True)
    try:
        e = json.loads(out.stderr.readline())
        c = http.client.HTTPConnection("127.0.0.1", e["admin_port"], timeout=WAIT_S)
        c.request("GET", "/metrics")
        assert b"\nprocess_max_fds 4000\n" in c.getresponse().read()
        c.close()
    finally:
        out.terminate()
        assert out.wait(WAIT_S) == 0
        out.stderr.close()


def test_idle_connections_do_not_keep_a_health_check_out(start):
    d = start()
    keep = [socket.create_connection(("127.0.0.1", d.port)) for _ in range(400)]
    try:
        assert d.ask("GET", "/healthz")[0] == 200
        assert d.ask("GET", "/metrics")[0] == 200
    finally:
        for s in keep:
            s.close()


def test_the_connection_in_use_stays_when_idle_ones_go(start):
    d = start()
    used = http.client.HTTPConnection("127.0.0.1", d.port, timeout=WAIT_S)
    keep = []
    try:
        for _ in range(8):
            used.request("GET", "/healthz")
            assert used.getresponse().read() is not None
            first = used.sock
            # The last hundred may be accepted after the next request, so that 200 are newer than it.
            keep += [socket.create_connection(("127.0.0.1", d.port)) for _ in range(100)]
        assert used.sock is first, "a scraper's connection was kept"
    finally:
        used.close()
        for s in keep:
            s.close()

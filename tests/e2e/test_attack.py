# SPDX-License-Identifier: Apache-2.0
"""What strangers and hostile clients try: to read secrets, to fill the metrics, to leave the paths that are served. Heads and bodies that
parsers read differently: test_hardening.py, test_bodies.py. Roles: test_identity.py, test_keys.py, test_admin_port.py."""
import base64
import http.client
import json
import subprocess

import pytest

from cluster import BUILD, WAIT_S, Cluster, ask, free_port, toml, until
from kvbulk import Store

CTL = BUILD / "src/ctl/cgn-ctl"
FAST = ("--time-scale", "0")
PLACES = ("/config", "/config.json", "/metrics", "/nodes", "/explain?last=100", "/models", "/queue", "/history", "/index", "/", "/power", "/targets", "/engines",
          "/gpus", "/store", "/peers")


def test_no_secret_is_told(tmp_path, monkeypatch):
    """Secrets in every place that takes one, every program at its most talkative, and errors that are about them."""
    planted = {}

    def secret(name):
        return planted.setdefault(name, f"S3CRET-{name}-{len(planted)}x")

    def file(name):
        (tmp_path / f"{name}.file").write_text(secret(name) + "\n")
        return str(tmp_path / f"{name}.file")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization={secret('otlp')}")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    key = subprocess.run([CTL, "key", "create", "--file", tmp_path / "keys", "--scopes", "chat,admin"], check=True, capture_output=True, text=True).stdout.strip()
    planted["key"] = key
    talkative = {"log": {"level": "debug", "format": "json", "engine_output": "debug"}}
    with Cluster(tmp_path) as c:
        c.common = talkative
        c.router({"auth": {"enabled": True, "api_keys_file": str(tmp_path / "keys")},
                  "security": {"audit_file": str(tmp_path / "audit.jsonl"), "admin_keys_file": str(tmp_path / "keys"), "isolation_secret_file": isolation(tmp_path, planted)},
                  "router": {"access_log": str(tmp_path / "access.log"), "worker_threads": 1},
                  "router.rate_limit": {"redis_url": f"redis://ann:{secret('redis-url')}@127.0.0.1:{free_port()}/0"}})
        c.node("a", *FAST, sections={"engine": {"kind": "openai_compat", "api_key_file": file("engine")}})
        metrics_port = free_port()
        (tmp_path / "metrics.toml").write_text(toml({**talkative, "metrics": {
            "listen": f"127.0.0.1:{metrics_port}", "scrape_routers": [f"127.0.0.1:{c.grpc_port}"], "node": "a",
            "dcgm_url": f"http://root:{secret('dcgm-url')}@127.0.0.1:{free_port()}",
            "redfish_url": f"https://root:{secret('redfish-url')}@127.0.0.1:{free_port()}"}}))
        metrics = c.run("metrics", "cgn-metrics", "--config", tmp_path / "metrics.toml")
        metrics.may_end = True  # a URL with a password is refused
        store = Store(tmp_path, talkative, resp_listen=f"127.0.0.1:{free_port()}", resp_password_file=file("resp"))
        try:
            c.wait_ready(1)
            outputs = [metrics.log()] if not metrics.alive() else []
            for fields in ({"Authorization": f"Bearer {key}"}, {"x-api-key": key}, {"Authorization": f"Bearer {secret('wrong')}"},
                           {"Authorization": f"Basic {base64.b64encode(secret('basic').encode()).decode()}"}, {"x-api-key": secret("other"), "Authorization": f"Bearer {key}"}):
                prompt = secret("prompt")
                for path, body in (("/v1/chat/completions", {"model": "sim", "messages": [{"role": "user", "content": prompt}], "max_tokens": 1, "user": secret("user")}),
                                   ("/v1/chat/completions", {"model": "none", "messages": prompt}), ("/v1/nothing", {}), ("/v1/messages", {"model": "sim"})):
                    r = ask(c.http_port, "POST", f"{path}?api_key={secret('query')}", body, {**fields, "Cookie": f"s={secret('cookie')}"})
                    outputs.append(r.body.decode() if r.status != 200 else "")
            ctl = [["config", "show", "--admin", f"127.0.0.1:{c.admin_port}"], ["cluster", "status", "--router", f"127.0.0.1:{c.grpc_port}"], ["key", "ls", "--file", tmp_path / "keys"],
                   ["explain", "--router", f"127.0.0.1:{c.grpc_port}"], ["kv", "stats", "--uds", store.uds]]
            outputs += [str(subprocess.run([CTL, *map(str, x)], capture_output=True, timeout=WAIT_S)) for x in ctl]
            for port in (c.admin_port, c.nodes["a"].admin_port, metrics_port, store.admin):
                for path in PLACES:
                    try:
                        outputs.append(ask(port, "GET", path).body.decode(errors="replace"))
                    except OSError:
                        assert port == metrics_port
        finally:
            store.close()
        texts = {"answers": "\n".join(outputs)} | {p.name: p.read_text(errors="replace") for p in tmp_path.rglob("*.log")} | {"audit": (tmp_path / "audit.jsonl").read_text() + (tmp_path / "audit.jsonl.refused").read_text()}
        assert len(texts) >= 7, texts.keys()
        told = {(name, where) for name, s in planted.items() for where, text in texts.items() if s in text}
        assert not told, told


def isolation(folder, planted):
    path = folder / "isolation.file"
    subprocess.run([CTL, "pki", "isolation", "--out", path], check=True, capture_output=True)
    planted["isolation"] = path.read_text().split()[0]
    return str(path)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("attack")) as c:
        c.router({"router": {"worker_threads": 1}})
        c.node("a", *FAST)
        c.wait_ready(1)
        yield c


def series(c):
    return {x.rpartition(" ")[0] for x in c.scrape().splitlines() if x and not x.startswith("#")}


def test_strangers_make_no_series(served):
    """Models, paths, methods and fields that nobody knows are no labels."""
    def storm(n, word):
        c = http.client.HTTPConnection("127.0.0.1", served.http_port, timeout=WAIT_S)
        for i in range(n):
            method = ("POST", "GET", f"M{word}{i}", "PUT")[i % 4]
            c.request(method, ("/v1/chat/completions", f"/{word}{i}", f"/v1/{word}{i}", f"/v1/models/{word}{i}")[i // 4 % 4],
                      json.dumps({"model": f"{word}-{i}", "messages": [{"role": "user", "content": "x"}]}),
                      {"X-Request-Id": f"{word}{i}", "X-Cgn-Session": f"{word}{i}", "User-Agent": f"{word}{i}", "X-Cgn-Node": f"{word}{i}", "X-Cgn-Priority": f"{i}"})
            c.getresponse().read()
        c.close()
    storm(40, "first")
    before = series(served)
    storm(400, "storm")
    after = series(served)
    assert not [x for x in after if "storm" in x or "first" in x]
    assert len(after - before) < 40, sorted(after - before)


@pytest.mark.parametrize("path", ["/v1/models/../../etc/passwd", "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/page/../config", "/page/%2e%2e/config", "/page/..%2f..%2fetc/passwd",
                                  "/page//etc/passwd", "/page/\\..\\config", "/nodes/../config", "/explain/..%2f..%2fetc%2fpasswd", "//etc/passwd", "/%00", "/page/%00"])
def test_paths_lead_nowhere_else(served, path):
    for port in (served.http_port, served.admin_port):
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        c.putrequest("GET", path, skip_host=False)
        c.endheaders()
        r = c.getresponse()
        body = r.read().decode(errors="replace")
        assert r.status in (400, 404), (port, r.status, body[:200])
        assert "root:" not in body and "listen" not in body, body[:200]
        c.close()


def test_texts_of_strangers_break_no_line(served):
    """A model's name with line ends, quotes and control characters: the log has one JSON line for it, and the answer is JSON."""
    lines = len(served.router_process.log().splitlines())
    name = 'a\r\nX-Evil: 1\n{"level":"error","event":"forged"}\u2028\x1b[31m"\\\x00'
    r = served.ask("POST", "/v1/chat/completions", {"model": name, "messages": []})
    assert r.status == 404 and "x-evil" not in {k.lower() for k in r.headers} and name.rstrip("\x00") in r.json()["error"]["message"]
    until(lambda: len(served.router_process.log().splitlines()) > lines, "it is logged")
    fresh = served.router_process.log().splitlines()[lines:]
    assert all(json.loads(x)["event"] != "forged" for x in fresh) and "\x1b" not in "".join(fresh)

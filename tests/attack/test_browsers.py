# SPDX-License-Identifier: Apache-2.0
"""Pages of other sites: what a browser that has one open sends here, by this machine's name and by one that was pointed here."""
import contextlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import threading

import pytest

import h2raw
from cluster import BUILD, ask, until

FAST = ("--time-scale", "0")
CHAT = {"model": "sim", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}
EVIL, NEAR = "https://evil.example", "http://localhost:3000"
PAGE = {"x-cgn-page": "1"}
ADMIN_PATHS = ("/", "/config", "/config.json", "/explain", "/nodes", "/metrics", "/page/", "/sessions", "/no-such")


@pytest.fixture
def open_cluster(cluster):
    """A cluster whose gateway asks for no keys."""
    cluster.router({"batch": {"enabled": True}})
    cluster.node("a", *FAST)
    cluster.wait_ready(1)
    return cluster


def reload(c, sections):
    """Give the router other settings, and wait until it has them."""
    n = len(c.router_process.events("svc.reloaded"))
    c.config("router", {"router": {"listen": f"127.0.0.1:{c.http_port}", "listen_grpc": f"127.0.0.1:{c.grpc_port}",
                                   "listen_admin": f"127.0.0.1:{c.admin_port}", "worker_threads": 2}, "batch": {"enabled": True}, **sections})
    c.router_process.signal(signal.SIGHUP)
    c.router_process.tells("svc.reloaded", n + 1)


def code(answer):
    return answer.json()["error"]["code"]


def test_a_name_that_was_pointed_here_is_refused(open_cluster):
    """DNS rebinding: for the browser, the page's own site is this port."""
    c = open_cluster
    for host in ("evil.example", f"evil.example:{c.admin_port}", "localhost.evil.example", "127.0.0.1.evil.example"):
        for path in ADMIN_PATHS:
            r = ask(c.admin_port, "GET", path, headers={"Host": host})
            assert (r.status, code(r)) == (403, "another_name"), (host, path)
        mine = {"Host": host, "Origin": f"http://{host}", **PAGE}
        assert ask(c.admin_port, "POST", "/playground/v1/chat/completions", CHAT, mine).status == 403
        assert ask(c.admin_port, "POST", "/nodes/a/cordon", headers=mine).status == 403
        assert ask(c.admin_port, "GET", "/readyz", headers={"Host": host}).status == 200, "probes have whatever name"
        for method, path, body in (("GET", "/v1/models", None), ("POST", "/v1/chat/completions", CHAT), ("GET", "/", None), ("POST", "/api/generate", {"model": "sim", "keep_alive": 0})):
            r = ask(c.http_port, method, path, body, {"Host": host})
            assert r.status == 403 and b"security.allowed_hosts" in r.body, (host, path)
    for host in ("localhost", f"127.0.0.1:{c.http_port}", "LOCALHOST:1", "[::1]:8080", "192.168.1.7", os.uname().nodename):
        assert ask(c.http_port, "GET", "/v1/models", headers={"Host": host}).status == 200, host
        assert ask(c.admin_port, "GET", "/config", headers={"Host": host}).status == 200, host
    assert c.metric("cgn_rejected_total", reason="site") > 0

    reload(c, {"security": {"allowed_hosts": ["llm.example", "*.corp.example"]}})
    for host in ("llm.example", "LLM.example:443", "a.b.corp.example"):
        assert ask(c.http_port, "GET", "/v1/models", headers={"Host": host}).status == 200, host
        assert ask(c.admin_port, "GET", "/config", headers={"Host": host}).status == 200, host
    for host in ("evil.example", "corp.example", "evilcorp.example"):
        assert ask(c.http_port, "GET", "/v1/models", headers={"Host": host}).status == 403, host


def test_a_name_is_judged_in_http2_too(open_cluster):
    for authority, refused in (("evil.example", True), (f"127.0.0.1:{open_cluster.http_port}", False)):
        h = h2raw.H2(open_cluster.http_port)
        fields = [(":method", "GET"), (":scheme", "http"), (":path", "/v1/models"), (":authority", authority)]
        h.send(h2raw.frame(h2raw.HEADERS, h2raw.END_STREAM | h2raw.END_HEADERS, 1, h2raw.block(fields)))
        data, _ = h.answer(1)
        assert (b"another_site" in data) == refused, authority


def test_a_page_of_another_site_may_send_nothing(open_cluster):
    c = open_cluster
    sent = [{"Origin": EVIL}, {"Origin": "null"}, {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
            {"Sec-Fetch-Site": "same-site"}, {"Origin": "http://localhost.evil.example"}]
    plain = {"Content-Type": "text/plain"}  # a browser asks nobody before it sends such a body
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    for page in sent:
        r = ask(c.http_port, "POST", "/v1/chat/completions", json.dumps(CHAT).encode(), {**plain, **page})
        assert (r.status, code(r)) == (403, "another_site") and "access-control-allow-origin" not in r.headers, page
        assert ask(c.http_port, "POST", "/v1/files", b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n', {**form, **page}).status == 403
        assert ask(c.http_port, "POST", "/api/generate", b'{"model":"sim","keep_alive":0}', {**plain, **page}).status == 403
        assert ask(c.http_port, "DELETE", "/v1/files/x", headers=page).status == 403
        assert ask(c.http_port, "GET", "/v1/models", headers=page).status == 403
        for path in ("/playground/v1/chat/completions", "/nodes/a/cordon", "/logout"):
            assert ask(c.admin_port, "POST", path, CHAT, {**page, **PAGE}).status in (403, 404), (page, path)
        assert ask(c.admin_port, "GET", "/config", headers=page).status == 403
    assert c.metric("cgn_requests_total", model="sim") == 0, "no engine was asked"
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Accept": "text/html"}
    assert ask(c.admin_port, "GET", "/page/", headers=link).status == 200, "a link that somebody followed"
    own = {"Origin": f"http://127.0.0.1:{c.admin_port}", "Sec-Fetch-Site": "same-origin", **PAGE}
    assert ask(c.admin_port, "POST", "/playground/v1/chat/completions", CHAT, own).status == 200
    proxied = {"Origin": "https://ops.example", "Sec-Fetch-Site": "same-origin", **PAGE}
    assert ask(c.admin_port, "POST", "/playground/v1/chat/completions", CHAT, proxied).status == 200, "behind a proxy that changes Host"
    assert ask(c.admin_port, "POST", "/playground/v1/chat/completions", CHAT, {"Origin": NEAR, **PAGE}).status == 403, "a page that may use the gateway orders nothing"


def preflight(c, origin, fields="content-type, x-stainless-lang"):
    return ask(c.http_port, "OPTIONS", "/v1/chat/completions", headers={
        "Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": fields, "X-Cgn-Session": "s"})


def test_pages_that_may_ask_get_cors(open_cluster):
    c = open_cluster
    for origin in (NEAR, "http://127.0.0.1:5173", "https://app.localhost", "tauri://localhost", "app://obsidian.md"):
        r = preflight(c, origin)
        assert (r.status, r.body) == (204, b"") and r.headers["access-control-allow-origin"] == origin
        assert r.headers["access-control-allow-headers"] == "content-type, x-stainless-lang" and "POST" in r.headers["access-control-allow-methods"]
        for more in ({}, {"stream": True}):
            r = c.ask("POST", "/v1/chat/completions", {**CHAT, **more}, {"Origin": origin, "Sec-Fetch-Site": "cross-site"})
            assert r.status == 200 and r.headers["access-control-allow-origin"] == origin and r.headers["vary"].lower() == "origin"
        r = c.ask("POST", "/v1/chat/completions", {**CHAT, "model": "none"}, {"Origin": origin})
        assert r.status == 404 and r.headers["access-control-allow-origin"] == origin, "a page reads why it was refused"
    assert preflight(c, EVIL).status == 403
    assert ask(c.http_port, "OPTIONS", "/v1/chat/completions").status == 405, "no browser asks so"
    assert c.chat("hello").status == 200 and "access-control-allow-origin" not in c.chat("hello").headers

    reload(c, {"security": {"allowed_origins": ["https://chat.example", "https://*.corp.example:*"]}})
    for origin, status in (("https://chat.example", 204), ("https://a.corp.example:8443", 204), ("https://chat.example:444", 403), ("https://evil.example/.corp.example:1", 403), (EVIL, 403)):
        assert preflight(c, origin).status == status, origin
    reload(c, {"security": {"allowed_origins": ["*"]}})
    assert preflight(c, EVIL).headers["access-control-allow-origin"] == EVIL


def test_a_gateway_with_keys_leaves_it_to_the_browser(cluster):
    """A page without a key is refused anyway; with one it may ask, and reads the answer if its origin may."""
    keys = cluster.folder / "keys"
    made = subprocess.run([BUILD / "src/ctl/cgn-ctl", "key", "create", "--file", keys, "--scopes", "chat"], check=True, capture_output=True, text=True)
    cluster.router({"auth": {"enabled": True, "api_keys_file": str(keys)}})
    cluster.node("a", *FAST)
    cluster.wait_ready(1)
    key = {"Authorization": "Bearer " + made.stdout.strip()}
    assert ask(cluster.http_port, "GET", "/v1/models", headers={"Host": "llm.example", **key}).status == 200
    assert ask(cluster.http_port, "GET", "/v1/models", headers={"Host": "llm.example"}).status == 401
    assert preflight(cluster, NEAR, "authorization").headers["access-control-allow-headers"] == "authorization"
    r = preflight(cluster, EVIL)
    assert r.status == 204 and "access-control-allow-origin" not in r.headers
    r = cluster.ask("POST", "/v1/chat/completions", CHAT, {"Origin": NEAR})
    assert r.status == 401 and r.headers["access-control-allow-origin"] == NEAR
    r = cluster.ask("POST", "/v1/chat/completions", CHAT, {"Origin": EVIL, **key})
    assert r.status == 200 and "access-control-allow-origin" not in r.headers


# ---- a real browser ----

SCRIPT = """
const seen = {};
const attempt = async (name, url, init) => {
	try {
		const r = await fetch(url, init);
		seen[name] = r.type === "opaque" ? "opaque" : `${r.status} ${(await r.text()).length > 0}`;
	} catch (e) { seen[name] = "failed"; }
};
for (const [name, url, init] of STEPS) await attempt(name, url, init);
await fetch("/done", { method: "POST", body: JSON.stringify(seen) });
"""


class Site(http.server.BaseHTTPRequestHandler):
    """A web site with one page, which makes its browser do |steps| and tells what came of them."""
    protocol_version = "HTTP/1.1"
    steps = told = None

    def log_message(self, *_):
        pass

    def answer(self, kind, body):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer("text/html", f'<script type="module">{SCRIPT.replace("STEPS", json.dumps(self.steps))}</script>'.encode() if self.path == "/" else b"")

    def do_POST(self):
        self.told.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.answer("text/plain", b"")


@contextlib.contextmanager
def visit(c, host, steps, name):
    """Open the page of a site that is called |host| in Chromium, for which each name is this machine, and yield what the page saw."""
    told = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Served", (Site,), {"steps": steps, "told": told}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    chromium = subprocess.Popen(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={c.folder / name}", "--remote-debugging-port=0",
                                 "--host-resolver-rules=MAP * 127.0.0.1", f"http://{host}:{server.server_address[1]}/"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: told, "the page told what it saw")
        yield told[0]
    finally:
        chromium.terminate()
        chromium.wait()
        server.shutdown()


@pytest.mark.skipif(shutil.which("chromium") is None and not os.environ.get("CI"), reason="no chromium")
def test_pages_in_a_real_browser(open_cluster):
    c = open_cluster
    gate, admin = f"http://127.0.0.1:{c.http_port}", f"http://127.0.0.1:{c.admin_port}"
    chat = {"method": "POST", "headers": {"content-type": "application/json", "x-stainless-lang": "js"}, "body": json.dumps(CHAT)}
    plain = {"method": "POST", "mode": "no-cors", "body": json.dumps(CHAT)}
    steps = [("chat", gate + "/v1/chat/completions", chat), ("plain", gate + "/v1/chat/completions", plain), ("models", gate + "/v1/models", {}),
             ("config", admin + "/config", {}), ("play", admin + "/playground/v1/chat/completions", {**chat, "headers": {**chat["headers"], **PAGE}})]
    with visit(c, "evil.example", steps, "evil") as seen:
        assert seen["chat"] == seen["models"] == seen["config"] == seen["play"] == "failed"
    assert c.metric("cgn_requests_total", model="sim") == 0, "no engine was asked"
    # The name of the page's site leads to the ports now: what the browser sends is of the same origin.
    rebound = [("config", f"http://evil.example:{c.admin_port}/config", {"mode": "no-cors"}), ("models", f"http://evil.example:{c.http_port}/v1/models", {"mode": "no-cors"})]
    refused = c.metric("cgn_rejected_total", reason="site")
    with visit(c, "evil.example", rebound, "rebound"):
        assert c.metric("cgn_rejected_total", reason="site") > refused
    with visit(c, "localhost", steps, "near") as seen:
        assert seen["chat"] == seen["models"] == "200 true"
        assert seen["config"] == seen["play"] == "failed"

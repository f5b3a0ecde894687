# SPDX-License-Identifier: Apache-2.0
"""The gateway's routes: methods, spellings of paths, WebSocket probes, routes of engines' own, and what operators add."""
import http.server
import json
import pathlib
import re
import signal
import socket
import subprocess
import threading

import pytest
from cluster import BUILD, until
from engine_nodes import JsonHandler
from test_limits import key

ROUTES = pathlib.Path(__file__).resolve().parents[2] / "src/router/request/route/routes.def"


class Engine(JsonHandler):
    """An engine with all routes, which says what it got."""

    def relayed(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path in ("/health", "/metrics", "/slots", "/v1/models"):
            return self.reply({"object": "list", "data": [{"id": "m", "object": "model"}]} if self.path == "/v1/models" else {})
        if self.path == "/generate":
            return self.send_error(404)
        self.server.seen.append((self.command, self.path))
        self.server.heads.append({k.lower(): v for k, v in self.headers.items()})
        return self.reply({"id": f"resp_{self.server.name}", **ANSWER, "model": "m", "method": self.command, "path": self.path, "body": body.decode("latin-1"),
                           "usage": {"prompt_tokens": 1, "completion_tokens": 1}})

    do_GET = do_POST = do_PUT = do_DELETE = relayed


# What the answers of the routes have
ANSWER = {"choices": [{"index": 0}], "content": [{"type": "text"}], "data": [{"index": 0}], "output": [{"id": "o"}], "results": [{"index": 0}],
          "tokens": [1], "prompt": "p", "input_tokens": 1}


class Engines:
    """{name: kind} of nodes without an agent."""

    def __init__(self, **kinds):
        self.servers, self.sections = {}, {}
        for name, kind in kinds.items():
            s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
            s.daemon_threads, s.name, s.seen, s.heads = True, name, [], []
            threading.Thread(target=s.serve_forever, args=(0.01,), daemon=True).start()
            self.servers[name] = s
            self.sections[f'engine_nodes."{name}"'] = {"url": f"http://127.0.0.1:{s.server_port}", "kind": kind, "ready_interval": "100ms"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for s in self.servers.values():
            s.shutdown()
            s.server_close()

    def seen(self):
        return [(name, *one) for name, s in self.servers.items() for one in s.seen]


def rows():
    return re.findall(r'^ROUTE(?:_ONCE)?\("(\w+)",\s*"([^"]+)",\s*(\w+)', ROUTES.read_text(), re.M)


def test_a_wrong_method_is_told_the_right_ones(cluster):
    cluster.router({"batch": {"enabled": True}, "router.selection": {"enabled": True}})
    methods = {}
    for method, path, kind in rows():
        if kind != "SUMMARY":  # on ports of peers only
            methods.setdefault(path.replace("**", "x/y").replace("*", "x"), set()).add(method)
    assert methods["/v1/responses/x"] == {"GET", "DELETE"} and methods["/v1/files"] == {"GET", "POST"}
    assert "/v1/responses/x/cancel" in methods and len(methods) > 50
    for path, some in methods.items():
        answer = cluster.ask("PUT", path)
        assert answer.status == 405, (path, answer.status)
        allow = answer.headers["allow"].split(", ")
        assert set(allow) == some | ({"HEAD"} if "GET" in some else set()) and len(allow) == len(set(allow)), (path, allow)


def probe(c, path, upgrade="websocket"):
    with socket.create_connection(("127.0.0.1", c.http_port), timeout=30) as s:
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\nSec-WebSocket-Version: 13\r\n"
                  "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode())
        got = b""
        while b"\r\n\r\n" not in got or (b"content-length: " in got and b"}" not in got):
            more = s.recv(65536)
            if not more:
                break
            got += more
        return got.decode()


def test_a_websocket_probe_is_refused_at_once(cluster):
    cluster.router({"auth": {"enabled": True, "api_keys_file": str(cluster.folder / "keys")}} if key(cluster.folder, "x") else None)
    for method, path, kind in rows():
        if method == "POST" and kind == "RELAY" and ("GET", path) not in {(m, p) for m, p, _ in rows()}:
            got = probe(cluster, path)
            assert got.startswith("HTTP/1.1 426 Upgrade Required\r\n") and "upgrade: HTTP/1.1\r\nconnection: upgrade\r\n" in got, (path, got)
            assert f"no WebSocket at {path}: " in got and "POST" in got
    assert probe(cluster, "/v1/responses?x=1").startswith("HTTP/1.1 426 ")
    assert "no WebSocket at /v1/responses: " in probe(cluster, "/responses")
    assert probe(cluster, "/v1/responses", "h2c").startswith("HTTP/1.1 405 ")
    assert probe(cluster, "/v1/realtime?model=m").startswith("HTTP/1.1 404 ")
    assert probe(cluster, "/healthz").startswith("HTTP/1.1 200 ")  # a server may ignore Upgrade


BODY = {"model": "m", "prompt": "hi", "input": "hi", "query": "a", "documents": ["b"]}
OF_LLAMA = ["/completion", "/completions", "/infill", "/embedding", "/embeddings", "/reranking", "/v1/reranking", "/apply-template"]
OF_VLLM = ["/v2/rerank", "/pooling", "/classify", "/v1/chat/completions/batch"]


def test_routes_of_a_kind_go_to_engines_of_that_kind(cluster):
    with Engines(llama="llama_cpp", vllm="vllm") as engines:
        cluster.router(engines.sections)
        cluster.wait_ready(2)
        for name, paths in (("llama", OF_LLAMA), ("vllm", OF_VLLM)):
            for path in paths:
                for _ in range(3):
                    answer = cluster.ask("POST", path, BODY)
                    assert (answer.status, answer.headers["x-cgn-node"]) == (200, name), (path, answer.body)
                    assert json.loads(answer.json()["body"])["prompt"] == "hi" and answer.json()["path"] == path
        for path in ("/rerank", "/v1/rerank", "/tokenize", "/detokenize", "/v1/chat/completions", "/chat/completions"):
            assert cluster.ask("POST", path, BODY).status == 200, path
        assert ("POST", "/v1/chat/completions") in {s[1:] for s in engines.seen()} and "/chat/completions" not in {s[2] for s in engines.seen()}
        lacking = cluster.ask("POST", "/generate", BODY)  # SGLang's
        assert lacking.status == 501 and lacking.json()["error"]["code"] == "not_supported"
        for method in ("GET", "HEAD"):
            assert cluster.ask(method, "/props?model=m").headers["x-cgn-node"] == "llama"
        assert [s for s in engines.seen() if s[2] == "/props?model=m"] == [("llama", "GET", "/props?model=m")] * 2
        assert cluster.ask("GET", "/props").json()["error"]["code"] == "missing_model"
        assert cluster.ask("GET", "/props?model=no").json()["error"]["code"] == "model_not_found"
        for method, path in (("POST", "/props"), ("GET", "/slots"), ("POST", "/slots/0?action=save"), ("GET", "/lora-adapters"),
                             ("POST", "/lora-adapters"), ("POST", "/v1/load_lora_adapter"), ("POST", "/sleep")):
            assert cluster.ask(method, path, BODY if method == "POST" else None).status in (404, 405), path


def test_paths_with_too_many_slashes(cluster):
    with Engines(a="openai_compat") as engines:
        cluster.router(engines.sections)
        cluster.wait_ready(1)
        for path in ("/v1/chat/completions/", "//v1/chat/completions", "/v1//chat///completions//", "/v1/chat/completions/?beta=true"):
            assert cluster.ask("POST", path, BODY).status == 200, path
            assert engines.servers["a"].seen[-1][1].split("?")[0] == "/v1/chat/completions"
        assert engines.servers["a"].seen[-1][1].endswith("?beta=true")
        for path in ("/v1/models/", "/models", "//v1/models?client_version=1"):
            assert cluster.ask("GET", path).json()["data"][0]["id"] == "m", path
        assert cluster.ask("GET", "/v1/models/m/").json()["id"] == "m"
        assert cluster.ask("GET", "//").status == 200


def test_stored_answers_are_deleted_and_cancelled_at_their_node(cluster):
    with Engines(a="openai_compat", b="openai_compat") as engines:
        cluster.router({**engines.sections, "router": {"policy": "round_robin"}})
        cluster.wait_ready(2)
        homes = {}
        for _ in range(4):
            made = cluster.ask("POST", "/v1/responses", {"model": "m", "input": "hi"})
            homes[made.json()["id"]] = made.headers["x-cgn-node"]
        assert sorted(homes.values()) == ["a", "b"]
        for id, home in homes.items():
            for method, path in (("POST", f"/v1/responses/{id}/cancel"), ("GET", f"/v1/responses/{id}/input_items?limit=2"),
                                 ("HEAD", f"/v1/responses/{id}"), ("DELETE", f"/v1/responses/{id}")):
                answer = cluster.ask(method, path, b"" if method == "POST" else None)
                assert (answer.status, answer.headers["x-cgn-node"]) == (200, home), (method, path, answer.body)
                assert engines.servers[home].seen[-1] == ("GET" if method == "HEAD" else method, path)
        unknown = cluster.ask("DELETE", "/v1/responses/resp_other")
        assert unknown.status == 404 and unknown.json()["error"]["code"] == "not_found"


def test_a_stored_answer_has_the_models_name_of_the_client(cluster):
    with Engines(a="openai_compat", b="openai_compat") as engines:
        engines.sections['engine_nodes."a"']["model"] = "org/gem\u00e4"
        cluster.router(engines.sections)
        cluster.wait_ready(2)
        for model in ("org/gem\u00e4", "m"):
            made = cluster.ask("POST", "/responses", {"model": model, "input": "hi"}).json()
            assert made["model"] == model and made["path"] == "/v1/responses"
            for method, path, body in (("GET", "", None), ("POST", "/cancel", b""), ("POST", "/cancel", {"model": model}), ("DELETE", "", None)):
                answer = cluster.ask(method, f"/v1/responses/{made['id']}{path}", body)
                assert answer.status == 200 and answer.json()["model"] == model, (method, answer.body)
                assert answer.json()["body"] == ("" if not body else json.dumps(body))


TRICKS = ["/v1/videos/../load_lora_adapter", "/v1/videos/x/../../load_lora_adapter", "/v1/videos/%2e%2e/load_lora_adapter", "/v1/videos/%252E%252e/load_lora_adapter",
          "/v1/videos/..%2fload_lora_adapter", "/v1/videos/..;/load_lora_adapter", "/v1/videos/..\\load_lora_adapter", "/v1/videos/..%5Cslots",
          "/v1/videos/.", "/v1/videos/a%00", "/v1/videos/a%0d%0ab", "/v1/jobs/..", "/v1/jobs/%2e%2e%2fslots", "/v1/responses/../slots/cancel",
          "/v1/responses/..%2f..%2fslots/cancel", "/v1/files/%2e%2e", "/v1/batches/..%2fx/cancel", "/v1/chat/../chat/completions", "/%2e%2e/v1/chat/completions"]


def test_a_path_that_may_lead_elsewhere_reaches_no_engine(cluster):
    user = key(cluster.folder, "user", "acme")
    with Engines(a="openai_compat") as engines:
        cluster.router({**engines.sections, "batch": {"enabled": True}, "router": {"extra_routes": ["POST /v1/videos/**", "POST /v1/jobs/*", "POST admin /slots/*"]},
                        "auth": {"enabled": True, "api_keys_file": str(cluster.folder / "keys")}})
        cluster.wait_ready(1)
        for path in TRICKS:
            answer = cluster.ask("POST", path, BODY, user)
            assert answer.status == 400 and answer.json()["error"]["code"] == "invalid_path", (path, answer.status, answer.body)
        for method in ("GET", "DELETE"):
            assert cluster.ask(method, "/v1/responses/resp_a%2f..%2fslots", None, user).json()["error"]["code"] == "invalid_path"
        assert not [one for one in engines.seen() if one[1] != "GET" or "/v1/" in one[2]], engines.seen()  # the router asks the engine what it is
        for path in ("/v1/videos/a%20b/%C3%A4", "/v1/videos/100%25", "/v1/jobs/a%3Ab", "/v1/jobs/a..b", "/v1/videos/x?file=../y%2fz"):
            assert cluster.ask("POST", path, BODY, user).json()["path"] == path
        refused = cluster.ask("POST", "/slots/3", BODY, user)
        assert refused.status == 403 and "lacks the scope admin that" in refused.json()["error"]["message"]


def test_operators_add_routes_and_headers(cluster):
    keys = {"user": key(cluster.folder, "user", "acme")}
    with Engines(a="openai_compat", b="openai_compat") as engines:
        mine = {"extra_routes": ["POST /v1/videos", "GET /v1/videos/*", "DELETE embed /v1/videos/**", "POST admin /v1/load_lora_adapter"],
                "pass_headers": ["x-team", "user-agent"]}
        settings = {**engines.sections, "auth": {"enabled": True, "api_keys_file": str(cluster.folder / "keys")}}
        cluster.router({**settings, "router": mine})
        cluster.wait_ready(2)

        def answer(method, path, body=None, **fields):
            return cluster.ask(method, path, body, {**keys["user"], **fields})
        assert answer("POST", "/v1/videos", BODY, **{"X-Team": "red", "X-Other": "blue", "User-Agent": "me"}).status == 200
        head = [h for s in engines.servers.values() for one, h in zip(s.seen, s.heads) if one == ("POST", "/v1/videos")][-1]
        assert head["x-team"] == "red" and head["user-agent"] == "me" and "x-other" not in head and "authorization" not in head
        assert answer("GET", "/v1/videos/7?model=m").json()["path"] == "/v1/videos/7?model=m"
        assert answer("DELETE", "/v1/videos/7/frames/8?model=m").status == 200
        assert answer("GET", "/v1/videos/7/frames/8?model=m").headers["allow"] == "DELETE"
        assert cluster.ask("POST", "/v1/videos", BODY).status == 401
        refused = answer("POST", "/v1/load_lora_adapter", BODY)
        assert refused.status == 403 and refused.json()["error"]["code"] == "insufficient_scope" and "scope admin " in refused.json()["error"]["message"]
        form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
        assert answer("POST", "/v1/videos", form, **{"Content-Type": "multipart/form-data; boundary=b"}).json()["body"] == form.decode()

        ports = {"listen": f"127.0.0.1:{cluster.http_port}", "listen_grpc": f"127.0.0.1:{cluster.grpc_port}",
                 "listen_admin": f"127.0.0.1:{cluster.admin_port}", "worker_threads": 2}
        cluster.config("router", {**settings, "router": {**ports, "extra_routes": ["POST /later"]}, "security": {"isolation_strict": True}})
        cluster.router_process.signal(signal.SIGHUP)
        until(lambda: answer("POST", "/v1/videos", BODY).status == 404, "the routes are replaced")
        later = until(lambda: (a := answer("POST", "/later", BODY)).status != 404 and a, "the new route is there")
        assert (later.status, later.json()["error"]["code"]) == (503, "not_isolated")


def test_llamas_own_routes_keep_tenants_apart(cluster):
    keys = [key(cluster.folder, name, name) for name in ("acme", "umbra")]
    with Engines(a="llama_cpp") as engines:
        cluster.router({**engines.sections, "router": {"default_model": "m"}, "auth": {"enabled": True, "api_keys_file": str(cluster.folder / "keys")}})
        cluster.wait_ready(1)
        for path in ("/completion", "/completions", "/infill"):
            salts = [json.loads(cluster.ask("POST", path, BODY, k).json()["body"])["cache_salt"] for k in keys]
            assert salts[0] != salts[1] and all(len(s) == 32 for s in salts), path
            assert cluster.ask("POST", path, {"prompt": "hi"}, keys[0]).status == 200, path  # llama-server's clients name no model
        assert cluster.ask("GET", "/props", headers=keys[0]).status == 200


@pytest.mark.parametrize("setting, word", [
    ('extra_routes = ["POST /slots/*"]', "by which engines are administrated"), ('extra_routes = ["FETCH /x"]', "METHOD"),
    ('pass_headers = ["Authorization"]', "lower case"), ('pass_headers = ["x-api-key"]', "credential"), ('pass_headers = ["te"]', "connection"),
    ('extra_routes = ["POST /SLOTS"]', "by which engines are administrated"), ('pass_headers = ["x_auth_token"]', "credential"), ('pass_headers = ["x_cgn_node"]', "set by the router")])
def test_settings_that_let_too_much_through_are_refused(tmp_path, setting, word):
    file = tmp_path / "c.toml"
    file.write_text(f"[router]\n{setting}\n")
    done = subprocess.run([BUILD / "src/router/cgn-router", "--check", "--config", file], capture_output=True, text=True, timeout=30)
    assert done.returncode == 3 and word in done.stderr and "c.toml:2:" in done.stderr, done.stderr


@pytest.mark.parametrize("first, second, hidden", [
    ("GET /v1/videos/*", "GET /v1/videos/latest", True), ("POST /v1/videos", "POST embed /v1/videos", True), ("GET /v2/**", "GET embed /v2/jobs/**", True),
    ("GET /v1/videos/latest", "GET /v1/videos/*", False), ("GET /v1/videos/*", "DELETE /v1/videos/*", False), ("GET /v1/*/x", "GET /v1/jobs/*", False)])
def test_a_route_that_an_earlier_one_hides_is_refused(tmp_path, first, second, hidden):
    file = tmp_path / "c.toml"
    file.write_text(f"[router]\nextra_routes = {json.dumps([first, second])}\n")
    done = subprocess.run([BUILD / "src/router/cgn-router", "--check", "--config", file], capture_output=True, text=True, timeout=30)
    assert done.returncode == (3 if hidden else 0), done.stderr
    assert not hidden or f'"{second}" would have no effect behind "{first}"' in done.stderr, done.stderr


@pytest.mark.parametrize("route, own", [("POST /v1/chat/completions", "POST /v1/chat/completions"), ("GET /v1/responses/*", "GET /v1/responses/*"),
                                        ("POST /responses", "POST /v1/responses"), ("GET admin /v1/models/x/*", "GET /v1/models/**")])
def test_a_route_that_the_gateway_has_is_refused(tmp_path, route, own):
    file = tmp_path / "c.toml"

    def check(routes):
        file.write_text(f"[router]\nextra_routes = {json.dumps(routes)}\n")
        return subprocess.run([BUILD / "src/router/cgn-router", "--check", "--config", file], capture_output=True, text=True, timeout=30)
    done = check(["POST /v1/videos", route])
    assert done.returncode == 3 and f'"{route}" would have no effect' in done.stderr and f"has the route {own} itself" in done.stderr, done.stderr
    # With batches off, files are an engine's own; a wider pattern has paths that the gateway lacks.
    assert check(["POST /v1/files", "GET /v1/responses/**", "PUT /v1/responses/*"]).returncode == 0

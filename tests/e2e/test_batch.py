# SPDX-License-Identifier: Apache-2.0
"""Files and batches: uploaded, carried out, cancelled, expired, and each line once in the result whatever is killed."""
import contextlib
import http.server
import json
import socket
import threading

import pytest
from cluster import ask, until
from engine_nodes import sections
from failing_engine import Engine
from hook_service import HookService
from test_limits import key

BOUNDARY = "----cgn-test"


def start(c, batch=None, node=("--time-scale", "0"), auth=True, **sections):
    headers = {t: key(c.folder, t, t) for t in ("acme", "umbra")} if auth else None
    if auth:
        sections["auth"] = {"enabled": True, "api_keys_file": str(c.folder / "keys")}
    c.router({"batch": {"enabled": True, **(batch or {})}, **sections})
    c.node("a", *node)
    c.wait_ready()
    return headers


def form(content, name="in.jsonl", purpose="batch"):
    parts = [f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n'.encode(),
             f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
             'Content-Type: application/octet-stream\r\n\r\n'.encode(), content, f"\r\n--{BOUNDARY}--\r\n".encode()]
    return b"".join(parts)


def upload(c, content, headers=None, **more):
    return c.ask("POST", "/v1/files", form(content, **more),
                 {**(headers or {}), "Content-Type": f"multipart/form-data; boundary={BOUNDARY}"})


def line(i, model="sim", **body):
    return {"custom_id": f"line-{i}", "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": model, "messages": [{"role": "user", "content": f"number {i}"}], "max_tokens": 4, **body}}


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def create(c, content, headers=None, window="24h", **more):
    file = upload(c, content, headers)
    assert file.status == 200, file.body
    made = c.ask("POST", "/v1/batches", {"input_file_id": file.json()["id"], "endpoint": "/v1/chat/completions",
                                         "completion_window": window, **more}, headers)
    assert made.status == 200, made.body
    return made.json()


def get(c, batch, headers=None):
    return c.ask("GET", f"/v1/batches/{batch['id']}", headers=headers).json()


def ended(c, batch, headers=None):
    over = ("completed", "failed", "expired", "cancelled")
    return until(lambda: (b := get(c, batch, headers)).get("status") in over and b, lambda: get(c, batch, headers))


def rows_of(c, file, headers=None):
    if file is None:
        return []
    answer = c.ask("GET", f"/v1/files/{file}/content", headers=headers)
    assert answer.status == 200
    return [json.loads(row) for row in answer.body.splitlines()]


def results(c, batch, headers=None):
    return rows_of(c, batch["output_file_id"], headers), rows_of(c, batch["error_file_id"], headers)


def test_files_are_stored_listed_and_deleted(cluster):
    c = cluster
    acme, umbra = start(c, {"max_file": 2 << 20, "max_tenant": 5 << 20}).values()
    content = bytes(range(256)) * 4096  # 1 MiB, with line ends and dashes in it
    a = upload(c, content, acme, name="dir/n\u00e4me.jsonl")
    assert a.status == 200, a.body
    file = a.json()
    assert file["object"] == "file" and file["bytes"] == len(content) and file["filename"] == "n\u00e4me.jsonl"
    path = f"/v1/files/{file['id']}"
    assert c.ask("GET", path + "/content", headers=acme).body == content
    assert c.ask("GET", path, headers=acme).json() == file
    for method, at in (("GET", path), ("GET", path + "/content"), ("DELETE", path)):
        assert c.ask(method, at, headers=umbra).status == 404
    assert c.ask("GET", "/v1/files", headers=umbra).json()["data"] == []
    other = upload(c, b"x", acme).json()
    page = c.ask("GET", "/v1/files?limit=1", headers=acme).json()
    assert [f["id"] for f in page["data"]] == [other["id"]] and page["has_more"]
    page = c.ask("GET", f"/v1/files?limit=1&after={other['id']}", headers=acme).json()
    assert page["data"] == [file] and not page["has_more"]
    assert c.ask("GET", "/v1/files?order=asc", headers=acme).json()["first_id"] == file["id"]
    c.router_process.kill()
    c.router_process.start()
    until(lambda: c.listens(c.http_port, c.router_process), "the router listens")
    assert c.ask("GET", path + "/content", headers=acme).body == content
    assert c.ask("DELETE", path, headers=acme).json() == {"id": file["id"], "object": "file", "deleted": True}
    assert c.ask("GET", path, headers=acme).status == 404
    assert c.ask("GET", path).status == 401
    assert len(list(c.state_dir.glob("*.batch/*.data"))) == 1


def test_uploads_that_are_refused_leave_nothing(cluster):
    c = cluster
    acme = start(c, {"max_file": 1 << 20, "max_tenant": 3 << 19})["acme"]
    too_large = upload(c, b"x" * ((1 << 20) + 1), acme)
    assert too_large.status == 413 and "batch.max_file" in too_large.json()["error"]["message"]
    assert upload(c, b"x", acme, purpose="vision").json()["error"]["param"] == "purpose"
    assert c.ask("POST", "/v1/files", b"{}", acme).status == 400
    assert upload(c, b"x" * (1 << 20), acme).status == 200
    full = upload(c, b"x" * (1 << 20), acme)
    assert full.status == 403 and "batch.max_tenant" in full.json()["error"]["message"]
    with socket.create_connection(("127.0.0.1", c.http_port)) as s:  # a client that leaves
        head = "".join(f"{k}: {v}\r\n" for k, v in acme.items())
        s.sendall(f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\n{head}Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
                  "Content-Length: 800000\r\n\r\n".encode() + form(b"y" * 500000)[:400000])
        until(lambda: len(list(c.state_dir.glob("*.batch/*.data"))) == 2, "the upload has begun")
    until(lambda: len(list(c.state_dir.glob("*.batch/*.data"))) == 1, "its bytes are removed")
    for bad in ({"endpoint": "/v1/models"}, {"endpoint": "/v1/chat/completions", "completion_window": "soon"},
                {"endpoint": "/v1/chat/completions", "completion_window": "24h", "input_file_id": "file-none"}):
        assert c.ask("POST", "/v1/batches", bad, acme).status in (400, 404)


def test_a_batch_is_answered_line_by_line(cluster):
    c = cluster
    acme, umbra = start(c).values()
    rows = [line(i) for i in range(40)] + [line(40, model="none")]
    batch = create(c, jsonl(rows), acme, metadata={"for": "tests"})
    assert batch["status"] == "validating" and batch["metadata"] == {"for": "tests"}
    assert c.ask("GET", f"/v1/batches/{batch['id']}", headers=umbra).status == 404
    batch = ended(c, batch, acme)
    assert batch["status"] == "completed", batch
    assert batch["request_counts"] == {"total": 41, "completed": 40, "failed": 1}
    good, bad = results(c, batch, acme)
    assert sorted(r["custom_id"] for r in good) == sorted(r["custom_id"] for r in rows[:40])
    assert all(r["response"]["status_code"] == 200 and r["response"]["body"]["choices"] for r in good)
    assert [(r["custom_id"], r["response"]["status_code"]) for r in bad] == [("line-40", 404)]
    assert c.ask("GET", "/v1/batches", headers=acme).json()["data"] == [batch]
    assert c.ask("GET", "/v1/batches", headers=umbra).json()["data"] == []
    assert c.ask("POST", f"/v1/batches/{batch['id']}/cancel", {}, acme).status == 400
    assert c.metric("cgn_batch_lines_total", outcome="completed") == 40 and c.metric("cgn_batch_total", status="completed") == 1
    assert c.metric("cgn_tenant_requests_total", tenant="acme") == 40
    assert not list(c.state_dir.glob("*.batch/*.journal"))


def test_faults_of_the_input_are_told_with_their_lines(cluster):
    c = cluster
    start(c, {"max_lines": 5}, auth=False)
    rows = [line(1), line(2), line(1), {**line(3), "url": "/v1/embeddings"}]
    batch = ended(c, create(c, jsonl(rows) + b"nonsense\n"))
    assert batch["status"] == "failed" and batch["output_file_id"] is None
    assert [(e["code"], e["line"]) for e in batch["errors"]["data"]] == [("mismatched_endpoint", 4), ("invalid_json_line", 5)]
    batch = ended(c, create(c, jsonl(rows[:3])))
    assert [(e["code"], e["line"]) for e in batch["errors"]["data"]] == [("duplicate_custom_id", 3)]
    batch = ended(c, create(c, jsonl(line(i) for i in range(6))))
    assert batch["errors"]["data"][0]["code"] == "too_many_lines"
    assert ended(c, create(c, b"\n\n"))["errors"]["data"][0]["code"] == "empty_file"


def test_each_line_is_in_the_result_once_after_kills(cluster):
    c = cluster
    start(c, {"max_concurrent": 4}, node=("--time-scale", "1"), auth=False)
    batch = create(c, jsonl(line(i) for i in range(150)))
    for _ in range(6):
        done = get(c, batch)["request_counts"]["completed"]
        until(lambda n=done: get(c, batch)["request_counts"]["completed"] > n or get(c, batch)["status"] == "completed", "a line is done")
        c.router_process.kill()  # -9
        c.router_process.start()
        until(lambda: c.listens(c.http_port, c.router_process), "the router listens")
        assert get(c, batch)["status"] in ("in_progress", "finalizing", "completed")
    batch = ended(c, batch)
    assert batch["status"] == "completed" and batch["request_counts"] == {"total": 150, "completed": 150, "failed": 0}, batch
    good, bad = results(c, batch)
    assert sorted(r["custom_id"] for r in good) == sorted(f"line-{i}" for i in range(150)) and not bad


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_a_batch_ends_early_with_what_it_has(cluster, how):
    c = cluster
    start(c, {"max_concurrent": 2}, node=("--time-scale", "1"), auth=False)
    batch = create(c, jsonl(line(i, max_tokens=50, ignore_eos=True) for i in range(200)), window="3s" if how == "expired" else "24h")
    until(lambda: get(c, batch)["request_counts"]["completed"] > 0, "a line is done")
    if how == "cancelled":
        assert c.ask("POST", f"/v1/batches/{batch['id']}/cancel", {}).json()["status"] == "cancelling"
    batch = ended(c, batch)
    assert batch["status"] == how and batch[f"{how}_at"] >= batch["created_at"]
    good, bad = results(c, batch)
    assert len(good) == batch["request_counts"]["completed"] > 0
    assert {r["error"]["code"] for r in bad} == {f"batch_{how}"}
    assert sorted(r["custom_id"] for r in good + bad) == sorted(f"line-{i}" for i in range(200))


def test_a_revoked_key_stops_its_batch(cluster):
    c = cluster
    acme = start(c, {"max_concurrent": 2}, node=("--time-scale", "1"))["acme"]
    batch = create(c, jsonl(line(i, max_tokens=50, ignore_eos=True) for i in range(300)), acme)
    until(lambda: get(c, batch, acme)["request_counts"]["completed"] > 0, "a line is done")
    keys = c.folder / "keys"
    keys.write_text("".join(row for row in keys.read_text().splitlines(True) if "tenant=acme" not in row))
    other = key(c.folder, "acme2", "acme")
    until(lambda: c.ask("GET", "/v1/batches", headers=other).status == 200, "the keys are loaded")
    batch = ended(c, batch, other)
    assert batch["status"] == "failed" and "key that made the batch is refused" in batch["errors"]["data"][0]["message"]
    assert rows_of(c, batch["output_file_id"], other)


class OddEngine(http.server.BaseHTTPRequestHandler):
    """An engine that fails twice for a prompt that names a status, and then answers it as any other."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply(200, {"data": [{"id": "sim"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "messages" not in body:
            return self.reply(404, {})
        text = body["messages"][0]["content"]
        self.server.seen.append(text)
        if text.isdigit() and self.server.seen.count(text) <= 2:
            return self.reply(int(text), {"error": {"message": text}})
        return self.reply(200, {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]})


def test_a_refusal_is_of_the_line_unless_it_is_of_the_key(cluster):
    """A hook refuses a line, and an engine fails two others twice: the batch goes on, and asks those after the rest."""
    c = cluster
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), OddEngine)
    server.seen = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with HookService() as hook:
        hook.decide = lambda document: (403, {"message": "bad words"}) if "BADWORD" in json.dumps(document) else (200, {"allow": True})
        acme = key(c.folder, "acme", "acme")
        c.router({"batch": {"enabled": True, "max_concurrent": 1}, "router.retry": {"attempts": 1}, "router.breaker": {"failures": 100},
                  "auth": {"enabled": True, "api_keys_file": str(c.folder / "keys")}, "hooks": {"before_url": hook.url("/before")}})
        agent = c.agent("odd", server.server_address[1], {"engine": {"kind": "openai_compat"}})[0]
        c.wait_ready()
        refused = c.ask("POST", "/v1/chat/completions", line(0, messages=[{"role": "user", "content": "BADWORD"}])["body"], acme)
        assert (refused.status, refused.headers["x-cgn-refused-by"]) == (403, "hook")
        assert c.ask("POST", "/v1/chat/completions", line(0)["body"]).headers["x-cgn-refused-by"] == "key"
        words = {3: "BADWORD", 5: "500", 6: "403"}
        rows = [line(i, messages=[{"role": "user", "content": words.get(i, f"number {i}")}]) for i in range(40)]
        done, failed = results(c, batch := ended(c, create(c, jsonl(rows), acme), acme), acme)
    assert batch["status"] == "completed" and batch["request_counts"] == {"total": 40, "completed": 39, "failed": 1}, batch
    assert [(r["custom_id"], r["response"]["status_code"]) for r in failed] == [("line-3", 403)]
    assert "bad words" in json.dumps(failed) and len({r["custom_id"] for r in done}) == 39
    assert server.seen.count("500") == server.seen.count("403") == 3
    again = server.seen.index("500", server.seen.index("500") + 1)
    assert server.seen.index("number 39") < again, server.seen
    agent.stop()
    server.shutdown()


class CutEngine(OddEngine):
    """An engine whose first answer to "number I" is cut behind its byte I."""
    BODY = json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "sim", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "whole"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 5, "completion_tokens": 1}}).encode()
    WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "messages" not in body:
            return self.reply(404, {})
        text = body["messages"][0]["content"]
        self.server.seen.append(text)
        at = int(text.split()[-1]) if self.server.seen.count(text) == 1 else len(self.WHOLE)
        self.close_connection = at < len(self.WHOLE)
        return self.wfile.write(self.WHOLE[:at])


@pytest.mark.parametrize("agents", [False, True])
def test_a_line_whose_answer_is_cut_at_any_byte_is_asked_again(cluster, agents):
    c, cuts = cluster, range(0, len(CutEngine.WHOLE), 9 if agents else 3)  # all of them would take minutes
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), CutEngine)
    server.seen = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    bare = {} if agents else {'engine_nodes."a"': {"url": f"http://127.0.0.1:{port}"}}
    c.router({"batch": {"enabled": True, "max_concurrent": 128}, "router.breaker": {"failures": 0, "failure_share": 0, "outliers": False}, **bare})
    if agents:
        c.agent("a", port, {"engine": {"kind": "openai_compat"}})
    c.wait_ready(1)
    done, failed = results(c, batch := ended(c, create(c, jsonl([line(i) for i in cuts]))))
    server.shutdown()
    assert batch["request_counts"] == {"total": len(cuts), "completed": len(cuts), "failed": 0} and not failed, (batch, failed[:3])
    assert {r["custom_id"] for r in done} == {f"line-{i}" for i in cuts}
    assert all(r["response"]["body"]["choices"][0]["message"]["content"] == "whole" for r in done)
    asked = {i: server.seen.count(f"number {i}") for i in cuts}
    assert set(asked.values()) == {2}, asked


@pytest.mark.parametrize("agents", [False, True])
def test_a_line_is_computed_as_often_as_the_batch_tries(cluster, agents):
    """Each try is one engine that began: what fails there is not also asked elsewhere at once. What did not begin is."""
    c, ways = cluster, {2: "http500", 4: "hangs_up", 6: "json", 8: "page"}
    with contextlib.ExitStack() as stack:
        engines = [Engine(name, ["m"]) for name in "abc"]
        for e in engines:
            stack.callback(e.close)
            e.fails = lambda path, asked: ways.get(int(asked["messages"][0]["content"].split()[-1]))
        down = Engine("down", ["m"], "http503")
        stack.callback(down.close)
        bare = {} if agents else sections([*engines, down])
        c.router({"batch": {"enabled": True, "max_concurrent": 1}, "router.retry": {"budget": 1.0},
                  "router.breaker": {"failures": 0, "failure_share": 0, "outliers": False}, 'models."m"': {"tokens": "bytes"}, **bare})
        for e in [*engines, down] if agents else ():
            c.agent(e.name, e.port, {"engine": {"kind": "openai_compat"}})
        c.wait_ready(4)
        batch = ended(c, create(c, jsonl([line(i, "m") for i in range(10)])))
        done, failed = results(c, batch)
        c.router_process.stop()
    assert batch["status"] == "completed" and batch["request_counts"] == {"total": 10, "completed": 6, "failed": 4}, (batch, failed)
    assert [r["custom_id"] for r in failed] == [f"line-{i}" for i in ways], failed
    computed = [asked["messages"][0]["content"] for e in engines for _, asked, _ in e.seen if "messages" in asked]
    assert {i: computed.count(f"number {i}") for i in range(10)} == {i: 8 if i in ways else 1 for i in range(10)}


def test_a_restart_forgets_no_try_of_a_line(cluster):
    c, lines = cluster, 3
    engine = Engine("a", ["m"], "http500")
    c.router({"batch": {"enabled": True, "max_concurrent": 1}, "router.breaker": {"failures": 0, "failure_share": 0, "outliers": False},
              **sections([engine])})
    c.wait_ready(1)
    batch = create(c, jsonl([line(i, "m") for i in range(lines)]))

    def tries_kept():
        return sum(f.read_bytes().count(b" t 0\n") for f in c.state_dir.rglob("*.journal"))
    until(lambda: tries_kept() >= 4 * lines, "the lines were tried four times")
    c.router_process.kill()
    c.router_process.start()
    until(lambda: c.listens(c.http_port, c.router_process), "the router listens")
    batch = ended(c, batch)
    done, failed = results(c, batch)
    engine.close()
    assert batch["status"] == "completed" and batch["request_counts"] == {"total": lines, "completed": 0, "failed": lines}, batch
    assert not done and [r["custom_id"] for r in failed] == [f"line-{i}" for i in range(lines)]
    computed = [asked["messages"][0]["content"] for _, asked, _ in engine.seen]
    # The line that the engine had at the kill, and one whose try was not on the disk yet, are asked once more.
    assert all(8 <= computed.count(f"number {i}") <= 9 for i in range(lines)), computed


def test_pictures_are_no_batch(cluster):
    start(cluster, auth=False)
    file = upload(cluster, jsonl([{**line(1), "url": "/v1/images/generations"}])).json()["id"]
    made = cluster.ask("POST", "/v1/batches", {"input_file_id": file, "endpoint": "/v1/images/generations", "completion_window": "1h"})
    assert made.status == 400, made.body


def test_without_the_setting_there_is_no_such_route(cluster):
    c = cluster
    c.router()
    for path in ("/v1/files", "/v1/batches", "/v1/files/file-1"):
        assert ask(c.http_port, "GET", path).status == 404
    assert not list(c.state_dir.glob("*.batch"))

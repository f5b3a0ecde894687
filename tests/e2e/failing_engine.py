# SPDX-License-Identifier: Apache-2.0
"""An engine that fails in the way that a test names, at once, and one that answers. Both serve every route that the test needs."""
import gzip
import http.server
import json
import threading
import time

from engine_nodes import url_of

DONE = b"data: [DONE]\n\n"
SSE, JSON = "text/event-stream", "application/json"


def event(value, name=None):
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(delta, finish=None):
    return event({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


ERROR = {"message": "queue is full", "type": "server_error", "code": 503}
ENCODED = f"{JSON}\r\nContent-Encoding: gzip"
# {way of failing: (status, type, pieces)}; None for the pieces: the connection is closed instead
FAILURES = {
    "in_band": (200, SSE, [event({"error": ERROR}), DONE]),
    "in_band_object": (200, SSE, [event({"object": "error", **ERROR}), DONE]),
    "behind_a_ping": (200, SSE, [b": keep-alive\n\n", event({"type": "ping"}, "ping"), event({"error": ERROR})]),
    "event_error": (200, SSE, [event({"type": "error", "error": ERROR}, "error")]),
    "response_failed": (200, SSE, [event({"response": {"status": "failed"}, "type": "response.failed"}, "response.failed")]),
    "json": (200, JSON, [json.dumps({"error": ERROR}).encode()]),
    "detail": (200, JSON, [b'{"detail":"out of memory"}']),
    "empty_stream": (200, SSE, [DONE]),
    "no_stream": (200, SSE, []),
    "no_body": (200, JSON, []),
    "page": (200, "text/html", [b"<html>please sign in</html>"]),
    "late_error": (200, JSON, [json.dumps({"id": "c", "object": "chat.completion", "created": 1, "choices": [], "error": ERROR}).encode()]),
    "empty_object": (200, JSON, [b"{}"]),
    "null": (200, JSON, [b"null"]),
    "empty_list": (200, JSON, [b"[]"]),
    "listed": (200, JSON, [json.dumps([{"error": ERROR}]).encode()]),
    "text": (200, JSON, [b'"out of memory"']),
    "status": (200, JSON, [b'{"status":500,"path":"/v1/chat/completions"}']),
    "success": (200, JSON, [b'{"success":false,"reason":"busy"}']),
    "code": (200, JSON, [b'{"code":503,"message":"no backend"}']),
    "message": (200, JSON, [b'{"message":"no backend"}']),
    "msg": (200, JSON, [b'{"msg":"no backend"}']),
    "no_choices": (200, JSON, [b'{"id":"c","object":"chat.completion","created":1,"model":"m"}']),
    "hollow": (200, JSON, [b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":5}}']),
    "hollow_choice": (200, JSON, [b'{"choices":[{}]}']),
    "null_choice": (200, JSON, [b'{"choices":[null]}']),
    "text_choices": (200, JSON, [b'{"choices":"error"}']),
    "hollow_event": (200, SSE, [event({"choices": []}), DONE]),
    "usage_alone": (200, SSE, [event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 0}}), DONE]),
    "failed_choice": (200, JSON, [json.dumps({"id": "c", "choices": [{"index": 0, "error": ERROR, "finish_reason": "error", "message": {"content": ""}}]}).encode()]),
    "failed_event": (200, SSE, [event({"choices": [{"index": 0, "delta": {"content": ""}, "error": ERROR, "finish_reason": "error"}]}), DONE]),
    "abort": (200, SSE, [chunk({}, "abort"), DONE]),
    "cut_inside": (200, JSON, [b'{"id":"c","choices":[{"index":0,"mess']),
    "not_gzip": (200, ENCODED, [json.dumps({"error": ERROR}).encode()]),
    "damaged_gzip": (200, ENCODED, [b"\x1f\x8bgarbage"]),
    "partial": (206, JSON, [json.dumps({"error": ERROR}).encode()]),
    "accepted": (202, JSON, [b'{"request_id":"1"}']),
    "encoded": (200, ENCODED, [gzip.compress(json.dumps({"error": ERROR}).encode())]),
    "encoded_empty": (200, ENCODED, [gzip.compress(b"{}")]),
    "text_event": (200, SSE, [b"data: Internal Server Error\n\n"]),
    "text_event_done": (200, SSE, [b"data: Internal Server Error\n\n", DONE]),
    "status_event": (200, SSE, [event({"status": 500, "message": "x"}), DONE]),
    "behind_comments": (200, SSE, [b": wait\n\n" * 3000, event({"error": ERROR})]),
    "behind_many_comments": (200, SSE, [b": wait\n\n" * 500] * 40 + [DONE]),
    "http500": (500, JSON, [json.dumps({"error": ERROR}).encode()]),
    "http429": (429, JSON, [json.dumps({"error": ERROR}).encode()]),
    "http503": (503, JSON, [json.dumps({"error": ERROR}).encode()]),
    "no_content": (204, JSON, []),
    "redirect": (302, "text/plain", [b"sign in"]),
    "overloaded": (529, JSON, [json.dumps({"error": ERROR}).encode()]),
    "hangs_up": (0, JSON, None),
    "http401": (401, JSON, [json.dumps({"error": {"message": "wrong key"}}).encode()]),
    "http403": (403, JSON, [json.dumps({"error": {"message": "not yours"}}).encode()]),
    "http402": (402, JSON, [json.dumps({"error": {"message": "no credit"}}).encode()]),
    "http405": (405, JSON, [json.dumps({"error": {"message": "no such route"}}).encode()]),
    "http400": (400, "text/html", [b"<html>400 The plain HTTP request was sent to HTTPS port</html>"]),
    "http425": (425, JSON, [b'{"error":{"message":"too early"}}']),
    "http444": (444, "text/html", [b"<html>no response</html>"]),
    "http495": (495, "text/html", [b"<html>bad certificate</html>"]),
    "http424": (424, JSON, [json.dumps({"error": {"message": "inference failed"}}).encode()]),
    "http451": (451, JSON, [json.dumps({"error": {"message": "not here"}}).encode()]),
    "http520": (520, JSON, [json.dumps({"error": {"message": "web server returned an unknown error"}}).encode()]),
    "http404": (404, JSON, [json.dumps({"error": {"message": "The model does not exist.", "code": "model_not_found"}}).encode()]),
}
ANSWER = [chunk({"role": "assistant", "content": ""}), chunk({"content": "hi"}), chunk({}, "stop"), DONE]
MESSAGE = [event({"type": "message_start", "message": {"id": "m", "content": []}}, "message_start"),
           event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}, "content_block_delta"),
           event({"type": "message_stop"}, "message_stop")]
RESPONSE = [event({"response": {"id": "r", "error": None}, "type": "response.created"}, "response.created"),
            event({"delta": "hi", "type": "response.output_text.delta"}, "response.output_text.delta"),
            event({"response": {"id": "r"}, "type": "response.completed"}, "response.completed")]
COMPLETION = {"id": "c", "object": "chat.completion", "created": 1, "model": "m",
              "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
              "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}}


def answer_of(path, streams):
    if not streams:
        return 200, JSON, [json.dumps(COMPLETION).encode()]
    return 200, SSE, {"/v1/messages": MESSAGE, "/v1/responses": RESPONSE}.get(path, ANSWER)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def tell(self, status, kind, pieces, cut=0):
        """|cut|: 0, or the length of the pieces in which the whole answer is written. A stream whose last piece is None is cut there."""
        engine = self.server.engine
        if pieces is None:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if kind == SSE and not engine.tells_length:
            self.send_header("Transfer-Encoding", "chunked")
            self.close_connection = pieces[-1:] == [None]
            pieces = [b"%x\r\n%s\r\n" % (len(p), p) for p in pieces if p is not None] + [b"0\r\n\r\n"] * (not self.close_connection)
        else:
            self.send_header("Content-Length", str(sum(map(len, pieces))))
        self.end_headers()
        if cut:
            whole = b"".join(pieces)
            pieces = [whole[i:i + cut] for i in range(0, len(whole), cut)]
        for i, p in enumerate(pieces):
            self.wfile.write(p)
            self.wfile.flush()
            if cut:
                time.sleep(0.0002)
            if engine.pause_after == i and self.command == "POST":
                engine.paused.set()
                engine.go_on.wait(60)

    def do_GET(self):
        engine = self.server.engine
        if self.path == "/v1/models":
            engine.lists += 1
            names = [{"id": m, "object": "model", "created": 1, "owned_by": "x"} for m in engine.models]
            return self.tell(200, JSON, [json.dumps({"object": "list", "data": names}).encode()])
        return self.tell(200 if self.path == "/health" else 404, JSON, [b"{}"])

    def do_POST(self):
        engine = self.server.engine
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = json.loads(body)
        engine.seen.append((self.path, asked, {k.lower(): v for k, v in self.headers.items()}))
        how = engine.fails(self.path, asked) if callable(engine.fails) else engine.fails
        told = FAILURES.get(how) if isinstance(how, str) else how
        try:
            self.tell(*(told or answer_of(self.path, asked.get("stream"))), cut=engine.cut)
        except OSError:
            self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """The router closes a connection whose answer it does not want."""


class Engine:
    """|fails|: a name of FAILURES, a triple as there, None to answer, or a function of path and body that returns one of them. |cut|: bytes of
    each write. |pause_after|: number of the piece after which an answer waits for |go_on|. |tells_length|: streams come with Content-Length."""

    def __init__(self, name, models, fails=None):
        self.name, self.models, self.fails = name, list(models), fails
        self.seen, self.lists, self.cut, self.pause_after = [], 0, 0, None
        self.tells_length = False
        self.paused, self.go_on = threading.Event(), threading.Event()
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.engine = self
        self.port = self.server.server_port
        self.settings = {"url": url_of(self.port), "ready_interval": "50ms"}
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.go_on.set()
        self.server.shutdown()
        self.server.server_close()

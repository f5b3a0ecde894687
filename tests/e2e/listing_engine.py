# SPDX-License-Identifier: Apache-2.0
"""An engine that lists any models, and loads them on demand as Ollama does, or sleeps as llama-server does. It answers each chat with one
word and records what it was asked."""
import http.server
import json
import threading
import time


class ListingEngine:
    def __init__(self, name, entries, *, holds=None, sleeps_after=None, owner="library"):
        """|entries|: {id: further members of the list's entry}. |holds|: models that are loaded at once, told at /api/ps; None: the engine
        tells nothing of loads. |sleeps_after|: seconds without a request until it sleeps; /slots is a request to it."""
        self.name, self.entries, self.holds, self.owner = name, entries, holds, owner
        self.none = []  # the list without entries
        self.blanks = 0  # so many of the next lists are empty
        self.loaded, self.loads, self.asked, self.lock = [], 0, [], threading.Lock()
        self.sleeps_after, self.used_at = sleeps_after, time.monotonic()
        engine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version, wbufsize = "HTTP/1.1", 65536

            def log_message(self, *_):
                pass

            def reply(self, value, status=200):
                body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                engine.asked.append(self.path)
                self.reply(*engine.got(self.path))

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                engine.asked.append(self.path)
                self.reply(*engine.answer(body))

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads, request_queue_size = True, 64

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.settings = {"url": f"http://127.0.0.1:{self.port}", "ready_interval": "50ms"}
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def is_asleep(self):
        return self.sleeps_after is not None and time.monotonic() - self.used_at > self.sleeps_after

    def got(self, path):
        if path == "/v1/models":
            if self.blanks > 0:
                self.blanks -= 1
                return {"object": "list", "data": []}, 200
            if not self.entries:
                return {"object": "list", "data": self.none}, 200
            return {"object": "list", "data": [{"id": k, "object": "model", "created": int(time.time()), "owned_by": self.owner} | v
                                               for k, v in self.entries.items()]}, 200
        if path == "/health":
            return {"status": "ok"}, 200
        if path == "/api/ps" and self.holds is not None:
            return {"models": [{"name": m, "model": m, "size": 1} for m in self.loaded]}, 200
        if path == "/props" and self.sleeps_after is not None:
            return {"total_slots": 1, "is_sleeping": self.is_asleep()}, 200
        if path == "/slots" and self.sleeps_after is not None:
            self.used_at = time.monotonic()
            return [{"id": 0, "n_ctx": 1024, "n_prompt_tokens": 8}], 200
        if path == "/metrics" and self.sleeps_after is not None:
            return "llamacpp:requests_processing 0\n", 200
        return {"error": {"message": "not found"}}, 404

    def answer(self, body):
        model = body.get("model")
        if model not in self.entries:
            return {"error": {"message": f"model {model!r} not found"}}, 404
        with self.lock:
            self.used_at = time.monotonic()
            if self.holds is not None and model not in self.loaded:
                self.loads += 1
                self.loaded = [*self.loaded, model][-self.holds:]
        return {"id": "x", "object": "chat.completion", "model": model, "choices": [{"index": 0, "finish_reason": "stop", "message": {
            "role": "assistant", "content": self.name}}], "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}}, 200

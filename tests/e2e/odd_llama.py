# SPDX-License-Identifier: Apache-2.0
"""A fake llama-server in Python that can be told to do everything about slots wrong. A token is a byte; an
answer identifies its prompt, so that the right answer is known whatever the slots do."""
import hashlib
import http.server
import json
import os
import pathlib
import socket
import struct
import threading
import time
import urllib.parse

ANSWER_TOKENS = 4


def answer_to(prompt):
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes

    def log_message(self, *_):
        pass

    def reply(self, body, status=200):
        if not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        body = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def reset(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def do_GET(self):
        e, path = self.server.engine, urllib.parse.urlsplit(self.path).path
        if path == "/health":
            self.reply({"status": "ok"})
        elif path == "/props":
            self.reply(e.props if e.props is not None else {"total_slots": len(e.slots), "build_info": "odd", "model_path": str(e.model),
                                                            "default_generation_settings": {"n_ctx": 8192}})
        elif path == "/lora-adapters":
            self.reply(e.adapters)
        elif path == "/v1/models":
            self.reply({"data": [{"id": "tiny"}]})
        elif path == "/metrics":
            self.reply("llamacpp:requests_processing 0\n")
        elif path == "/slots":
            self.reply(e.slots_body if e.slots_body is not None else e.slots_told())
        else:
            self.reply({"error": "not found"}, 404)

    def do_POST(self):
        e, url = self.server.engine, urllib.parse.urlsplit(self.path)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        action = urllib.parse.parse_qs(url.query).get("action", [""])[0]
        if url.path == "/v1/completions":
            self.reply(e.complete(body))
        elif url.path.startswith("/slots/") and action in ("save", "restore"):
            e.asked[action] += 1
            getattr(e, action)(self, int(url.path.split("/")[2]), e.folder / body["filename"])
        else:
            self.reply({"error": "not found"}, 404)


class OddLlama(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        pass


class Engine:
    """|how_save|, |how_restore|: names of the methods below that handle saves and restores."""

    def __init__(self, folder, slots=1):
        self.folder = pathlib.Path(folder) / "slots"
        self.folder.mkdir(exist_ok=True)
        self.model = pathlib.Path(folder) / "model.gguf"
        self.model.write_bytes(b"not much of a model")
        self.slots, self.task, self.lock = [""] * slots, 0, threading.Lock()
        self.props, self.adapters, self.slots_body, self.how_save, self.how_restore = None, [], None, "well", "well"
        self.save_timings = {"save_ms": 1.0}
        self.prompt_ms = 1.0  # milliseconds to compute a token, as it says
        self.asked, self.computed = {"save": 0, "restore": 0}, 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.server = OddLlama(("127.0.0.1", 0), Handler)
        self.server.engine, self.port = self, self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    # ---- what works ----
    def slots_told(self):
        return [{"id": i, "n_ctx": 8192, "is_processing": False, "id_task": self.task, "n_prompt_tokens": len(held)} for i, held in enumerate(self.slots)]

    def complete(self, body):
        self.may_answer.wait(30)
        with self.lock:
            self.task += 1
            prompt, slot = body["prompt"], body.get("id_slot", 0) % len(self.slots)
            held = self.slots[slot] if body.get("cache_prompt", True) else ""
            cached = min(len(os.path.commonprefix([held, prompt])), len(prompt) - 1)
            text = answer_to(prompt)
            self.slots[slot] = prompt + text[:ANSWER_TOKENS - 1]
            self.computed += len(prompt) - cached
        call = {"message": {"tool_calls": [{"function": {"name": body["tools"][0]["function"]["name"]}}]}} if "tools" in body else {}
        return {"choices": [{"index": 0, "text": text, "finish_reason": "length", **call}], "object": "text_completion", "model": "tiny",
                "usage": {"prompt_tokens": len(prompt), "completion_tokens": ANSWER_TOKENS, "total_tokens": len(prompt) + ANSWER_TOKENS,
                          "prompt_tokens_details": {"cached_tokens": cached}},
                "timings": {"cache_n": cached, "prompt_n": len(prompt) - cached, "prompt_ms": (len(prompt) - cached) * self.prompt_ms,
                            "predicted_n": ANSWER_TOKENS, "predicted_ms": 1.0}}

    def save(self, h, slot, path):
        getattr(self, "save_" + self.how_save)(h, self.slots[slot].encode(), path)

    def restore(self, h, slot, path):
        getattr(self, "restore_" + self.how_restore)(h, slot, path)

    @staticmethod
    def saved(state, **other):
        return {"n_saved": len(state), "n_written": len(state), "timings": {"save_ms": 1.0}} | other

    def save_well(self, h, state, path):
        path.write_bytes(state)
        h.reply(self.saved(state))

    def restore_well(self, h, slot, path):
        state = path.read_bytes()
        self.slots[slot] = state.decode()
        h.reply({"n_restored": len(state), "n_read": len(state)})

    def save_waits(self, h, state, path):
        """Save after 100 ms, as an engine does whose other slots compute, and say how long the save itself took."""
        checkpoints = b"c" * (1 << 19)
        time.sleep(0.1)
        path.write_bytes(state)
        path.with_name(path.name + ".ckpt").write_bytes(checkpoints)
        h.reply(self.saved(state, n_written=len(state) + len(checkpoints), timings=self.save_timings))

    def save_before(self, h, state, path):
        """Let the test do something between the order and the save."""
        self.before_save()
        self.save_well(h, state, path)

    # ---- faults ----
    def save_refused(self, h, state, path):
        h.reply({"error": {"message": "no"}}, 500)

    def save_written_and_refused(self, h, state, path):
        path.write_bytes(state)
        h.reply({"error": {"message": "no"}}, 500)

    def save_garbage(self, h, state, path):
        path.write_bytes(state)
        h.reply(b"\x00{\"n_saved\": ")

    def save_endless(self, h, state, path):
        h.reply(b"[" * (1 << 20))

    def save_miscounted(self, h, state, path):
        path.write_bytes(state)
        h.reply(self.saved(state, n_saved=len(state) * 3))

    def save_negative(self, h, state, path):
        path.write_bytes(state)
        h.reply(self.saved(state, n_saved=-5, n_written=1e300))

    def save_longer(self, h, state, path):
        path.write_bytes(state + b"more")
        h.reply(self.saved(state))

    def save_shorter(self, h, state, path):
        path.write_bytes(state[:10])
        h.reply(self.saved(state))

    def save_empty(self, h, state, path):
        path.write_bytes(b"")
        h.reply(self.saved(state))

    def save_nothing(self, h, state, path):
        h.reply(self.saved(state))

    def save_link(self, h, state, path):
        secret = self.folder.parent / "secret"
        secret.write_bytes(state)
        path.symlink_to(secret)
        h.reply(self.saved(state))

    def save_pipe(self, h, state, path):
        os.mkfifo(path)
        h.reply(self.saved(state))

    def save_folder(self, h, state, path):
        path.mkdir()
        h.reply(self.saved(state))
        time.sleep(1)
        path.rmdir()

    def save_huge(self, h, state, path):
        with open(path, "wb") as f:
            f.truncate(1 << 42)
        h.reply(self.saved(state, n_written=1 << 42))

    def save_late(self, h, state, path):
        """Close the connection, and write the file all the same, seconds later."""
        h.reset()
        time.sleep(1)
        path.write_bytes(state)
        path.with_name(path.name + ".ckpt").write_bytes(state)

    def save_silent(self, h, state, path):
        time.sleep(3)
        h.reset()

    def restore_refused(self, h, slot, path):
        self.slots[slot] = ""
        h.reply({"error": {"message": "can't restore"}}, 400)

    def restore_none(self, h, slot, path):
        self.slots[slot] = ""
        h.reply({"n_restored": 0, "n_read": 0})

    def restore_miscounted(self, h, slot, path):
        self.slots[slot] = ""
        h.reply({"n_restored": 7, "n_read": 7})

    def restore_garbage(self, h, slot, path):
        self.slots[slot] = ""
        h.reply(b"]]]]")

    def restore_reset(self, h, slot, path):
        self.slots[slot] = ""
        h.reset()

    def restore_silent(self, h, slot, path):
        time.sleep(3)
        h.reset()

    def restore_lying(self, h, slot, path):
        """Answer as if the restore succeeded, but hold nothing."""
        self.slots[slot] = ""
        h.reply({"n_restored": path.stat().st_size, "n_read": path.stat().st_size})

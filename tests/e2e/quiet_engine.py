# SPDX-License-Identifier: Apache-2.0
"""An engine that is silent on purpose: its answers pause until the test lets them go on, while its checks are answered."""
import http.server
import json
import socket
import threading


def event(**choice):
    return b"data: " + json.dumps({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "sim",
                                   "choices": [{"index": 0, "delta": {}, "finish_reason": None, **choice}]}).encode() + b"\n\n"


STREAM = [event(delta={"role": "assistant"}), event(delta={"content": "a"}), event(delta={"content": "b"}), event(finish_reason="stop"),
          b"data: [DONE]\n\n"]
WHOLE = json.dumps({"id": "c", "object": "chat.completion", "model": "sim", "choices": [
    {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}).encode()
REFUSAL = json.dumps({"error": {"message": "no \"such\" thing", "type": "invalid_request_error", "code": "odd", "param": None}}).encode()


class QuietEngine:
    """The last message decides. Each waits until go is set:
    pause   streams two pieces, waits, and ends; "pause crlf" with CRLF; "pause coded" says that its bytes are compressed
    half    streams a piece and the half of another, and waits
    wait    waits before its head; then "wait 400" is refused, "wait plain" is no stream, "wait cut" is no answer, as is all with cuts
    Anything else is answered at once. deaf: checks and new requests get no answer. tokens: the counter of its /metrics; jumps: another
    one there, of the readings, goes up and down."""

    def __init__(self, name="quiet"):
        self.name, self.tokens, self.asked, self.cuts = name, 0, [], False
        self.jumps, self.readings = False, 0
        self.go, self.deaf, self.over = threading.Event(), threading.Event(), threading.Event()
        engine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def reply(self, body, kind="application/json", status=200):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def hear(self):
                if engine.deaf.is_set():
                    engine.over.wait()

            def do_GET(self):
                self.hear()
                if self.path == "/metrics":
                    engine.readings += engine.jumps
                    return self.reply(f"vllm:num_requests_waiting 1\nvllm:generation_tokens_total {engine.tokens}\n"
                                      f"vllm:prompt_tokens_total {100 * (engine.readings % 2)}\n".encode(), "text/plain")
                self.reply(json.dumps({"object": "list", "data": [{"id": "sim", "object": "model", "owned_by": "vllm"}]}).encode())

            def do_POST(self):
                self.hear()
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                text = (body.get("messages") or [{"content": body.get("input")}])[-1]["content"]
                how, _, then = text.partition(" ")
                engine.asked.append(text)
                if how == "wait":
                    engine.go.wait()
                if then == "400":
                    return self.reply(REFUSAL, status=400)
                if then == "cut" or engine.cuts:
                    self.close_connection = True
                    return self.connection.shutdown(socket.SHUT_RDWR)
                if not body.get("stream") or then == "plain":
                    return self.reply(WHOLE)
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                if then == "coded":
                    self.send_header("Content-Encoding", "br")  # a coding that the router does not look into
                self.send_header("Connection", "close")
                self.end_headers()
                first, second = STREAM[:2], STREAM[2:]
                if then == "crlf":
                    first, second = ([e.replace(b"\n", b"\r\n") for e in part] for part in (first, second))
                self.wfile.write(b"".join(first))
                if how == "half":
                    self.wfile.write(second[0][:40])
                if how in ("pause", "half"):
                    engine.go.wait()
                self.wfile.write(b"".join(second)[40 if how == "half" else 0:])
                self.close_connection = True

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.settings = {"url": f"http://127.0.0.1:{self.port}", "ready_interval": "50ms"}
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.go.set()
        self.over.set()
        self.server.shutdown()
        self.server.server_close()

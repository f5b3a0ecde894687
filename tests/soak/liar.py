# SPDX-License-Identifier: Apache-2.0
"""An engine that lies, at HOST PORT: usage of 10^12, an error inside a 200, streams without content, and sometimes the truth."""
import http.server
import itertools
import json
import sys

USAGE = {"prompt_tokens": 10**12, "completion_tokens": 10**12, "total_tokens": 2 * 10**12}
TURN = itertools.count()


def event(doc):
    return b"data: " + json.dumps(doc).encode() + b"\n\n"


def chunk(delta, finish=None, **more):
    return event({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "liar", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})


def stream_of(turn):
    return [chunk({"content": "hi"}) + chunk({}, "stop", usage=USAGE) + b"data: [DONE]\n\n",
            event({"error": {"message": "out of memory", "type": "server_error", "code": 500}}) + b"data: [DONE]\n\n",
            b"data: [DONE]\n\n", b"", b": wait\n\n" * 50 + b"data: [DONE]\n\n", chunk({"content": "hi"})][turn % 6]


def answer_of(turn):
    said = {"id": "c", "object": "chat.completion", "created": 1, "model": "liar",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}
    return [json.dumps({**said, "usage": USAGE}).encode(), json.dumps({"error": {"message": "out of memory"}}).encode(), b"{}",
            json.dumps({**said, "usage": {"prompt_tokens": -1, "completion_tokens": 1e300}}).encode()][turn % 4]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def tell(self, body, kind="application/json", status=200):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/v1/models":
            return self.tell(json.dumps({"object": "list", "data": [{"id": "liar", "object": "model"}]}).encode())
        return self.tell(b"{}", status=200 if self.path == "/health" else 404)

    def do_POST(self):
        asked = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/v1/chat/completions":
            return self.tell(b"{}", status=404)
        if b'"stream":true' in asked.replace(b" ", b""):
            return self.tell(stream_of(next(TURN)), "text/event-stream")
        return self.tell(answer_of(next(TURN)))


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass


if __name__ == "__main__":
    Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()

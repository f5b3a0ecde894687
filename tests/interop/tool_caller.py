# SPDX-License-Identifier: Apache-2.0
"""A server before a real llama-server that passes everything on and adds a tool call to each answer of a chat, as a model
would that was trained to use tools. The small model of the tests has random weights and calls none."""
import http.client
import http.server
import json
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes

    def log_message(self, *_):
        pass

    def relay(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        c = http.client.HTTPConnection("127.0.0.1", self.server.engine_port, timeout=120)
        try:
            c.request(self.command, self.path, body or None, {"Content-Type": "application/json"} if body else {})
            r = c.getresponse()
            status, kind, text = r.status, r.getheader("Content-Type"), r.read()
        except OSError:
            status, kind, text = 503, "application/json", b"{}"
        finally:
            c.close()
        if self.path == "/v1/chat/completions" and status == 200:
            answer = json.loads(text)
            answer["choices"][0]["message"]["tool_calls"] = [
                {"id": "call", "type": "function", "function": {"name": json.loads(body)["tools"][0]["function"]["name"], "arguments": "{}"}}]
            text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind or "text/plain")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = relay


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def start(port, engine_port):
    """Listen on |port| before the engine at |engine_port|; returns the server, which shutdown() ends."""
    server = Server(("127.0.0.1", port), Handler)
    server.engine_port = engine_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server

# SPDX-License-Identifier: Apache-2.0
"""An engine that answers one request of a connection, keeps it, and closes it without a word when the next one comes."""
import http.server
import json
import threading

from engine_nodes import url_of
from failing_engine import COMPLETION


class Forgetful(http.server.ThreadingHTTPServer):
    name = "forgetful"

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Connection)
        self.settings = {"url": url_of(self.server_port), "kind": "openai_compat"}
        self.closed, self.heads = 0, []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Connection(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answered = False

    def log_message(self, *_):
        pass

    def reply(self, value):
        raw = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.send_header("X-Account", "the-operators")
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self):
        self.reply({"object": "list", "data": [{"id": "m", "object": "model"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.answered:
            self.server.closed += 1
            self.close_connection = True
            return
        self.answered = True
        self.server.heads.append(str(self.headers))
        self.reply(COMPLETION)

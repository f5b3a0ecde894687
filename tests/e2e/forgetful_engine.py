# SPDX-License-Identifier: Apache-2.0
"""An engine that answers one request of a connection, keeps it, and closes it without a word when the next one comes."""
import http.server
import threading

from engine_nodes import JsonHandler, url_of
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


class Connection(JsonHandler):
    answered = False

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
        self.reply(COMPLETION, [("X-Account", "the-operators")])

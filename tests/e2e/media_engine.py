# SPDX-License-Identifier: Apache-2.0
"""An engine with audio, images and moderations, as servers for speech and pictures have: it answers with what it
got, so that a test sees each byte of the request, and with binary bodies."""
import hashlib
import http.server
import json
import threading

SOUND = bytes(range(256)) * 400 + b"\r\n\r\n\0"


class Engine(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model = "sim"
    lacks = ()
    seen = []

    def log_message(self, *args):
        pass

    def reply(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def json(self, value, status=200):
        self.reply(status, "application/json", json.dumps(value).encode())

    def do_GET(self):
        if self.path == "/v1/models":
            self.json({"object": "list", "data": [{"id": self.model, "object": "model"}]})
        else:
            self.json({"error": {"message": "not found"}}, 404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.path, self.headers.get_all("Content-Type")))
        if self.path in self.lacks:
            self.json({"detail": "Not Found"}, 404)  # FastAPI's words
        elif self.path == "/v1/audio/speech":
            self.reply(200, "audio/mpeg", SOUND)
        elif self.path == "/v1/audio/transcriptions" and b'"stream"\r\n\r\ntrue' in body:
            self.reply(200, "text/event-stream", b'data: {"type":"transcript.text.delta","delta":"hi"}\n\n' * 3)
        elif self.path.startswith(("/v1/audio/", "/v1/images/", "/v1/moderations")):
            self.json({"path": self.path, "type": self.headers["Content-Type"], "bytes": len(body), "sha": hashlib.sha256(body).hexdigest(),
                       "model": self.model, "text": body.decode("latin-1") if len(body) < 2000 else ""})
        else:
            self.json({"error": {"message": "no such route"}}, 404)


def serve(model="sim", lacks=(), seen=None):
    """Serve on a thread; return (server, port). |seen| gets the path and the types of each POST."""
    handler = type("Engine", (Engine,), {"model": model, "lacks": lacks, "seen": [] if seen is None else seen})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, server.server_port

# SPDX-License-Identifier: Apache-2.0
"""An external check as an operator writes one, on Python's own HTTP server, and the ways in which one goes wrong.

    with HookService() as hook:
        hook.decide = lambda document: (403, {"message": "no"})
        ... [hooks] before_url = hook.url("/before")
        assert hook.seen[0]["principal"]["tenant"] == "acme"
"""
import http.server
import json
import socket
import ssl
import threading


def allow(document):
    return 200, {"allow": True}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.questions = 0
        self.server.service.connections += 1

    def log_message(self, *_):
        pass

    def do_POST(self):
        service = self.server.service
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        self.questions += 1
        if service.cuts_kept and self.questions > 1:  # as a server that closes an idle connection at that moment
            service.cut_kept += 1
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        document = json.loads(raw)
        service.raw.append((self.path, str(self.headers), raw))
        service.seen.append(document)
        decided = service.decide(document)
        if decided is None:  # cut the connection without an answer
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        status, body = decided
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            service.left += 1  # the router did not wait for it


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        self.service.left += 1


class HookService:
    def __init__(self, port=0, tls=None):
        self.decide, self.seen, self.raw, self.connections, self.left = allow, [], [], 0, 0
        self.cuts_kept, self.cut_kept = False, 0
        self.server = Server(("127.0.0.1", port), Handler)
        self.server.service = self
        self.scheme = "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.scheme = "https"
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def url(self, path="/check"):
        return f"{self.scheme}://127.0.0.1:{self.port}{path}"

    def of(self, hook):
        """Return the documents of the questions of that hook."""
        return [d for d in self.seen if d["hook"] == hook]

# SPDX-License-Identifier: Apache-2.0
"""Engines that are nodes of a router without an agent, and a server that answers as an engine what a test says."""
import http.client
import http.server
import json
import socket
import ssl
import threading

from cluster import Cluster, free_port


def url_of(port):
    return f"http://127.0.0.1:{port}"


class JsonHandler(http.server.BaseHTTPRequestHandler):
    """The part that engines of tests share: HTTP/1.1 with documents as answers."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, value, fields=()):
        raw = json.dumps(value).encode()
        self.send_response(200)
        for name, text in (("Content-Type", "application/json"), ("Content-Length", str(len(raw))), *fields):
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(raw)


class Bare:
    """A cgn-sim without an agent."""

    def __init__(self, cluster, name, *args, events=False, port=None):
        self.cluster, self.name, self.args = cluster, name, args
        self.settings = {"ready_interval": "50ms"}
        if events:
            at, replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
            self.args += ("--kv-events", at, "--kv-events-replay", replay)
            self.settings |= {"kv_events": at, "kv_events_replay": replay}
        self.process, self.port = cluster.engine(f"engine-{name}", *self.args, port=port)
        self.settings["url"] = url_of(self.port)

    def again(self):
        """Start the engine again at its address."""
        self.process = self.cluster.engine(f"engine-{self.name}", *self.args, port=self.port)[0]


def sections(engines, **more):
    """The router's settings for |engines|, objects with name and settings."""
    return {f'engine_nodes."{e.name}"': e.settings for e in engines} | more


def bare_cluster(cluster: Cluster, names, *args, events=False, **more):
    """Start the engines and a router that has them as nodes. Return {name: Bare}."""
    engines = {name: Bare(cluster, name, *args, events=events) for name in names}
    cluster.router(sections(engines.values(), **more))
    cluster.wait_ready(len(engines))
    return engines


class Odd:
    """A server in the place of an engine. |answers|: {path: bytes of a whole HTTP answer, or a function of the head that
    returns them}; without an entry it is 404. |head|s that came are in |heads|."""

    def __init__(self, answers, name="odd"):
        self.name, self.answers, self.heads = name, answers, []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.settings = {"url": url_of(self.port), "ready_interval": "50ms"}
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.talk, args=(client,), daemon=True).start()

    def talk(self, client):
        with client:
            head = b""
            try:
                while b"\r\n\r\n" not in head:
                    more = client.recv(65536)
                    if not more:
                        return
                    head += more
                path = head.split(b" ")[1].decode()
                self.heads.append(head.decode("latin-1"))
                answer = self.answers.get(path, reply(b"{}", status=404))
                client.sendall(answer(head) if callable(answer) else answer)
            except (OSError, IndexError):
                pass

    def close(self):
        self.server.close()


def reply(body, status=200, kind="application/json"):
    return (f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n").encode() + body


class TlsFront:
    """TLS in front of an engine at |port|, which takes only requests with |key|."""

    def __init__(self, port, pki, key):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def relay(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Authorization") != f"Bearer {key}":
                    return self.tell(401, [], b"{}")
                connection = http.client.HTTPConnection("127.0.0.1", port)
                connection.request(self.command, self.path, body, {k: v for k, v in self.headers.items() if k.lower() in ("content-type", "x-request-id")})
                r = connection.getresponse()
                self.tell(r.status, [(k, v) for k, v in r.getheaders() if k.lower() == "content-type"], r.read())
                connection.close()

            def tell(self, status, fields, body):
                self.send_response(status)
                for k, v in [*fields, ("Content-Length", str(len(body)))]:
                    self.send_header(k, v)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = relay

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki / "agent.pem", pki / "agent.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

# SPDX-License-Identifier: Apache-2.0
"""A BMC with Redfish that behaves, or does not: with TLS, sessions and basic authentication."""
import base64
import http.server
import json
import ssl
import subprocess
import threading
import time


def link(path):
    return {"@odata.id": path}


def machine(watts=344):
    """One chassis with an old Power and two supplies."""
    return {"/redfish/v1/": {"Chassis": link("/redfish/v1/Chassis"), "Links": {"Sessions": link("/redfish/v1/SessionService/Sessions")}},
            "/redfish/v1/Chassis": {"Members": [link("/redfish/v1/Chassis/1U")]},
            "/redfish/v1/Chassis/1U": {"Power": link("/redfish/v1/Chassis/1U/Power"), "Thermal": link("/redfish/v1/Chassis/1U/Thermal")},
            "/redfish/v1/Chassis/1U/Power": {
                "PowerControl": [{"PowerConsumedWatts": watts}],
                "PowerSupplies": [{"MemberId": "0", "PowerInputWatts": 180}, {"MemberId": "1", "PowerInputWatts": None, "Status": {"State": "Absent"}}],
                "Redundancy": [{"Mode": "N+m", "Status": {"State": "Enabled", "Health": "OK"}}]},
            "/redfish/v1/Chassis/1U/Thermal": {"Temperatures": [{"Name": "Inlet", "PhysicalContext": "Intake", "ReadingCelsius": 21.5}]}}


def certificate(folder, days=30):
    """Make a self-signed certificate for no name; returns (certificate, key, fingerprint). With days=-1 it ended yesterday."""
    crt, key, request = folder / f"bmc{days}.crt", folder / f"bmc{days}.key", folder / "bmc.csr"

    def openssl(*args):
        return subprocess.run(["openssl", *args], check=True, capture_output=True, text=True).stdout
    openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN=bmc{days}", "-keyout", key, "-out", request)
    openssl("x509", "-req", "-in", request, "-signkey", key, "-days", str(days), "-out", crt)
    return crt, key, openssl("x509", "-in", crt, "-noout", "-fingerprint", "-sha256").strip().partition("=")[2]


class Bmc:
    """|mood|: a function of the handler that answers in place of the BMC, for GETs. |user| None: no credentials are wanted."""

    def __init__(self, pages=None, mood=None, user=None, password="right", tls=None):
        self.pages, self.mood, self.user, self.password = pages or machine(), mood, user, password
        self.tokens, self.logins, self.refused, self.logouts, self.gets, self.ended = set(), 0, 0, 0, 0, threading.Event()
        bmc = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def reply(self, status, body=b"{}", **headers):
                body = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def allowed(self):
                basic = "Basic " + base64.b64encode(f"{bmc.user}:{bmc.password}".encode()).decode()
                return bmc.user is None or self.headers.get("X-Auth-Token") in bmc.tokens or self.headers.get("Authorization") == basic

            def do_GET(self):
                bmc.gets += 1
                if bmc.mood is not None and bmc.mood(self):
                    return
                if self.path != "/redfish/v1/" and not self.allowed():
                    self.reply(401)
                elif self.path in bmc.pages:
                    self.reply(200, bmc.pages[self.path])
                else:
                    self.reply(404)

            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if asked != {"UserName": bmc.user, "Password": bmc.password}:
                    bmc.refused += 1
                    self.reply(401)
                    return
                bmc.logins += 1
                token = f"token{bmc.logins}"
                bmc.tokens.add(token)
                self.reply(201, X_Auth_Token=token, Location=f"/redfish/v1/SessionService/Sessions/{token}")

            def do_DELETE(self):
                bmc.logouts += 1
                bmc.tokens.discard(self.path.rpartition("/")[2])
                self.reply(204, b"")

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):  # the client left
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls[:2])
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()


# ---- moods ----

def hang(handler):
    """Take the request and say nothing."""
    handler.server_version = ""
    threading.Event().wait(30)
    return True


def drip(handler):
    """Send a byte of a long document from time to time."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    try:
        for _ in range(1000):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.05)
    except OSError:
        pass
    handler.close_connection = True
    return True


def garbage(handler):
    handler.wfile.write(bytes(range(256)) * 64)
    handler.close_connection = True
    return True


def html(handler):
    handler.reply(200, b"<html><title>Sign in</title></html>")
    return True


def redirect(handler):
    handler.reply(302, b"", Location="https://elsewhere.example/redfish/v1/")
    return True


def endless(handler):
    """A line again and again, some 100 MB."""
    handler.send_response(200)
    handler.send_header("Connection", "close")
    handler.end_headers()
    try:
        for _ in range(10000):
            handler.wfile.write(b'DCGM_FI_DEV_POWER_USAGE{gpu="0"} 100\n' * 270)
    except OSError:
        pass
    handler.close_connection = True
    return True


def million(handler):
    """A collection of a million members, some 50 MB."""
    if handler.path != "/redfish/v1/Chassis":
        return False
    handler.send_response(200)
    handler.send_header("Connection", "close")
    handler.end_headers()
    try:
        handler.wfile.write(b'{"Members":[')
        for i in range(1000):
            handler.wfile.write(b",".join(b'{"@odata.id":"/redfish/v1/Chassis/%07d"}' % (i * 1000 + k) for k in range(1000)) + b",")
        handler.wfile.write(b"null]}")
    except OSError:
        pass
    handler.close_connection = True
    return True

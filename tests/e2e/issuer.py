# SPDX-License-Identifier: Apache-2.0
"""An identity provider that does what a test says: right, wrong, slow, away. Its tokens are signed by openssl."""
import base64
import hashlib
import http.server
import json
import re
import socket
import ssl
import subprocess
import threading
import time


def b64(data):
    return base64.urlsafe_b64encode(data if isinstance(data, bytes) else data.encode()).rstrip(b"=").decode()


def openssl(*args, text=None):
    return subprocess.run(["openssl", *map(str, args)], input=text, check=True, capture_output=True).stdout


class Key:
    """A key pair of RS256, ES256 or EdDSA."""
    how = {"RS256": ("-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"), "ES256": ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"), "EdDSA": ("-algorithm", "ED25519")}

    def __init__(self, folder, alg, kid):
        self.alg, self.kid, self.file, self.text = alg, kid, folder / f"{kid}.pem", folder / f"{kid}.text"
        openssl("genpkey", *self.how[alg], "-out", self.file)

    def public(self):
        der = openssl("pkey", "-in", self.file, "-pubout", "-outform", "DER")
        if self.alg == "RS256":
            modulus = re.search(rb"Modulus=([0-9A-F]+)", openssl("rsa", "-in", self.file, "-noout", "-modulus"))[1]
            how = {"kty": "RSA", "n": b64(bytes.fromhex(modulus.decode())), "e": "AQAB"}
        elif self.alg == "ES256":
            how = {"kty": "EC", "crv": "P-256", "x": b64(der[-64:-32]), "y": b64(der[-32:])}
        else:
            how = {"kty": "OKP", "crv": "Ed25519", "x": b64(der[-32:])}
        return {"kid": self.kid, "use": "sig", "alg": self.alg, **how}

    def sign(self, text):
        if self.alg == "EdDSA":
            self.text.write_text(text)
            return openssl("pkeyutl", "-sign", "-inkey", self.file, "-rawin", "-in", self.text)
        raw = openssl("dgst", "-sha256", "-sign", self.file, text=text.encode())
        return raw if self.alg == "RS256" else self.pair(raw)

    @staticmethod
    def pair(der):
        """R and S, 32 bytes each, from a SEQUENCE of two INTEGERs."""
        first = der[4:4 + der[3]]
        second = der[4 + der[3] + 2:]
        return b"".join(part.lstrip(b"\0").rjust(32, b"\0") for part in (first, second))


class Issuer:
    """A real HTTP server on this machine, with TLS if |pki| is the folder of its certificate. |mode|: "right", "away" (500), "slow", "cut", "garbage", "huge", "moved", "other" (issuer), "none" (no keys)."""

    def __init__(self, folder, audience="cognitora", listener=None, pki=None):
        self.folder, self.audience, self.keys, self.mode, self.asked, self.tokens = folder, audience, [], "right", [], {}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                outer.serve(self)

            def do_POST(self):
                outer.serve(self)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self.server.socket.close()
        self.server.socket = listener or socket.create_server(("127.0.0.1", 0))
        if pki:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pki / "issuer.pem", pki / "issuer.key")
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # a client that resets its connection
        self.url = f"http{'s' if pki else ''}://127.0.0.1:{self.server.socket.getsockname()[1]}/realms/house"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def key(self, alg="RS256", kid=None):
        """Make a key that the issuer tells of from now on."""
        made = Key(self.folder, alg, kid or f"{alg}-{len(self.keys)}")
        self.keys.append(made)
        return made

    def serve(self, h):
        self.asked.append(h.path.split("?")[0].removeprefix("/realms/house"))
        body = h.rfile.read(int(h.headers.get("content-length") or 0)).decode()
        if self.mode == "slow":
            time.sleep(60)
        if self.mode == "cut":
            h.close_connection = True
            h.connection.close()
            return
        status, answer = self.answer(h, body)
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        h.send_response(status)
        if status == 302:
            h.send_header("location", self.url)
        h.send_header("content-length", str(len(data)))
        h.end_headers()
        h.wfile.write(data)

    def answer(self, h, body):
        path = h.path.removeprefix("/realms/house")
        if self.mode in ("away", "moved"):
            return (500, {}) if self.mode == "away" else (302, {})
        if self.mode in ("garbage", "huge"):
            return 200, b"\0<html>" if self.mode == "garbage" else b"[" + b" " * 2_000_000 + b"]"
        if path == "/.well-known/openid-configuration":
            issuer = self.url + "/" if self.mode == "other" else self.url
            return 200, {"issuer": issuer, "jwks_uri": f"{self.url}/keys?v=1", "authorization_endpoint": f"{self.url}/authorize", "token_endpoint": f"{self.url}/token"}
        if path == "/keys?v=1":
            return 200, {"keys": [] if self.mode == "none" else [k.public() for k in self.keys]}
        if path == "/token":
            return self.tokens.get("answer", (404, {}))(h, body)
        return 404, {}

    def claims(self, **more):
        now = int(time.time())
        return {"iss": self.url, "aud": self.audience, "sub": "ann", "iat": now, "exp": now + 300, **more}

    def token(self, key, claims=None, head=None, sign=None):
        """A token of |key|; |claims| None: the usual ones; members that are None are left out."""
        head = {"alg": key.alg, "typ": "JWT", "kid": key.kid, **(head or {})}
        claims = self.claims() if claims is None else claims
        text = ".".join(b64(part if isinstance(part, str) else json.dumps({k: v for k, v in part.items() if v is not None})) for part in (head, claims))
        return text + "." + b64((sign or key.sign)(text))


def challenge_of(verifier):
    return b64(hashlib.sha256(verifier.encode()).digest())

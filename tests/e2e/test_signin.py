# SPDX-License-Identifier: Apache-2.0
"""People sign in to an admin port that other machines reach, at an identity provider: by an authorization code with PKCE; and what an attacker can do on the way."""
import ctypes
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.parse

import pytest

from cluster import WAIT_S, audited, toml, until
from issuer import Issuer, challenge_of
from kvpeers import security
from test_admin_port import HOST, PAGE, Within, bearer, cert, curl, ip, network, pki  # noqa: F401

DONE = f"https://{HOST}:9091/login/done"
HTML = ("-H", "Accept: text/html,*/*")
CLONE_NEWNET = 0x40000000


def listener_in(namespace):
    """A socket in the network namespace: it stays in the one in which it was made."""
    made = []

    def make():
        with open(f"/run/netns/{namespace}") as f:
            assert ctypes.CDLL(None).setns(f.fileno(), CLONE_NEWNET) == 0
        made.append(socket.create_server(("127.0.0.1", 0)))
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


@pytest.fixture(scope="module")
def issuer(network, tmp_path_factory):  # noqa: F811
    made = Issuer(tmp_path_factory.mktemp("issuer"), listener=listener_in(network))
    made.key("ES256")
    yield made
    made.close()


@pytest.fixture(scope="module")
def port(network, pki, issuer, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("router")
    (folder / "secret").write_text("p/ss w%rd\n")
    config = {"router": {"listen": "127.0.0.1:8080", "listen_grpc": "127.0.0.1:9090", "listen_admin": f"{HOST}:9091", "worker_threads": 1},
              "cluster": {"state_dir": str(folder)}, "log": {"format": "json"},
              "auth": {"oidc_issuer": issuer.url, "oidc_audience": "cognitora", "oidc_client_id": "the page", "oidc_client_secret_file": str(folder / "secret"), "oidc_redirect_url": DONE,
                       "role_claim": "roles", "oidc_default_role": ""},
              "security": {**security(pki, "router"), "admin_keys_file": str(pki / "keys"), "audit_file": str(folder / "audit.jsonl")}}
    (folder / "router.toml").write_text(toml(config))
    p = Within(network, folder, "router", "cgn-router", "--config", folder / "router.toml")
    p.audit, p.pki, p.network = folder / "audit.jsonl", pki, network
    until(lambda: p.events("oidc.keys") or not p.alive(), p.log)
    yield p
    p.stop()
    assert not p.trouble(), p.trouble()


def header(head, name):
    return re.findall(rf"^{name}: (.*?)\r?$", head, re.M | re.I)


class Browser:
    """A browser at an address of its own, because failed attempts of an address are counted."""
    addresses = itertools.count(1)

    def __init__(self, port):
        self.port, self.jar, self.address = port, {}, f"10.99.1.{next(self.addresses)}"
        assert ip("-n", port.network, "addr", "add", f"{self.address}/32", "dev", "lo")

    def get(self, path, *args):
        jar = "; ".join(f"{k}={v}" for k, v in self.jar.items())
        status, head, body = curl_cased(self.port, self.address, path, *(("-H", f"Cookie: {jar}") if jar else ()), *args)
        for line in header(head, "set-cookie"):
            name, value = line.split(";")[0].split("=", 1)
            self.jar[name] = value
            self.last_cookie = line
            if "Max-Age=0" in line:
                del self.jar[name]
        self.location = (header(head, "location") or [""])[0]
        return status, body

    def begin(self):
        assert self.get("/login")[0] == 303
        self.query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.location).query))
        return self.query

    def back(self, **more):
        query = {"code": "c0de", "state": self.query["state"], **more}
        return self.get("/login/done?" + urllib.parse.urlencode({k: v for k, v in query.items() if v is not None}))


def curl_cased(port, since, path, *args):
    """As curl, with the head as it came: values of cookies have capitals."""
    done = subprocess.run(["ip", "netns", "exec", port.network, "curl", "-sS", "-m", str(WAIT_S), "--interface", since, "--cacert", port.pki / "ca.pem", "-D", "-", *args,
                           f"https://{HOST}:9091{path}"], capture_output=True, text=True, timeout=WAIT_S)
    head, _, body = done.stdout.partition("\n\n")
    return int(head.split()[1]), head, body


def provide(issuer, browser, key=None, status=200, **claims):  # noqa: F811
    """Let the provider's token endpoint exchange a code for this browser."""
    seen = {}

    def answer(h, body):
        seen.update(urllib.parse.parse_qsl(body))
        seen["authorization"] = h.headers.get("authorization")
        if status != 200:
            return status, {"error": "invalid_grant", "error_description": "<b>x</b>"}
        token = issuer.token(key or issuer.keys[0], issuer.claims(**{"aud": "the page", "nonce": browser.query["nonce"], "roles": ["viewer"], **claims}))
        return 200, {"access_token": "x", "token_type": "Bearer", "id_token": token}
    issuer.tokens["answer"] = answer
    return seen


def signed_in(port, issuer, **claims):
    b = Browser(port)
    b.begin()
    provide(issuer, b, **claims)
    status, body = b.back()
    assert status == 303 and b.location == "../", body
    return b


def test_a_browser_is_sent_to_the_provider_and_comes_back_signed_in(port, issuer):
    b = Browser(port)
    assert b.get("/page/", *HTML)[0] == 303 and b.location == f"https://{HOST}:9091/login"
    assert curl(port, "/nodes")[0] == 401  # a program is told so
    q = b.begin()
    assert b.location.startswith(issuer.url + "/authorize?") and q["response_type"] == "code" and q["client_id"] == "the page" and q["redirect_uri"] == DONE
    assert q["code_challenge_method"] == "S256" and q["scope"] == "openid profile email" and len({q["state"], q["nonce"], q["code_challenge"]}) == 3
    assert all(w in b.last_cookie for w in ("HttpOnly", "Secure", "SameSite=Lax", "Path=/", "Max-Age=600"))
    seen = provide(issuer, b)
    assert b.back()[0] == 303 and "cgn_signin" not in b.jar
    assert all(w in b.jar and w for w in ("cgn_session",))
    assert challenge_of(seen["code_verifier"]) == q["code_challenge"] and seen["code"] == "c0de" and seen["redirect_uri"] == DONE
    assert seen["authorization"] == "Basic dGhlJTIwcGFnZTpwJTJGc3MlMjB3JTI1cmQ="  # "the%20page:p%2Fss%20w%25rd"
    assert b.get("/page/", *HTML)[0] == 200 and b.get("/nodes")[0] == 200
    who = json.loads(b.get("/whoami")[1])
    assert who["signed_in"] and who["subject"] == "ann" and who["roles"] == ["viewer"] and who["can_sign_in"]
    assert json.loads(Browser(port).get("/whoami")[1]) == {"can_sign_in": True, "signed_in": False}
    audited(port.audit, "admin.signin", decision="allowed", name="ann", by="user")
    text = port.log() + port.audit.read_text()
    assert b.jar["cgn_session"] not in text and seen["code_verifier"] not in text and "ss w%rd" not in text


def test_a_session_has_the_roles_of_its_token_only(port, issuer):
    b = signed_in(port, issuer)
    assert b.get("/nodes/a/cordon", "-X", "POST", *PAGE)[0] == 403
    operator = signed_in(port, issuer, roles=["operator"], sub="root")
    assert "no_node" in operator.get("/nodes/a/cordon", "-X", "POST", *PAGE)[1]
    # A page of another site can send the cookie with no change.
    assert "not_the_page" in operator.get("/nodes/a/cordon", "-X", "POST")[1]
    assert "another_site" in operator.get("/nodes/a/cordon", "-X", "POST", *PAGE, "-H", "Origin: https://evil.example")[1]


def test_signing_out(port, issuer):
    b = signed_in(port, issuer)
    other = signed_in(port, issuer)
    session = b.jar["cgn_session"]
    assert b.get("/logout")[0] == 405 and b.get("/logout", "-X", "POST")[0] == 403  # a link or a form of another site
    assert b.get("/nodes")[0] == 200
    assert b.get("/logout", "-X", "POST", *PAGE)[0] == 200 and "cgn_session" not in b.jar
    b.jar["cgn_session"] = session
    assert b.get("/nodes")[0] == 401 and other.get("/nodes")[0] == 200


def test_made_up_sessions(port):
    for made_up in ("", "x", "A" * 43, "A" * 5000, "\"\"", "a; cgn_session=b"):
        b = Browser(port)
        b.jar["cgn_session"] = made_up
        assert b.get("/nodes")[0] == 401, made_up


def test_the_answer_belongs_to_the_browser_that_began(port, issuer):
    victim, attacker = Browser(port), Browser(port)
    victim.begin()
    attacker.begin()
    provide(issuer, attacker)
    asked = len(issuer.asked)
    for query in ({"state": attacker.query["state"]}, {"state": None}, {"state": ""}, {"state": victim.query["state"] + "x"}, {"state": victim.query["nonce"]}):
        status, body = victim.back(**query)
        assert status == 401 and "another browser" in body, body
    nobody = Browser(port)
    nobody.query = victim.query
    assert nobody.back()[0] == 401  # without the cookie
    assert len(issuer.asked) == asked and "cgn_session" not in victim.jar  # the code was shown to nobody


def test_tokens_that_were_not_made_for_this_attempt(port, issuer):
    for claims, why in (({"nonce": "x"}, "another attempt"), ({"nonce": None}, "another attempt"), ({"aud": "cognitora"}, "another audience"), ({"azp": "another"}, "another client"),
                        ({"exp": int(time.time()) - 100}, "expired"), ({"iss": "https://evil.example"}, "another issuer")):
        b = Browser(port)
        b.begin()
        provide(issuer, b, **claims)
        status, body = b.back()
        assert status == 401 and why in body and "cgn_session" not in b.jar, (claims, body)
    b = Browser(port)
    b.begin()
    provide(issuer, b, roles=[])
    status, body = b.back()
    assert status == 403 and "gives no role" in body


def test_a_provider_that_fails(port, issuer):
    def tried(mode="right", **how):
        b = Browser(port)
        b.begin()
        provide(issuer, b, **how)
        issuer.mode = mode
        status, body = b.back()
        issuer.mode = "right"
        assert "cgn_session" not in b.jar
        return status, body
    status, body = tried(status=400)
    assert status == 401 and "invalid_grant" in body and "<b>" not in body
    assert tried("away")[0] == 401 and tried("moved")[0] == 401
    assert tried("garbage")[0] == 502 and tried("huge")[0] == 503 and tried("cut")[0] == 503
    b = Browser(port)
    b.begin()
    status, body = b.back(code=None, error="access_denied\r\n\x1b[31m<script>")
    assert status == 401 and "access_denied" in body and "\x1b" not in body and "refuses" in body
    assert b.back(code=None)[0] == 401


def test_attempts_are_judged_rarely(port, issuer):
    """From one address; who succeeds is not counted, and another address does not notice."""
    b = Browser(port)
    for _ in range(12):
        b.begin()
        provide(issuer, b)
        assert b.back()[0] == 303
    b.begin()
    codes = [b.back(state="wrong")[0] for _ in range(14)]
    assert codes[0] == 401 and codes[-1] == 429, codes
    signed_in(port, issuer)


def test_a_token_works_as_a_key(port, issuer):
    token = issuer.token(issuer.keys[0], issuer.claims(roles=["viewer"]))
    assert curl(port, "/nodes", *bearer(token))[0] == 200
    assert curl(port, "/nodes", "-u", f"anybody:{token}")[0] == 200
    assert curl(port, "/nodes/a/cordon", "-X", "POST", *PAGE, *bearer(token))[0] == 403
    assert curl(port, "/nodes", *bearer(token[:-6] + "AAAAAA"))[0] == 401
    page = issuer.token(issuer.keys[0], issuer.claims(aud="the page", roles=["viewer"]))
    assert curl(port, "/nodes", *bearer(page))[0] == 401  # a token for signing in is none for programs


def test_a_reload_signs_everybody_out(port, issuer, pki):  # noqa: F811
    b = signed_in(port, issuer)
    assert b.get("/nodes")[0] == 200
    os.kill(port.popen.pid, signal.SIGHUP)
    until(lambda: b.get("/nodes")[0] == 401, port.log)
    assert curl(port, "/nodes", *cert(pki, "admin"))[0] == 200
    signed_in(port, issuer)

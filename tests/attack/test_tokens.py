# SPDX-License-Identifier: Apache-2.0
"""Tokens and key sets of attackers: floods of keys that nobody has, keys that fit any signature, documents that two readers read in two ways."""
import base64
import contextlib
import hashlib
import json
import threading

import pytest

from cluster import Cluster, until
from issuer import Issuer, b64
from test_oidc import FAST, auth

SMALL = b64(bytes([1]) + bytes(31))  # the neutral point of Ed25519: R = 1, S = 0 is its signature of every text


class World:
    def __init__(self, folder):
        self.issuer = Issuer(folder)
        self.key = self.issuer.key("ES256", "first")
        self.c = Cluster(folder)
        self.c.router({"router": {"worker_threads": 2}, "auth": auth(self.issuer, folder, role_claim="realm_access.roles")})
        self.c.node("a", *FAST)
        self.c.wait_ready(1)
        until(lambda: self.ask(self.issuer.token(self.key)).status == 200, lambda: self.c.logs())

    def ask(self, token):
        return self.c.ask("GET", "/v1/models", None, {"Authorization": f"Bearer {token}"})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "keys").write_text("")
    w = World(folder)
    with w.c:
        yield w
    w.issuer.close()


@contextlib.contextmanager
def flood(world, threads=4):
    """Tokens whose keys nobody has, as fast as they are refused."""
    stop, sent, odd = threading.Event(), [], []
    template = world.issuer.token(world.key).split(".")

    def run(me):
        n = 0
        while not stop.is_set():
            head = b64(json.dumps({"alg": "ES256", "kid": f"nobody-{me}-{n}"}))
            n += 1
            a = world.ask(".".join([head, *template[1:]]))
            sent.append(a.status)
            if a.status != 401:
                odd.append((a.status, a.body[:300]))
    runners = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
    for r in runners:
        r.start()
    try:
        yield sent
    finally:
        stop.set()
        for r in runners:
            r.join()
    assert sent and not odd, odd[:3]


def test_a_flood_of_unknown_keys_delays_no_rotated_key(world):
    """The first request with a key that was made during the flood is answered, and those with known keys are all along. The provider is asked in rounds of
    two questions that do not grow with the tokens."""
    known = world.issuer.token(world.key)
    with flood(world) as sent:
        until(lambda: len(sent) >= 8, "the flood runs")
        for i in range(3):
            fresh = world.issuer.key("ES256", f"rotated-{i}")
            assert world.ask(known).status == 200
            a = world.ask(world.issuer.token(fresh))
            assert a.status == 200, a.body
        before = len(world.issuer.asked)
        threads = [threading.Thread(target=lambda: sent.append(world.ask(world.issuer.token(world.key, head={"kid": "nobody"})).status)) for _ in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(world.issuer.asked) - before <= 16, "rounds, not tokens"


def test_keys_that_fit_any_signature_are_left_out(world):
    """A provider (or who writes its key set) tells keys of attackers beside its own: RSA with e = 1, an even e, 1,024 bits; Ed25519 of small order."""
    modulus = (1 << 2047) | 0xdeadbeef | 1
    n = b64(modulus.to_bytes(256, "big"))
    bad = {"one": {"kty": "RSA", "alg": "RS256", "n": n, "e": "AQ"}, "even": {"kty": "RSA", "alg": "RS256", "n": n, "e": "Ag"},
           "short": {"kty": "RSA", "alg": "RS256", "n": b64((modulus >> 1024 | 1).to_bytes(128, "big")), "e": "AQAB"},
           "small": {"kty": "OKP", "alg": "EdDSA", "crv": "Ed25519", "x": SMALL}}

    class Forged:
        def __init__(self, kid, jwk):
            self.kid, self.jwk, self.alg = kid, jwk, jwk["alg"]

        def public(self):
            return {"kid": self.kid, "use": "sig", **self.jwk}

        def sign(self, text):
            if self.kid == "small":
                return bytes([1]) + bytes(63)
            info = bytes.fromhex("3031300d060960864801650304020105000420") + hashlib.sha256(text.encode()).digest()
            return b"\0\1" + b"\xff" * (256 - 3 - len(info)) + b"\0" + info  # with e = 1 a text's padded hash is its signature
    forged = [Forged(kid, jwk) for kid, jwk in bad.items()]
    world.issuer.keys += forged
    try:
        for key in forged:
            a = world.ask(world.issuer.token(key))
            assert a.status == 401, (key.kid, a.body)
        fresh = world.issuer.key("ES256", "beside-forged")
        assert world.ask(world.issuer.token(fresh)).status == 200
        left_out = world.c.router_process.events("oidc.keys")[-1]["left_out"]
        assert left_out == len(forged)
        for key in forged:
            assert world.ask(world.issuer.token(key)).status == 401
    finally:
        world.issuer.keys = [k for k in world.issuer.keys if k not in forged]


def test_claims_that_stand_twice_give_nothing(world):
    """realm_access.roles twice, within a claim: one reader would see user, another operator."""
    token = world.issuer.token(world.key, world.issuer.claims(realm_access={"roles": ["user"]}))
    head, claims, _ = token.split(".")
    text = base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)).decode()
    assert '"roles": ["user"]' in text
    twice = b64(text.replace('"roles": ["user"]', '"roles": ["user"], "roles": ["operator"]'))
    signed = f"{head}.{twice}"
    a = world.ask(f"{signed}.{b64(world.key.sign(signed))}")
    assert a.status == 401 and "twice" in a.body.decode(), a.body

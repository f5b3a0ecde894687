# SPDX-License-Identifier: Apache-2.0
"""Tokens of an identity provider at the gateway: who gets in, with which tenant and role; a provider that turns its keys over, goes away or lies; tokens of attackers."""
import concurrent.futures
import hashlib
import hmac
import json
import signal
import subprocess
import threading
import time

import pytest

from cluster import BUILD, Cluster, audited, toml, until
from issuer import Issuer, Key, b64
from kvpeers import CTL

FAST = ("--time-scale", "0")
CHAT = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}


class World:
    def __init__(self, cluster, issuer, folder):
        self.c, self.issuer, self.folder = cluster, issuer, folder
        self.rsa, self.ec, self.ed = issuer.keys

    def ask(self, token, method="GET", path="/v1/models", body=None, **more):
        r = self.c.ask(method, path, body, {"Authorization": f"Bearer {token}", **more})
        self.said = r.body.decode(errors="replace")
        return r

    def refused(self, token, why=None):
        r = self.ask(token)
        assert r.status == 401 and r.json()["error"]["code"] == "invalid_token", self.said
        assert why is None or why in self.said, self.said
        assert token[-20:] not in self.said
        return True

    def line(self, **want):
        """The access log's line of a request."""
        return [e for e in self.c.router_process.events("gateway.request") if all(e[k] == v for k, v in want.items())]


def auth(issuer, folder, **more):
    return {"enabled": True, "api_keys_file": str(folder / "keys"), "oidc_issuer": issuer.url, "oidc_audience": "cognitora", **more}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("oidc")
    made = subprocess.run([CTL, "key", "create", "--file", folder / "keys", "-o", "json"], check=True, capture_output=True, text=True)
    issuer = Issuer(folder)
    for alg in ("RS256", "ES256", "EdDSA"):
        issuer.key(alg)
    with Cluster(folder) as c:
        c.router({"router": {"worker_threads": 2}, "auth": auth(issuer, folder, role_claim="realm_access.roles", tenant_claim="org"), "security": {"audit_file": str(folder / "audit.jsonl")},
                  'roles."students"': {"allow": ["model.use:s*"]}, 'roles."porter"': {"allow": ["status.read"]},
                  'claims."1-acme"': {"claim": "groups", "value": "acme-*", "tenant": "acme", "limits": "rps=2"}, 'claims."2-students"': {"claim": "groups", "value": "students", "role": "students"}})
        c.node("a", *FAST)
        c.node("b", *FAST, model="llama-3-70b")
        until(lambda: list(c.states().values()).count("ready") == 2, c.logs)
        w = World(c, issuer, folder)
        w.key = json.loads(made.stdout)["key"]
        until(lambda: w.ask(issuer.token(w.rsa)).status == 200, lambda: w.said)
        until(lambda: sorted(m["id"] for m in w.ask(w.key).json()["data"]) == ["llama-3-70b", "sim"], lambda: w.said)
        yield w
    issuer.close()


@pytest.mark.parametrize("which", range(3))
def test_a_token_of_each_algorithm_gets_in(world, which):
    token = world.issuer.token(world.issuer.keys[which])
    for _ in range(3):  # judged once, then remembered
        r = world.ask(token, "POST", "/v1/chat/completions", CHAT)
        assert r.status == 200, world.said
    assert world.ask("", "POST", "/v1/chat/completions", CHAT, **{"x-api-key": token}).status == 200, world.said


def test_keys_of_ours_work_beside_tokens(world):
    assert world.ask(world.key, "POST", "/v1/chat/completions", CHAT).status == 200
    assert world.ask("cgn_nonsense").json()["error"]["code"] == "invalid_api_key"
    two = world.ask(world.key, **{"x-api-key": world.issuer.token(world.rsa)})
    assert two.status == 400 and two.json()["error"]["code"] == "two_api_keys"


def test_claims_give_tenant_roles_and_limits(world):
    def models(**claims):
        return sorted(m["id"] for m in world.ask(world.issuer.token(world.ed, world.issuer.claims(**claims))).json()["data"])
    assert models() == ["llama-3-70b", "sim"]  # auth.oidc_default_role
    assert models(realm_access={"roles": ["students", "no-such-role"]}) == ["sim"]
    assert models(groups=["x", "students"]) == ["sim"]
    assert models(realm_access={"roles": ["porter"]}) == []
    r = world.ask(world.issuer.token(world.ed, world.issuer.claims(realm_access={"roles": ["porter"]})), "POST", "/v1/chat/completions", CHAT)
    assert r.status == 404 and "sim" in world.said  # as a model that does not exist
    r = world.ask(world.issuer.token(world.ed, world.issuer.claims(realm_access={"roles": ["chief"]})))
    assert r.status == 403 and r.json()["error"]["code"] == "unknown_role" and "chief" in world.said
    token = world.issuer.token(world.ed, world.issuer.claims(sub="carl", groups=["acme-dev"]))
    codes = [world.ask(token, "POST", "/v1/chat/completions", CHAT).status for _ in range(8)]
    assert 200 in codes and 429 in codes, codes  # rps=2
    org = world.issuer.token(world.ed, world.issuer.claims(sub="dora", org="blue"))
    assert world.ask(org, "POST", "/v1/chat/completions", CHAT).status == 200
    assert world.ask(world.issuer.token(world.ed, world.issuer.claims(org="no tenant"))).status == 403 and "auth.tenant_claim" in world.said
    until(lambda: world.line(tenant="blue"), "the line is written")
    assert world.line(tenant="acme")[0]["key"].startswith("carl~") and world.line(tenant="blue")[0]["key"].startswith("dora~")
    (ann,) = {e["key"] for e in world.line() if e["key"].startswith("ann~")}
    assert {e["tenant"] for e in world.line(key=ann)} >= {ann}


def test_subjects_that_begin_alike_have_limits_of_their_own(world):
    long = "x" * 200
    one, two = (world.issuer.token(world.ed, world.issuer.claims(sub=long + end, groups=["acme-dev"], iss=world.issuer.url)) for end in "ab")
    codes = [world.ask(one, "POST", "/v1/chat/completions", CHAT).status for _ in range(8)]
    assert 429 in codes and world.ask(two, "POST", "/v1/chat/completions", CHAT).status == 200, codes


def test_only_who_may_change_things_chooses_the_node(world):
    pin = {"X-Cgn-Node": "a"}
    assert world.ask(world.issuer.token(world.ed), "POST", "/v1/chat/completions", CHAT, **pin).status == 403
    audited(world.folder / "audit.jsonl", "gateway.request", by="user", name="ann", decision="refused", why="insufficient_scope")
    # An operator has no model.use by itself; with both roles the node may be chosen.
    token = world.issuer.token(world.ed, world.issuer.claims(realm_access={"roles": ["operator", "user"]}))
    assert world.ask(token, "POST", "/v1/chat/completions", CHAT, **pin).status == 200, world.said


def test_claims_of_attackers(world):
    now = int(time.time())
    for claims, why in (({"iss": world.issuer.url + "/"}, "another issuer"), ({"iss": None}, "another issuer"), ({"iss": [world.issuer.url]}, "another issuer"),
                        ({"aud": "other"}, "another audience"), ({"aud": None}, "another audience"), ({"aud": ["a", "b"]}, "another audience"), ({"aud": "cognitora "}, "another audience"),
                        ({"exp": now - 61}, "has expired"), ({"exp": None}, "never ends"), ({"exp": str(now + 60)}, "not a number"), ({"nbf": now + 100}, "compare the clocks"),
                        ({"iat": now + 100}, "compare the clocks"), ({"sub": None}, "no subject"), ({"sub": ""}, "no subject"), ({"sub": 7}, "no subject"), ({"sub": "x" * 300}, "longer than")):
        world.refused(world.issuer.token(world.ed, world.issuer.claims(**claims)), why)
    # Clocks may differ by auth.oidc_clock_skew.
    for claims in ({"exp": now - 30}, {"nbf": now + 30}, {"iat": now + 30}):
        assert world.ask(world.issuer.token(world.ed, world.issuer.claims(**claims))).status == 200, claims


def test_a_token_does_not_choose_its_algorithm(world):
    public = subprocess.run(["openssl", "pkey", "-in", world.rsa.file, "-pubout"], check=True, capture_output=True).stdout
    def hs256(text):
        return hmac.new(public, text.encode(), hashlib.sha256).digest()
    for head, sign in (({"alg": "none"}, lambda _: b""), ({"alg": "none"}, None), ({"alg": "None"}, None), ({"alg": "HS256"}, hs256), ({"alg": "ES256"}, None), ({"alg": "EdDSA"}, None),
                       ({"alg": "RS512"}, None), ({"alg": "PS256"}, None), ({"alg": None}, None), ({"alg": ["RS256"]}, None)):
        world.refused(world.issuer.token(world.rsa, head=head, sign=sign))
    text = world.issuer.token(world.rsa)
    world.refused(text.rsplit(".", 1)[0] + ".")
    for other in (world.ec, world.ed):  # a right signature of another key
        world.refused(world.issuer.token(world.rsa, sign=other.sign), "signature is wrong")


def test_games_with_kid_and_keys_in_the_token(world, tmp_path):
    mine = Key(tmp_path, "RS256", "mine")
    for head in ({"kid": "../../../../dev/null"}, {"kid": "RS256-0' OR '1'='1"}, {"kid": ""}, {"kid": "x" * 2000}, {"kid": 0}, {"kid": ["RS256-0"]}):
        world.refused(world.issuer.token(world.rsa, head=head))
    stolen = {"kid": world.rsa.kid}
    for head in ({"jwk": mine.public()}, {"jku": world.issuer.url + "/evil"}, {"x5u": world.issuer.url + "/evil"}, {"x5c": ["MIIB"]}, {}):
        world.refused(world.issuer.token(mine, head={**stolen, **head}), "signature is wrong")
    world.refused(world.issuer.token(world.rsa, head={"crit": ["exp"]}), "crit")
    world.refused(world.issuer.token(world.rsa, head={"typ": "logout+jwt"}), "typ")
    # Two members of one name: another reader could take the other one.
    head = json.dumps({"alg": "RS256", "kid": world.rsa.kid})
    text = b64(head) + "." + b64(json.dumps(world.issuer.claims())[:-1] + ',"sub":"root"}')
    world.refused(text + "." + b64(world.rsa.sign(text)), "twice")
    assert "/evil" not in world.issuer.asked  # keys that the token points to are not fetched


def test_texts_that_are_almost_tokens(world):
    good = world.issuer.token(world.ec)
    head, claims, sign = good.split(".")
    for bad in (f"{head}.{claims}.", f"{head}.{claims}.{sign}.x", f"{head}..{sign}", f"{head}.{claims}.{sign[:-2]}", f"{head}.{claims}={sign}.x", f"{head}.{claims}.{sign}=",
                f"{head}.{b64('[]')}.{sign}", f"{head}.{b64('{')}.{sign}", f"{head}.{b64('{}')}.{sign}", f"{head}.{claims}.{b64(bytes(64))}", f"{head}.{claims}.{b64(b'')}A"):
        world.refused(bad)
    r = world.ask(f"eyJ.{'A' * 20000}.A")
    assert r.status in (401, 431), r.status
    assert world.ask(good).status == 200


def test_nothing_of_a_token_is_written(world):
    token = world.issuer.token(world.ed, world.issuer.claims(sub="erna", secret_claim="do-not-write-me"))
    assert world.ask(token).status == 200
    logs = world.c.logs()
    for part in (token, token.split(".")[1], token.split(".")[2], "do-not-write-me"):
        assert part not in logs


@pytest.mark.slow
def test_a_new_key_is_fetched_when_a_token_needs_it(world):
    before = len(world.issuer.asked)
    fresh = world.issuer.key("ES256", "turned-over")
    until(lambda: world.ask(world.issuer.token(fresh)).status == 200, lambda: world.said)
    assert world.issuer.asked[before:] == ["/.well-known/openid-configuration", "/keys"]
    # Tokens with keys that nobody has do not make the router ask for each: they wait for the same round, or the one after it.
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        tokens = [world.issuer.token(fresh, head={"kid": f"nobody-{i}"}) for i in range(20)]
        start = threading.Barrier(20)
        answers = list(pool.map(lambda t: (start.wait(), world.c.ask("GET", "/v1/models", None, {"Authorization": f"Bearer {t}"}))[1], tokens))
    assert [a.status for a in answers] == [401] * 20, [a.body for a in answers]
    assert len(world.issuer.asked) <= before + 8, world.issuer.asked[before:]


def change(c, sections):
    """Let the router load another configuration."""
    ports = {"listen": f"127.0.0.1:{c.http_port}", "listen_grpc": f"127.0.0.1:{c.grpc_port}", "listen_admin": f"127.0.0.1:{c.admin_port}", "worker_threads": 1}
    before = len(c.router_process.events("svc.reloaded"))
    c.config("router", {"router": ports, **sections})
    c.router_process.signal(signal.SIGHUP)
    until(lambda: len(c.router_process.events("svc.reloaded")) > before, c.logs)


@pytest.fixture
def lone(tmp_path):
    """A router of its own with a provider that is there or not."""
    (tmp_path / "keys").write_text("")
    issuer = Issuer(tmp_path)
    issuer.key("EdDSA")
    with Cluster(tmp_path) as c:
        yield c, issuer, tmp_path
    issuer.close()


@pytest.mark.parametrize("mode, why", [("away", "status 500"), ("garbage", "not a JSON object"), ("huge", "longer than"), ("moved", "redirects are not followed"), ("cut", ""), ("other", "letter by letter"), ("none", "no key for RS256")])
def test_a_provider_that_lies_or_fails_at_the_start(lone, mode, why):
    c, issuer, folder = lone
    issuer.mode = mode
    c.router({"router": {"worker_threads": 1}, "auth": auth(issuer, folder)})
    w = World.__new__(World)
    w.c = c
    until(lambda: c.router_process.events("oidc.unreachable"), c.logs)
    assert why in c.router_process.events("oidc.unreachable")[0]["why"]
    r = w.ask(issuer.token(issuer.keys[0]))
    assert r.status == 503 and r.json()["error"]["code"] == "identity_provider_unavailable" and r.headers.get("retry-after"), w.said
    issuer.mode = "right"
    until(lambda: w.ask(issuer.token(issuer.keys[0])).status == 200, lambda: w.said)
    assert c.metric("cgn_oidc_keys") == 1 and c.metric("cgn_oidc_rounds_total", outcome="failed") >= 1
    # It goes away again: what is known is used.
    issuer.mode = mode
    assert w.ask(issuer.token(issuer.keys[0])).status == 200
    # A key that is not known may be a new one of a provider that is away.
    assert w.ask(issuer.token(issuer.keys[0], head={"kid": "new"})).status == 503
    issuer.mode = "right"
    until(lambda: w.ask(issuer.token(issuer.keys[0], head={"kid": "new"})).status == 401, lambda: w.said)


def test_settings_are_applied_by_a_reload(lone):
    c, issuer, folder = lone
    c.router({"router": {"worker_threads": 1}, "auth": auth(issuer, folder, role_claim="roles", oidc_default_role="")})
    w = World.__new__(World)
    w.c = c
    token = issuer.token(issuer.keys[0])
    until(lambda: w.ask(token).status == 403 and "gives no role" in w.said, lambda: w.said)
    change(c, {"auth": auth(issuer, folder)})
    until(lambda: w.ask(token).status == 200, lambda: w.said)
    change(c, {"auth": auth(issuer, folder, oidc_audience="another")})
    until(lambda: w.ask(token).status == 401 and "another audience" in w.said, lambda: w.said)
    change(c, {"auth": {"enabled": True, "api_keys_file": str(folder / "keys")}})
    until(lambda: w.ask(token).status == 401 and w.ask(token).json()["error"]["code"] == "invalid_api_key", lambda: w.said)


def test_a_provider_with_tls_and_a_ca_that_is_replaced(tmp_path):
    for folder in ("pki", "other"):
        subprocess.run([CTL, "pki", "bootstrap", "--out", tmp_path / folder, "--san", "127.0.0.1", "--leaf", "issuer"], check=True, capture_output=True)
    (tmp_path / "keys").write_text("")
    ca = tmp_path / "ca.pem"
    ca.write_text((tmp_path / "other/ca.pem").read_text())
    issuer = Issuer(tmp_path, pki=tmp_path / "pki")
    issuer.key("EdDSA")
    with Cluster(tmp_path) as c:
        sections = {"auth": auth(issuer, tmp_path, oidc_ca_file=str(ca))}
        c.router({"router": {"worker_threads": 1}, **sections})
        w = World.__new__(World)
        w.c = c
        until(lambda: c.router_process.events("oidc.unreachable"), c.logs)
        assert w.ask(issuer.token(issuer.keys[0])).status == 503 and "certificate" in w.said, w.said
        ca.write_text((tmp_path / "pki/ca.pem").read_text())
        change(c, sections)  # the same settings: the file has another content
        until(lambda: w.ask(issuer.token(issuer.keys[0])).status == 200, lambda: w.said)
    issuer.close()


def test_without_any_key_file(lone):
    c, issuer, folder = lone
    c.router({"router": {"worker_threads": 1}, "auth": {"enabled": True, "oidc_issuer": issuer.url, "oidc_audience": "cognitora"}})
    w = World.__new__(World)
    w.c = c
    until(lambda: w.ask(issuer.token(issuer.keys[0])).status == 200, lambda: w.said)
    assert w.ask("cgn_x").status == 401 and c.ask("GET", "/v1/models").status == 401


@pytest.mark.parametrize("more, why", [({"oidc_issuer": "http://id.example"}, "must begin with https://"), ({"oidc_issuer": "https://id.example"}, "auth.oidc_issuer needs auth.oidc_audience"),
                                       ({"oidc_client_id": "page"}, "auth.oidc_client_id needs"), ({"enabled": True}, "needs auth.api_keys_file"),
                                       ({"oidc_issuer": "https://id.example", "oidc_audience": "x", "oidc_ca_file": "/none"}, "auth.oidc_ca_file"),
                                       ({"oidc_issuer": "https://id.example", "oidc_audience": "x", "oidc_client_id": "p", "oidc_redirect_url": "https://a.example/x"}, "must end with /login/done"),
                                       ({"oidc_issuer": "https://id.example", "oidc_audience": "x", "oidc_client_id": "p", "oidc_redirect_url": "https://a.example/login/done",
                                         "oidc_client_secret_file": "/none"}, "auth.oidc_client_secret_file")])
def test_settings_that_are_refused(tmp_path, more, why):
    (tmp_path / "t.toml").write_text(toml({"auth": more}))
    done = subprocess.run([BUILD / "src/router/cgn-router", "--config", tmp_path / "t.toml", "--check"], capture_output=True, text=True)
    assert done.returncode in (3, 5) and why in done.stderr, done.stderr


def test_cgn_ctl_tells_what_a_token_gives(world):
    def ctl(*args, text):
        done = subprocess.run([CTL, "auth", *args, "--config", world.folder / "router.toml"], input=text, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr
    token = world.issuer.token(world.ed, world.issuer.claims(org="blue", groups=["students", "acme-x"], realm_access={"roles": ["chief\x1b"]}))
    code, out, _ = ctl("token", text=token + "\n")
    assert code == 0 and "subject   ann" in out and "tenant    acme" in out and r"roles     students, chief\x1b (not defined)" in out and "rps=2" in out and "not checked" in out, out
    (world.folder / "token").write_text(token)
    told = json.loads(ctl("token", world.folder / "token", "-o", "json", text="")[1])
    assert told["tenant"] == "acme" and told["roles"][0] == {"name": "students", "defined": True} and not told["signature_checked"]
    assert ctl("can-i", "model.use:sim", "--token", "-", text=token)[:2] == (0, "yes\n")
    assert ctl("can-i", "model.use:llama-3-70b", "--token", "-", text=token)[0] == 1
    code, _, why = ctl("token", text=world.issuer.token(world.ed, world.issuer.claims(aud="other")))
    assert code == 1 and "another audience" in why
    assert ctl("token", text="")[0] == 1 and ctl("token", "/none", text="")[0] == 1 and ctl("token", text="x" * 2_000_000)[0] == 1

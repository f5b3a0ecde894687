# SPDX-License-Identifier: Apache-2.0
"""What a tenant can learn of another's prompts (security.isolation): a game between a victim, who sends the secret prompt
or another one of the same length by the toss of a coin, and an attacker, who sends the secret prompt and tells from all
that it sees which of them it was. The attacker's advantage is the share of right guesses beyond half of them, doubled. Each
channel but time is exact, so with "tenant" its advantage is 0; time is bounded from below by the engine's model, which a
busy machine does not change. bench/isolation.py plays the same game with times, often enough for a bound."""
import json
import random
import stat
import subprocess
import time

import pytest

from cluster import BUILD, Cluster, ask, until
from kvpeers import Peer, bootstrap
from test_handoff import World as Pair, words
from test_limits import key
from test_policies import keepers

CTL = BUILD / "src/ctl/cgn-ctl"
TENANTS = "victim", "attacker", "friend", "ally"
FAST = ("--time-scale", "0", "--block-tokens", "16", "--prefill-tokens-per-s", "0")
GUESS_TOKENS = 320
TRIALS = 24


class World:
    """Two nodes, each with a block store that fetches from the other one's, and keys of several tenants with the scope admin,
    so that they can name a node."""

    def __init__(self, folder, isolation=None, engine=FAST, events=False, **sections):
        self.c = Cluster(folder)
        self.keys = {t: key(folder, t, t) for t in TENANTS}
        text = (folder / "keys").read_text().replace(" chat,embed ", " chat,embed,admin ")
        (folder / "keys").write_text(text)
        pki = bootstrap(folder / "pki", "a", "b")
        self.stores = {"a": Peer(folder, pki, "a")}
        self.stores["b"] = Peer(folder, pki, "b", [self.stores["a"]])
        self.sections = {"auth": {"enabled": True, "api_keys_file": str(folder / "keys")},
                         'models."sim"': {"tokens": "engine"},
                         'tenants."friend"': {"share": "family"}, 'tenants."ally"': {"share": "family"}, **sections}
        if isolation:
            self.sections.setdefault("security", {})["isolation"] = isolation
        self.c.router(self.sections)
        for name in "ab":
            more = ("--kv-events", f"ipc://{folder}/{name}.ev") if events else ()
            self.c.node(name, *engine, "--kv-uds", self.stores[name].uds, "--kv-block-bytes", "4096", *more,
                        sections={"engine": {"kv_events": f"ipc://{folder}/{name}.ev"}} if events else None)
        self.c.wait_ready(2)

    def say(self, tenant, ids, node=None, **more):
        headers = {**self.keys[tenant], "X-Cgn-Explain": "1", **({"X-Cgn-Node": node} if node else {})}
        a = self.c.ask("POST", "/v1/completions", {"model": "sim", "prompt": ids, "max_tokens": 1, **more}, headers)
        assert a.status == 200, a.body
        return a

    def put(self):
        s = ask(self.c.nodes["a"].engine_port, "GET", "/sim/state").json()["store"]
        return s["put"] + s["had"] + s["put_failed"] + s["not_put"]

    def prepare(self, tenant, ids, **more):
        """Send a new prompt to node a; wait until its store has the blocks, and node b's store has heard of them."""
        before = self.put()
        a = self.say(tenant, ids, node="a", **more)
        until(lambda: self.put() >= before + len(ids) // 16, "the blocks are in the store")
        until(lambda: ask(self.stores["b"].admin, "GET", "/peers").json()["index_blocks"] >= self.stores["a"].stats()["ram"]["blocks"], "the other store knows of them")
        return a

    def close(self):
        trouble = self.c.close()
        for store in self.stores.values():
            store.close()
        assert not trouble, "\n".join(trouble)

    def hits(self):
        """Return the prompt tokens that the engines did not compute, as they count them."""
        return sum(self.c.metric("vllm:prefix_cache_hits_total", ask(n.engine_port, "GET", "/metrics").body.decode()) for n in self.c.nodes.values())


def prompt(rng):
    return [rng.randrange(1, 30000) for _ in range(GUESS_TOKENS)]


def cached(a):
    return (a.json()["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def seen(a):
    """Return what the attacker is told that a prompt of another tenant could change."""
    told = json.loads(a.headers["x-cgn-explain"])
    held = sorted((c.get("held", 0), c.get("cached_blocks", 0)) for c in told.get("candidates", []))
    return {"cached": cached(a), "hit": a.headers.get("x-cgn-cache-hit"), "held": held}


def play(w, seed, trials=TRIALS, node=None):
    """Return for each trial the coin, and what the attacker saw."""
    rng, out = random.Random(seed), []
    for i in range(trials):
        coin, secret = i % 2 if trials < 4 else rng.random() < 0.5, prompt(rng)
        w.prepare("victim", secret if coin else prompt(rng))
        before = w.hits()
        what = seen(w.say("attacker", secret + [1, 2, 3], node=node))
        out.append((bool(coin), {**what, "spared": w.hits() - before}))
    assert {c for c, _ in out} == {True, False}
    return out


def advantage(out, channel):
    """Return the advantage of the best rule for this channel: guess for each value what it came with more often."""
    right = 0
    for value in {json.dumps(s[channel]) for _, s in out}:
        coins = [c for c, s in out if json.dumps(s[channel]) == value]
        right += max(coins.count(True), coins.count(False))
    most = max([c for c, _ in out].count(b) for b in (True, False))
    return (right - most) / (len(out) - most)  # 0: no better than one who sees nothing; 1: always right


@pytest.fixture(scope="module", params=["none", "tenant"])
def world(request, tmp_path_factory):
    w = World(tmp_path_factory.mktemp(request.param), None if request.param == "tenant" else "none", events=True)
    w.isolated = request.param == "tenant"
    yield w
    w.close()


@pytest.mark.parametrize("node", ["a", "b", None])
def test_a_tenant_learns_nothing_of_anothers_prompts(world, node):
    """|node|: the victim's (its GPU cache), the other one (its store fetches from the victim's), or as the router chooses."""
    out = play(world, seed=f"{node}", node=node)
    for channel in ("cached", "spared", "hit", "held"):
        got = advantage(out, channel)
        if world.isolated:
            assert got == 0, (channel, out)
        elif channel in ("cached", "spared"):
            assert got > 0.9, (channel, out)
    if world.isolated:
        assert {s["cached"] for _, s in out} == {0} and {s["spared"] for _, s in out} == {0}
    elif node != "b":
        assert max(advantage(out, c) for c in ("hit", "held")) > 0.9


def test_a_tenant_finds_its_own_prompts(world):
    """Also in the other engine, through the store, and the router predicts it by the engines' KV events."""
    rng = random.Random("own")
    own = prompt(rng)
    assert cached(world.prepare("victim", own)) == 0
    assert cached(world.say("victim", own + [7], node="a")) == GUESS_TOKENS
    assert cached(world.say("victim", own + [7], node="b")) == GUESS_TOKENS
    assert ask(world.c.nodes["b"].engine_port, "GET", "/sim/state").json()["store"]["loaded_peer"] >= GUESS_TOKENS // 16
    blocks = GUESS_TOKENS // 16
    until(lambda: world.say("victim", own + [7]).headers["x-cgn-cache-hit"] == f"{blocks}/{blocks}", "the router knows of them by events")


def test_tenants_of_a_group_share(world):
    shared = prompt(random.Random("shared"))
    world.say("friend", shared, node="a")
    assert cached(world.say("ally", shared + [7], node="a")) == GUESS_TOKENS
    assert cached(world.say("attacker", shared + [7], node="a")) == (0 if world.isolated else GUESS_TOKENS)


def test_a_clients_own_salt_divides_its_tenants_cache_and_opens_no_other(world):
    ids = prompt(random.Random("salt"))
    world.say("victim", ids, node="a", cache_salt="s")
    assert cached(world.say("victim", ids + [7], node="a")) == 0
    assert cached(world.say("victim", ids + [7], node="a", cache_salt="s")) == GUESS_TOKENS
    again = world.say("attacker", ids + [8], node="a", cache_salt="s")
    assert cached(again) == (0 if world.isolated else GUESS_TOKENS)
    for n, salt in enumerate(("", 7, ["s"], {"s": 1}) if world.isolated else ()):  # what an engine refuses is no way around
        assert cached(world.say("attacker", ids + [9], node="a", cache_salt=salt)) == 0, salt


def test_every_api_is_salted(world):
    """Chat, completions, responses, messages and Ollama's API, whose prompts engines keep."""
    def talk(path):
        return [{"role": "user", "content": f"{path} the quick brown fox jumps over the lazy dog " * 40}]
    for path, body in (("/v1/chat/completions", {"messages": talk(1), "max_tokens": 1}), ("/v1/completions", {"prompt": talk(2)[0]["content"], "max_tokens": 1}),
                       ("/v1/responses", {"input": talk(3)[0]["content"], "max_output_tokens": 1}),
                       ("/v1/messages", {"messages": talk(4), "max_tokens": 1}), ("/api/chat", {"messages": talk(5), "stream": False})):
        before = world.hits()
        for tenant in ("victim", "attacker"):
            a = world.c.ask("POST", path, {**body, "model": "sim"}, {**world.keys[tenant], "X-Cgn-Node": "a"})
            assert a.status == 200, (path, a.body)
        spared = world.hits() - before
        assert spared == 0 if world.isolated else spared > 100, (path, spared)


PREFILL_S = 0.06


def first_token_s(w, tenant, ids):
    began = time.monotonic()
    w.say(tenant, ids, node="a")
    return time.monotonic() - began


def test_time_to_the_first_token_tells_nothing(tmp_path_factory):
    """The engine computes a prompt in PREFILL_S. Without isolation a right guess takes a fraction of it; with isolation no
    guess takes less than all of it, right or wrong, however fast or busy the machine is."""
    for isolation in ("none", "tenant"):
        w = World(tmp_path_factory.mktemp(f"time-{isolation}"), isolation, ("--prefill-tokens-per-s", str(int(GUESS_TOKENS / PREFILL_S)), "--decode-ms", "0"))
        rng, took = random.Random(5), {True: [], False: []}
        for coin in (True, False) * 3:
            secret = prompt(rng)
            w.say("victim", secret if coin else prompt(rng), node="a")
            took[coin].append(first_token_s(w, "attacker", secret + [1]))
        w.close()
        assert min(took[False]) > 0.95 * PREFILL_S
        assert min(took[True]) < 0.5 * PREFILL_S if isolation == "none" else min(took[True]) > 0.95 * PREFILL_S, took


def test_the_routers_own_secret_outlives_it(cluster):
    """And it is nobody else's to read; another secret empties what tenants have cached."""
    keys = {t: key(cluster.folder, t, t) for t in ("x", "y")}
    settings = {"auth": {"enabled": True, "api_keys_file": str(cluster.folder / "keys")}}
    text = "hello world " * 60

    def ask_as(tenant):
        a = cluster.chat(text, keys[tenant], max_tokens=1)
        return a.json()["usage"]["prompt_tokens_details"]["cached_tokens"] if a.status == 200 else None
    cluster.router(settings)
    cluster.node("a", *FAST)
    cluster.wait_ready()
    assert (ask_as("x"), ask_as("x") > 100, ask_as("y")) == (0, True, 0)
    own = cluster.state_dir / "cognitora.isolation"
    assert stat.S_IMODE(own.stat().st_mode) == 0o600 and len(own.read_text()) == 65
    cluster.router_process.stop()
    cluster.router_process.start()
    until(lambda: cluster.listens(cluster.http_port, cluster.router_process), "it listens")
    cluster.wait_ready()
    assert ask_as("x") > 100
    made = subprocess.run([CTL, "pki", "isolation", "--out", cluster.folder / "secret"], capture_output=True, text=True)
    assert made.returncode == 0 and stat.S_IMODE((cluster.folder / "secret").stat().st_mode) == 0o600
    refused = subprocess.run([CTL, "pki", "isolation", "--out", cluster.folder / "secret"], capture_output=True, text=True)
    assert refused.returncode != 0 and "--rotate" in refused.stderr
    before = (cluster.folder / "secret").read_text()
    subprocess.run([CTL, "pki", "isolation", "--out", cluster.folder / "secret", "--rotate"], check=True, capture_output=True)
    assert (cluster.folder / "secret").read_text() != before
    ports = {"router": {"listen": f"127.0.0.1:{cluster.http_port}", "listen_grpc": f"127.0.0.1:{cluster.grpc_port}",
                        "listen_admin": f"127.0.0.1:{cluster.admin_port}", "worker_threads": 2}}
    cluster.config("router", {**settings, **ports, "security": {"isolation_secret_file": str(cluster.folder / "secret")}})
    cluster.router_process.signal(1)
    until(lambda: cluster.router_process.events("router.isolation")[-1]["secret"].endswith("/secret"), "the new secret is used")
    until(lambda: ask_as("x") == 0, "the cache begins again")
    (cluster.folder / "secret").write_text("no secret")
    cluster.router_process.signal(1)
    until(lambda: cluster.router_process.events("router.isolation_refused"), "a bad file is refused")
    assert "64 hex digits" in cluster.router_process.events("router.isolation_refused")[0]["why"]
    assert ask_as("x") > 100


def test_a_stored_response_is_its_tenants_alone(cluster):
    """Fetched, continued or cancelled by its id, which another tenant may have seen."""
    keys = {t: key(cluster.folder, t, t) for t in ("x", "y")}
    cluster.router({"auth": {"enabled": True, "api_keys_file": str(cluster.folder / "keys")}})
    with keepers(cluster, "a") as (engine,):
        made = cluster.ask("POST", "/v1/responses", {"model": "sim", "input": "hello"}, keys["x"])
        said = made.json()["id"]
        assert cluster.ask("GET", f"/v1/responses/{said}", headers=keys["x"]).status == 200
        on = cluster.ask("POST", "/v1/responses", {"model": "sim", "input": "on", "previous_response_id": said}, keys["x"])
        assert on.status == 200
        known = len(engine.asked), len(engine.made)
        for method, path in (("GET", ""), ("POST", "/cancel")):
            a = cluster.ask(method, f"/v1/responses/{said}{path}", {} if method == "POST" else None, keys["y"])
            assert a.status == 404 and f"no response `{said}` is known here" in a.json()["error"]["message"]
        a = cluster.ask("POST", "/v1/responses", {"model": "sim", "input": "on", "previous_response_id": said}, keys["y"])
        assert a.status == 404 and a.json()["error"]["code"] == "previous_response_not_found", a.body
        assert (len(engine.asked), len(engine.made)) == known, "the engine was not asked"


def test_an_offload_that_knows_no_salt_is_named(cluster):
    """LMCache in vLLM's process finds prompts by their tokens alone; the GPU's blocks are kept apart nevertheless."""
    keys = {"x": key(cluster.folder, "x", "x")}
    cluster.router({"auth": {"enabled": True, "api_keys_file": str(cluster.folder / "keys")}})
    with keepers(cluster, "a", {"kind": "vllm", "kv_offload": "lmcache"}) as (engine,):
        assert cluster.ask("POST", "/v1/responses", {"model": "sim", "input": "hello"}, keys["x"]).status == 200
        assert len(engine.bodies[-1]["cache_salt"]) == 32
        until(lambda: cluster.router_process.events("router.not_isolated"), "the log names the engine")
        assert cluster.router_process.events("router.not_isolated")[0]["kind"] == "vllm"


def test_engines_that_cannot_keep_tenants_apart(cluster):
    """They get no salt, which they might refuse; they are named in the log; and with isolation_strict they get nothing."""
    keys = {"x": key(cluster.folder, "x", "x")}
    settings = {"auth": {"enabled": True, "api_keys_file": str(cluster.folder / "keys")}}
    cluster.router(settings)
    with keepers(cluster, "a") as (engine,):
        assert cluster.ask("POST", "/v1/responses", {"model": "sim", "input": "hello", "cache_salt": "own"}, keys["x"]).status == 200
        assert "cache_salt" not in engine.bodies[-1]
        until(lambda: cluster.router_process.events("router.not_isolated"), "the log names the engine")
        told = cluster.router_process.events("router.not_isolated")
        assert len(told) == 1 and told[0]["node"] == "a" and told[0]["kind"] == "openai_compat"
        status = subprocess.run([CTL, "cluster", "status", "--router", f"127.0.0.1:{cluster.grpc_port}"], capture_output=True, text=True).stdout
        assert "NOT ISOLATED" in status and "a (openai_compat)" in status
        ports = {"router": {"listen": f"127.0.0.1:{cluster.http_port}", "listen_grpc": f"127.0.0.1:{cluster.grpc_port}",
                            "listen_admin": f"127.0.0.1:{cluster.admin_port}", "worker_threads": 2}}
        cluster.config("router", {**settings, **ports, "security": {"isolation_strict": True}})
        cluster.router_process.signal(1)

        def refused():
            a = cluster.chat("hello", keys["x"])
            return a.status == 503 and a.json()["error"]
        error = until(refused, "it gets nothing")
        assert error["code"] == "not_isolated" and "cannot keep the prompts of tenants apart" in error["message"]
        assert cluster.ask("POST", "/v1/moderations", {"model": "sim", "input": "x"}, keys["x"]).status != 503  # it has no prompt to keep


@pytest.mark.parametrize("kind", ["nixl", "sglang"])
def test_engines_that_hand_prompts_over_keep_tenants_apart(tmp_path, kind):
    """Both legs have the salt: neither the engine that computes prompts nor the one that answers finds another tenant's."""
    keys = {t: key(tmp_path, t, t) for t in ("x", "y")}
    w = Pair(tmp_path, kind, auth={"enabled": True, "api_keys_file": str(tmp_path / "keys")})
    try:
        w.start("p", "prefill")
        w.start("d", "decode")
        w.ready()
        text = words(150, 1)
        found = []
        for tenant in ("x", "y", "x", "y"):
            a = w.c.chat(text, keys[tenant], max_tokens=2)
            assert a.status == 200 and a.headers["x-cgn-node"] == "d", a.body
            found.append(cached(a))
        assert found[:2] == [0, 0] and min(found[2:]) > 100, found
        assert w.stats("d")["taken"] >= 2
    finally:
        trouble = w.c.close()
    assert not trouble, trouble

# SPDX-License-Identifier: Apache-2.0
"""API keys that end, are locked and replaced, and the models that their holders may use."""
import http.client
import json
import re
import subprocess
import threading

import pytest

from cluster import WAIT_S, Cluster, audit_lines, audited, toml, until
from kvpeers import CTL, bootstrap
from test_policies import keepers

FAST = ("--time-scale", "0")
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}


def ctl(*args, code=0):
    done = subprocess.run([CTL, *map(str, args)], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == code, done
    return done.stdout if code == 0 else done.stderr


class World:
    def __init__(self, cluster, folder):
        self.c, self.file = cluster, folder / "keys"

    def key(self, *flags):
        """Make a key; return its text and id."""
        made = json.loads(ctl("key", "create", "--file", self.file, "-o", "json", *flags))
        until(lambda: self.ask(made["key"], "GET", "/v1/models").status != 401 or "not known" not in self.said, "the router has read it")
        return made["key"], made["id"]

    def ask(self, key, method, path, body=None, more=None):
        fields = {"Authorization": f"Bearer {key}"} if key else {}
        r = self.c.ask(method, path, body, {**fields, **(more or {})})
        self.said = r.body.decode(errors="replace")
        return r

    def chat(self, key, model="sim"):
        return self.ask(key, "POST", "/v1/chat/completions", {"model": model, **CHAT})

    def code(self, r):
        return r.status, r.json()["error"]["code"]

    def models(self, key):
        return sorted(m["id"] for m in self.ask(key, "GET", "/v1/models").json()["data"])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    (folder / "keys").write_text("# keys of the house\n")
    with Cluster(folder) as c:
        c.router({"router": {"worker_threads": 2}, "auth": {"enabled": True, "api_keys_file": str(folder / "keys")},
                  "security": {"audit_file": str(folder / "audit.jsonl")},
                  'models."sim"': {"aliases": ["gpt-4o"]}, 'roles."students"': {"allow": ["model.use:s*"]}, 'roles."porter"': {"allow": ["status.read"]}})
        c.node("a", *FAST)
        c.node("b", *FAST, model="llama-3-70b")
        until(lambda: list(c.states().values()).count("ready") == 2, c.logs)
        w = World(c, folder)
        key, _ = w.key("--name", "all")
        until(lambda: w.models(key) == ["gpt-4o", "llama-3-70b", "sim"], lambda: w.said)
        yield w


def test_a_key_ends(world):
    key, _ = world.key("--expires", "1h")
    assert world.chat(key).status == 200
    key, _ = world.key("--expires", "1s")
    until(lambda: world.chat(key).status == 401, lambda: world.said)
    assert world.code(world.chat(key)) == (401, "api_key_expired") and key not in world.said
    assert "expired" in ctl("key", "ls", "--file", world.file)
    for bad in ("yesterday", "0d", "1e9d", "2026-13-01", "99999999999d"):
        assert "--expires takes a time" in ctl("key", "create", "--file", world.file, "--expires", bad, code=2), bad


def test_a_key_is_locked_and_unlocked(world):
    key, name = world.key("--name", "of Ann")
    assert world.chat(key).status == 200
    ctl("key", "lock", name, "--file", world.file)
    until(lambda: world.chat(key).status == 401, lambda: world.said)
    assert world.code(world.chat(key)) == (401, "api_key_locked")
    assert re.search(rf"{name}.* locked +of Ann", ctl("key", "ls", "--file", world.file))
    ctl("key", "unlock", name, "--file", world.file)
    until(lambda: world.chat(key).status == 200, lambda: world.said)
    assert "has no key zz" in ctl("key", "lock", "zz", "--file", world.file, code=1)
    assert world.file.read_text().startswith("# keys of the house\n")


def test_a_key_is_replaced_with_an_overlap(world):
    old, name = world.key("--name", "service", "--models", "sim")
    new = json.loads(ctl("key", "rotate", name, "--overlap", "1h", "--file", world.file, "-o", "json"))
    until(lambda: world.chat(new["key"]).status == 200, lambda: world.said)
    assert world.chat(old).status == 200
    assert world.models(new["key"]) == ["sim"]
    lines = {x.split()[0]: x for x in world.file.read_text().splitlines() if not x.startswith("#")}
    assert f"tenant={name}" in lines[new["id"]] and "expires=" in lines[name] and "expires=" not in lines[new["id"]]
    old, name = new["key"], new["id"]
    new = json.loads(ctl("key", "rotate", name, "--overlap", "1s", "--file", world.file, "-o", "json"))
    until(lambda: world.chat(old).status == 401, lambda: world.said)
    until(lambda: world.chat(new["key"]).status == 200, lambda: world.said)
    assert "has expired" in ctl("key", "rotate", name, "--file", world.file, code=1)


def test_commands_at_once_lose_no_key(world):
    threads = [threading.Thread(target=ctl, args=("key", "create", "--file", world.file, "--name", f"at once {i}")) for i in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(re.findall("at once", world.file.read_text())) == 12


def same_but_for_the_name(one, other, names):
    a, b = (re.sub("|".join((*names, "req-[0-9a-f]+")), "NAME", r.body.decode()) for r in (one, other))
    head = lambda r: sorted((k.lower(), v) for k, v in r.headers.items() if k.lower() not in ("x-request-id", "request-id", "date"))
    return one.status == other.status and a == b and head(one) == head(other)


@pytest.mark.parametrize("flags", [("--models", "sim,gpt-*"), ("--role", "students")])
def test_models_that_a_key_may_not_use_do_not_exist(world, flags):
    key, name = world.key(*flags)
    allowed = ["gpt-4o", "sim"] if "--models" in flags else ["sim"]
    assert world.models(key) == allowed
    for model in allowed:
        assert world.chat(key, model).status == 200 and world.ask(key, "GET", f"/v1/models/{model}").status == 200
    hidden, none = "llama-3-70b", "llama-9-70b"
    for method, path, body in (("POST", "/v1/chat/completions", CHAT), ("POST", "/v1/completions", {"prompt": "x"}), ("POST", "/v1/embeddings", {"input": "x"}),
                               ("POST", "/v1/messages", {**CHAT}), ("POST", "/v1/responses", {"input": "x"}), ("POST", "/tokenize", {"prompt": "x"}),
                               ("POST", "/api/chat", {"messages": CHAT["messages"]}), ("POST", "/api/generate", {"prompt": "x"}), ("POST", "/api/generate", {}),
                               ("POST", "/api/show", {}), ("POST", "/api/embed", {"input": "x"})):
        one, other = (world.ask(key, method, path, {"model": m, **body}) for m in (hidden, none))
        assert one.status == 404 and same_but_for_the_name(one, other, (hidden, none)), (path, one.body, other.body)
    one, other = (world.ask(key, "GET", f"/v1/models/{m}") for m in (hidden, none))
    assert one.status == 404 and same_but_for_the_name(one, other, (hidden, none))
    tags = [m["name"] for m in world.ask(key, "GET", "/api/tags").json()["models"]]
    assert sorted(t.removesuffix(":latest") for t in tags) == allowed
    assert hidden not in world.ask(key, "GET", "/api/ps").body.decode()

    def noted():
        """Of each second, only the first refusals are written."""
        world.chat(key, hidden)
        return audit_lines(world.file.parent / "audit.jsonl", "model.use", name=name, object=hidden)
    until(noted, "the audit log has it")


@pytest.mark.parametrize("isolation", ["tenant", "none"])
def test_a_stored_response_of_a_model_that_a_key_may_not_use_does_not_exist(cluster, tmp_path, isolation):
    """Two keys of one tenant: one made a response with a model that the other may not use. An alias is a name of the model too."""
    def key(*flags):
        made = json.loads(ctl("key", "create", "--file", tmp_path / "keys", "--tenant", "acme", "-o", "json", *flags))
        return {"Authorization": f"Bearer {made['key']}"}
    every, small, alias = key(), key("--models", "small"), key("--models", "nick")
    cluster.router({"auth": {"enabled": True, "api_keys_file": str(tmp_path / "keys")}, 'models."large"': {"aliases": ["nick"]},
                    "security": {"audit_file": str(tmp_path / "audit.jsonl"), "isolation": isolation}})
    with keepers(cluster, "a", models=("large", "small")) as (engine,):
        made = {}
        for model in ("large", "small"):
            r = cluster.ask("POST", "/v1/responses", {"model": model, "input": "x"}, every)
            assert r.status == 200, r.body
            made[model] = r.json()["id"]

        def asked(who, model):
            """Return the statuses: fetched, cancelled, continued by the model that |who| may use."""
            own = "small" if who is small else "nick"
            return [cluster.ask(method, path, body, who).status for method, path, body in (
                ("GET", f"/v1/responses/{made[model]}", None), ("POST", f"/v1/responses/{made[model]}/cancel", {}),
                ("POST", "/v1/responses", {"model": own, "input": "on", "previous_response_id": made[model]}))]
        known = len(engine.asked), len(engine.made)
        assert asked(small, "large") == [404] * 3 and asked(alias, "small") == [404] * 3
        assert (len(engine.asked), len(engine.made)) == known, "the engine was not asked"
        unknown = made["large"].replace("resp_", "resp.")
        hidden, none = (cluster.ask("GET", f"/v1/responses/{i}", headers=small) for i in (made["large"], unknown))
        assert same_but_for_the_name(hidden, none, (made["large"], unknown)), (hidden.body, none.body)
        assert asked(every, "large")[:2] == asked(every, "small")[:2] == [200] * 2
        assert asked(small, "small") == [200] * 3 and asked(alias, "large") == [200] * 3
        cluster.router_process.stop()  # a router that starts remembers no response: this one may be of a hidden model
        cluster.router_process.start()
        until(lambda: cluster.listens(cluster.http_port, cluster.router_process), "it listens")
        cluster.wait_ready()
        known = len(engine.asked), len(engine.made)
        assert asked(small, "small") == [404] * 3 and asked(small, "large") == [404] * 3
        assert (len(engine.asked), len(engine.made)) == known, "the engine was not asked"
        on = cluster.ask("POST", "/v1/responses", {"model": "large", "input": "on", "previous_response_id": made["large"]}, every)
        assert on.status == (404 if isolation == "tenant" else 200), on.body
    audited(tmp_path / "audit.jsonl", "model.use", object="large")


def test_a_role_that_does_not_exist_or_allows_no_model(world):
    key, _ = world.key("--role", "nobody")
    assert world.code(world.chat(key)) == (403, "unknown_role")
    key, _ = world.key("--role", "porter")
    assert world.models(key) == [] and world.chat(key).status == 404


def test_a_key_has_rates_and_budgets_of_its_own(world):
    slow, rich, both = (json.loads(ctl("key", "create", "--file", world.file, "--limits", limits, "-o", "json"))["key"]
                        for limits in ("rps=0.001", "2requests/month,5kWh/day", "tokens_per_minute=100000,9requests/month"))
    euro, _ = world.key("--limits", "1EUR/day")  # The router has read the others too.
    assert [world.chat(slow).status for _ in range(2)] == [200, 429] and "API key" in world.said
    assert [world.chat(rich).status for _ in range(3)] == [200, 200, 429]
    assert world.code(world.chat(rich)) == (429, "insufficient_quota") and "2 requests/month" in world.said
    r = world.chat(both)
    assert r.status == 200 and (r.headers["x-ratelimit-limit-tokens"], r.headers["x-budget-limit"]) == ("100000", "9 requests/month")
    assert world.code(world.chat(euro)) == (403, "wrong_currency")
    for bad, says in (("rps=fast", "rps takes"), ("5apples/day", "5apples/day"), ("burst=3", "limits are"), ("rps=1, 5USD/day", "without spaces")):
        assert says in ctl("key", "create", "--file", world.file, "--limits", bad, code=2), bad
    assert "2requests/month,5kWh/day" in ctl("key", "ls", "--file", world.file)


def test_two_different_keys_are_refused(world):
    one, _ = world.key()
    two, _ = world.key()

    def ask(*fields):
        c = http.client.HTTPConnection("127.0.0.1", world.c.http_port, timeout=WAIT_S)
        c.putrequest("GET", "/v1/models")
        for name, value in fields:
            c.putheader(name, value)
        c.endheaders()
        r = c.getresponse()
        body = r.read().decode()
        c.close()
        return r.status, body
    for fields in ((("Authorization", f"Bearer {one}"), ("x-api-key", two)), (("x-api-key", one), ("Authorization", f"bearer {two}")),
                   (("x-api-key", one), ("X-API-Key", two)), (("Authorization", f"Bearer {one}"), ("Authorization", f"Bearer {two}"))):
        status, body = ask(*fields)
        assert status == 400 and ("two_api_keys" in body or "Authorization" not in dict(fields)), (fields, body)
        assert one not in body and two not in body
    for fields in ((("Authorization", f"Bearer {one}"), ("x-api-key", one)), (("x-api-key", one),), (("Authorization", f"Bearer {one}"),)):
        assert ask(*fields)[0] == 200, fields


def test_when_a_key_was_used_last(tmp_path):
    """A router remembers it over a reload of the keys and over a restart."""
    file = tmp_path / "keys"
    key, idle = (json.loads(ctl("key", "create", "--file", file, "--name", n, "-o", "json")) for n in ("used", "idle"))

    def used(c):
        return {r["id"]: r["last_used"] for r in json.loads(ctl("key", "ls", "--file", file, "--admin", f"127.0.0.1:{c.admin_port}", "-o", "json"))}
    with Cluster(tmp_path) as c:
        r = c.router({"router": {"worker_threads": 1}, "auth": {"enabled": True, "api_keys_file": str(file)}})
        assert used(c) == {key["id"]: "never", idle["id"]: "never"}
        c.ask("GET", "/v1/models", None, {"Authorization": f"Bearer {key['key']}"})
        seen = used(c)
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", seen[key["id"]]) and seen[idle["id"]] == "never"
        n = len(r.events("router.keys"))
        ctl("key", "lock", idle["id"], "--file", file)
        until(lambda: len(r.events("router.keys")) > n, r.log)
        assert used(c) == seen
        assert r.stop() == 0
        r.start()
        until(lambda: c.listens(c.admin_port, r), r.log)
        assert used(c) == seen
        assert r.stop() == 0
        (kept,) = tmp_path.glob("state/*.key-use")
        kept.write_text(kept.read_text().replace(key["id"], "x" * 8))
        r.start()
        until(lambda: c.listens(c.admin_port, r), r.log)
        assert set(used(c).values()) == {"never"} and list(tmp_path.glob("state/*.key-use.bad"))


def test_what_may_i(world, tmp_path):
    config = tmp_path / "c.toml"
    config.write_text(toml({'roles."students"': {"allow": ["model.use:s*"]}, "auth": {"api_keys_file": str(world.file)}}))
    _, name = world.key("--role", "students", "--models", "sim")
    can = lambda *args, code=0: ctl("auth", "can-i", *args, code=code)
    assert can("model.use:sim", "--key-id", name, "--config", config) == "yes\n"
    for args in (("model.use:llama", "--key-id", name), ("model.use:solar", "--key-id", name), ("node.cordon:a", "--key-id", name),
                 ("node.cordon", "--role", "viewer")):
        assert can(*args, "--config", config, code=1) == "cgn-ctl: no\n", args
    pki = bootstrap(tmp_path / "pki", "bob=viewer", "gpu-1")
    assert can("status.read", "--cert", pki / "bob.pem") == "yes\n"
    assert can("node.announce:gpu-1", "--cert", pki / "gpu-1.pem") == "yes\n"
    assert can("node.announce:gpu-2", "--cert", pki / "gpu-1.pem", code=1) == "cgn-ctl: no\n"
    rows = {r["action"]: r["allowed"] for r in json.loads(can("--list", "--role", "operator", "-o", "json"))}
    assert rows["node.drain"] == "yes" and rows["node.generate"] == "no"
    ctl("key", "lock", name, "--file", world.file)
    assert can("model.use:sim", "--key-id", name, "--config", config, code=1) == "cgn-ctl: no\n"
    assert "is not an action" in can("cordon", "--role", "viewer", code=2)
    assert "there is no role" in can("node.cordon", "--role", "viwer", code=1)
    assert "whose rights" in can("node.cordon", code=2)

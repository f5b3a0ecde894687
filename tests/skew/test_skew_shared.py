# SPDX-License-Identifier: Apache-2.0
"""Routers of two versions that share state outside of them: etcd and Redis."""
import json
import os
import shutil
import subprocess

import pytest

from cluster import ask, until
from etcd_world import Etcd
from several import Several
from test_limits import key
from test_redis_limits import Redis


def needs(program):
    return pytest.mark.skipif(not shutil.which(program) and not os.environ.get("CI"), reason=f"no {program}")


class World(Several):
    """A router of each version, and a node of each."""

    def begin(self, versions, common, sections=None):
        self.common = common
        for name, version in (("a", "old"), ("b", "new")):
            versions.set(version)
            self.node(name, "--time-scale", "0")
        for version in ("old", "new"):
            versions.set(version)
            self.routers(1, sections)
        return self.made

    def ctl(self, versions, router, version, *args):
        versions.set(version)
        at = f"127.0.0.1:{self.grpc[router]}"
        done = subprocess.run([versions.path("cgn-ctl"), *args, "--router", at], capture_output=True, text=True)
        assert done.returncode == 0, (args, done.stderr)
        return done.stdout


@needs("etcd")
def test_what_one_says_in_etcd_the_other_obeys(versions, tmp_path):
    """Nodes of both versions, cordons and the policy."""
    etcd = Etcd(tmp_path)
    etcd.start()
    try:
        with World(tmp_path) as w:
            old, new = w.begin(versions, {"cluster": {"state_backend": "etcd", "etcd_endpoints": [etcd.url]}})
            for r in (old, new):
                until(lambda r=r: r.states() == {"a": "ready", "b": "ready"}, lambda r=r: r.states())
            w.grpc = [int(p.log().split('"grpc":"127.0.0.1:')[1].split('"')[0]) for p in (old.process, new.process)]
            w.ctl(versions, 0, "old", "cluster", "cordon", "b")
            until(lambda: new.states() == {"a": "ready", "b": "cordoned"}, lambda: new.states())
            w.ctl(versions, 1, "new", "cluster", "uncordon", "b")
            w.ctl(versions, 1, "new", "cluster", "cordon", "a")
            until(lambda: old.states() == {"a": "cordoned", "b": "ready"}, lambda: old.states())
            w.ctl(versions, 1, "old", "cluster", "uncordon", "a")
            for router, other, version, policy in ((0, 1, "new", "round_robin"), (1, 0, "old", "weighted")):
                w.ctl(versions, router, version, "cluster", "set-policy", "--policy", policy)
                until(lambda: json.loads(w.ctl(versions, other, version, "cluster", "set-policy", "-o", "json"))["policy"] == policy, w.logs)
            for r in (old, new):
                until(lambda r=r: r.states() == {"a": "ready", "b": "ready"}, lambda r=r: r.states())
                assert r.chat("hello", max_tokens=2).status == 200
    finally:
        etcd.kill()


def counts_there(router):
    """Does the router's worker count in Redis?"""
    return 'cgn_rate_limit_store{store="redis"} 1' in ask(router.admin_port, "GET", "/metrics").body.decode()


@needs("redis-server")
def test_a_budget_in_redis_is_one_for_both(versions, tmp_path):
    redis = Redis(tmp_path)
    redis.start()
    try:
        headers = key(tmp_path, "one", "acme")
        with World(tmp_path) as w:
            w.common = {"cluster": {"state_backend": "static", "nodes": ["127.0.0.1:1"]}}
            nodes = []
            for name, version in (("a", "old"), ("b", "new")):
                versions.set(version)
                nodes.append(w.node(name, "--time-scale", "0"))
            w.common["cluster"]["nodes"] = [f"127.0.0.1:{n.agent_port}" for n in nodes]
            for version in ("old", "new"):
                versions.set(version)
                w.routers(1, {"auth": {"enabled": True, "api_keys_file": str(tmp_path / "keys")}, "router.rate_limit": {"redis_url": f"redis://127.0.0.1:{redis.port}"},
                              'tenants."acme"': {"budgets": ["6 requests/month"]}})

            def asked(router):
                body = {"model": "sim", "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]}
                return ask(router.http_port, "POST", "/v1/chat/completions", body, headers).status
            old, new = w.made
            until(lambda: all(counts_there(r) for r in w.made), w.logs)
            assert [asked(r) for r in (old, new, old, new, new, old)] == [200] * 6, w.logs()
            assert asked(old) == 429 and asked(new) == 429
    finally:
        redis.kill()

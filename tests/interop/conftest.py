# SPDX-License-Identifier: Apache-2.0
"""Gateways for foreign clients. Beside each gateway is a twin of its engine, which answers the same requests
with the same bytes."""
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
from cluster import BUILD, ROOT, Cluster, until  # noqa: E402

FAST = ("--time-scale", "0")
SLOW = ("--token-interval-us", "20000")
LLAMA_SERVER = ROOT / "scripts/run/llama-server"
CTL = BUILD / "src/ctl/cgn-ctl"
MTLS_LEAVES = ("router", "agent", "admin")


@pytest.fixture(scope="session")
def binary():
    """Return a llama-server: from PATH, or Debian's package unpacked into a cache."""
    if shutil.which("llama-server"):
        return shutil.which("llama-server")
    done = subprocess.run([LLAMA_SERVER, "--fetch"], capture_output=True, text=True, timeout=300)
    if done.returncode == 0:
        return str(LLAMA_SERVER)
    why = f"no llama-server: {done.stderr.strip().splitlines()[-1:]}"
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if call.when == "call":
        item.failed = outcome.get_result().failed


def ctl(*args):
    return subprocess.run([CTL, *map(str, args)], check=True, capture_output=True, text=True, timeout=30).stdout


def certificates(folder):
    """A CA with a certificate for each program, as an operator makes them."""
    ctl("pki", "bootstrap", "--out", folder, "--leaf", "router", "--leaf", "admin=operator+router+agent@guest", "--leaf", "fast",
        "--leaf", "slow")
    return folder


def security(pki, leaf):
    return {"security": {"require_mtls": True, "ca_file": str(pki / "ca.pem"), "cert_file": str(pki / f"{leaf}.pem"),
                         "key_file": str(pki / f"{leaf}.key")}}


class Gateway:
    """Start a router with two nodes: model "sim" answers at once, model "slow" takes 20 ms a token."""
    MAX_BODY = 1 << 20

    def __init__(self, folder, secure):
        self.cluster, self.secure, self.key, self.pki = Cluster(folder), secure, None, None

    def begin(self):
        folder, secure = self.cluster.folder, self.secure
        # The slow engine counts only clients' requests, so the router sends no tokenize requests.
        router = {"router": {"max_body": self.MAX_BODY}, 'models."slow"': {"tokens": "bytes"}}
        if secure:
            self.pki = certificates(folder / "pki")
            self.key = json.loads(ctl("key", "create", "--file", folder / "keys", "--name", "t", "--scopes", "chat,embed", "-o", "json"))["key"]
            router["router"] |= {"tls_cert_file": str(self.pki / "router.pem"), "tls_key_file": str(self.pki / "router.key")}
            router |= security(self.pki, "router") | {"auth": {"enabled": True, "api_keys_file": str(folder / "keys")}}
        agent = (lambda name: security(self.pki, name)) if secure else (lambda _: None)
        self.cluster.router(router)
        self.cluster.node("fast", *FAST, sections=agent("fast"))
        self.slow = self.cluster.node("slow", *SLOW, model="slow", sections=agent("slow"))
        self.twin_port = self.cluster.engine("twin", *FAST)[1]
        self.url = f"{'https' if secure else 'http'}://localhost:{self.cluster.http_port}"
        self.direct = f"http://127.0.0.1:{self.twin_port}"
        until(lambda: list(self.cluster.states().values()).count("ready") == 2, "both nodes are ready")
        until(self.serves, "the workers know of them")

    @property
    def tls(self):
        return ssl.create_default_context(cafile=self.pki / "ca.pem") if self.secure else None

    def serves(self):
        try:
            return urllib.request.urlopen(self.url + "/readyz", context=self.tls).status == 200
        except urllib.error.URLError:
            return False

    def slow_state(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.slow.engine_port}/sim/state") as r:
            return json.load(r)

    def env(self):
        """Return the settings of the node scripts."""
        c = self.cluster
        env = {"CGN_CTL": str(CTL), "CGN_URL": self.url, "CGN_TWIN_URL": self.direct, "CGN_KEY": self.key or "", "CGN_MAX_BODY": str(self.MAX_BODY),
               "CGN_SLOW_ENGINE_URL": f"http://127.0.0.1:{self.slow.engine_port}", "CGN_ROUTER_GRPC": f"localhost:{c.grpc_port}",
               "CGN_AGENT_GRPC": f"localhost:{c.nodes['fast'].agent_port}", "CGN_SLOW_AGENT_GRPC": f"localhost:{self.slow.agent_port}"}
        if self.secure:
            env |= {"CGN_PKI": str(self.pki), "NODE_EXTRA_CA_CERTS": str(self.pki / "ca.pem")}
        return {**os.environ, **env}


@pytest.fixture(scope="session", params=["clear", "tls"])
def gateway(request, tmp_path_factory):
    """"clear": no encryption. "tls": HTTPS, API keys, and certificates between the programs."""
    g = Gateway(tmp_path_factory.mktemp(request.param), request.param == "tls")
    with g.cluster:
        g.begin()
        yield g


@pytest.fixture
def cluster(tmp_path, request):
    with Cluster(tmp_path) as c:
        yield c
        show_when_failed(request, c)


@pytest.fixture(autouse=True)
def show_logs(request):
    yield
    if "gateway" in request.fixturenames:
        show_when_failed(request, request.getfixturevalue("gateway").cluster)


def show_when_failed(request, cluster):
    """Put the ends of the programs' logs into the report of a failed test."""
    if getattr(request.node, "failed", False):
        print(cluster.logs(15))

# SPDX-License-Identifier: Apache-2.0
"""sslyze looks at every TLS port of every program, on an address that other machines reach: Mozilla's "intermediate" profile holds, and it
finds no known weakness."""
import json
import os
import subprocess
import sys

import pytest

from cluster import WAIT_S, Within, toml, until
from kvpeers import CTL, security

HOST = "10.99.1.1"
GATEWAY = 8080
PORTS = {"gateway": GATEWAY, "router gRPC": 9090, "router admin": 9091, "join": 9093, "agent": 7080, "agent admin": 7081, "store": 7090,
         "store admin": 7093, "metrics": 9094}
# Each look that is for weaknesses: the members that must be true, and those that must be false.
LOOKS = {
    "heartbleed": ((), ("is_vulnerable_to_heartbleed",)),
    "openssl_ccs_injection": ((), ("is_vulnerable_to_ccs_injection",)),
    "session_renegotiation": (("supports_secure_renegotiation",), ("is_vulnerable_to_client_renegotiation_dos",)),
    "tls_compression": ((), ("supports_compression",)),
    "tls_extended_master_secret": (("supports_ems_extension",), ()),
}


def ip(*args):
    return subprocess.run(["ip", *args], capture_output=True, text=True).returncode == 0


@pytest.fixture(scope="module")
def network():
    name = f"cgn-rated-{os.getpid()}"
    if os.geteuid() != 0 or not ip("netns", "add", name):
        pytest.skip("no network namespaces here")
    ok = ip("-n", name, "addr", "add", f"{HOST}/32", "dev", "lo") and ip("-n", name, "link", "set", "lo", "up")
    yield name
    ip("netns", "del", name)
    assert ok


@pytest.fixture(scope="module")
def pki(network, tmp_path_factory):
    """The programs on all their TLS ports. Yields the folder of their certificates."""
    folder = tmp_path_factory.mktemp("rated")
    at = {name: f"{HOST}:{port}" for name, port in PORTS.items()}
    subprocess.run([CTL, "pki", "bootstrap", "--out", folder, "--san", HOST, "--leaf", "router", "--leaf", "agent=agent@a", "--leaf", "kv", "--leaf", "metrics", "--leaf", "admin",
                    "--leaf", "east=peer"], check=True, capture_output=True, timeout=WAIT_S)
    mutual = {name: {"security": {**security(folder, name), "require_mtls": True}} for name in ("router", "agent", "kv", "metrics")}
    mutual["router"]["security"] |= {"ca_key_file": f"{folder}/ca.key", "listen_join": at["join"]}
    files = {
        "router": {**mutual["router"], "router": {"listen": at["gateway"], "listen_grpc": at["router gRPC"], "listen_admin": at["router admin"], "worker_threads": 1,
                                                  "tls_cert_file": f"{folder}/router.pem", "tls_key_file": f"{folder}/router.key"}},
        "agent": {**mutual["agent"], "agent": {"listen": at["agent"], "listen_admin": at["agent admin"], "node_id": "a"},
                  "engine": {"kind": "sim", "url": "http://127.0.0.1:1", "model": "sim"}, "cluster": {"router": at["router gRPC"]}},
        "kvcached": {**mutual["kv"], "kv": {"ram": "64MiB", "uds": f"{folder}/s", "listen": at["store"], "listen_admin": at["store admin"], "resp_listen": "", "transport": "off"}},
        "metrics": {**mutual["metrics"], "metrics": {"listen": at["metrics"], "node": "a"}},
    }
    programs = []
    for name, sections in files.items():
        sections.setdefault("cluster", {})["state_dir"] = f"{folder}/{name}"
        (folder / f"{name}.toml").write_text(toml(sections))
        programs.append(Within(network, folder, name, f"cgn-{name}", "--config", folder / f"{name}.toml"))
    until(lambda: all("svc.ready" in p.log() for p in programs), lambda: [p.log()[-600:] for p in programs])
    yield folder
    for p in programs:
        p.stop()


@pytest.mark.parametrize("name", PORTS)
def test_a_port_is_rated(network, pki, name):
    out = pki / "rated.json"
    done = subprocess.run(["ip", "netns", "exec", network, sys.executable, "-m", "sslyze", "--mozilla_config", "intermediate", "--json_out", str(out),
                           "--cert", f"{pki}/admin.pem", "--key", f"{pki}/admin.key", "--certinfo_ca_file", f"{pki}/ca.pem", f"{HOST}:{PORTS[name]}"],
                          capture_output=True, text=True, timeout=5 * WAIT_S)
    (seen,) = json.loads(out.read_text())["server_scan_results"]
    assert seen["scan_status"] == "COMPLETED" and f"{HOST}:{PORTS[name]}: OK - Compliant." in done.stdout and done.returncode == 0, done.stdout
    found = {look: seen["scan_result"][look]["result"] for look in LOOKS}
    assert not {f"{look}: {member} is {not wanted}" for look, members in LOOKS.items() for wanted, names in zip((True, False), members) for member in names
                if found[look][member] is not wanted}
    assert seen["scan_result"]["robot"]["result"]["robot_result"].startswith("NOT_VULNERABLE")
    for old in ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1"):
        assert not seen["scan_result"][f"{old}_cipher_suites"]["result"]["accepted_cipher_suites"]

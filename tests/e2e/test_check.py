# SPDX-License-Identifier: Apache-2.0
"""--check of the programs: it opens and parses every file that a start would need, and prints each problem."""
import os
import subprocess

import pytest

from cluster import BUILD, toml
from kvpeers import bootstrap, security


def check(tmp_path, program, sections):
    """Run --check on a configuration; return (exit status, problems)."""
    path = tmp_path / "c.toml"
    path.write_text(toml({"cluster": {"router": "127.0.0.1:1"}, **sections}))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("COGNITORA__", "CGN_"))}
    r = subprocess.run([BUILD / "src" / program.removeprefix("cgn-") / program, "--check", "--config", path], env=env, capture_output=True, text=True, timeout=60)
    assert "[cluster]" in r.stdout
    lines = r.stderr.splitlines()
    assert all(line.startswith(f"{program}: ") for line in lines), r.stderr
    return r.returncode, [line.removeprefix(f"{program}: ") for line in lines]


def holds(problems, *wanted):
    """Each problem has its words, in this order, and there are no others."""
    assert len(problems) == len(wanted) and all(word in p for w, p in zip(wanted, problems) for word in w.split()), problems


AGENT = {"engine": {"kind": "openai_compat", "url": "http://127.0.0.1:1"}}


@pytest.mark.parametrize("program, more", [("cgn-router", {}), ("cgn-agent", AGENT), ("cgn-kvcached", {})])
def test_certificates(tmp_path, program, more):
    pki = bootstrap(tmp_path, "router", "agent")
    good = {**more, "security": {**security(pki, "agent"), "require_mtls": True}}
    assert check(tmp_path, program, good) == (0, [])
    code, problems = check(tmp_path, program, {**more, "security": {"ca_file": "/no/ca", "cert_file": "/no/cert", "key_file": "/no/key"}})
    assert code == 5
    holds(problems, "security.ca_file: /no/ca", "security.cert_file: /no/cert", "security.key_file: /no/key")
    code, problems = check(tmp_path, program, {**more, "security": {**good["security"], "key_file": str(pki / "router.key")}})
    assert code == 5 and len(problems) == 1 and "agent.pem" in problems[0], problems
    (tmp_path / "nonsense.pem").write_text("nonsense")
    etcd = {"cluster": {"state_backend": "etcd", "etcd_endpoints": ["https://127.0.0.1:1"], "etcd_ca_file": str(tmp_path / "nonsense.pem")}}
    code, problems = check(tmp_path, program, {**more, **etcd})
    assert code == 5
    holds(problems, "nonsense.pem")


def test_a_routers_other_files(tmp_path):
    (tmp_path / "keys").write_text("nonsense\n")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "empty").write_text("")
    sections = {
        "auth": {"enabled": True, "api_keys_file": str(tmp_path / "keys")},
        "router": {"tls_cert_file": "/no/cert", "tls_key_file": "/no/key"},
        "router.rate_limit": {"redis_url": "redis://127.0.0.1:1/0", "redis_password_file": str(tmp_path / "empty")},
        'models."a"': {"tokenizer": str(tmp_path / "tokenizer.json")},
        'models."b"': {"tokenizer": "/no/tokenizer.json"},
        'models."c"': {"tokenizer": "/no/tokenizer.json", "tokens": "engine"},  # is not read
    }
    code, problems = check(tmp_path, "cgn-router", sections)
    assert code == 5
    holds(problems, "router.tls_cert_file: /no/cert", "router.tls_key_file: /no/key", f"{tmp_path}/keys", 'models."a".tokenizer', 'models."b".tokenizer',
          "redis_password_file")


def test_an_agents_other_files(tmp_path):
    assert check(tmp_path, "cgn-agent", {})[0] == 3
    sections = {"engine": {"kind": "llama_cpp", "url": "http://127.0.0.1:1", "managed": True, "model_path": "/no/model.gguf", "binary": "/no/llama-server",
                           "api_key_file": "/no/key"}}
    code, problems = check(tmp_path, "cgn-agent", sections)
    assert code != 0
    holds(problems, "engine.api_key_file: /no/key", "engine.model_path: /no/model.gguf", "engine.binary: /no/llama-server")


def test_a_stores_other_files(tmp_path):
    code, problems = check(tmp_path, "cgn-kvcached", {"kv": {"resp_password_file": "/no/password"}})
    assert code != 0
    holds(problems, "kv.resp_password_file: /no/password")

# SPDX-License-Identifier: Apache-2.0
"""A real llama-server with an API key, behind a real nginx with TLS, is the hosted API that requests leave for."""
import json
import shutil
import subprocess
import sys

import pytest

from cluster import ROOT, ask, free_port, until
from conftest import certificates

KEY = "sk-llama-0123456789"
ASK = {"model": "big", "temperature": 0, "seed": 1, "max_tokens": 24, "messages": [{"role": "user", "content": "Tell me about the sea, please. " * 4}]}


def nginx_conf(folder, pki, port, upstream):
    temps = " ".join(f"{x}_temp_path {folder}/{x};" for x in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return f"""daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr; user root; events {{}}
http {{ access_log {folder}/access.log; {temps}
server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {pki}/router.pem; ssl_certificate_key {pki}/router.key;
  location / {{ proxy_pass http://127.0.0.1:{upstream}; proxy_buffering off; }} }}
}}
"""


@pytest.fixture
def hosted(tmp_path, binary):
    """Return the port of the API, its CA, and the port of the llama-server behind it."""
    if not shutil.which("nginx"):
        pytest.skip("no nginx: apt-get install nginx")
    pki, model, port, upstream = certificates(tmp_path / "pki"), tmp_path / "tiny.gguf", free_port(), free_port()
    subprocess.run([sys.executable, ROOT / "scripts/run/tiny-gguf.py", model], check=True, stdout=subprocess.DEVNULL)
    (tmp_path / "nginx.conf").write_text(nginx_conf(tmp_path, pki, port, upstream))
    argv = [binary, "--model", model, "--alias", "theirs", "--host", "127.0.0.1", "--port", str(upstream), "--threads", "1", "--n-gpu-layers", "0",
            "--parallel", "1", "--api-key", KEY]
    with open(tmp_path / "hosted.log", "wb") as log:
        programs = [subprocess.Popen(a, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                    for a in (argv, ["nginx", "-c", tmp_path / "nginx.conf", "-p", tmp_path, "-e", "stderr"])]
    try:
        def ready():
            try:
                return ask(upstream, "GET", "/health").status == 200
            except OSError:
                return False
        until(ready, lambda: (tmp_path / "hosted.log").read_text())
        yield port, pki / "ca.pem", upstream
    finally:
        for p in programs:
            p.kill()
            p.wait()


def test_requests_leave_for_a_llama_server_behind_nginx(cluster, hosted, tmp_path):
    port, ca, upstream = hosted
    (tmp_path / "api.key").write_text(KEY + "\n")
    cluster.router({"router.federation": {"enabled": True}, 'peers."hosted"': {
        "url": f"https://localhost:{port}/v1", "ca_file": str(ca), "api_key_file": str(tmp_path / "api.key"), "models": ["big=theirs"], "tenants": ["*"],
        "input": 1, "output": 2, "daily_budget": 1}})
    direct = ask(upstream, "POST", "/v1/chat/completions", {**ASK, "model": "theirs"}, {"Authorization": f"Bearer {KEY}"})
    assert direct.status == 200
    plain = cluster.ask("POST", "/v1/chat/completions", ASK)
    assert plain.status == 200 and plain.headers["x-cgn-peer"] == "hosted" and plain.json()["model"] == "big", plain.body
    assert plain.json()["choices"][0]["message"] == direct.json()["choices"][0]["message"]
    streamed = cluster.ask("POST", "/v1/chat/completions", {**ASK, "stream": True})
    pieces = [json.loads(d) for _, d in streamed.events() if d != "[DONE]"]
    assert {p["model"] for p in pieces} == {"big"} and streamed.events()[-1][1] == "[DONE]"
    text = "".join(c["delta"].get("content") or "" for p in pieces for c in p["choices"])
    assert text == direct.json()["choices"][0]["message"]["content"]
    usage = plain.json()["usage"]
    lines = until(lambda: len(got := cluster.router_process.events("gateway.request")) == 2 and got, "both are logged")
    assert lines[0]["away_cost"] == pytest.approx((usage["prompt_tokens"] + 2 * usage["completion_tokens"]) / 1e6)
    assert lines[1]["away_cost"] > 0
    assert "cgn-" not in (tmp_path / "access.log").read_text() and KEY not in cluster.router_process.log()


def test_a_wrong_key_at_the_hosted_api_is_no_error_of_the_client(cluster, hosted, tmp_path):
    port, ca, _ = hosted
    (tmp_path / "api.key").write_text("sk-wrong\n")
    cluster.router({"router.federation": {"enabled": True}, "router.admission": {"node_wait": "0s"}, 'peers."hosted"': {
        "url": f"https://localhost:{port}/v1", "ca_file": str(ca), "api_key_file": str(tmp_path / "api.key"), "models": ["big=theirs"], "tenants": ["*"]}})
    assert cluster.ask("POST", "/v1/chat/completions", ASK).status == 503
    [event] = cluster.router_process.events("gateway.peer_failed")
    assert event["status"] == 401 and event["rest_ms"] == 60000

# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl as an operator types it: exit codes, words of errors, tables and JSON, against a real router where it needs one."""
import contextlib
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import threading

import pytest

from clients import set_faults
from cluster import BUILD, ROOT, free_port, until
from engine_nodes import JsonHandler
from terminal import on_terminal

CTL = BUILD / "src/ctl/cgn-ctl"


def run(*args, **how):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CGN_RO", "CGN_RE", "COGNITORA__"))}
    return subprocess.run([CTL, *map(str, args)], capture_output=True, text=True, timeout=60, env={**env, **how.pop("env", {})}, **how)


def fine(*args, **how):
    r = run(*args, **how)
    assert r.returncode == 0, r.stderr
    return r.stdout


def refused(code, *args, **how):
    """Expect exit status |code|, nothing on stdout, one clear sentence on stderr."""
    r = run(*args, **how)
    assert r.returncode == code, (r.returncode, r.stdout, r.stderr)
    assert r.stdout == "" and r.stderr.startswith("cgn-ctl: "), r.stderr
    return r.stderr


def verbs():
    return [line.split('"')[1] for line in (ROOT / "src/joint/ctl/line/verbs.def").read_text().splitlines() if line.startswith(("VERB(", "BENCH("))]


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_explains_itself(verb):
    text = fine(*verb.split(), "--help")
    assert f"usage: cgn-ctl {verb}" in text and "examples:\n  " in text and "--help" in text


def test_the_help_of_set_policy_names_each_policy():
    rows = (ROOT / "src/policy/config/route_policies.def").read_text()
    names = re.findall(r'^POLICY\(\w+,\s+"(\w+)"', rows, re.M)
    listed = fine("cluster", "set-policy", "--help").split("\npolicies:\n")[1]
    assert names and [name for name in names if not re.search(rf"^  {name} ", listed, re.M)] == []


def test_version_and_help():
    assert fine("version").startswith("cgn-ctl ")
    assert json.loads(fine("version", "-o", "json"))["version"] in fine("--version")
    listing = fine("--help")
    assert all(verb in listing for verb in verbs())


def test_words_that_are_wrong():
    assert "did you mean --router?" in refused(2, "cluster", "nodes", "--ruter", "x")
    assert "there is no verb 'clusterr'" in refused(2, "clusterr")
    of_group = refused(2, "cluster")
    assert "needs a second word" in of_group and "cluster drain NODE" in of_group and "key create" not in of_group
    assert "'cluster' has no verb 'dance'" in refused(2, "cluster", "dance")
    for words in (["cluster", "--help"], ["cluster", "-h"]):
        asked = fine(*words)
        assert "cluster drain NODE" in asked and "key create" not in asked
    assert "usage: cgn-ctl cluster cordon NODE" in refused(2, "cluster", "cordon")
    assert "unexpected argument 'b'" in refused(2, "cluster", "cordon", "a", "b")
    assert "--file needs a value" in refused(2, "key", "ls", "--file")
    assert "takes no value" in refused(2, "bench", "chat", "--no-stream=1")
    assert "-o takes table, wide or json" in refused(2, "version", "-o", "yaml")
    assert "duration" in refused(2, "bench", "chat", "--duration", "soon")
    assert "whole number" in refused(2, "bench", "chat", "--max-tokens", "-1")
    assert "--rate" in refused(2, "bench", "chat", "--rate", "0")


def test_an_absent_router_is_an_error():
    port = free_port()
    assert f"127.0.0.1:{port}" in refused(4, "cluster", "status", "--router", f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in refused(4, "cluster", "nodes", env={"CGN_ROUTER": f"127.0.0.1:{port}"})
    assert f"127.0.0.1:{port}" in refused(4, "bench", "chat", "--url", f"http://127.0.0.1:{port}")
    assert "no request was answered" in refused_or_report("bench", "chat", "--url", f"http://127.0.0.1:{port}", "--model", "m", "--duration", "300ms", "--rate", "50")
    assert "not an http:// or https:// URL" in refused(2, "bench", "chat", "--url", "ftp://x")


def test_keys_live_and_die(tmp_path):
    file = tmp_path / "keys"
    made = json.loads(fine("key", "create", "--file", file, "--name", "team a", "--scopes", "chat,admin", "-o", "json"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert made["key"] not in file.read_text() and made["key"].startswith("cgn_") and len(made["key"]) > 40
    second = fine("key", "create", "--file", file).strip()
    assert second != made["key"] and "\n\n" not in file.read_text()
    rows = json.loads(fine("key", "ls", "--file", file, "-o", "json"))
    assert [(r["scopes"], r["name"]) for r in rows] == [("chat,admin", "team a"), ("chat,embed", "")]
    file.write_text("# ours\n" + file.read_text().rstrip("\n"))  # as some editors leave it
    fourth = run("key", "create", "--file", file, "-o", "json")
    assert fourth.returncode == 0 and fourth.stderr == "", "a program reads the key, and nobody reads advice"
    fourth = json.loads(fourth.stdout)["id"]
    assert len(json.loads(fine("key", "ls", "--file", file, "-o", "json"))) == 3
    assert "revoked" in fine("key", "revoke", fourth, "--file", file)
    assert "revoked" in fine("key", "revoke", made["id"], "--file", file)
    assert file.read_text().startswith("# ours\n")
    assert made["id"] not in fine("key", "ls", "--file", file) and rows[1]["id"] in fine("key", "ls", "--file", file)
    assert "has no key" in refused(1, "key", "revoke", made["id"], "--file", file)
    third = json.loads(fine("key", "create", "--file", file, "--tenant", "acme", "-o", "json"))
    tenants = {r["id"]: r["tenant"] for r in json.loads(fine("key", "ls", "--file", file, "-o", "json"))}
    assert tenants == {rows[1]["id"]: rows[1]["id"], third["id"]: "acme"}  # a key without a tenant is its own tenant
    assert "a tenant has" in refused(2, "key", "create", "--file", file, "--tenant", "two words")
    assert '"boss" is not a scope' in refused(2, "key", "create", "--file", file, "--scopes", "boss")
    assert str(tmp_path / "none") in refused(1, "key", "ls", "--file", tmp_path / "none")
    file.write_text("broken line\n")
    assert f"{file}" in refused(2, "key", "create", "--file", file)
    assert file.read_text() == "broken line\n"


def openssl(*args):
    return subprocess.run(["openssl", *map(str, args)], capture_output=True, text=True, check=True).stdout


def test_pki_is_what_openssl_believes(tmp_path):
    out = tmp_path / "pki"
    rows = json.loads(fine("pki", "bootstrap", "--out", out, "--san", "gw.example.net", "--san", "10.1.2.3", "--days", "30", "-o", "json"))
    assert [r["days"] for r in rows] == [300, 30, 30, 30]
    for name in ("router", "agent", "admin"):
        assert "OK" in openssl("verify", "-CAfile", out / "ca.pem", out / f"{name}.pem")
        assert stat.S_IMODE((out / f"{name}.key").stat().st_mode) == 0o600
    text = openssl("x509", "-in", out / "router.pem", "-noout", "-text")
    for want in ("DNS:gw.example.net", "IP Address:10.1.2.3", "DNS:localhost", "IP Address:127.0.0.1", "prime256v1", "CN=router"):
        assert want in text.replace("CN = ", "CN=")  # OpenSSL before 3.4 prints spaces
    ca = (out / "ca.pem").read_bytes()
    fine("pki", "bootstrap", "--out", out, "--leaf", "gpu-07", "--days", "30")  # the same CA again, one certificate more
    assert (out / "ca.pem").read_bytes() == ca
    assert "OK" in openssl("verify", "-CAfile", out / "ca.pem", out / "gpu-07.pem")
    assert "--days" in refused(2, "pki", "bootstrap", "--out", out, "--leaf", "long", "--days", "3000")
    assert "cannot be the name of a certificate" in refused(2, "pki", "bootstrap", "--out", out, "--leaf", "../x")
    assert "no spaces please" in refused(2, "pki", "bootstrap", "--out", tmp_path / "b", "--san", "no spaces please")
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refused(1, "pki", "bootstrap", "--out", tmp_path / "file" / "pki")


def test_pki_keeps_names_and_renews(tmp_path):
    pki = tmp_path / "pki"
    names = lambda leaf: openssl("x509", "-in", pki / f"{leaf}.pem", "-noout", "-ext", "subjectAltName")
    fine("pki", "bootstrap", "--out", pki, "--san", "gw.example.net", "--san", "10.1.2.3", "--days", "30")
    before, ca, key = names("router"), (pki / "ca.pem").read_bytes(), (pki / "router.key").read_bytes()
    fine("pki", "bootstrap", "--out", pki, "--days", "40", "--san", "two.example.net")  # again: the names stay, one comes
    assert before.splitlines()[1].strip() in names("router") and "DNS:two.example.net" in names("router")
    assert (pki / "ca.pem").read_bytes() == ca and (pki / "router.key").read_bytes() != key
    # a leaf of other origin keeps names of other kinds and its usage
    (tmp_path / "ext").write_text("subjectAltName=DNS:db.example.net,URI:spiffe://a/b\nextendedKeyUsage=clientAuth\nkeyUsage=digitalSignature,keyAgreement\n")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", pki / "odd.key", "-out", tmp_path / "csr", "-subj", "/O=Acme/CN=odd")
    openssl("x509", "-req", "-in", tmp_path / "csr", "-CA", pki / "ca.pem", "-CAkey", pki / "ca.key", "-out", pki / "odd.pem", "-days", "5", "-extfile", tmp_path / "ext")
    os.chmod(pki / "odd.key", 0o640)
    odd = [openssl("x509", "-in", pki / "odd.pem", "-noout", "-subject", "-ext", "subjectAltName,extendedKeyUsage,keyUsage")]
    shown = {r["certificate"]: r for r in json.loads(fine("pki", "show", "--dir", pki, "-o", "json"))}
    assert shown["ca.pem"]["kind"] == "ca" and 39 <= shown["router.pem"]["days_left"] <= 40 and 4 <= shown["odd.pem"]["days_left"] <= 5
    assert "--within takes a whole number from 1 to" in refused(2, "pki", "renew", "--dir", pki, "--within", "0")
    soon = json.loads(fine("pki", "renew", "--dir", pki, "--within", "10", "--days", "60", "-o", "json"))
    assert [r["certificate"] for r in soon] == [f"{pki}/odd.pem"] and soon[0]["days"] == 60
    odd.append(openssl("x509", "-in", pki / "odd.pem", "-noout", "-subject", "-ext", "subjectAltName,extendedKeyUsage,keyUsage"))
    assert odd[0] == odd[1] and "spiffe://a/b" in odd[1] and stat.S_IMODE((pki / "odd.key").stat().st_mode) == 0o640
    every = [r["certificate"] for r in json.loads(fine("pki", "renew", "--dir", pki, "-o", "json"))]
    assert every == [f"{pki}/{n}.pem" for n in ("admin", "agent", "odd", "router")]
    for leaf in ("admin", "agent", "odd", "router"):
        assert "OK" in openssl("verify", "-CAfile", pki / "ca.pem", pki / f"{leaf}.pem")
        public = openssl("x509", "-in", pki / f"{leaf}.pem", "-noout", "-pubkey")
        assert public == openssl("pkey", "-in", pki / f"{leaf}.key", "-pubout")
    assert "no certificate" in refused(1, "pki", "renew", "nobody", "--dir", pki)
    assert "no certificate" in refused(1, "pki", "renew", "ca", "--dir", pki)
    assert "--dir" in refused(1, "pki", "show", "--dir", tmp_path / "none")
    assert (pki / "ca.pem").read_bytes() == ca
    assert "longer than the rest" in refused(2, "pki", "renew", "--dir", pki, "--days", "3650")


def test_config_check(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('[router]\nlisten = "127.0.0.1:1234"\n')
    text = fine("config", "check", file)
    assert f'listen = "127.0.0.1:1234"' in text and f"{file}:2:" in text and "# default" in text
    assert "COGNITORA__ROUTER__LISTEN" in fine("config", "check", file, env={"COGNITORA__ROUTER__LISTEN": "127.0.0.1:99"})
    assert json.loads(fine("config", "check", file, "-o", "json")) == {"valid": True}
    file.write_text("[router]\nlisen = 1\n")
    text = refused(3, "config", "check", file)
    assert f"{file}:2:1" in text and "listen" in text
    assert "none.toml" in refused(1, "config", "check", tmp_path / "none.toml")


def test_cluster_verbs(cluster):
    cluster.router()
    cluster.node("a", "--time-scale", "0")
    cluster.node("b", "--time-scale", "0")
    cluster.wait_ready()
    at = ("--router", f"127.0.0.1:{cluster.grpc_port}")
    status = json.loads(fine("cluster", "status", *at, "-o", "json"))
    version = fine("--version").split()[-1]
    assert status["router_version"] == version and f"router    {version}, up " in fine("cluster", "status", *at)
    assert status["nodes"]["ready"] == 2 and status["models"] == ["sim"] and status["state_connected"] is True
    assert "nodes     2, 2 ready" in fine("cluster", "status", *at)
    assert fine("cluster", "cordon", "a", *at) == "a cordoned\n"
    rows = {r["node"]: r for r in json.loads(fine("cluster", "nodes", *at, "-o", "json"))}
    assert (rows["a"]["state"], rows["b"]["state"]) == ("cordoned", "ready")
    assert rows["b"]["models"] == "sim" and isinstance(rows["b"]["inflight"], int)
    assert {cluster.chat(f"q{i}").headers["x-cgn-node"] for i in range(10)} == {"b"}
    assert fine("cluster", "uncordon", "a", *at) == "a uncordoned\n"
    assert "drained" in fine("cluster", "drain", "b", *at)
    assert {cluster.chat(f"r{i}").headers["x-cgn-node"] for i in range(10)} == {"a"}
    table = fine("cluster", "nodes", *at).splitlines()
    assert table[0].startswith("NODE") and len(table) == 3


def test_nodes_fit_a_terminal_and_wide_has_the_rest(cluster):
    cluster.router()
    cluster.node("gpu-node-07", "--time-scale", "0")
    cluster.wait_ready()
    at = ("cluster", "nodes", "--router", f"127.0.0.1:{cluster.grpc_port}")
    assert max(map(len, fine(*at).splitlines())) <= 80
    wide = fine(*at, "-o", "wide").splitlines()[0].split()
    assert {"ROLE", "ADDRESS", "SOURCE", "TRUST", "MODELS"} <= set(wide)
    assert {"role", "address", "source", "trust", "models"} <= json.loads(fine(*at, "-o", "json"))[0].keys()
    assert "ADDRESS" not in fine(*at)


@pytest.mark.plain
def test_nodes_of_another_version_are_shown(cluster, tmp_path):
    """The version in a copy of the agent is replaced, as in a cluster that is being upgraded."""
    version = fine("version").split()[1]
    other = "9" + version[1:]
    cluster.router()
    node = cluster.node("a", "--time-scale", "0")
    cluster.wait_ready()
    at = ("--router", f"127.0.0.1:{cluster.grpc_port}")
    assert "VERSIONS" not in fine("cluster", "status", *at)
    changed = tmp_path / "agent-of-another-version"
    changed.write_bytes(pathlib.Path(node.agent.argv[0]).read_bytes().replace(version.encode(), other.encode()))
    changed.chmod(0o755)
    assert node.agent.stop() == 0
    node.agent.argv[0] = str(changed)
    node.agent.start()
    until(lambda: other in fine("cluster", "nodes", "-o", "wide", *at), cluster.logs)
    assert "VERSIONS  1 node is of another version than this router" in fine("cluster", "status", *at)


def test_status_shows_the_traffic_of_the_last_minute(cluster):
    cluster.router()
    cluster.node("a", "--time-scale", "0")
    cluster.wait_ready()
    at = ("cluster", "status", "--router", f"127.0.0.1:{cluster.grpc_port}")
    assert "traffic   no request in the last" in fine(*at)
    for _ in range(8):
        assert cluster.chat("the same question each time, " * 40).status == 200
    cluster.counts(8, "cgn_requests_total", model="sim")
    t = json.loads(fine(*at, "-o", "json"))["traffic"]
    assert t["requests"] == 8 and t["requests_per_second"] == pytest.approx(8e3 / t["window_ms"])
    assert 0.5 * t["prompt_tokens"] < t["cached_tokens"] < t["prompt_tokens"]  # all but the first found the prompt
    assert 0 < t["ttft_p50_ms"] <= t["ttft_p95_ms"] < 30_000
    text = fine(*at)
    assert f"hit ratio {100 * t['cached_tokens'] / t['prompt_tokens']:.1f} %; TTFT p50 " in text and "requests/s in the last" in text and "refused" not in text, text
    assert cluster.chat("x", model="none").status == 404
    assert cluster.chat("x", headers={"X-Cgn-Node": "none"}).status == 503
    told = until(lambda: (x := json.loads(fine(*at, "-o", "json"))["traffic"])["refused"] >= 1 and x["failed"] >= 1 and x, "both are counted")
    assert told["failed"] == 1, told
    assert f", of {told['requests']} requests 1 failed, {told['refused']} were refused; hit ratio" in fine(*at), fine(*at)


EVIL = "x\x1b]0;owned\x07\x1b[31m\u009b31m\u202e\x7f" + "m" * 60


def test_names_of_models_cannot_steer_a_terminal(cluster):
    """A model's name comes from an engine. It is shown without control characters: in tables, cut to the terminal; in sentences; in JSON,
    which keeps its value; in metrics."""
    cluster.router()
    cluster.node("a", "--time-scale", "0", model=EVIL)
    cluster.wait_ready()
    assert cluster.ask("POST", "/v1/chat/completions", {"model": EVIL, "messages": [{"role": "user", "content": "x"}]}).status == 200
    at = ("--router", f"127.0.0.1:{cluster.grpc_port}")
    outputs = [fine(*verb, *at, *how) for verb in (("cluster", "nodes"), ("cluster", "status"), ("explain",)) for how in ((), ("-o", "json"))]
    for text in [*outputs, cluster.scrape()]:
        assert not [c for c in text if c != "\n" and (ord(c) < 32 or 0x7F <= ord(c) < 0xA0)], text
    for text in outputs[::2]:
        assert r"x\x1b]0;owned\x07" in text and "\u202e" not in text, text
    assert json.loads(outputs[1])[0]["models"] == EVIL and json.loads(outputs[3])["models"] == [EVIL]
    assert r'model="x\\x1b]0;owned\\x07' in cluster.scrape()
    code, text, _ = on_terminal(CTL, "cluster", "nodes", *at)
    assert code == 0 and max(map(len, text.splitlines())) <= 80 and "…" in text, text


class Liar(JsonHandler):
    """An admin port with control characters in one answer, and others that do not end: a byte at a time, or a MiB."""

    def do_GET(self):
        self.send_response(200)
        if self.path == "/config":
            text = f'[router]\n\tname = "{EVIL}"\n'.encode()
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            return
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):
            while not self.server.ended.wait(0.05):
                self.wfile.write(b" " * (1 << 20 if self.path == "/tenants" else 1))


@pytest.fixture
def liar():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    server.ended = threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.ended.set()
    server.shutdown()
    server.server_close()


def test_a_server_that_lies_neither_steers_the_terminal_nor_holds_a_verb(liar):
    text = fine("config", "show", "--admin", liar)
    assert text.startswith('[router]\n\tname = "') and r"x\x1b]0;owned\x07\x1b[31m\u009b31m\u202e\u007f" in text, text
    for verb in (("config", "show", "-o", "json"), ("usage",), ("session", "ls")):
        assert "did not end within 0.3 s (--timeout)" in refused(4, *verb, "--admin", liar, "--timeout", "300ms")
    assert "has more than 4 MiB" in refused(1, "tenant", "ls", "--admin", liar)


def test_bench_chat_counts_what_happened(cluster):
    cluster.router()
    cluster.node("a", "--time-scale", "0")
    cluster.wait_ready()
    url = f"http://127.0.0.1:{cluster.http_port}"
    r = json.loads(fine("bench", "chat", "--url", url, "--rate", "100", "--duration", "1s", "--max-tokens", "5", "-o", "json"))
    assert r["sent"] > 30 and r["answered"] == r["sent"] and r["failed"] == 0 and r["status"] == {"200": r["sent"]}
    assert r["ttft_ms"]["count"] == r["sent"] == r["latency_ms"]["count"]
    assert r["ttft_ms"]["p50"] <= r["ttft_ms"]["p90"] <= r["ttft_ms"]["p99"] <= r["ttft_ms"]["max"]
    until(lambda: cluster.metric("cgn_requests_total", code="200") >= r["sent"], "all are counted")  # the last one ends after its last byte
    r = json.loads(fine("bench", "chat", "--url", url, "--rate", "50", "--duration", "500ms", "--no-stream", "--seed", "7", "-o", "json"))
    assert r["failed"] == 0 and r["itl_ms"] is None and r["stream"] is False
    text = fine("bench", "chat", "--url", url, "--rate", "50", "--duration", "500ms", "--max-tokens", "5")
    lines = re.findall(r"p50 +([0-9.]+) +p90 +([0-9.]+) +p99 +([0-9.]+) +max +([0-9.]+) ms", text)
    assert len(lines) >= 2 and all(sorted(map(float, line)) == [*map(float, line)] for line in lines), text
    assert float(lines[0][3]) > 0 and float(lines[-1][3]) > 0, text  # first byte, whole answer; between them all may come in one piece
    set_faults(cluster.nodes["a"].engine_port, "http400@every=3")  # of all calls: some ask for tokens, so that with 2 all chats could be hit, or none
    mixed = run("bench", "chat", "--url", url, "--rate", "100", "--duration", "500ms", "--seed", "3", "-o", "json")
    r = json.loads(mixed.stdout)
    assert mixed.returncode == 1 and f"{r['failed']} of {r['sent']} requests failed, the first: status 400" in mixed.stderr, mixed
    assert 0 < r["failed"] < r["sent"] == sum(r["status"].values()) and "x 400" in run("bench", "chat", "--url", url, "--rate", "100", "--duration", "300ms").stdout
    text = refused_or_report("bench", "chat", "--url", url, "--model", "nope", "--rate", "20", "--duration", "300ms")
    assert "status 404" in text


@pytest.mark.parametrize("signo, code", [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_bench_chat_reports_what_it_measured_when_interrupted(cluster, signo, code):
    cluster.router()
    cluster.node("a", "--time-scale", "0")
    cluster.wait_ready()
    p = subprocess.Popen([CTL, "bench", "chat", "--url", f"http://127.0.0.1:{cluster.http_port}", "--rate", "200", "--duration", "10m", "-o", "json"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: cluster.metric("cgn_requests_total", code="200") > 100, "requests were answered")  # some are still on their way
    p.send_signal(signo)
    out, err = p.communicate(timeout=60)
    r = json.loads(out)
    assert p.returncode == code and r["interrupted"] is True and r["failed"] == 0, (p.returncode, err)
    assert r["answered"] > 10 and r["ttft_ms"]["count"] >= r["answered"] and r["answered"] + r["given_up"] == r["sent"]


@pytest.fixture
def lone(tmp_path):
    """cgn-ctl in a folder without cgn-lab. lone(ARG..., PATH=...) runs it."""
    shutil.copy(CTL, tmp_path / "cgn-ctl")
    return lambda *args, PATH="": subprocess.run([tmp_path / "cgn-ctl", *args], capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": PATH})


def test_bench_says_what_it_needs(lone, tmp_path):
    for words in (("workload", "chat"), ("chat", "--help"), ("replay", "--no-such-flag")):
        r = lone("bench", *words)
        assert (r.returncode, r.stdout) == (1, ""), r
        assert r.stderr == (f"cgn-ctl: bench needs the program cgn-lab, of the same package (cognitora-ctl): {tmp_path}/cgn-lab: No such file or directory; "
                            "nor is it in $PATH\n")
    assert "bench workload KIND" in lone("bench", "--help").stdout
    assert "'bench' has no verb 'nope'" in lone("bench", "nope").stderr
    (tmp_path / "cgn-lab").write_text("#!/no/such/interpreter\n")
    r = lone("bench", "workload", "chat")
    assert r.returncode == 1 and f"{tmp_path}/cgn-lab: Permission denied; " in r.stderr, r


def test_bench_finds_cgn_lab_beside_itself_then_in_the_path(lone, tmp_path):
    (tmp_path / "other").mkdir()
    for place, said in ((tmp_path / "other", "far"), (tmp_path, "near")):
        (place / "cgn-lab").write_text(f"#!/bin/sh\necho {said} $*; exit 7\n")
        (place / "cgn-lab").chmod(0o755)
        r = lone("bench", "chat", "--url", "a b", PATH=f"{tmp_path}/none:{tmp_path}/other")
        assert (r.returncode, r.stdout, r.stderr) == (7, f"{said} chat --url a b\n", ""), r


def test_bench_names_a_cgn_lab_that_cannot_run_and_one_of_another_version(lone, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/cgn-lab").write_text("not a program")
    r = lone("bench", "workload", "chat", PATH=f"{tmp_path}/none:{tmp_path}/other")
    assert r.returncode == 1 and f"the one in $PATH cannot be executed: {tmp_path}/other/cgn-lab: Permission denied\n" in r.stderr, r
    words = [CTL.with_name("cgn-lab"), "workload", "agents", "--requests", "5"]
    mine = fine("version").split()[1]
    for version, says in ((mine, ""), ("9.9", f"cgn-lab: this is version {mine}, and cgn-ctl is of version 9.9: ")):
        r = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "CGN_CTL_VERSION": version})
        assert r.returncode == 0 and r.stdout and (r.stderr.startswith(says) if says else not r.stderr), r
    (tmp_path / "cgn-lab").write_text("#!/bin/sh\necho $CGN_CTL_VERSION\n")
    (tmp_path / "cgn-lab").chmod(0o755)
    assert lone("bench", "workload", "chat").stdout == mine + "\n"


def test_a_bootstrap_that_fails_leaves_nothing(tmp_path):
    for n, (leaf, blocked) in enumerate((("router=no role", None), ("router", "router.pem"), ("router", "router.key"), ("router", "ca.pem"))):
        out = tmp_path / str(n)
        (out / (blocked or "")).mkdir(parents=True)
        if blocked:  # neither a file nor empty
            (out / blocked / "x").touch()
        before = sorted(p.name for p in out.iterdir())
        assert subprocess.run([CTL, "pki", "bootstrap", "--out", out, "--leaf", "agent", "--leaf", leaf], capture_output=True).returncode != 0
        assert sorted(p.name for p in out.iterdir()) == before, leaf


def test_cgn_lab_is_cgn_ctl_bench():
    lab = CTL.with_name("cgn-lab")
    told = [subprocess.run([program, *words, "--requests", "5"], capture_output=True, check=True).stdout
            for program, *words in ((CTL, "bench", "workload", "agents"), (lab, "workload", "agents"))]
    assert told[0] == told[1] != b""
    assert subprocess.run([lab, "--help"], capture_output=True, check=True, text=True).stdout == fine("bench", "--help")
    assert subprocess.run([lab, "--version"], capture_output=True, check=True, text=True).stdout == fine("version").replace("cgn-ctl", "cgn-lab")
    for words, why in (((), "'bench' needs a second word"), (("nope",), "'bench' has no verb 'nope'"), (("chat", "--rate", "0"), "--rate takes")):
        r = subprocess.run([lab, *words], capture_output=True, text=True)
        assert r.returncode == 2 and r.stderr.startswith(f"cgn-lab: {why}"), r


def test_bench_index_measures_what_it_says(tmp_path):
    small = ("--memberships", "20000", "--updates", "60000", "--rate", "2000", "--duration", "300ms", "-o", "json")
    r = json.loads(fine("bench", "index", "--nodes", "3,70", *small))
    assert r["workload"] == "generated" and [x["nodes"] for x in r["results"]] == [3, 70]
    for x in r["results"]:
        assert x["updates"] >= 60000 and x["updates_per_second"] > 0
        assert 0 < x["lookup_p50_ns"] <= x["lookup_p99_ns"]
        assert 0.9 * 20000 < x["memberships"] <= 20000 and x["blocks"] <= x["memberships"]
        assert x["bytes_per_membership"] == pytest.approx(x["bytes"] / x["memberships"])
        assert x["lookups"] == 600 and x["blocks_per_lookup"] > 1  # conversations find their earlier blocks
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join('{"timestamp": 0, "input_length": %d, "output_length": 1, "hash_ids": %s}\n\n' % (512 * len(ids), ids) for ids in ([0, 1, 2], [0, 1, 2, 3])))
    x = json.loads(fine("bench", "index", "--nodes", "1", "--trace", trace, *small))["results"][0]
    assert 1 < x["blocks_per_lookup"] <= 2  # of each new round of the trace, 1 of 3 and then 3 of 4, if the first was applied in time
    assert "NODES" in fine("bench", "index", "--nodes", "2", *small[:-2])


def test_bench_index_refuses_what_it_can_not_measure(tmp_path):
    assert "--nodes takes" in refused(2, "bench", "index", "--nodes", "8,,9")
    assert "--nodes takes" in refused(2, "bench", "index", "--nodes", "4097")
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n{"timestamp": 0, "input_length": 900, "output_length": 1, "hash_ids": [1, -2]}\n')
    assert f"{trace} line 2" in refused(2, "bench", "index", "--trace", trace)
    trace.write_text("\n")
    assert "no request" in refused(2, "bench", "index", "--trace", trace)
    assert "none" in refused(1, "bench", "index", "--trace", tmp_path / "none")


def test_bench_pick_measures_each_phase_of_what_it_says():
    small = ("--tokens", "2048", "--rate", "2000", "--duration", "200ms", "-o", "json")
    r = json.loads(fine("bench", "pick", "--nodes", "3,70", *small))
    assert [(x["nodes"], x["prompts"]) for x in r["results"]] == [(n, p) for n in (3, 70) for p in ("known", "new", "all")]
    for known, new, both in (r["results"][:3], r["results"][3:]):
        assert both["decisions"] == known["decisions"] + new["decisions"] > 0
        assert both["decisions"] + both["preempted"] == 401
        assert known["digests_made"] == 16  # 256 more tokens
        assert 96 <= new["digests_made"] <= 128 and 0 <= new["blocks_held"] <= 32  # the system prompt is known to all nodes, or to none
        for x in (known, new, both):
            phases = [x[f"{p}_us"] for p in ("digest", "match", "score", "book")]
            assert all(0 <= p["p50"] <= p["p99"] <= p["p999"] for p in phases)
            assert max(p["p50"] for p in phases) <= x["total_us"]["p50"]
    all_new = json.loads(fine("bench", "pick", "--nodes", "2", "--new", "100", *small))["results"]
    assert all_new[0]["decisions"] == 0 < all_new[1]["decisions"]
    assert "PROMPTS" in fine("bench", "pick", "--nodes", "2", "--policy", "round_robin", *small[:-2])


def test_bench_pick_refuses_what_it_can_not_measure():
    assert "--nodes takes" in refused(2, "bench", "pick", "--nodes", "0")
    assert '"best" is not a policy' in refused(2, "bench", "pick", "--policy", "best")
    assert "--tokens" in refused(2, "bench", "pick", "--tokens", "100")


def refused_or_report(*args):
    r = run(*args)
    assert r.returncode == 4
    return r.stdout + r.stderr


def small_tokenizer(folder, **model):
    vocab = {c: i for i, c in enumerate(["<unk>", "\u2581", *"abcdefghijklmnopqrstuvwxyz", "\u2581t", "th"])}
    merges = ["\u2581 t", "t h"]
    file = {"version": "1.0", "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"},
            "model": {"type": "BPE", "unk_token": "<unk>", "vocab": vocab, "merges": merges} | model}
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(file))
    return path


def test_bench_tokenizer_measures_files(tmp_path):
    path, text = small_tokenizer(tmp_path), tmp_path / "text"
    text.write_bytes(b"that is \xff it " * 1000)
    said = json.loads(fine("bench", "tokenizer", "--alone", "--text", text, "-o", "json", path, path))
    assert said["bench"] == "tokenizer" and said["text_bytes"] == 13000 and len(said["files"]) == 2
    one = said["files"][0]
    # "_t" "h" "a" "t", "_" "i" "s", "_" "<unk>", "_" "i" "t"; each part of the text begins with a mark, which its first word has anyway
    assert one["tokens"] == said["files"][1]["tokens"] >= 12000
    assert one["mb_per_second"] > 0 and one["load_seconds"] > 0 and one["memory_bytes"] > 1000 and one["huggingface"] is None
    prompt = one["prompt"]
    assert prompt["tokens"] > 1000 and prompt["repeat_bytes_tokenized"] < 600 <= prompt["bytes"] and 0 < prompt["cache_bytes"]
    table = fine("bench", "tokenizer", "--bytes", 5000, "--rounds", 1, "--python", "/no/such/python", path)
    assert "not compared" in table and table.splitlines()[0].split()[:2] == ["FILE", "MB/S"]


def test_bench_tokenizer_refuses(tmp_path):
    assert "usage: cgn-ctl bench tokenizer FILE..." in refused(2, "bench", "tokenizer")
    assert 'model.type "Unigram"' in refused(9, "bench", "tokenizer", "--alone", small_tokenizer(tmp_path, type="Unigram"))
    assert "absent.json" in refused(1, "bench", "tokenizer", "--alone", tmp_path / "absent.json")


def test_recipes_are_listed_and_shown():
    rows = json.loads(fine("recipe", "ls", "-o", "json", cwd=ROOT))
    agents = {r["recipe"]: int(r["agents"]) for r in rows}
    assert agents == {str(p.parent.relative_to(ROOT / "recipes")): len(list(p.parent.glob("agent-*.toml"))) for p in ROOT.glob("recipes/*/*/*/up.sh")
                      if "qwen3-7b" not in p.parts}  # a link to qwen3-8b
    assert agents["quickstart/sim/agg"] == 2 and agents["llama3-8b/vllm/disagg-single-node"] == 2
    text = fine("recipe", "show", "quickstart/sim/agg", cwd="/")
    assert "--- agent-a.toml ---" in text and "--- router.toml ---" in text
    assert "there is no recipe 'x/y/z'" in refused(1, "recipe", "show", "x/y/z", cwd=ROOT)
    assert "there is no recipe" in refused(1, "recipe", "show", "../scripts", cwd=ROOT)
    assert "is not a folder of recipes" in refused(1, "recipe", "ls", "--recipes", "/tmp")

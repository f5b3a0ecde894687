# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl doctor: each check finds the mistake that it is for, made for real, and is fine without it. Kernel values are files that bubblewrap
binds over those of /proc and /sys. tests/interop/test_doctor.py has the check of etcd."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess

import pytest

from cluster import BUILD, ROOT, WAIT_S, Process, ask, free_port, toml, until
from kvbulk import Store
from kvpeers import bootstrap, rotate, security
from kvsites import Sites
from test_systemd_units import systemctl, systemd  # noqa: F401, a fixture

CTL = BUILD / "src/ctl/cgn-ctl"
BWRAP = pytest.mark.skipif(not shutil.which("bwrap") or subprocess.run(["bwrap", "--bind", "/", "/", "true"], capture_output=True).returncode != 0,
                           reason="bubblewrap does not work here")
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root may do this")


def run(*args, env=None, before=()):
    """Run the doctor; proxies and our own variables of the tester's shell do not count."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("COGNITORA__", "CGN_")) and not k.lower().endswith("_proxy")}
    return subprocess.run([*map(str, before), CTL, "doctor", *map(str, args)], env={**clean, **(env or {})}, capture_output=True, text=True,
                          timeout=2 * WAIT_S)


def check(name, config, *programs, env=None, before=()):
    """Run one check on a file or on sections; return its findings [(result, seen, do)], and assert that the exit status agrees."""
    chosen = [x for p in programs for x in ("--program", p)]
    done = run("--only", name, "--config", config, *chosen, "-o", "json", env=env, before=before)
    assert done.stderr == "", done
    answer = json.loads(done.stdout)
    found = [(f["result"], f["seen"], f["do"]) for f in answer["findings"]]
    assert all(f["check"] == name for f in answer["findings"]) and found
    assert answer["problems"] == sum(f[0] == "problem" for f in found) and answer["warnings"] == sum(f[0] == "warning" for f in found)
    assert done.returncode == (1 if answer["problems"] else 0), done
    assert all(f[2] for f in found if f[0] in ("problem", "warning")), "each finding says what to do"
    return found


def finds(result, words, *args, **more):
    """The check's first finding has that result, and what was seen and is to be done has the words."""
    found = check(*args, **more)
    assert found[0][0] == result and re.search(words, " ".join(found[0][1:])), found
    return found


@pytest.fixture
def write(tmp_path):
    """Write a configuration; return its path."""
    def settings(name="c", **sections):
        path = tmp_path / f"{name}.toml"
        path.write_text(toml({k.replace("__", "."): v for k, v in {"cluster": {"state_dir": str(tmp_path)}, **sections}.items()}))
        path.chmod(0o600)
        return path
    return settings


def bound(path, text, tmp_path):
    """Return a command prefix under which |path| of /proc or /sys has that text."""
    file = tmp_path / pathlib.Path(path).name
    file.write_text(text)
    return ["bwrap", "--dev-bind", "/", "/", "--ro-bind", file, path]


# ---- the verb ----

def test_the_list_and_the_page_have_the_same_checks():
    listed = json.loads(run("--list", "-o", "json").stdout)
    names = [row["check"] for row in listed]
    assert len(names) >= 20 and len(set(names)) == len(names) and all(row["finds"] for row in listed)
    page = (ROOT / "docs/operate/doctor.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \|", page, re.M) == names
    tested = pathlib.Path(__file__).read_text() + (ROOT / "tests/interop/test_doctor.py").read_text()
    assert [n for n in names if f'"{n}"' not in tested] == []


def test_usage():
    for args, word in ((("--only", "nonsense"), "nonsense"), (("--program", "etcd"), "etcd"), (("word",), "word")):
        done = run(*args)
        assert done.returncode == 2 and word in done.stderr and done.stdout == ""
    text = run("--help").stdout
    assert "--only" in text and "cgn-ctl doctor" in text


def test_everything_is_down(write):
    """Nothing runs and nothing answers: the doctor still answers, soon, and says so."""
    ports = {name: f"127.0.0.1:{free_port()}" for name in ("listen", "listen_grpc", "listen_admin")}
    done = run("--config", write(router=ports), "--program", "router", "--program", "agent")
    assert done.returncode == 1 and "problem  running" in done.stdout and "cgn-router does not answer" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("problems ") and "do: " in done.stdout


def test_everything_is_fine(cluster, write):
    cluster.router()
    node = cluster.node("a", "--time-scale", "0")
    cluster.wait_ready(1)
    until(lambda: ask(node.admin_port, "GET", "/readyz").status == 200, "the agent is ready")
    for name, program in (("router", "router"), ("agent-a", "agent")):
        (cluster.folder / f"{name}.toml").chmod(0o600)
        done = run("--config", cluster.folder / f"{name}.toml", "--program", program, "-o", "wide")
        assert done.returncode == 0 and "problem " not in done.stdout, done.stdout
        assert f"programs cgn-{program}" in done.stdout and "skipped  etcd" in done.stdout


# ---- settings and files ----

def test_settings(write, tmp_path):
    good = write(router={"listen": "127.0.0.1:1"})
    finds("ok", "valid", "settings", good)
    bad = tmp_path / "bad.toml"
    bad.write_text("[router]\nlisten = \"127.0.0.1:1\"\nlisten_grcp = \"x\"\n")
    finds("problem", r"bad.toml:3:.*listen_grcp", "settings", bad)
    finds("problem", "no/such", "settings", tmp_path / "no/such.toml")
    assert check("nodes", bad) == [("skipped", "there are no valid settings", "")]


def test_files(write):
    finds("ok", "files", "files", write(), "router")
    finds("problem", "/no/cert", "files", write(router={"tls_cert_file": "/no/cert", "tls_key_file": "/no/key"}), "router")
    pki = {"cert_file": "credential:program.pem", "key_file": "credential:program.key", "ca_file": "credential:ca.pem"}
    finds("skipped", "only while a unit runs", "files", write(security=pki), "router")


def test_applied(cluster):
    cluster.router({"router": {"max_body": "1MiB"}})
    path = cluster.folder / "router.toml"
    finds("ok", "settings of the file", "applied", path, "router")
    path.write_text(path.read_text().replace("1MiB", "2MiB"))
    found = finds("warning", "reload cgn-router", "applied", path, "router")
    assert "router.max_body" in found[0][1] and len(found) == 1


def test_proxy(write):
    finds("ok", "no proxy", "proxy", write())
    for name in ("http_proxy", "ALL_PROXY"):
        finds("warning", f"{name} .*no_proxy=localhost", "proxy", write(), env={name: "http://proxy:3128"})
    finds("ok", "no proxy", "proxy", write(), env={"http_proxy": "http://proxy:3128", "no_proxy": "localhost,127.0.0.1"})


def test_secrets(write, tmp_path):
    (tmp_path / "key").write_text("secret")
    (tmp_path / "keys").write_text("")
    path = write(router={"tls_cert_file": "/no/cert", "tls_key_file": str(tmp_path / "key")}, auth={"api_keys_file": str(tmp_path / "keys")})
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "keys").chmod(0o644)  # hashes
    finds("ok", "readable", "secrets", path)
    (tmp_path / "key").chmod(0o644)
    found = finds("problem", f"router.tls_key_file.*read it chmod 600 {tmp_path}/key", "secrets", path)
    assert len(found) == 1
    (tmp_path / "keys").chmod(0o666)
    assert len(check("secrets", path)) == 2


def test_owners(write):
    path = write()
    finds("ok", "only its owner", "owners", path)
    path.chmod(0o666)
    finds("problem", f"chmod go-w {path}", "owners", path)


@ROOT_ONLY
def test_owners_of_another_user(write):
    path = write()
    os.chown(path, 12345, 0)
    finds("problem", "user 12345", "owners", path)


# ---- certificates ----

def test_certificate_end(write, tmp_path):
    pki = bootstrap(tmp_path / "pki", "router")
    path = write(security=security(pki, "router"))
    finds("ok", "valid", "certificate-end", path)
    day = 24 * 3600
    for result, words, valid in (("problem", f"ended 2 days ago.*pki renew router --dir {pki}", (-9 * day, -2 * day - 60)), ("warning", "ends in 9 days", (-60, 10 * day - 60)),
                                 ("problem", "not valid yet", (2 * day, 90 * day)), ("ok", "valid", (-60, 60 * day))):
        rotate(pki, "router", valid)
        finds(result, words, "certificate-end", path)


def test_certificate_key_and_ca(write, tmp_path):
    pki, other = bootstrap(tmp_path / "pki", "router", "agent"), bootstrap(tmp_path / "other", "router")
    good = security(pki, "router")
    finds("ok", "keys belong", "certificate-key", write(security=good))
    finds("problem", "agent.key is not the key", "certificate-key", write(security={**good, "key_file": f"{pki}/agent.key"}))
    finds("ok", "signed", "certificate-ca", write(security=good))
    finds("problem", "not by the CA", "certificate-ca", write(security={**good, "ca_file": f"{other}/ca.pem"}))


def test_certificate_name(write, tmp_path):
    pki = bootstrap(tmp_path / "pki", "agent")
    finds("ok", "names", "certificate-name", write(security=security(pki, "agent"), agent={"advertise": "127.0.0.1:7080"}), "agent")
    finds("problem", "--san gpu-7.example", "certificate-name", write(security=security(pki, "agent"), agent={"advertise": "gpu-7.example:7080"}), "agent")
    finds("skipped", "cert_file", "certificate-name", write(), "agent")


def test_revoked(write, tmp_path):
    pki = bootstrap(tmp_path / "pki", "agent", "router")

    def revoke(*args):
        subprocess.run([CTL, "pki", *args, "--dir", pki], check=True, capture_output=True, timeout=WAIT_S)
    revoke("revoke", "router")
    path = write(security={**security(pki, "agent"), "crl_file": f"{pki}/crl.pem"})
    finds("ok", "in force", "revoked", path)
    revoke("revoke", "agent")
    finds("problem", "agent.pem is revoked", "revoked", path)


# ---- clock ----

@pytest.mark.plain
def test_clock(write, tmp_path, monkeypatch):
    """An engine whose machine's clock is wrong."""
    port = free_port()
    (tmp_path / "shift").write_text("3600")
    with monkeypatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(BUILD / "tests/helpers/clock_shift.so"))
        patch.setenv("CGN_CLOCK_SHIFT", str(tmp_path / "shift"))
        engine = Process(tmp_path, "engine", "cgn-sim", "--listen", f"127.0.0.1:{port}", "--model", "sim")
    try:
        until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, "the engine listens")
        path = write(engine={"url": f"http://127.0.0.1:{port}"})
        until(lambda: any(r == "problem" and f"127.0.0.1:{port} is 3" in seen and "ahead of" in seen for r, seen, _ in check("clock", path, "agent")),
              "the clock is found to differ")
        (tmp_path / "shift").write_text("0")
        until(lambda: not any("ahead" in seen or "behind" in seen for _, seen, _ in check("clock", path, "agent")), "the clocks agree")
    finally:
        engine.kill()


# ---- programs ----

def test_ports(write):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        taken = s.getsockname()[1]
        ports = {"listen": f"127.0.0.1:{taken}", "listen_grpc": f"127.0.0.1:{free_port()}", "listen_admin": f"127.0.0.1:{free_port()}"}
        finds("ok", "no other program", "ports", write(router=ports), "router")
        s.listen()
        finds("problem", rf"router.listen .* taken by pid {os.getpid()} ", "ports", write(router=ports), "router")
    finds("problem", "router.listen and router.listen_grpc both have port", "ports", write(router={**ports, "listen_grpc": ports["listen"]}), "router")


def test_running_and_ready(cluster):
    cluster.router()
    path = cluster.folder / "router.toml"
    finds("ok", "all programs run", "running", path, "router")
    finds("problem", "no nodes|no node", "ready", path, "router")
    cluster.node("a", "--time-scale", "0")
    cluster.wait_ready(1)
    finds("ok", "ready", "ready", path, "router")
    cluster.router_process.stop()
    finds("problem", "systemctl start cgn-router", "running", path, "router")
    finds("skipped", "no program runs", "ready", path, "router")


@pytest.mark.plain
def test_versions(write, tmp_path):
    """A folder with programs of two versions: the version in a copy of the router is replaced."""
    version = subprocess.run([CTL, "--version"], capture_output=True, text=True).stdout.split()[1]
    shutil.copy(CTL, tmp_path / "cgn-ctl")
    shutil.copy(BUILD / "src/router/cgn-router", tmp_path / "cgn-router")

    def versions():
        done = subprocess.run([tmp_path / "cgn-ctl", "doctor", "--only", "versions", "--config", write(router={"listen_admin": f"127.0.0.1:{free_port()}"}), "-o", "json"],
                              capture_output=True, text=True, timeout=WAIT_S)
        return [(f["result"], f["seen"]) for f in json.loads(done.stdout)["findings"] if "/usr/bin" not in f["seen"]]
    assert [r for r, _ in versions()] in (["ok"], [])
    other = "9" + version[1:]
    old = (tmp_path / "cgn-router").read_bytes()
    (tmp_path / "cgn-router").write_bytes(old.replace(version.encode(), other.encode()))
    (found,) = versions()
    assert found[0] == "warning" and other in found[1] and "cgn-router" in found[1]


@pytest.mark.plain
def test_units(write, systemd):  # noqa: F811
    (systemd / "cgn-router.service").write_text("[Service]\nExecStart=/bin/false\n[Install]\nWantedBy=default.target\n")
    (systemd / "cgn-agent.service").write_text("[Service]\nExecStart=/bin/sleep 1000\n[Install]\nWantedBy=default.target\n")
    path = write(agent={"systemctl": ["systemctl", "--user"]})
    assert systemctl("daemon-reload").returncode == 0
    finds("ok", "as they should be", "units", path)
    systemctl("start", "cgn-router")
    until(lambda: systemctl("is-failed", "cgn-router").stdout.strip() == "failed", "the unit fails")
    finds("problem", "cgn-router.service has failed .exit-code. journalctl -u cgn-router", "units", path)
    systemctl("reset-failed", "cgn-router")
    systemctl("start", "cgn-agent")
    finds("warning", "cgn-agent.service runs and is not enabled", "units", path)
    systemctl("enable", "cgn-agent")
    systemctl("daemon-reload")  # the manager caches whether a unit is enabled
    finds("ok", "as they should be", "units", path)
    systemctl("stop", "cgn-agent")
    finds("problem", "cgn-agent.service is enabled and inactive systemctl start", "units", path)
    finds("problem", "cgn-agent does not answer", "running", path)  # an enabled unit's program belongs to this machine
    systemctl("start", "cgn-agent")
    path = write(agent={"systemctl": ["systemctl", "--user"]}, engine={"systemd_unit": "no-such.service", "url": "http://127.0.0.1:1"})
    finds("problem", "no unit no-such.service", "units", path)


def test_no_systemd(write):
    finds("skipped", "systemd", "units", write(agent={"systemctl": ["/no/systemctl"]}))


# ---- the cluster ----

def test_router(cluster, write, tmp_path):
    path = write(cluster={"router": f"127.0.0.1:{cluster.grpc_port}", "state_dir": str(tmp_path)})
    finds("problem", "start the router", "router", path, "agent")
    cluster.router()
    finds("ok", "answers", "router", path, "agent")


def test_router_by_tls(cluster, write, tmp_path):
    pki, other = bootstrap(tmp_path / "pki", "router", "agent"), bootstrap(tmp_path / "other", "agent")
    cluster.router({"security": {**security(pki, "router"), "require_mtls": True}})
    where = {"router": f"127.0.0.1:{cluster.grpc_port}", "state_dir": str(tmp_path)}
    finds("ok", "answers", "router", write(cluster=where, security=security(pki, "agent")), "agent")
    finds("problem", "cgn-ctl pki show", "router", write(cluster=where, security=security(other, "agent")), "agent")


def test_nodes(cluster):
    cluster.router()
    path = cluster.folder / "router.toml"
    finds("problem", "no node", "nodes", path, "router")
    node = cluster.node("a", "--time-scale", "0")
    cluster.wait_ready(1)
    finds("ok", "all 1 nodes", "nodes", path, "router")
    ctl = [CTL, "cluster", "cordon", "a", "--router", f"127.0.0.1:{cluster.grpc_port}"]
    subprocess.run(ctl, check=True, capture_output=True, timeout=WAIT_S)
    until(lambda: check("nodes", path, "router")[0][0] == "warning", "the cordon is found")
    finds("warning", "cgn-ctl cluster uncordon a", "nodes", path, "router")
    ctl[2] = "uncordon"
    subprocess.run(ctl, check=True, capture_output=True, timeout=WAIT_S)
    node.engine.kill()
    until(lambda: cluster.states().get("a") not in ("ready", "cordoned"), "the router knows")
    finds("problem", "a is ", "nodes", path, "router")


def test_engines_without_an_agent(cluster):
    cluster.router({'engine_nodes."bare"': {"url": f"http://127.0.0.1:{free_port()}"}})
    finds("problem", "look at the engine itself, at 127.0.0.1:", "nodes", cluster.folder / "router.toml", "router")


def test_models(cluster):
    cluster.router({'models."other"': {"aliases": ["sim"]}})
    cluster.node("a", "--time-scale", "0")
    cluster.wait_ready(1)
    path = cluster.folder / "router.toml"
    finds("ok", "have a ready node", "models", path, "router")
    path.write_text(path.read_text() + '\n[models."llama"]\ntp = 1\n')
    finds("problem", 'model "llama" .*aliases', "models", path, "router")


def test_kv_events(cluster):
    cluster.common['models."sim"'] = {"block_tokens": 16}
    cluster.router()
    path = cluster.folder / "router.toml"
    events = f"tcp://127.0.0.1:{free_port()}"
    replay = f"tcp://127.0.0.1:{free_port()}"
    keys = {"kv_events": events, "kv_events_replay": replay}
    node = cluster.node("a", "--time-scale", "0", "--kv-events", events, "--kv-events-replay", replay, sections={"engine": keys})
    cluster.wait_ready(1)
    assert cluster.chat("a long prompt " * 60, max_tokens=2).status == 200
    until(lambda: check("kv-events", path, "router")[0] == ("ok", "the events of the engines arrive", ""), lambda: check("kv-events", path, "router"))
    # Blocks of another size than the model's cannot be used.
    node.agent.kill()
    file = cluster.folder / "agent-a.toml"
    file.write_text(file.read_text().replace("block_tokens = 16", "block_tokens = 32"))
    node.agent.start()
    until(lambda: cluster.states().get("a") == "ready" and cluster.chat("another prompt " * 60, max_tokens=2).status == 200
          and check("kv-events", path, "router")[0][0] == "warning", lambda: check("kv-events", path, "router"))
    finds("warning", "demoted.*engine.kv_events", "kv-events", path, "router")


def test_routers(cluster, write):
    ports = [{n: f"127.0.0.1:{free_port()}" for n in ("listen", "listen_grpc", "listen_admin")} for _ in range(2)]
    urls = [f"r{i}=http://{p['listen_admin']}" for i, p in enumerate(ports)]
    path = write(metrics={"routers": urls, "listen": f"127.0.0.1:{free_port()}"})
    finds("warning", "does not show its settings", "routers", path, "metrics")
    first = cluster.run("r0", "cgn-router", "--config", cluster.config("r0", {"router": ports[0]}))
    second = cluster.run("r1", "cgn-router", "--config", cluster.config("r1", {"router": ports[1]}))
    until(lambda: "svc.ready" in first.log() and "svc.ready" in second.log(), "both run")
    finds("ok", "same settings", "routers", path, "metrics")
    second.stop()
    cluster.config("r1", {"router": {**ports[1], "policy": "random"}})
    second.start()
    until(lambda: second.log().count("svc.ready") == 2, "it runs again")
    finds("warning", 'r0=.* and r1=.* differ in 1 settings: router.policy "predicted|kv" and "random"', "routers", path, "metrics")


# ---- engines and names ----

def test_engine(cluster, write):
    _, port = cluster.engine("e")
    path = write(engine={"url": f"http://127.0.0.1:{port}"})
    finds("ok", "answer", "engine", path, "agent")
    finds("problem", "engine.url", "engine", write(engine={"url": f"http://127.0.0.1:{free_port()}"}), "agent")
    finds("ok", "have their models", "engine-model", write(engine={"url": f"http://127.0.0.1:{port}", "model": "sim"}), "agent")
    finds("problem", '"llama", and engine .* has "sim"', "engine-model", write(engine={"url": f"http://127.0.0.1:{port}", "model": "llama"}), "agent")


def test_names(write):
    finds("ok", "known", "names", write(engine={"url": "http://localhost:1"}))
    finds("problem", 'engine.url has the host name "no-such-host.invalid"', "names", write(engine={"url": "http://no-such-host.invalid:1"}))


# ---- the block store ----

@contextlib.contextmanager
def store(folder, **kv):
    s = Store(folder, **kv)
    try:
        yield s
    finally:
        s.close()


def test_kv_socket(write, tmp_path):
    finds("problem", "/no/kv.sock.*agent.kv_uds", "kv-socket", write(agent={"kv_uds": "/no/kv.sock"}), "agent")
    finds("skipped", "block store", "kv-socket", write(), "agent")
    finds("problem", 'set agent.kv_uds = "/b"', "kv-socket", write(agent={"kv_uds": "/a"}, kv={"uds": "/b"}), "agent", "kvcached")
    with store(tmp_path) as s:
        finds("ok", "answers", "kv-socket", write(agent={"kv_uds": s.uds}), "agent")


def test_kv_peers(world):
    a = world("a")
    b = world("b", peers=[a])
    path = pathlib.Path(world.folder) / "b/kv.toml"
    b.ready()
    finds("ok", "connected", "kv-peers", path, "kvcached")
    a.process.kill()
    until(lambda: check("kv-peers", path, "kvcached")[0][0] == "warning", lambda: b.peers())
    finds("warning", f"open UDP port {a.quic}", "kv-peers", path, "kvcached")
    a.process.start()
    a.wait()


def test_kv_sites(tmp_path):
    """A site with our CA, one that may have nothing, one that is down, one that is fine."""
    with contextlib.ExitStack() as stack:
        sites = Sites(tmp_path, stack)
        lists = {"tenants": ["acme"], "models": ["*"]}
        a = sites.start("a", "east", "west", **lists)
        path = tmp_path / "a/kv.toml"
        finds("warning", "no connection with the site west", "kv-sites", path, "kvcached")
        b = sites.start("b", "west", "east", to=["a"], tenants=["acme"])
        until(lambda: a.site("west")["guests"] == 1, lambda: a.site("west"))
        finds("ok", "CAs of their own", "kv-sites", path, "kvcached")
        finds("warning", "may have nothing", "kv-sites", tmp_path / "b/kv.toml", "kvcached")
        ours = tmp_path / "copy.pem"
        ours.write_bytes((sites.pki["east"] / "ca.pem").read_bytes())
        wrong = tmp_path / "wrong.toml"
        wrong.write_text(path.read_text().replace(f"{sites.pki['west']}/ca.pem", str(ours)))
        finds("problem", "has the CA of this cluster", "kv-sites", wrong, "kvcached")
        assert b.process.alive()


@BWRAP
def test_disk(write, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    path = write(cluster={"state_dir": str(small)})
    finds("ok", "room", "disk", path)
    finds("problem", "cluster.state_dir", "disk", path, before=["bwrap", "--dev-bind", "/", "/", "--size", "1048576", "--tmpfs", small])
    finds("problem", "kv.ssd is 1048576.0 GiB", "disk", write(kv={"ssd_dir": str(tmp_path / "ssd"), "ssd": "1024TiB"}), "kvcached")


def test_state_dir(write, tmp_path):
    finds("ok", "writable", "state-dir", write())
    finds("problem", "No such file.*mkdir -p", "state-dir", write(cluster={"state_dir": str(tmp_path / "none")}))
    finds("problem", "not a folder", "state-dir", write(cluster={"state_dir": str(write())}))


@ROOT_ONLY
def test_state_dir_of_another_user(tmp_path, write):
    before = ["setpriv", "--reuid", "65534", "--clear-groups"]
    folder = pathlib.Path("/var/tmp") / f"doctor-{os.getpid()}"  # pytest's folders are closed to other users
    folder.mkdir()
    try:
        (folder / "state").mkdir(mode=0o700)
        config = folder / "c.toml"
        config.write_text(toml({"cluster": {"state_dir": str(folder / "state")}}))
        if subprocess.run([*before, "test", "-x", CTL]).returncode != 0:
            pytest.skip("other users cannot run the programs of this build")
        finds("problem", "cannot write there", "state-dir", config, before=before)
        os.chown(folder / "state", 65534, 65534)
        finds("ok", "writable", "state-dir", config, before=before)
    finally:
        shutil.rmtree(folder)


# ---- the kernel's limits ----

def test_memory(write):
    finds("ok", "of", "memory", write(kv={"ram": "8MiB"}), "kvcached")
    finds("problem", "lower kv.ram", "memory", write(kv={"ram": "16TiB"}), "kvcached")


def test_descriptors(write):
    path = write(agent={"systemctl": ["/no/systemctl"]})
    finds("problem", "may have 500 files", "descriptors", path, before=["prlimit", "--nofile=500:500"])
    many = ["prlimit", "--nofile=100000:100000"]
    if subprocess.run([*many, "true"], capture_output=True).returncode == 0:
        finds("ok", "enough", "descriptors", path, before=many)


@pytest.mark.plain
def test_descriptors_of_a_program_that_runs(cluster):
    """The limit of the program counts, not that of the shell."""
    path = cluster.config("router", {"router": {n: f"127.0.0.1:{free_port()}" for n in ("listen", "listen_grpc", "listen_admin")}})
    cluster.run("few", "cgn-router", "--check", "--config", path).wait()
    with open(cluster.folder / "few.log", "ab") as log:
        few = subprocess.Popen(["prlimit", "--nofile=700:700", BUILD / "src/router/cgn-router", "--config", path], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(lambda: "svc.ready" in (cluster.folder / "few.log").read_text(), "the router runs")
        finds("problem", "cgn-router may have 700 files", "descriptors", path, "router")
    finally:
        few.kill()
        few.wait()


@BWRAP
def test_backlog(write, tmp_path):
    finds("warning", "net.core.somaxconn is 128.*sysctl -w", "backlog", write(), "router", before=bound("/proc/sys/net/core/somaxconn", "128\n", tmp_path))
    finds("ok", "somaxconn", "backlog", write(), "router", before=bound("/proc/sys/net/core/somaxconn", "4096\n", tmp_path))


@BWRAP
def test_udp_buffers(write, tmp_path):
    pki = bootstrap(tmp_path / "pki", "kvcached")
    path = write(security=security(pki, "kvcached"))
    low, high = (bound("/proc/sys/net/core/rmem_max", n, tmp_path) + bound("/proc/sys/net/core/wmem_max", n, tmp_path)[4:] for n in ("212992\n", "4194304\n"))
    (tmp_path / "rmem_max").write_text("212992\n")
    (tmp_path / "wmem_max").write_text("212992\n")
    assert len(finds("warning", "net.core.rmem_max is 212992", "udp-buffers", path, "kvcached", before=low)) == 2
    (tmp_path / "rmem_max").write_text("4194304\n")
    (tmp_path / "wmem_max").write_text("4194304\n")
    finds("ok", "4194304", "udp-buffers", path, "kvcached", before=high)


@BWRAP
def test_hugepages(write, tmp_path):
    pages, memory = "/sys/kernel/mm/transparent_hugepage/enabled", "/proc/sys/vm/overcommit_memory"
    fine = [*bound(pages, "always [madvise] never\n", tmp_path), *bound(memory, "0\n", tmp_path)[4:]]
    finds("ok", "allowed", "hugepages", write(), "kvcached", before=fine)
    (tmp_path / "enabled").write_text("always madvise [never]\n")
    finds("warning", "huge pages are off", "hugepages", write(), "kvcached", before=fine)
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    (tmp_path / "overcommit_memory").write_text("2\n")
    finds("warning", "vm.overcommit_memory is 2", "hugepages", write(), "kvcached", before=fine)


@BWRAP
def test_gpu(write, tmp_path):
    (tmp_path / "nvidia0").write_text("")
    gpu = ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--bind", tmp_path / "nvidia0", "/dev/nvidia0"]
    bad, good = ({"nvml": n} for n in ("libno-such-library.so.1", str(BUILD / "tests/helpers/fake_nvml.so")))
    finds("problem", "libno-such-library.so.1.*libnvidia-ml1", "gpu", write(agent=bad), "agent", before=gpu)
    finds("ok", "1 GPUs", "gpu", write(agent=good), "agent", before=gpu)
    finds("skipped", "GPU", "gpu", write(agent=bad), "agent", before=["bwrap", "--bind", "/", "/", "--dev", "/dev"])


# ---- who reaches what ----

def test_gateway(write, tmp_path):
    (tmp_path / "keys").write_text("")
    finds("ok", "only this machine", "gateway", write(router={"listen": "127.0.0.1:8080"}), "router")
    finds("problem", "no API key.*auth.enabled", "gateway", write(router={"listen": "0.0.0.0:8080"}), "router")
    keys = {"enabled": True, "api_keys_file": str(tmp_path / "keys")}
    finds("warning", "in clear", "gateway", write(router={"listen": "0.0.0.0:8080"}, auth=keys), "router")
    tls = {"listen": "0.0.0.0:8080", "tls_cert_file": "/no/cert", "tls_key_file": "/no/key"}
    finds("ok", "over TLS", "gateway", write(router=tls, auth=keys), "router")


def test_the_gateway_of_a_running_router_is_the_one_it_has(cluster):
    cluster.router()
    path = cluster.folder / "router.toml"
    path.write_text(re.sub(r'(?m)^listen = .*', 'listen = "0.0.0.0:8080"', path.read_text(), count=1))
    finds("ok", f"only this machine reaches router.listen 127.0.0.1:{cluster.http_port}", "gateway", path, "router")


def test_insecure(write):
    here = {n: f"127.0.0.1:{p}" for n, p in (("listen_grpc", 9090), ("listen_admin", 9091))}
    finds("ok", "off", "insecure", write(router=here), "router")
    finds("warning", "no port is open", "insecure", write(router=here, security={"insecure": True}), "router")
    finds("problem", "router.listen_admin", "insecure", write(router={**here, "listen_admin": "0.0.0.0:9091"}, security={"insecure": True}), "router")

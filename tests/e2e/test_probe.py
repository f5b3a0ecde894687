# SPDX-License-Identifier: Apache-2.0
"""--probe, which health checks of containers run: it asks the running program at the admin address of the same settings."""
import signal
import subprocess

import pytest

from cluster import BUILD, Cluster, ask, free_port, until
from kvpeers import CTL, bootstrap, security


def probe(program, *args, what="ready"):
    """Return the exit status and what is said."""
    done = subprocess.run([BUILD / "src" / program.removeprefix("cgn-") / program, *map(str, args), "--probe", what], capture_output=True, text=True, timeout=60)
    assert (done.stdout == f"{program}: {what}\n" and not done.stderr) if done.returncode == 0 else (not done.stdout and done.stderr.startswith(program + ": ")), done
    return done.returncode, done.stderr


def is_ready(*args):
    return probe(*args)[0] == 0


@pytest.fixture
def c(tmp_path):
    with Cluster(tmp_path) as c:
        yield c


def test_a_program_is_away_alive_ready_and_ends(c):
    c.config("router", {"router": {"listen_admin": f"127.0.0.1:{c.admin_port}"}})
    config = c.folder / "router.toml"
    code, said = probe("cgn-router", "--config", config)
    assert code == 1 and f"127.0.0.1:{c.admin_port}" in said and "does the program run" in said
    assert probe("cgn-router", "--config", config, what="alive")[0] == 1
    router = c.router()
    assert probe("cgn-router", "--config", config, what="alive") == (0, "")
    code, said = probe("cgn-router", "--config", config)
    assert code == 1 and "not ready: " in said and "no node" in said
    node = c.node("a", "--time-scale", "0")
    c.wait_ready()
    assert probe("cgn-router", "--config", config) == (0, "")
    agent = c.folder / "agent-a.toml"
    until(lambda: is_ready("cgn-agent", "--config", agent), node.agent.log)
    node.engine.kill()
    until(lambda: not is_ready("cgn-agent", "--config", agent), node.agent.log)
    assert probe("cgn-agent", "--config", agent, what="alive") == (0, "")
    assert "not ready: " in probe("cgn-agent", "--config", agent)[1]
    assert router.stop() == 0
    assert probe("cgn-router", "--config", config, what="alive")[0] == 1


def test_a_program_that_stands_still(c):
    router = c.router()
    config = c.folder / "router.toml"
    assert probe("cgn-router", "--config", config, what="alive")[0] == 0
    router.signal(signal.SIGSTOP)
    code, said = probe("cgn-router", "--config", config, what="alive")
    assert code == 1 and "within 3 s" in said and "is stopped" in said
    router.signal(signal.SIGCONT)
    until(lambda: is_ready_or_alive(config), router.log)


def is_ready_or_alive(config):
    return probe("cgn-router", "--config", config, what="alive")[0] == 0


def test_a_program_that_drains_is_alive_and_not_ready(c):
    router = c.router()
    c.node("a", "--time-scale", "1")
    c.wait_ready()
    config = c.folder / "router.toml"
    with subprocess.Popen(["curl", "-sN", f"http://127.0.0.1:{c.http_port}/v1/chat/completions", "-H", "Content-Type: application/json", "-d",
                           '{"model":"sim","stream":true,"max_tokens":4000,"messages":[{"role":"user","content":"x"}]}'], stdout=subprocess.PIPE) as client:
        assert client.stdout.read(1)
        router.signal(signal.SIGTERM)
        until(lambda: not is_ready("cgn-router", "--config", config), router.log)
        assert "not ready: " in probe("cgn-router", "--config", config)[1]
        assert probe("cgn-router", "--config", config, what="alive")[0] == 0
        client.kill()
    assert router.wait() == 0


@pytest.mark.parametrize("program, section, key", [("kvcached", "kv", "listen_admin"), ("metrics", "metrics", "listen")])
def test_the_other_programs(c, program, section, key):
    port = free_port()
    more = {"kv": {"ram": "64MiB", "listen": f"127.0.0.1:{free_port()}", "resp_listen": "", "transport": "off", "uds": str(c.folder / "s")}} if program == "kvcached" else {}
    more.setdefault(section, {})[key] = f"0.0.0.0:{port}"  # every address of the machine: the loopback address is asked
    config = c.config(program, {**more, "security": {"insecure": True}})
    assert probe(f"cgn-{program}", "--config", config, what="alive")[0] == 1
    started = c.run(program, f"cgn-{program}", "--config", config)
    until(lambda: is_ready(f"cgn-{program}", "--config", config), started.log)
    assert ask(port, "GET", "/readyz").status == 200


@pytest.mark.parametrize("address", ["0.0.0.0", "[::]"])
def test_an_admin_port_with_tls(c, address):
    """The port shows the program's own certificate, whose name is not that of the address."""
    pki = c.folder / "pki"
    subprocess.run([CTL, "pki", "bootstrap", "--out", pki, "--san", "router.example", "--leaf", "router"], check=True, capture_output=True)
    config = c.config("router", {"security": security(pki, "router"), "router": {
        "listen": f"127.0.0.1:{c.http_port}", "listen_grpc": f"127.0.0.1:{c.grpc_port}", "listen_admin": f"{address}:{c.admin_port}"}})
    router = c.run("router", "cgn-router", "--config", config)
    until(lambda: probe("cgn-router", "--config", config, what="alive")[0] == 0, lambda: str(probe("cgn-router", "--config", config, what="alive")) + router.log())
    bootstrap(c.folder / "other", "router")
    code, said = probe("cgn-router", "--config", config, "--set", f"security.ca_file={c.folder / 'other' / 'ca.pem'}", what="alive")
    assert code == 1 and "certificate" in said


def test_wrong_use_is_named(c):
    done = subprocess.run([BUILD / "src/router/cgn-router", "--probe", "well"], capture_output=True, text=True)
    assert done.returncode == 2 and "ready or alive, not 'well'" in done.stderr
    code, said = probe("cgn-router", "--set", "router.listen_admin=127.0.0.1:0")
    assert code == 1 and "port 0" in said
    c.engine("e", port=c.admin_port)
    code, said = probe("cgn-router", "--set", f"router.listen_admin=127.0.0.1:{c.admin_port}")
    assert code == 1 and "is another program at this address?" in said

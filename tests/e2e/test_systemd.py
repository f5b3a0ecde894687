# SPDX-License-Identifier: Apache-2.0
"""What the programs do with a service manager: sockets that outlive a restart, levels in the journal, credentials. The manager is this file:
it speaks the protocol of sd_notify(3) and sd_listen_fds(3), and keeps sockets as systemd's FileDescriptorStoreMax= does. The units themselves
are not booted here (test_sandbox.py runs their sandbox)."""
import http.client
import json
import os
import pathlib
import shutil
import socket
import subprocess
import threading

import pytest

import cluster as module
from cluster import BUILD, WAIT_S, Cluster, Process, toml, until

UNITS = pathlib.Path(__file__).parents[2] / "deploy/systemd"


class Manager:
    """Starts a program as systemd does with Type=notify and FileDescriptorStoreMax=256."""

    def __init__(self, folder):
        self.path, self.said, self.kept = folder / "notify", [], {}
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        while True:
            text, fds, _, _ = socket.recv_fds(self.socket, 4096, 4)
            if text == b"end":
                return
            lines = dict(line.split("=", 1) for line in text.decode().splitlines())
            if lines.get("FDSTORE") == "1":
                assert len(fds) == 1 and lines["FDNAME"]
                os.set_inheritable(fds[0], False)
                if self.holds(fds[0]):
                    os.close(fds[0])
                else:
                    self.kept[lines["FDNAME"]] = fds[0]
            if lines.get("FDSTOREREMOVE") == "1":
                os.close(self.kept.pop(lines["FDNAME"]))
            self.said.append(lines)

    def holds(self, fd):
        return any(os.fstat(fd).st_ino == os.fstat(k).st_ino for k in self.kept.values())

    def close(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(b"end", str(self.path))
        self.thread.join(WAIT_S)
        for fd in self.kept.values():
            os.close(fd)
        self.socket.close()

    def ready(self):
        return sum("READY" in lines for lines in self.said)

    def starter(manager):
        class Managed(Process):
            def start(self):
                """Give the kept sockets as descriptors 3, 4, ..."""
                self.may_end = False
                env = {k: v for k, v in os.environ.items() if not k.startswith(("COGNITORA__", "CGN_CONFIG", "NOTIFY_", "WATCHDOG_", "LISTEN_"))}
                env |= {"NOTIFY_SOCKET": str(manager.path), "FDSTORE": "256"}
                names, fds = list(manager.kept), list(manager.kept.values())

                def place():
                    for i, fd in enumerate(fds):  # twice: a target may be a source that is still needed
                        os.dup2(fd, 200 + i)
                    for i in range(len(fds)):
                        os.dup2(200 + i, 3 + i, inheritable=True)
                        os.close(200 + i)
                argv = ["sh", "-c", 'LISTEN_PID=$$ exec "$@"', "sh", *self.argv]
                if fds:
                    env |= {"LISTEN_FDS": str(len(fds)), "LISTEN_FDNAMES": ":".join(names)}
                with open(self.log_file, "ab") as log:
                    self.popen = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, close_fds=False, preexec_fn=place)
        return Managed


@pytest.fixture
def manager(tmp_path):
    m = Manager(tmp_path)
    yield m
    m.close()


class Load(threading.Thread):
    """Asks on a new connection each time, from several threads, and counts what failed and why."""

    def __init__(self, c, threads=4):
        super().__init__()
        self.c, self.ends, self.done, self.failed, self.threads = c, False, 0, [], threads

    def one(self):
        while not self.ends:
            try:
                if self.c.chat("hello", max_tokens=2).status == 200:
                    self.done += 1
                    continue
                self.failed.append("status")
            except (OSError, http.client.HTTPException) as e:
                self.failed.append(repr(e))

    def run(self):
        workers = [threading.Thread(target=self.one) for _ in range(self.threads)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()


def start_managed(c, manager, monkeypatch, **settings):
    plain = module.Process
    monkeypatch.setattr(module, "Process", manager.starter())
    c.router({"router": {"worker_threads": 2, **settings}})
    monkeypatch.setattr(module, "Process", plain)
    c.node("a", "--time-scale", "0")
    until(lambda: c.states().get("a") == "ready", c.logs)


def restart(c, manager, load):
    """Restart the router; return how many requests ended by themselves meanwhile."""
    before, ready, done = c.router_process.pid, manager.ready(), load.done
    assert c.router_process.stop() == 0, c.router_process.log()
    c.router_process.start()
    until(lambda: manager.ready() > ready, c.router_process.log)
    assert c.router_process.pid != before
    until(lambda: load.done > done + 20, lambda: f"{load.failed} {c.logs()}")


def refused(failed):
    return [f for f in failed if "Refused" in f]


def test_a_restart_refuses_no_connection(tmp_path, manager, monkeypatch):
    with Cluster(tmp_path) as c:
        start_managed(c, manager, monkeypatch)
        kept = dict(manager.kept)
        assert len(kept) == 3  # router.listen of two workers, and router.listen_grpc
        load = Load(c)
        load.start()
        until(lambda: load.done > 20, c.logs)
        for _ in range(3):
            restart(c, manager, load)
        load.ends = True
        load.join(WAIT_S)
        assert not load.failed, load.failed
        assert manager.kept == kept  # the same sockets: nobody waits in a queue that no worker reads


def test_without_a_manager_that_keeps_sockets_connections_are_refused(tmp_path, manager, monkeypatch):
    """The test above would notice."""
    with Cluster(tmp_path) as c:
        start_managed(c, manager, monkeypatch)
        load = Load(c)
        load.start()
        until(lambda: load.done > 20, c.logs)
        for fd in manager.kept.values():
            os.close(fd)
        manager.kept.clear()
        c.router_process.stop()
        until(lambda: refused(load.failed), "a refused connection")
        c.router_process.start()
        load.ends = True
        load.join(WAIT_S)


def test_a_crash_refuses_no_connection(tmp_path, manager, monkeypatch):
    with Cluster(tmp_path) as c:
        start_managed(c, manager, monkeypatch)
        load = Load(c)
        c.router_process.kill()
        load.start()
        ready = manager.ready()
        c.router_process.start()
        until(lambda: manager.ready() > ready and load.done > 20, lambda: f"{load.failed} {c.logs()}")
        load.ends = True
        load.join(WAIT_S)
        assert not refused(load.failed), load.failed


def test_sockets_that_are_not_needed_any_more_are_given_up(tmp_path, manager, monkeypatch):
    with Cluster(tmp_path) as c:
        start_managed(c, manager, monkeypatch)
        assert len(manager.kept) == 3
        assert c.router_process.stop() == 0
        ready = manager.ready()
        c.router_process.argv += ["--set", "router.worker_threads=1"]
        c.router_process.start()
        until(lambda: manager.ready() > ready and len(manager.kept) == 2, lambda: f"{manager.kept} {c.router_process.log()}")
        assert len(c.router_process.events("svc.socket_unused")) == 1
        for _ in range(20):  # none goes to the socket of the worker that is gone
            until(lambda: c.chat("hello", max_tokens=2).status == 200, c.logs)


def test_the_journal_gets_levels(tmp_path):
    """Without systemd: the variable that it sets names the program's own stderr."""
    log = tmp_path / "log"
    with open(log, "wb") as f:
        at = os.fstat(f.fileno())
        env = {**os.environ, "JOURNAL_STREAM": f"{at.st_dev}:{at.st_ino}", "COGNITORA__LOG__FORMAT": "json"}
        p = subprocess.Popen([BUILD / "svc_demo", "--listen-admin", "127.0.0.1:0"], stderr=f, env=env)
        until(lambda: b"svc.ready" in log.read_bytes(), log.read_text)
        p.terminate()
        assert p.wait(WAIT_S) == 0
    lines = log.read_text().splitlines()
    levels = {"debug": "<7>", "info": "<6>", "warn": "<4>", "error": "<3>"}
    assert lines and all(line.startswith(levels[json.loads(line[3:])["level"]]) for line in lines), lines
    env["JOURNAL_STREAM"] = "1:2"  # the journal of a parent whose stderr is not ours
    done = subprocess.run(["timeout", "-s", "TERM", "1", BUILD / "svc_demo", "--listen-admin", "127.0.0.1:0"], stderr=subprocess.PIPE, env=env, text=True)
    assert done.stderr.startswith("{"), done.stderr


def check(program, config, **env):
    return subprocess.run([BUILD / "src" / program / f"cgn-{program}", "--check", "--config", config], capture_output=True, text=True,
                          env={k: v for k, v in {**os.environ, **env}.items() if v is not None})


def test_a_setting_names_a_credential(tmp_path):
    folder, config = tmp_path / "credentials", tmp_path / "c.toml"
    folder.mkdir()
    subprocess.run([BUILD / "src/ctl/cgn-ctl", "pki", "bootstrap", "--out", tmp_path / "pki"], check=True, capture_output=True)
    shutil.copy(tmp_path / "pki/router.key", folder / "router.key")
    config.write_text(toml({"security": {"ca_file": str(tmp_path / "pki/ca.pem"), "cert_file": str(tmp_path / "pki/router.pem"),
                                         "key_file": "credential:router.key"}}))
    done = check("router", config, CREDENTIALS_DIRECTORY=str(folder))
    assert done.returncode == 0 and f'key_file = "{folder}/router.key"' in done.stdout, done.stdout + done.stderr
    done = check("router", config, CREDENTIALS_DIRECTORY=None)
    assert done.returncode == 3 and "LoadCredential=router.key:PATH" in done.stderr, done.stderr
    config.write_text(config.read_text().replace("credential:router.key", "credential:../router.key"))
    done = check("router", config, CREDENTIALS_DIRECTORY=str(folder))
    assert done.returncode == 3 and "security.key_file" in done.stderr, done.stderr


@pytest.mark.plain
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
def test_systemd_accepts_the_units(tmp_path):
    """In a root of its own, whose /usr/bin has the programs."""
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    for unit in [*UNITS.glob("*.service"), *UNITS.glob("*.target")]:
        shutil.copy(unit, units)
    shutil.copytree("/lib/systemd/system", tmp_path / "lib/systemd/system", symlinks=True)  # sysinit.target and others
    for program in ["usr/bin/cgn-router", "usr/bin/cgn-agent", "usr/bin/cgn-kvcached", "usr/bin/cgn-metrics", "bin/kill"]:
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/true", tmp_path / program)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", "--root", tmp_path, "cognitora.target", *(f"cgn-{p}.service" for p in ["router", "agent", "kvcached", "metrics"])],
                          capture_output=True, text=True)
    wrong = [line for line in (done.stdout + done.stderr).splitlines() if "cognitora" in line or "cgn-" in line]
    assert not wrong, wrong


@pytest.mark.plain
@pytest.mark.skipif(not shutil.which("systemd-sysusers") or os.geteuid() != 0, reason="no systemd-sysusers, or not root")
def test_user_and_folders_are_made(tmp_path):
    """In a root of its own: --root of both tools."""
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    for tool, kind in [("systemd-sysusers", "sysusers"), ("systemd-tmpfiles", "tmpfiles")]:
        more = ["--create"] if kind == "tmpfiles" else []
        subprocess.run([tool, f"--root={root}", *more, UNITS / f"cognitora.{kind}"], check=True, capture_output=True, text=True)
    user = next(line.split(":") for line in (root / "etc/passwd").read_text().splitlines() if line.startswith("cognitora:"))
    assert user[5] == "/var/lib/cognitora" and user[6].endswith("nologin")
    state = (root / "var/lib/cognitora").stat()
    assert state.st_uid == int(user[2]) and state.st_mode & 0o777 == 0o750
    assert (root / "etc/cognitora").stat().st_uid == 0 and (root / "run/cognitora").is_dir() and (root / "var/log/cognitora").is_dir()

# SPDX-License-Identifier: Apache-2.0
"""The sandboxes of deploy/systemd: how tight they are, that no program needs more system calls, and a router without rights on a file system
that cannot be written."""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest

from cluster import BUILD, SANITIZER, WAIT_S, Cluster, Process, ask, free_port, toml, until
from kvbulk import Store

UNITS = pathlib.Path(__file__).parents[2] / "deploy/systemd"
PROGRAMS = ("router", "agent", "kvcached", "metrics")


def setting(unit, name):
    """Return the values of a setting, in order."""
    return re.findall(rf"^{name}=(.*)$", (UNITS / f"cgn-{unit}.service").read_text(), re.MULTILINE)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
@pytest.mark.parametrize("program, most", [("router", 20), ("kvcached", 20), ("metrics", 20), ("agent", 30)])
def test_a_sandbox_is_tight(program, most):
    """In systemd's own measure, tenths of 10."""
    done = subprocess.run(["systemd-analyze", "security", "--offline=yes", f"--threshold={most}", "--no-pager", UNITS / f"cgn-{program}.service"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def group(name):
    """Return the system calls of a group, and of those in it."""
    text = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager", name], check=True, capture_output=True, text=True).stdout
    words = [x.strip() for x in text.splitlines()[1:] if x.strip() and not x.strip().startswith("#")]
    return set().union(*(group(w) if w.startswith("@") else {w} for w in words))


def allowed(program):
    calls = set()
    for value in setting(program, "SystemCallFilter"):
        for name in value.removeprefix("~").split():
            calls = calls - group(name) if value.startswith("~") else calls | group(name)
    return calls


def child_of(pid, program):
    """Return the pid of the child that runs |program|; None: there is none. strace also starts helpers of its own."""
    with contextlib.suppress(OSError):
        for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                if pathlib.Path(f"/proc/{child}/exe").resolve() == pathlib.Path(program).resolve():
                    return int(child)
    return None


@pytest.fixture
def traced():
    """Make classes of processes that run under strace, which writes the names of their system calls. At the end of the test both strace and
    what it traces are ended: a strace that is killed leaves its program running."""
    started = []

    def of(folder, name):
        class Traced(Process):
            def start(self):
                program = self.argv[0]
                self.argv = ["strace", "-f", "-qq", "-c", "-S", "name", "-U", "name", "-o", str(folder / f"{name}.calls"), *self.argv]
                self.traced = None
                super().start()
                started.append(self)
                self.traced = until(lambda: child_of(self.pid, program), f"{name} runs under strace")

            def signal(self, signo):
                """Signal the program: strace ends with it, and with its status."""
                if self.traced is None or not self.alive():
                    return super().signal(signo)
                self.may_end = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.traced, signo)
        return Traced
    yield of
    for p in started:
        p.kill()


@pytest.mark.skipif(not shutil.which("strace"), reason="no strace")
def test_a_traced_program_ends_with_a_test_that_fails(tmp_path):
    """As pytest runs it: the test fails in the middle, and the fixture ends what it began."""
    (tmp_path / "test_that_fails.py").write_text("""
import cluster
from test_sandbox import traced  # noqa: F401


def test_that_fails(tmp_path, monkeypatch, traced):
    monkeypatch.setattr(cluster, "Process", traced(tmp_path, "router"))
    c = cluster.Cluster(tmp_path)
    c.router()
    print("PIDS", c.router_process.pid, c.router_process.traced)
    assert False, "in the middle"
""")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path / "test_that_fails.py"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parent)})
    assert "in the middle" in done.stdout and "1 failed" in done.stdout, done.stdout
    pids = re.search(r"PIDS (\d+) (\d+)", done.stdout).groups()
    assert not [p for p in pids if pathlib.Path(f"/proc/{p}").exists()]


@pytest.mark.plain
@pytest.mark.skipif(not shutil.which("systemd-analyze") or not shutil.which("strace") or bool(SANITIZER), reason="no systemd-analyze, or no strace, or a sanitizer's calls")
def test_programs_need_no_other_system_calls(tmp_path, monkeypatch, traced):
    import cluster as module
    import kvbulk
    plain = module.Process
    with Cluster(tmp_path) as c:
        def under(program):
            monkeypatch.setattr(module, "Process", traced(tmp_path, program) if program else plain)
            monkeypatch.setattr(kvbulk, "Process", traced(tmp_path, program) if program else plain)
        under("router")
        c.router()
        under(None)
        _, port = c.engine("engine", "--time-scale", "0")
        under("agent")
        agent, _, _ = c.agent("a", port)
        under("kvcached")
        store = Store(tmp_path, ssd="64MiB", ssd_dir=str(tmp_path / "ssd"))
        under("metrics")
        metrics_port = free_port()
        config = tmp_path / "metrics.toml"
        config.write_text(toml({"metrics": {"listen": f"127.0.0.1:{metrics_port}", "scrape_routers": [f"127.0.0.1:{c.grpc_port}"], "scrape_interval": "300ms", "scrape_timeout": "200ms"}}))
        metrics = c.run("metrics", "cgn-metrics", "--config", config)
        under(None)
        until(lambda: c.states().get("a") == "ready", c.logs)
        assert c.chat("hello", max_tokens=4).status == 200 and c.chat("hello", max_tokens=4, stream=True).status == 200
        with kvbulk.Bulk(store.bulk) as b:
            b.put_any(kvbulk.key("one"), b"x" * 100000)
        until(lambda: c.listens(metrics_port, metrics), metrics.log)
        assert ask(metrics_port, "GET", "/metrics").status == 200
        running = {"router": c.router_process, "agent": agent, "kvcached": store.process, "metrics": metrics}
        for name, p in running.items():
            assert p.stop() == 0, p.log()
        shutil.rmtree(store.dir, ignore_errors=True)
        for name in running:
            used = set((tmp_path / f"{name}.calls").read_text().split())
            used = {u for u in used if re.fullmatch(r"[a-z][a-z0-9_]+", u)} - {"syscall", "total"}
            more = used - allowed(name)
            assert "epoll_pwait" in used or "epoll_wait" in used, used
            assert not more, (name, more)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_router_without_rights_on_a_file_system_that_cannot_be_written(tmp_path):
    class Jailed(Process):
        def start(self):
            state = tmp_path / "state"
            script = (f"mount -t tmpfs tmpfs {state} && mount -o remount,ro,bind / && ! touch /tmp/x 2>/dev/null && "
                      'exec setpriv --no-new-privs --bounding-set -all --inh-caps -all --ambient-caps -all "$@"')
            self.argv = ["unshare", "-m", "sh", "-c", script, "sh", *self.argv]
            super().start()
    if subprocess.run(["unshare", "-m", "mount", "-o", "remount,ro,bind", "/"], capture_output=True).returncode != 0:
        pytest.skip("no mount namespaces here")
    with Cluster(tmp_path) as c:
        import cluster as module
        plain, module.Process = module.Process, Jailed
        try:
            r = c.router({"security": {"audit_file": str(tmp_path / "state/audit.jsonl")}})
        finally:
            module.Process = plain
        c.node("a", "--time-scale", "0")
        until(lambda: c.states().get("a") == "ready", c.logs)
        assert c.chat("hello", max_tokens=2).status == 200
        status = pathlib.Path(f"/proc/{r.pid}/status").read_text()
        assert "NoNewPrivs:\t1" in status and "CapBnd:\t0000000000000000" in status, status

# SPDX-License-Identifier: Apache-2.0
"""A cluster of real programs for one test: free ports, configuration in a temporary folder, logs kept, everything ended by pid.

    with Cluster(tmp_path) as c:
        c.router()
        c.node("a", "--time-scale", "0")
        c.wait_ready(1)
        assert c.chat("hello").status == 200
"""
import contextlib
import fcntl
import functools
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CGN_BUILD", ROOT / "build")).resolve()
SANITIZER = os.environ.get("CGN_SANITIZER", "")  # set where the programs are built with a sanitizer: they are slow then, and large
COUNTED = os.environ.get("CGN_COUNTED", "")  # set where the programs count the lines that they run: a killed program keeps no counts
WAIT_S = float(os.environ.get("CGN_TEST_WAIT_S", "90" if SANITIZER else "30"))
REPORTS = ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "WARNING: ThreadSanitizer", "runtime error:", "broken invariant")
os.environ.setdefault("CGN_CONTEXT", "")  # cgn-ctl of tests uses none of this user's contexts
# Ports below those that the kernel gives to clients and to listeners on port 0. A vLLM at port P publishes events at P + 1000 and P + 1500 and
# the few ports after them, so of each 2000 ports the first 500 are given: two shares.
PORTS_FROM, PORTS_EACH, PORT_SHARES = 10000, 250, 22


def _first_port(share):
    return PORTS_FROM + 2000 * (share // 2) + PORTS_EACH * (share % 2)


@functools.cache
def _take_ports():
    """Take a share of the ports for the life of this process, and return its first port: several test runs work
    beside each other. A lock on a file says that a share is taken; the kernel lifts it at the end."""
    folder = pathlib.Path(tempfile.gettempdir()) / f"cognitora-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    shares = list(range(PORT_SHARES))
    random.Random().shuffle(shares)
    for share in shares:
        lock = open(folder / str(share), "w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        return _first_port(share), lock
    raise RuntimeError(f"all {PORT_SHARES} shares of ports are taken: {folder}; wait until other test runs have ended")


_ports_given = random.Random().randrange(PORTS_EACH)


def scaled(n, sanitized=None):
    """Return |n|, or the part of it that a program built with a sanitizer does in a similar time."""
    return n if not SANITIZER else sanitized or max(1, n // 10)


def free_port(several=1):
    """Return a free port that this process has not returned for a long time, or the first of |several| in a row."""
    global _ports_given
    begin, _ = _take_ports()
    while True:
        first = begin + _ports_given % PORTS_EACH
        _ports_given += several
        if first + several <= begin + PORTS_EACH and all(_is_free(port) for port in range(first, first + several)):
            return first


def _is_free(port):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def until(what, why, wait_s=WAIT_S, step_s=0.01):
    """Wait for the first true value of what() and return it. On timeout, raise an AssertionError with the
    text |why| (or with what why() returns)."""
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        got = what()
        if got:
            return got
        time.sleep(step_s)
    raise AssertionError(f"not within {wait_s:g} s: {why() if callable(why) else why}")


def steady(read, step_s=0.05, within=0):
    """Wait until ten reads in a row are the same, or differ by |within|, and return the last one."""
    seen = []

    def stands_still():
        seen.append(read())
        return len(seen) >= 10 and (len(set(seen[-10:])) == 1 or within > 0 and max(seen[-10:]) - min(seen[-10:]) <= within)
    until(stands_still, lambda: f"it moves: {seen[-10:]}", step_s=step_s)
    return seen[-1]


def json_lines(file, part=""):
    """Return the whole JSON lines, those with |part| in them, of a log that a program writes: the file may not exist
    yet, the last line may be half written."""
    text = file.read_bytes().decode(errors="replace") if file.exists() else ""
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].split("\n") if line.startswith("{") and part in line]


def audit_lines(file, event=None, **fields):
    """Return the lines of an audit log and of its refusals: of |event|, if given, and with these |fields|. A thread of the
    program writes the files later than the answer is sent: wait with audited() for a line."""
    lines = json_lines(file) + json_lines(file.with_name(file.name + ".refused"))
    return [e for e in lines if event in (None, e["event"]) and all(e.get(k) == v for k, v in fields.items())]


def audited(file, event, **fields):
    """Wait until the audit log has a line of |event| with these |fields|, and return the first one."""
    return until(lambda: audit_lines(file, event, **fields), lambda: f"no {event} with {fields} in {json_lines(file)}")[0]


def toml(sections):
    """Write {"router": {"listen": "..."}, "router.retry": {...}} as TOML. JSON's scalars and lists are
    TOML's."""
    out = []
    for name, keys in sections.items():
        out.append(f"[{name}]")
        out += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(out) + "\n"


class Process:
    """One of our programs, running. Its stderr is in <folder>/<name>.log."""

    def __init__(self, folder, name, program, *args):
        self.name, self.log_file = name, pathlib.Path(folder) / f"{name}.log"
        self.argv = [str(BUILD / "src" / program.removeprefix("cgn-") / program), *map(str, args)]
        self.start()

    def start(self):
        """Start the program, also again after its end: the same command line, and the log goes on."""
        self.may_end = any("die-after" in a for a in self.argv)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("COGNITORA__", "CGN_CONFIG", "NOTIFY_", "WATCHDOG_"))}
        with open(self.log_file, "ab") as log:
            self.popen = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)

    @property
    def pid(self):
        return self.popen.pid

    def alive(self):
        return self.popen.poll() is None

    def signal(self, signo):
        self.may_end = self.may_end or signo in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
        if self.alive():
            os.kill(self.pid, signo)
            if signo == signal.SIGSTOP:  # one thread takes the signal; the others run on until that thread gets a core
                until(self.stands_still, f"{self.name} stands still")

    def stands_still(self):
        try:
            states = [stat.read_text().rpartition(") ")[2][0] for stat in pathlib.Path(f"/proc/{self.pid}/task").glob("*/stat")]
        except OSError:  # the thread has ended
            return False
        return all(state in "TZX" for state in states)

    def wait(self, wait_s=WAIT_S):
        self.may_end = True
        return self.popen.wait(wait_s)

    def kill(self):
        """Kill with SIGKILL and reap."""
        self.signal(signal.SIGKILL)
        return self.wait()

    def stop(self):
        """Stop with SIGTERM; return the exit status."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        return self.wait()

    def trouble(self):
        """Return why this program is faulty: it ended by itself, or a sanitizer or an assertion reported
        something."""
        lines = self.log().splitlines()
        said = [i for i, line in enumerate(lines) if any(r in line for r in REPORTS)]
        if said:
            return f"{self.name}:\n" + "\n".join(lines[said[0]:said[0] + 60])
        if not self.alive() and not self.may_end:
            return f"{self.name} ended by itself with {self.popen.returncode}:\n" + "\n".join(lines[-20:])
        return None

    def log(self):
        return self.log_file.read_text(errors="replace")

    def events(self, name):
        """Return its JSON log lines with that event."""
        return [e for e in json_lines(self.log_file, f'"{name}"') if e.get("event") == name]

    def tells(self, name, n=1, **fields):
        """Wait until its log has |n| lines of that event with these |fields|, and return them. A request is logged after
        the last byte of its answer was sent."""
        def told():
            return [e for e in self.events(name) if all(e.get(k) == v for k, v in fields.items())]
        return until(lambda: len(told()) >= n and told(), lambda: f"{self.name}: {len(told())} of {n} lines {name} with {fields}")

    def rss_kib(self):
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        raise AssertionError("no VmRSS")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, {k.lower(): v for k, v in headers}, body

    def json(self):
        return json.loads(self.body)

    def events(self):
        """Return (event, data) of an event stream; event is None where the stream names none."""
        out = []
        for block in self.body.decode().replace("\r\n", "\n").split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
            if "data" in fields:
                out.append((fields.get("event"), fields["data"]))
        return out


def ask(port, method, path, body=None, headers=None, wait_s=WAIT_S):
    """Send one request on a connection of its own. |body|: bytes, or an object to send as JSON."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=wait_s)
    try:
        headers = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        c.request(method, path, body, headers)
        r = c.getresponse()
        return Answer(r.status, r.getheaders(), r.read())
    finally:
        c.close()


class Within(Process):
    """A program in a network namespace."""

    def __init__(self, network, *args):
        self.network = network
        super().__init__(*args)

    def start(self):
        self.argv = ["ip", "netns", "exec", self.network, *self.argv]
        super().start()


class Node:
    """An agent and the engine that it adopted."""

    def __init__(self, name, engine, agent, engine_port, agent_port, admin_port):
        self.name, self.engine, self.agent = name, engine, agent
        self.engine_port, self.agent_port, self.admin_port = engine_port, agent_port, admin_port


class Cluster:
    MODEL = "sim"

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.state_dir = self.folder / "state"
        self.state_dir.mkdir(exist_ok=True)
        self.processes, self.nodes, self.common = [], {}, {}
        self.closed = False  # errors of a test's own threads
        self.http_port, self.grpc_port, self.admin_port = free_port(), free_port(), free_port()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        trouble = self.close()
        assert kind is not None or not trouble, "\n".join(trouble)

    def close(self):
        """End everything; return the faults of each program."""
        self.closed = True
        trouble = [t for p in self.processes if (t := p.trouble())]
        for p in reversed(self.processes):
            p.signal(signal.SIGCONT)
            p.signal(signal.SIGTERM if SANITIZER or COUNTED else signal.SIGKILL)
        for p in self.processes:
            self.end(p)
        return trouble or [t for p in self.processes if (t := p.trouble())]

    @staticmethod
    def end(p):
        """Use SIGTERM first with a sanitizer, so that it can report leaks, and where lines are counted. SIGINT ends
        a drain that waits for a client."""
        try:
            if COUNTED:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return p.wait(0.5)
                p.signal(signal.SIGINT)
            p.wait(10)
        except subprocess.TimeoutExpired:
            p.kill()

    def logs(self, lines=60):
        """Return the end of every log: the report of a failed test."""
        return "\n".join(f"---- {p.name} ({'runs' if p.alive() else f'exit {p.popen.returncode}'})\n"
                         + "\n".join(p.log().splitlines()[-lines:]) for p in self.processes)

    def run(self, name, program, *args):
        p = Process(self.folder, name, program, *args)
        self.processes.append(p)
        return p

    def config(self, name, sections):
        """Write <name>.toml: the settings common to all programs of the cluster, with |sections| over them."""
        base = {
            "cluster": {"router": f"127.0.0.1:{self.grpc_port}", "state_dir": str(self.state_dir), "lease": "2s"},
            "agent": {"heartbeat": "200ms"},
            "log": {"level": "info", "format": "json"},
        }
        for source in (self.common, sections):
            for section, keys in source.items():
                base.setdefault(section, {}).update(keys)
        path = self.folder / f"{name}.toml"
        path.write_text(toml(base))
        return path

    def router(self, sections=None):
        """Start cgn-router; |sections| override the common settings."""
        mine = {"router": {"listen": f"127.0.0.1:{self.http_port}", "listen_grpc": f"127.0.0.1:{self.grpc_port}",
                           "listen_admin": f"127.0.0.1:{self.admin_port}", "worker_threads": 2}}
        for section, keys in (sections or {}).items():
            mine.setdefault(section, {}).update(keys)
        self.router_process = self.run("router", "cgn-router", "--config", self.config("router", mine))
        # Whatever answered at its port before it was there must not be taken for it.
        until(lambda: self.listens(self.http_port, self.router_process) and "svc.ready" in self.router_process.log(), "the router listens")
        return self.router_process

    @staticmethod
    def listens(port, process):
        assert process.alive(), process.log()
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", port)) == 0

    def engine(self, name, *args, port=None, model=None):
        port = port or free_port()
        p = self.run(name, "cgn-sim", "--listen", f"127.0.0.1:{port}", "--model", model or self.MODEL, *args)
        until(lambda: self.listens(port, p), f"engine {name} listens")
        return p, port

    def agent(self, name, engine_port, sections=None):
        port, admin = free_port(), free_port()
        mine = {"agent": {"listen": f"127.0.0.1:{port}", "listen_admin": f"127.0.0.1:{admin}", "node_id": name},
                "engine": {"kind": "sim", "url": f"http://127.0.0.1:{engine_port}", "ready_interval": "50ms"}}
        for section, keys in (sections or {}).items():
            mine.setdefault(section, {}).update(keys)
        return self.run(f"agent-{name}", "cgn-agent", "--config", self.config(f"agent-{name}", mine)), port, admin

    def node(self, name, *engine_args, model=None, sections=None):
        """Start a cgn-sim and the cgn-agent beside it."""
        engine, engine_port = self.engine(f"engine-{name}", *engine_args, model=model)
        agent, agent_port, admin_port = self.agent(name, engine_port, sections)
        self.nodes[name] = Node(name, engine, agent, engine_port, agent_port, admin_port)
        return self.nodes[name]

    def status(self):
        return ask(self.admin_port, "GET", "/nodes").json()

    def states(self):
        """Return {node id: state} as the router has it; {} while its admin port does not answer."""
        try:
            return {n["id"]: n["state"] for n in self.status()["nodes"]}
        except (OSError, http.client.HTTPException, ValueError):
            return {}

    def wait_ready(self, n=None):
        n = len(self.nodes) if n is None else n
        until(lambda: list(self.states().values()).count("ready") >= n, f"{n} nodes are ready (states: {self.states()})")
        until(lambda: ask(self.http_port, "GET", "/readyz").status == 200, "the workers know of them")

    def scrape(self):
        """Return the router's metrics as one text. Counters that are compared with each other must come from
        one scrape."""
        return ask(self.admin_port, "GET", "/metrics").body.decode()

    def metric(self, name, scraped=None, **labels):
        """Return the sum of the series of |name| with these labels, from the router's admin port."""
        total = 0.0
        for line in (scraped or self.scrape()).splitlines():
            series, _, value = line.rpartition(" ")
            if series.split("{")[0] == name and all(f'{k}="{v}"' in series for k, v in labels.items()):
                total += float(value)
        return total

    def counts(self, want, name, **labels):
        """Wait until the series of |name| with these labels add up to |want|: a request is counted after the
        last byte of its answer was sent."""
        until(lambda: self.metric(name, **labels) == want, lambda: f"{name} {labels} is {self.metric(name, **labels):g}, not {want}")

    def ask(self, method, path, body=None, headers=None):
        return ask(self.http_port, method, path, body, headers)

    def chat(self, text, headers=None, **more):
        body = {"model": self.MODEL, "messages": [{"role": "user", "content": text}], **more}
        return self.ask("POST", "/v1/chat/completions", body, headers)

# SPDX-License-Identifier: Apache-2.0
"""The cluster of a soak: machines that are network namespaces on one bridge, with the real programs in them, and small disks.

    etcd and redis on s; routers on r0, r1; agent, engine and block store on each of n0, n1, n2; cgn-metrics on m
"""
import base64
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from cluster import BUILD, Answer, Process, toml, until  # noqa: E402

CTL = BUILD / "src/ctl/cgn-ctl"
ROUTERS, NODES = ("r0", "r1"), ("n0", "n1", "n2")
HOSTS = {"s": 2, "m": 3, "r0": 10, "r1": 11, "n0": 20, "n1": 21, "n2": 22}
HTTP, GRPC, ADMIN, ENGINE, AGENT, AGENT_ADMIN, KV_ADMIN, KV_QUIC, ETCD, REDIS, METRICS, LIAR = 8080, 9090, 9091, 8000, 7080, 7081, 7093, 7443, 2379, 6379, 9100, 8001
DISK_MIB = 24
ENGINE_FLAGS = ("--decode-ms", "2", "--max-batch", "16", "--kv-blocks", "2048", "--lora", "--prefill-tokens-per-s", "40000", "--kv-block-bytes", "16384")
TENANTS = {"acme": [], "beta": [], "thrifty": ["40 requests/minute"], "bulk": [], "liars": []}


def why_not():
    """Return why no soak runs here, or None."""
    if os.geteuid() != 0:
        return "network namespaces and small disks need root"
    for tool in ("ip", "nsenter", "mount"):
        if not shutil.which(tool):
            return f"{tool} is missing"
    name = f"cgnsoak{os.getpid()}"
    try:
        sh("ip", "netns", "add", name)
        sh("ip", "netns", "del", name)
    except subprocess.CalledProcessError as e:
        return f"no network namespaces here: {e.stderr.strip()}"
    return None


def sh(*args, check=True):
    return subprocess.run(list(map(str, args)), check=check, capture_output=True, text=True, timeout=60).stdout


def ask(host, port, method, path, body=None, headers=None, wait_s=30, tls=None):
    """Send one request on a connection of its own."""
    c = http.client.HTTPSConnection(host, port, timeout=wait_s, context=tls) if tls else http.client.HTTPConnection(host, port, timeout=wait_s)
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


def sums(text, *names):
    """Return {(name, labels): value} of the series of these names in a Prometheus text."""
    out = {}
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        name, _, labels = series.partition("{")
        if name in names:
            out[name, labels.rstrip("}")] = float(value)
    return out


class Net:
    """One bridge in this namespace; each machine is a namespace with one wire to it, which can be cut, or made lossy where the kernel has netem."""

    def __init__(self):
        self.tag = f"{os.getpid() % 100000}"
        self.bridge = f"sk{self.tag}"
        taken = sh("ip", "-4", "addr")
        self.net = next(f"10.81.{i}" for i in range(1, 255) if f"10.81.{i}." not in taken)
        self.names = {h: f"sk{self.tag}{h}" for h in HOSTS}
        self.cut_now = set()
        sh("ip", "link", "add", self.bridge, "type", "bridge")
        sh("ip", "addr", "add", f"{self.net}.1/24", "dev", self.bridge)
        sh("ip", "link", "set", self.bridge, "up")
        for host in HOSTS:
            self.machine(host)
        self.netem = self.has_netem()

    def address(self, host):
        return f"{self.net}.{HOSTS[host]}"

    def wire(self, host):
        return f"w{self.tag}{host}"

    def machine(self, host):
        name, wire = self.names[host], self.wire(host)
        sh("ip", "netns", "add", name)
        sh("ip", "link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", name)
        sh("ip", "link", "set", wire, "master", self.bridge)
        sh("ip", "link", "set", wire, "up")
        sh("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        sh("ip", "-n", name, "link", "set", "eth0", "up")
        sh("ip", "-n", name, "link", "set", "lo", "up")

    def has_netem(self):
        try:
            sh("tc", "qdisc", "add", "dev", self.wire("m"), "root", "netem", "loss", "0%")
            sh("tc", "qdisc", "del", "dev", self.wire("m"), "root")
            return True
        except (OSError, subprocess.CalledProcessError):
            return False

    def cut(self, host):
        """Drop everything from and to the machine; no side is told."""
        sh("ip", "link", "set", self.wire(host), "nomaster")
        self.cut_now.add(host)

    def join(self, host):
        sh("ip", "link", "set", self.wire(host), "master", self.bridge)
        self.cut_now.discard(host)

    def lossy(self, host, percent):
        sh("tc", "qdisc", "add", "dev", self.wire(host), "root", "netem", "loss", f"{percent}%", "delay", "5ms", "10ms")

    def clean(self, host):
        sh("tc", "qdisc", "del", "dev", self.wire(host), "root", check=False)

    def close(self):
        for host, name in self.names.items():
            sh("ip", "link", "del", self.wire(host), check=False)
            sh("ip", "netns", "del", name, check=False)
        sh("ip", "link", "del", self.bridge, check=False)


class Program(Process):
    """A program on a machine. |spared|: no fault kills it, so that its memory can be followed from the first minute to the last."""

    def __init__(self, world, host, name, argv, kind, spared=False):
        self.kind, self.host, self.spared, self.lives, self.read_to = kind, host, spared, 0, 0
        self.name, self.log_file, self.may_end = name, world.folder / f"{name}.log", False
        self.argv = ["nsenter", f"--net=/run/netns/{world.net.names[host]}", *map(str, argv)]
        self.start()

    def start(self):
        self.starting = True  # until |popen| is the new process, the old one's end must not be taken for its own
        super().start()
        self.lives += 1
        self.starting = False

    def ended_by_itself(self):
        life = self.lives
        ended = not self.may_end and not self.alive()
        return ended and not self.starting and life == self.lives


def ours(program, *args):
    return [BUILD / "src" / program.removeprefix("cgn-") / program, *args]


class World:
    def __init__(self, folder, spare=True):
        self.folder, self.programs, self.disks = pathlib.Path(folder), {}, {}
        self.spare, self.helpers = spare, []
        self.net = None
        self.closed = False
        try:
            self.begin()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def begin(self):
        self.net = Net()
        self.etcd, self.redis = shutil.which("etcd"), shutil.which("redis-server")
        self.routers = ROUTERS if self.etcd else ROUTERS[:1]
        self.pki()
        self.keys = {t: self.key(t)[0] for t in TENANTS}
        self.pins = self.key("bulk", "--scopes", "chat,admin")[0]  # may send a request to a node of its choice
        if self.etcd:
            url, peer = f"http://{self.at('s')}:{ETCD}", f"http://{self.at('s')}:2380"
            self.run("s", "etcd", [self.etcd, "--data-dir", self.folder / "etcd", "--name", "e", "--listen-client-urls", url, "--advertise-client-urls", url,
                                   "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"e={peer}",
                                   "--auto-compaction-retention", "1m", "--log-level", "warn"], "etcd")
        if self.redis:
            self.run("s", "redis", [self.redis, "--bind", self.at("s"), "--port", REDIS, "--protected-mode", "no", "--save", "", "--appendonly", "no",
                                    "--dir", self.folder], "redis")
        for i, n in enumerate(NODES):
            self.node(n, spared=i == len(NODES) - 1)
        for i, r in enumerate(self.routers):
            self.router(r, spared=i == len(self.routers) - 1)
        for i, name in enumerate(("metrics", "metrics-2")):
            self.metrics(name, METRICS + i, spared=i == 0)
        self.helpers.append(Program(self, "m", "liar", [sys.executable, pathlib.Path(__file__).with_name("liar.py"), self.at("m"), LIAR], "liar"))
        self.helpers.append(Program(self, "m", "oracle", ours("cgn-sim", "--listen", f"{self.at('m')}:{ENGINE}", "--model", "sim", "--time-scale", "0"), "oracle"))
        until(lambda: self.answers("m", ENGINE, "/health"), "the oracle answers")
        until(self.healthy, lambda: f"the cluster is ready: {self.states()}\n{self.tail()}", wait_s=90)

    def at(self, host):
        return self.net.address(host)

    # ---- what programs are given ----
    def pki(self):
        self.pki_dir = self.folder / "pki"
        leaves = [x for name in ("router", *(f"{n}=agent@{n}" for n in NODES), "admin") for x in ("--leaf", name)]
        sans = [x for h in HOSTS for x in ("--san", self.at(h))]
        sh(CTL, "pki", "bootstrap", "--out", self.pki_dir, *leaves, *sans)

    def key(self, tenant, *more):
        made = json.loads(sh(CTL, "key", "create", "--file", self.folder / "keys", "--name", tenant, "--tenant", tenant, "-o", "json", *more))
        return {"Authorization": f"Bearer {made['key']}"}, made["id"]

    def ctl(self, *args, check=True):
        files = ("--ca", self.pki_dir / "ca.pem", "--cert", self.pki_dir / "admin.pem", "--key", self.pki_dir / "admin.key")
        env = {**os.environ, "CGN_CONTEXT": ""}
        return subprocess.run(list(map(str, [CTL, *args, "--router", f"{self.at(self.routers[-1])}:{GRPC}", *files])), capture_output=True, text=True, timeout=60,
                              check=check, env=env)

    def disk(self, name, mib=DISK_MIB):
        """A small disk of its own, which a fault may fill."""
        path = self.folder / "disks" / name
        path.mkdir(parents=True)
        sh("mount", "-t", "tmpfs", "-o", f"size={mib}m", f"soak-{name}", path)
        self.disks[name] = path
        return path

    def config(self, name, state, sections):
        cluster = {"state_backend": "etcd", "etcd_endpoints": [f"http://{self.at('s')}:{ETCD}"]} if self.etcd else {"router": f"{self.at('r0')}:{GRPC}"}
        leaf = "router" if name in ROUTERS or name.startswith("metrics") else name.split("-")[-1]
        base = {"cluster": {"state_dir": str(state), "lease": "15s", **cluster}, "agent": {"heartbeat": "1s"}, "log": {"level": "info", "format": "json"},
                "security": {"require_mtls": True, **{f"{k}_file": f"{self.pki_dir}/{f}" for k, f in
                                                      (("ca", "ca.pem"), ("cert", f"{leaf}.pem"), ("key", f"{leaf}.key"))}}}
        for section, keys in sections.items():
            base.setdefault(section, {}).update(keys)
        path = self.folder / f"{name}.toml"
        new = path.with_suffix(".new")
        new.write_text(toml(base))
        new.rename(path)
        return path

    def router_settings(self, **varied):
        """|varied|: what a reload changes. Small tables are full after the first minutes: what grows later is a leak."""
        limits = {"rps": 500.0, "burst": 2000, "tokens_per_minute": 100000000}
        if self.redis:
            limits |= {"redis_url": f"redis://{self.at('s')}:{REDIS}/0", "redis_timeout": "500ms"}
        tenants = {f'tenants."{t}"': {"budgets": b} for t, b in TENANTS.items() if b}
        return {"router": {"worker_threads": 2, "record_size": "1MiB", "explain_size": "1MiB", "prompt_cache": "1MiB", "resume": True,
                           "drain_timeout": "2s", "max_inflight_body": "64MiB", "stall_timeout": "4s", "first_byte_timeout": "10s", "stream_idle_timeout": "10s", **varied.get("router", {})},
                "router.admission": {"max_concurrent_per_replica": 16, "max_queue": 200, "queue_timeout": "10s", **varied.get("admission", {})},
                "router.breaker": {"open_for": "1s"},
                "router.rate_limit": limits, "auth": {"enabled": True, "api_keys_file": str(self.folder / "keys")},
                "batch": {"enabled": True, "max_concurrent": 4, "keep": "5m"}, **tenants,
                'engine_nodes."liar"': {"url": f"http://{self.at('m')}:{LIAR}", "kind": "openai_compat"}}

    def write_router(self, name, **varied):
        settings = self.router_settings(**varied)
        settings["router"] |= {"listen": f"{self.at(name)}:{HTTP}", "listen_grpc": f"{self.at(name)}:{GRPC}", "listen_admin": f"{self.at(name)}:{ADMIN}"}
        return self.config(name, self.disks[name], settings)

    # ---- programs ----
    def run(self, host, name, argv, kind, spared=False):
        self.programs[name] = Program(self, host, name, argv, kind, spared and self.spare)
        return self.programs[name]

    def router(self, name, spared):
        self.disk(name)
        self.run(name, name, ours("cgn-router", "--config", self.write_router(name)), "router", spared)

    def node(self, name, spared):
        disk = self.disk(name, 96)
        at = self.at(name)
        uds = disk / "kv.sock"
        peers = [f"{self.at(n)}:{KV_QUIC}" for n in NODES if n != name]
        kv = {"ram": "24MiB", "worker_threads": 1, "uds": str(uds), "resp_listen": "", "listen": "", "ssd": "40MiB", "ssd_dir": str(disk / "ssd"),
              "ssd_admission": "all", "listen_admin": f"{at}:{KV_ADMIN}", "transport": "quic", "quic_listen": f"{at}:{KV_QUIC}", "peers": peers}
        (disk / "state").mkdir()
        self.run(name, f"kv-{name}", ours("cgn-kvcached", "--config", self.config(f"kv-{name}", disk / "state", {"kv": kv, "agent": {"node_id": name}})),
                 "kvcached", spared)
        self.run(name, f"engine-{name}", ours("cgn-sim", "--listen", f"{at}:{ENGINE}", "--model", "sim", *ENGINE_FLAGS, "--kv-uds", uds), "engine", spared)
        agent = {"agent": {"listen": f"{at}:{AGENT}", "listen_admin": f"{at}:{AGENT_ADMIN}", "node_id": name, "kv_uds": str(uds)},
                 "engine": {"kind": "vllm", "url": f"http://{at}:{ENGINE}", "ready_interval": "100ms", "stall_timeout": "3s"}}
        self.run(name, f"agent-{name}", ours("cgn-agent", "--config", self.config(f"agent-{name}", disk / "state", agent)), "agent", spared)

    def metrics(self, name, port, spared):
        targets = {f'scrape_targets."{r}"': {"url": f"https://{self.at(r)}:{ADMIN}/metrics"} for r in self.routers}
        own = {"metrics": {"listen": f"{self.at('m')}:{port}", "scrape_interval": "2s", "scrape_timeout": "1s", "discover": False}, **targets}
        (self.folder / f"state-{name}").mkdir()
        self.run("m", name, ours("cgn-metrics", "--config", self.config(name, self.folder / f"state-{name}", own)), "metrics", spared)

    # ---- what they say ----
    def tls(self):
        """Return a context with the admin's certificate as it is now: it may have been renewed."""
        context = ssl.create_default_context(cafile=self.pki_dir / "ca.pem")
        context.load_cert_chain(self.pki_dir / "admin.pem", self.pki_dir / "admin.key")
        return context

    def told(self, host, port, path, tls=True):
        """Return what an admin port answers, or None."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return ask(self.at(host), port, "GET", path, wait_s=5, tls=self.tls() if tls else None)
        return None

    def answers(self, host, port, path, tls=False):
        a = self.told(host, port, path, tls)
        return a is not None and a.status == 200

    def pin(self, router, node):
        """Send a short chat to this node by this router: a breaker closes by an answer, and prefixes may keep requests elsewhere."""
        body = {"model": "sim", "messages": [{"role": "user", "content": f"are you there, {node}? {time.monotonic()}"}], "max_tokens": 1}
        with contextlib.suppress(OSError, http.client.HTTPException):
            return ask(self.at(router), HTTP, "POST", "/v1/chat/completions", body, {**self.pins, "X-Cgn-Node": node}, wait_s=10).status
        return None

    def admin(self, router, path):
        """Return the document at |path| of the router's admin port, or None."""
        a = self.told(router, ADMIN, path)
        with contextlib.suppress(ValueError, AttributeError):
            return a.json()
        return None

    def scrape(self, host, port=ADMIN):
        a = self.told(host, port, "/metrics")
        return a.body.decode() if a else None

    def states(self, router=None):
        """Return {node: (state, breaker)} as a router has it, without nodes that only exist in the registry."""
        nodes = (self.admin(router or self.routers[-1], "/nodes") or {}).get("nodes", [])
        return {n["id"]: (n["state"], n["breaker"]["state"]) for n in nodes if n["id"] in NODES}

    def healthy(self):
        return all(self.states(r) == {n: ("ready", "closed") for n in NODES} and self.answers(r, ADMIN, "/readyz", tls=True) for r in self.routers)

    def tail(self, lines=15):
        return "\n".join(f"---- {p.name}\n" + "\n".join(p.log().splitlines()[-lines:]) for p in self.programs.values())

    # ---- etcd by its JSON gateway ----
    def put_node(self, name, document):
        key = base64.b64encode(f"/cognitora/cognitora/nodes/{name}".encode()).decode()
        value = base64.b64encode(json.dumps(document).encode()).decode()
        ask(self.at("s"), ETCD, "POST", "/v3/kv/put", {"key": key, "value": value}, wait_s=10)

    def drop_nodes(self, prefix):
        first = f"/cognitora/cognitora/nodes/{prefix}"
        last = first[:-1] + chr(ord(first[-1]) + 1)
        body = {"key": base64.b64encode(first.encode()).decode(), "range_end": base64.b64encode(last.encode()).decode()}
        ask(self.at("s"), ETCD, "POST", "/v3/kv/deleterange", body, wait_s=10)

    def close(self):
        self.closed = True
        everything = [*self.programs.values(), *self.helpers]
        for p in reversed(everything):
            with contextlib.suppress(OSError):
                os.kill(p.pid, signal.SIGCONT)
            p.kill()
        for path in self.disks.values():
            sh("umount", "-l", path, check=False)
        if self.net:
            self.net.close()


def resolves(host, port):
    """Return whether something listens there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False

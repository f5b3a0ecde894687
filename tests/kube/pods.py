# SPDX-License-Identifier: Apache-2.0
"""Pods without a cluster: what a kubelet makes of the chart's objects, on this machine. Each pod has an address of its own, and each container the root,
the user, the volumes, the arguments and the environment that its object says. Names of services are in /etc/hosts. Needs root, ip and bwrap.

    with Pods(folder, objects) as pods:
        router, = pods.start("router", 1)
        ask(router, 8080, "GET", "/healthz")
"""
import base64
import contextlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import ssl
import subprocess

from chart import find, workloads
from cluster import BUILD, until

UID = 65532
PROGRAMS = ("router", "agent", "kvcached", "metrics", "operator", "sim", "ctl")


def ip(*args, check=True):
    subprocess.run(["ip", *map(str, args)], check=check, capture_output=True, timeout=30)


def usable():
    """Return why pods cannot be run here; None: they can."""
    if os.geteuid() != 0:
        return "no root: pods need network namespaces"
    missing = next((f"no {name}" for name in ("ip", "bwrap", "setpriv") if not shutil.which(name)), None)
    if missing or subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode == 0:
        return missing
    return "no network namespaces here"


class Pods:
    def __init__(self, folder, objs, builds=None):
        """|builds|: {tag of an image: the build that has its programs}; what is not there is $CGN_BUILD's."""
        self.folder, self.objs, self.pods, self.builds = folder, objs, [], builds or {}
        self.id = f"cg{os.getpid() % 10000:04d}{random.randrange(100):02d}"
        self.net = f"10.{random.randrange(200, 250)}.{random.randrange(1, 250)}"
        self.hosts = folder / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n")

    def __enter__(self):
        # With an address of its own. Else it is the lowest of its ports', a new pod may change it, and what pods send here goes to the old one for seconds.
        ip("link", "add", self.id, "address", "02:00:00:{:02x}:{:02x}:{:02x}".format(*random.randbytes(3)), "type", "bridge")
        ip("addr", "add", f"{self.net}.1/24", "dev", self.id)
        ip("link", "set", self.id, "up")
        return self

    def __exit__(self, *_):
        for pod in reversed(self.pods):
            pod.close()
        ip("link", "del", self.id, check=False)

    def make(self, component, n, objs=None):
        """Make n pods of a workload, with their addresses and names, and start nothing. |objs|: of another revision."""
        first = sum(p.component == component for p in self.pods)
        made = [Pod(self, component, first + i, len(self.pods) + i, objs or self.objs) for i in range(n)]
        self.pods += made
        prefix = "".join(f"{p.address} {name}\n" for p in made for name in p.names())
        self.hosts.write_text(self.hosts.read_text() + prefix)
        return made

    def forget(self, pod):
        """Take the names of a pod that ends out of what the others resolve."""
        lines = self.hosts.read_text().splitlines(True)
        self.hosts.write_text("".join(line for line in lines if line.split()[0] != pod.address))

    def start(self, component, n, objs=None):
        made = self.make(component, n, objs)
        for pod in made:
            pod.start()
        return made


class Pod:
    def __init__(self, pods, component, index, number, objs):
        self.pods, self.component, self.objs = pods, component, objs
        self.workload = next(o for o in workloads(objs) if o["metadata"]["name"].endswith(f"-{component}"))
        self.spec = self.workload["spec"]["template"]["spec"]
        self.name = f"{self.workload['metadata']['name']}-{index}"
        self.space, self.address = f"{pods.id}{number}", f"{pods.net}.{number + 2}"
        self.folder = pods.folder / self.name
        self.processes = {}
        self.connect(number)
        self.volumes = {v["name"]: self.fill(v) for v in self.volume_list()}

    def connect(self, number):
        link = f"{self.pods.id}v{number}"
        ip("netns", "add", self.space)
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        ip("link", "set", link, "master", self.pods.id, "up")
        ip("-n", self.space, "link", "set", "lo", "up")
        ip("-n", self.space, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.space, "link", "set", "eth0", "up")

    def names(self):
        """Return the names of this pod, by the headless services and those with a service address that choose it."""
        labels = self.workload["spec"]["template"]["metadata"]["labels"]
        chosen = [s for s in self.objs if s["kind"] == "Service" and s["spec"]["selector"].items() <= labels.items()]
        domain = f"{self.workload['metadata']['namespace']}.svc"
        names = [f"{s['metadata']['name']}.{domain}" for s in chosen]
        owner = self.workload["spec"].get("serviceName")
        return names + ([f"{self.name}.{owner}.{domain}"] if owner else [])

    def volume_list(self):
        claims = [{"name": c["metadata"]["name"]} for c in self.workload["spec"].get("volumeClaimTemplates", [])]
        return [*self.spec.get("volumes", []), *claims]

    def fill(self, volume):
        """Make the folder of a volume, with the files that the API server has for it, for the pod's group."""
        path = self.folder / volume["name"]
        path.mkdir(parents=True)
        os.chown(path, UID, UID)
        files = {}
        if "configMap" in volume:
            files = {k: v.encode() for k, v in find(self.objs, "ConfigMap", volume["configMap"]["name"])["data"].items()}
        if "secret" in volume:
            data = find(self.objs, "Secret", volume["secret"]["secretName"])["data"]
            items = volume["secret"].get("items") or [{"key": k, "path": k} for k in data]
            files = {i["path"]: base64.b64decode(data[i["key"]]) for i in items}
        for name, content in files.items():
            (path / name).write_bytes(content)
            os.chown(path / name, 0, UID)
            (path / name).chmod(0o440)
        return path

    def env(self, container, secrets=None):
        """Return the environment; |secrets|: values of variables that come from a Secret."""
        known = {"metadata.name": self.name, "metadata.uid": self.name, "spec.nodeName": self.name, "status.podIP": self.address}
        out = dict(secrets or {})
        for e in container.get("env", []):
            if "secretKeyRef" in e.get("valueFrom", {}):
                continue
            out[e["name"]] = self.expand(e["value"], out) if "value" in e else known[e["valueFrom"]["fieldRef"]["fieldPath"]]
        return out

    @staticmethod
    def expand(text, env):
        return re.sub(r"\$\((\w+)\)", lambda m: env.get(m[1], m[0]), str(text))

    def wrap(self, container, more=()):
        """Return the command that runs a container, with |more| arguments."""
        assert container["securityContext"]["readOnlyRootFilesystem"] and container["securityContext"]["capabilities"]["drop"] == ["ALL"]
        assert self.spec["securityContext"]["runAsUser"] == UID
        env = self.env(container)
        argv = [self.expand(w, env) for w in (*container["command"], *container.get("args", []), *more)]
        links = [x for name in ("bin", "sbin", "lib", "lib64") for x in ("--symlink", f"usr/{name}", f"/{name}")]
        binds = []
        for m in sorted(container["volumeMounts"], key=lambda m: m["mountPath"]):
            source = self.volumes[m["name"]] / m.get("subPath", "")
            binds += ["--ro-bind" if m.get("readOnly") else "--bind", source, m["mountPath"]]
        path = ":".join([*(f"/opt/{p}" for p in PROGRAMS), "/usr/bin", "/usr/sbin"])
        sets = [x for k, v in {**env, "PATH": path}.items() for x in ("--setenv", k, v)]
        folders = [x for name in ("/run", "/var", "/var/lib", "/etc", "/etc/cognitora", "/opt") for x in ("--dir", name)]
        rights = ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        return ["ip", "netns", "exec", self.space, "bwrap", "--die-with-parent", "--unshare-pid", "--unshare-uts", "--hostname", self.name, "--clearenv",
                *sets, "--ro-bind", "/usr", "/usr", *links, *folders, "--ro-bind", self.pods.builds.get(container["image"].rpartition(":")[2], BUILD) / "src", "/opt", "--proc", "/proc", "--dev", "/dev",
                "--ro-bind", self.pods.hosts, "/etc/hosts", *binds, "--remount-ro", "/", "--", *rights, *argv]

    def start(self):
        """Run the init containers that end, then start the sidecars and the programs."""
        self.prepare()
        for c in self.lasting():
            self.spawn(c)

    def prepare(self):
        for c in self.spec.get("initContainers", []):
            if c.get("restartPolicy") != "Always":
                self.run(c)

    def lasting(self):
        return [*(c for c in self.spec.get("initContainers", []) if c.get("restartPolicy") == "Always"), *self.spec["containers"]]

    def run(self, container, *more):
        """Run a container to its end, with |more| arguments; return what it printed."""
        done = subprocess.run(list(map(str, self.wrap(container, more))), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{self.name}, {container['name']} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def spawn(self, container):
        with open(self.folder / f"{container['name']}.log", "ab") as log:
            self.processes[container["name"]] = subprocess.Popen(list(map(str, self.wrap(container))), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def container(self, name):
        return next(c for c in (*self.spec["containers"], *self.spec.get("initContainers", [])) if c["name"] == name)

    def probe(self, container, kind):
        """Return the status of a probe of a container; 0: nothing answers."""
        c = self.container(container)
        get = c[kind]["httpGet"]
        port = next((p["containerPort"] for p in c["ports"] if p["name"] == get["port"]), get["port"])
        try:
            return ask(self, port, "GET", get["path"], tls=get.get("scheme") == "HTTPS")[0]
        except OSError:
            return 0

    def is_ready(self, container):
        for name, p in self.processes.items():
            assert p.poll() is None, f"{self.name}, {name} ended with {p.returncode}:\n{self.log(name)}"
        return self.probe(container, "readinessProbe") == 200

    def wait_ready(self, container, wait_s=60):
        until(lambda: self.is_ready(container), lambda: f"{self.name}, {container} is ready:\n{self.log(container)}", wait_s=wait_s, step_s=0.1)

    def log(self, container, lines=25):
        return "\n".join((self.folder / f"{container}.log").read_text(errors="replace").splitlines()[-lines:])

    def terminate(self):
        """End the pod as a kubelet does: the programs, and when they have ended the sidecars, the last one first. Return the programs' exit statuses."""
        out = {}
        sidecars = [c["name"] for c in reversed(self.spec.get("initContainers", [])) if c["name"] in self.processes]
        for name in [*(c["name"] for c in self.spec["containers"]), *sidecars]:
            p = self.processes.pop(name)
            first = int(subprocess.run(["pgrep", "-P", str(self.inner(p))], capture_output=True, text=True).stdout.split()[0])
            os.kill(first, signal.SIGTERM)
            out[name] = p.wait(60)
        return out

    @staticmethod
    def inner(process):
        """Return the pid of the process 1 of a container: bwrap's child."""
        return int(subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()[0])

    def close(self):
        for p in self.processes.values():
            p.kill()
        for p in self.processes.values():
            p.wait()
        ip("netns", "del", self.space, check=False)


def ask(pod, port, method, path, body=None, headers=None, tls=False, context=None):
    """Return status and body of one request."""
    kind = http.client.HTTPSConnection if tls else http.client.HTTPConnection
    more = {"context": context or ssl._create_unverified_context()} if tls else {}
    with contextlib.closing(kind(pod.address, port, timeout=30, **more)) as c:
        c.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json", **(headers or {})})
        r = c.getresponse()
        return r.status, r.read().decode()

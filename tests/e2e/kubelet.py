# SPDX-License-Identifier: Apache-2.0
"""What a kubelet does with a Pod, on this machine: its containers become processes, and its end is that of Kubernetes: preStop, SIGTERM to the containers, and
SIGKILL to those that are there when the grace period is over; sidecars end after the containers, the last one first. All pods share one address, so that
ports and folders of a pod are replaced by some of its own."""
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

from cluster import BUILD, free_port, until

PORTS = ("7080", "7081", "8000")


class Pod:
    def __init__(self, folder, name, spec, config, uid="u"):
        """|config|: the file that stands for /etc/cognitora/cognitora.toml; its settings for addresses and folders are overridden."""
        self.folder, self.name, self.spec, self.config = pathlib.Path(folder), name, spec, config
        self.known = {"metadata.name": name, "metadata.uid": uid, "status.podIP": "127.0.0.1", "spec.nodeName": "machine"}
        self.ports = {p: str(free_port()) for p in PORTS}
        self.killed, self.status, self.ending, self.processes = [], {}, None, {}
        for c in self.containers():
            self.processes[c["name"]] = self.spawn(c)

    def containers(self):
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    def local(self, text):
        return re.sub(r":(\d+)", lambda m: ":" + self.ports.get(m[1], m[1]), text)

    def env(self, container):
        own = {"COGNITORA__AGENT__LISTEN": f"127.0.0.1:{self.ports['7080']}", "COGNITORA__CLUSTER__STATE_DIR": str(self.folder / self.name),
               "COGNITORA__AGENT__KV_UDS": str(self.folder / f"{self.name}.sock"), "CGN_CONFIG": str(self.config)}
        out = {}
        for e in container.get("env", []):
            value = e["value"] if "value" in e else self.known[e["valueFrom"]["fieldRef"]["fieldPath"]]
            out[e["name"]] = self.local(re.sub(r"\$\((\w+)\)", lambda m: out[m[1]], value))
        return {**{k: v for k, v in os.environ.items() if not k.startswith("COGNITORA__")}, **(own if "agent" in container["image"] else {}), **out}

    def spawn(self, container):
        program = re.search(r"cgn-(\w+)", container["image"])
        argv = [BUILD / "src" / program[1] / program[0], *(self.local(a) for a in container.get("args", []))]
        (self.folder / self.name).mkdir(exist_ok=True)
        with open(self.folder / f"{self.name}-{container['name']}.log", "ab") as log:
            return subprocess.Popen(list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env(container))

    def log(self, container):
        return (self.folder / f"{self.name}-{container}.log").read_text(errors="replace")

    # ---- the end

    def end(self):
        """Begin to end the pod; |status| and |killed| say how its containers ended once ended() returns."""
        self.ending = threading.Thread(target=self._end)
        self.ending.start()

    def ended(self):
        self.ending.join()
        return self.status

    def _end(self):
        last = time.monotonic() + self.spec["terminationGracePeriodSeconds"]
        self._stop(self.spec["containers"], last)
        for c in reversed(self.spec.get("initContainers", [])):
            self._stop([c], last)

    def _stop(self, containers, last):
        for c in containers:
            hook = c.get("lifecycle", {}).get("preStop", {})
            if "sleep" in hook:
                time.sleep(hook["sleep"]["seconds"])
            assert not hook or "sleep" in hook, hook
        for c in containers:
            self.processes[c["name"]].send_signal(signal.SIGTERM)
        for c in containers:
            p = self.processes[c["name"]]
            try:
                self.status[c["name"]] = p.wait(max(2, last - time.monotonic()))  # the kubelet gives a sidecar 2 s in any case
            except subprocess.TimeoutExpired:
                self.killed.append(c["name"])
                p.kill()
                self.status[c["name"]] = p.wait()

    def close(self):
        for p in self.processes.values():
            p.kill()
        if self.ending:
            self.ending.join()
        for p in self.processes.values():
            p.wait()

    def wait_listening(self):
        until(lambda: "svc.ready" in self.log("agent"), lambda: self.log("agent"))

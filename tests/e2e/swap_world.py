# SPDX-License-Identifier: Apache-2.0
"""One machine with several models of which fewer fit: a router, and an agent that loads its engines on demand."""
import json
import os

from cluster import BUILD, Cluster, ask, free_port, toml, until

SIM = str(BUILD / "src/sim/cgn-sim")


class Machine:
    """The engines are cgn-sims unless their settings say otherwise."""

    def __init__(self, folder, engines, router=None, **agent):
        self.c = c = Cluster(folder)
        self.port = {name: free_port() for name in engines}
        c.router({"router.retry": {"backoff": "10ms"}, **(router or {})})
        port, self.admin = free_port(), free_port()
        sections = {"cluster": {"router": f"127.0.0.1:{c.grpc_port}", "state_dir": str(c.state_dir), "lease": "2s"},
                    "log": {"level": "info", "format": "json"},
                    "agent": {"heartbeat": "200ms", "listen": f"127.0.0.1:{port}", "listen_admin": f"127.0.0.1:{self.admin}", "node_id": "laptop", **agent}}
        text = toml(sections) + "".join(self.engine(name, **more) for name, more in engines.items())
        path = c.folder / "agent.toml"
        path.write_text(text)
        self.agent = c.run("agent", "cgn-agent", "--config", path)
        c.wait_ready(1)

    def engine(self, name, args=("--time-scale", "0"), **more):
        keys = {"name": name, "kind": "sim", "managed": True, "model": name, "binary": SIM, "extra_args": list(args), "ready_interval": "20ms",
                "restart_backoff": "20ms", "stop_grace": "2s", "url": f"http://127.0.0.1:{self.port[name]}", **more}
        return "[[engines]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items())

    def engines(self):
        return {e["name"]: e for e in ask(self.admin, "GET", "/engines").json()["engines"]}

    def states(self):
        return {name: e["on_demand"]["state"] for name, e in self.engines().items()}

    def running(self):
        """Return the names of the engines that have a process."""
        return sorted(name for name, e in self.engines().items() if e["pid"])

    def wait_state(self, name, state):
        until(lambda: self.states()[name] == state, lambda: f"{name} is {state}: {self.states()}")

    def chat(self, model, text="hello", **more):
        return self.c.ask("POST", "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 4, **more})

    def waiting(self):
        return {name: e["on_demand"]["waiting"] for name, e in self.engines().items()}

    def events(self, name, **fields):
        return [e for e in self.agent.events(name) if all(e.get(k) == v for k, v in fields.items())]

    def metric(self, name, **labels):
        return self.c.metric(name, ask(self.admin, "GET", "/metrics").body.decode(), **labels)

    def end(self):
        """End the agent, and with it its engines."""
        if self.agent.alive():
            self.agent.stop()
        left = [name for name in self.port if Cluster.listens(self.port[name], self.c.router_process)]
        trouble = self.c.close()
        assert not left, f"engines are left: {left}"
        return trouble


def kill(pid, signo):
    os.kill(pid, signo)

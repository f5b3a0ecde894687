# SPDX-License-Identifier: Apache-2.0
"""An agent's Lease, on an API server that answers when the test says so. tests/kube has a real one."""
import http.server
import json
import threading

import pytest

from cluster import until
from state_world import Demo


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def reply(self, status, body):
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status, reason):
        self.reply(status, {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": reason})

    def lease(self):
        return {"kind": "Lease", "metadata": {"name": "cognitora.node.n1", "resourceVersion": str(self.server.version)},
                "spec": {"holderIdentity": "127.0.0.1:7080"}}

    def body(self):
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")

    def do_GET(self):
        self.reply(200, self.lease()) if self.server.exists else self.refuse(404, "NotFound")

    def do_PATCH(self):
        self.body()
        self.server.version, self.server.exists = self.server.version + 1, True
        told = self.lease()
        self.server.written.release()
        self.server.may_answer.wait(30)
        self.reply(200, told)

    def do_DELETE(self):
        asked = self.body().get("preconditions", {}).get("resourceVersion")
        self.server.deletes.append(asked)
        if asked != str(self.server.version):
            self.refuse(409, "Conflict")
            return
        self.server.exists = False
        self.reply(200, {"kind": "Status", "status": "Success"})


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    exists, version = False, 100

    def handle_error(self, *_):
        pass


@pytest.fixture
def api():
    s = Server(("127.0.0.1", 0), Handler)
    s.written, s.may_answer, s.deletes = threading.Semaphore(0), threading.Event(), []
    s.may_answer.set()
    threading.Thread(target=s.serve_forever, daemon=True).start()
    yield s
    s.may_answer.set()
    s.shutdown()


@pytest.fixture
def agent(api, tmp_path):
    access = {"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}],
              "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{api.server_port}"}}]}
    (tmp_path / "kubeconfig").write_text(json.dumps(access))
    a = Demo(tmp_path, "n1", {"cluster": {"state_backend": "kubernetes", "kubernetes_config": str(tmp_path / "kubeconfig"), "kubernetes_namespace": "ns",
                                          "state_dir": str(tmp_path / "state"), "lease": "30s"}, "agent": {"heartbeat": "10s"}},
             "announce", "n1", "127.0.0.1:7080")
    a.expect("connected")
    yield a
    a.stop()


def test_a_node_that_leaves_while_it_writes_its_lease_deletes_it(api, agent):
    """The write gives the Lease another version: a delete that names the one before would be refused."""
    while api.written.acquire(blocking=False):
        pass
    api.may_answer.clear()
    agent.say("draining")
    assert api.written.acquire(timeout=30)
    agent.say("quit")
    agent.silent(0.3)  # the answer is waited for
    assert api.deletes == []
    api.may_answer.set()
    agent.expect("left")
    until(lambda: not api.exists, lambda: f"the Lease of version {api.version} is deleted; asked for {api.deletes}")
    assert api.deletes == [str(api.version)]

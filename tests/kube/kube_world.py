# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes control plane on this machine, without a kubelet: kwok plays the machines."""
import http.client
import json
import os
import pathlib
import ssl
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from cluster import free_port, until  # noqa: E402

START_S = 120


def openssl(*args, **more):
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, **more)


class Kube:
    """etcd, the API server, the controllers, the scheduler and kwok. |small|: only etcd and the API server."""

    def __init__(self, folder, binaries, small=False):
        self.folder, self.bin, self.small = pathlib.Path(folder), pathlib.Path(binaries), small
        self.port = free_port(5)
        self.parts, self.kubeconfig = {}, self.folder / "kubeconfig.json"
        self._keys()
        self._kubeconfig()
        self.start_etcd()
        self.start_apiserver()
        if not small:
            self._start_others()

    # ---- keys

    def _leaf(self, name, subject):
        key, csr, ext = (self.folder / f"{name}.{end}" for end in ("key", "csr", "ext"))
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", csr, "-subj", subject)
        ext.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        openssl("x509", "-req", "-in", csr, "-CA", self.folder / "ca.crt", "-CAkey", self.folder / "ca.key", "-CAcreateserial",
                "-out", self.folder / f"{name}.crt", "-days", "2", "-extfile", ext)

    def _keys(self):
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.folder / "ca.key", "-out",
                self.folder / "ca.crt", "-days", "2", "-subj", "/CN=kube-ca")
        self._leaf("server", "/CN=kube-apiserver")
        self._leaf("admin", "/O=system:masters/CN=admin")
        openssl("genrsa", "-out", self.folder / "sa.key", "2048")
        openssl("rsa", "-in", self.folder / "sa.key", "-pubout", "-out", self.folder / "sa.pub")

    def config_of(self, user, **context):
        """Return a kubeconfig for |user|, the object that names its credentials."""
        return {"apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": str(self.folder / "ca.crt")}}],
                "users": [{"name": "u", "user": user}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", **context}}]}

    def _kubeconfig(self):
        user = {"client-certificate": str(self.folder / "admin.crt"), "client-key": str(self.folder / "admin.key")}
        self.kubeconfig.write_text(json.dumps(self.config_of(user)))

    # ---- programs

    def _run(self, name, *argv):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.parts[name] = subprocess.Popen(list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder)

    def start_etcd(self):
        client, peer = (f"http://127.0.0.1:{self.port + i}" for i in (1, 2))
        self._run("etcd", "etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", client, "--advertise-client-urls", client,
                  "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}")

    def start_apiserver(self):
        # Debian's etcd cannot stream lists: where the gate says so, clients list at once, and do not try again and again.
        self._run("apiserver", self.bin / "kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{self.port + 1}", "--bind-address", "127.0.0.1",
                  "--secure-port", self.port, "--advertise-address", "127.0.0.1", "--tls-cert-file", "server.crt", "--tls-private-key-file", "server.key",
                  "--client-ca-file", "ca.crt", "--authorization-mode", "RBAC", "--service-account-key-file", "sa.pub",
                  "--service-account-signing-key-file", "sa.key", "--service-account-issuer", "https://kubernetes.default.svc",
                  "--service-cluster-ip-range", "10.96.0.0/16", "--disable-admission-plugins=ServiceAccount", "--feature-gates=WatchList=false")
        until(lambda: self.kubectl("get", "--raw", "/readyz", check=False).returncode == 0, lambda: self.log("apiserver"), wait_s=START_S, step_s=0.2)

    def _start_others(self):
        self._run("controllers", self.bin / "kube-controller-manager", "--kubeconfig", self.kubeconfig, "--service-account-private-key-file", "sa.key",
                  "--root-ca-file", "ca.crt", "--leader-elect=false", "--secure-port", self.port + 3, "--bind-address", "127.0.0.1",
                  "--controllers=*,-nodeipam,-cloud-node-lifecycle", "--kube-api-qps", "200", "--kube-api-burst", "400")
        self._run("scheduler", self.bin / "kube-scheduler", "--kubeconfig", self.kubeconfig, "--authentication-kubeconfig", self.kubeconfig,
                  "--authorization-kubeconfig", self.kubeconfig, "--leader-elect=false", "--secure-port", self.port + 4, "--bind-address", "127.0.0.1",
                  "--kube-api-qps", "200", "--kube-api-burst", "400")
        self._run("kwok", self.bin / "kwok", "--kubeconfig", self.kubeconfig, "--manage-all-nodes=true",
                  "--disregard-status-with-annotation-selector=kwok.x-k8s.io/status=custom")

    def kill(self, name):
        self.parts[name].kill()
        self.parts.pop(name).wait()

    def close(self):
        for name in reversed(list(self.parts)):
            self.kill(name)

    def log(self, name, lines=20):
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])

    # ---- objects

    def kubectl(self, *args, check=True, text=None):
        done = subprocess.run([self.bin / "kubectl", "--kubeconfig", self.kubeconfig, *map(str, args)], capture_output=True, text=True, input=text, timeout=120)
        assert not check or done.returncode == 0, f"kubectl {args}: {done.stderr}"
        return done

    def get(self, *args):
        return json.loads(self.kubectl("get", *args, "-o", "json").stdout)

    def apply(self, *objects):
        self.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def create(self, path, objects):
        """Create many objects quickly: kubectl limits its own rate."""
        tls = ssl.create_default_context(cafile=self.folder / "ca.crt")
        tls.load_cert_chain(self.folder / "admin.crt", self.folder / "admin.key")
        c = http.client.HTTPSConnection("127.0.0.1", self.port, context=tls, timeout=120)
        for o in objects:
            c.request("POST", path, json.dumps(o), {"Content-Type": "application/json"})
            r = c.getresponse()
            text = r.read()
            assert r.status == 201, text
        c.close()

    def namespace(self, name):
        self.kubectl("create", "namespace", name)
        return name

    def machine(self, name, gpus=8):
        """Add a machine that kwok plays."""
        room = {"cpu": "64", "memory": "512Gi", "pods": "250", "nvidia.com/gpu": str(gpus)}
        self.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"},
                    "labels": {"nvidia.com/gpu.present": "true", "kubernetes.io/hostname": name}}, "status": {"allocatable": room, "capacity": room}})

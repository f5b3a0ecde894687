# SPDX-License-Identifier: Apache-2.0
"""Certificates that cgn-operator issues: Secrets against a real API server, and programs that talk with the files of these Secrets."""
import base64
import contextlib
import json
import os
import re
import subprocess
import tomllib

import pytest

from cluster import BUILD, Cluster, until
from operator_world import cluster, pool

LEAVES = {"prod-router-tls", "prod-agent-tls", "prod-kvcached-tls", "prod-metrics-tls", "prod-admin-tls"}


class World:
    def __init__(self, kube, space, operator):
        self.kube, self.space, self.operator = kube, space, operator

    def secrets(self):
        return {o["metadata"]["name"]: o for o in self.kube.get("secrets", "-n", self.space)["items"]}

    def files(self, name):
        """Return {file: text} of a Secret; {} if there is none."""
        done = self.kube.kubectl("get", "secret", name, "-n", self.space, "-o", "json", check=False)
        return {k: base64.b64decode(v).decode() for k, v in json.loads(done.stdout)["data"].items()} if done.returncode == 0 else {}

    def condition(self):
        conditions = self.kube.get("ic", "prod", "-n", self.space).get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == "CertificatesReady"), {})

    def says(self, reason):
        return until(lambda: (c := self.condition()).get("reason") == reason and c, lambda: f"{self.condition()} {self.operator.process.log()[-2000:]}", wait_s=60)

    def events(self, reason):
        return [e["message"] for e in self.kube.get("events", "-n", self.space)["items"] if e["reason"] == reason]

    def issued(self, wanted=None):
        """Wait until every certificate is there."""
        wanted = wanted or LEAVES
        until(lambda: wanted <= set(self.secrets()), lambda: f"{set(self.secrets())} {self.operator.process.log()[-2000:]}", wait_s=60)
        self.says("Issued")
        self.operator.rest()

    def kubectl(self, *args):
        return self.kube.kubectl(*args, "-n", self.space)


@pytest.fixture
def world(installed, operator, space):  # noqa: F811
    return World(installed, space, operator)


def openssl(*args, text=None):
    return subprocess.run(["openssl", *map(str, args)], input=text, capture_output=True, text=True, check=True, timeout=30).stdout


def shown(pem):
    return openssl("x509", "-noout", "-text", text=pem)


def serial(pem):
    return openssl("x509", "-noout", "-serial", text=pem).strip()


def subject(pem):
    return openssl("x509", "-noout", "-subject", text=pem).strip()


def verify(folder, bundle, pem):
    """Is |pem| signed by an authority of |bundle|?"""
    (folder / "bundle.pem").write_text(bundle)
    (folder / "leaf.pem").write_text(pem)
    return subprocess.run(["openssl", "verify", "-CAfile", folder / "bundle.pem", folder / "leaf.pem"], capture_output=True, timeout=30).returncode == 0


def test_every_program_gets_a_certificate(world, tmp_path):
    world.kube.apply(cluster(world.space, kvcached={"ramGib": 1}, security={"dnsNames": ["llm.example.org"]}))
    world.issued()
    ca = world.files("prod-ca")
    assert set(ca) == {"tls.crt", "tls.key", "ca.crt"} and subject(ca["tls.crt"]) == "subject=CN = prod cluster CA"
    for name in LEAVES:
        files = world.files(name)
        assert verify(tmp_path, files["ca.crt"], files["tls.crt"]), name
        assert world.secrets()[name]["type"] == "kubernetes.io/tls" and world.secrets()[name]["metadata"]["ownerReferences"][0]["name"] == "prod"
        assert "PRIVATE KEY" in files["tls.key"]
    router, agent = shown(world.files("prod-router-tls")["tls.crt"]), shown(world.files("prod-agent-tls")["tls.crt"])
    assert f"DNS:prod-router.{world.space}.svc.cluster.local" in router and "URI:cognitora://prod/router/prod-router" in router and "llm.example.org" in router
    assert f"DNS:prod-agents.{world.space}.svc" in agent and "URI:cognitora://prod/agent/prod-agents" in agent and "kvcached" not in agent
    condition, status = world.condition(), world.kube.get("ic", "prod", "-n", world.space)["status"]
    assert condition["status"] == "True" and status["certificatesEnd"] in condition["message"], condition
    assert any("prod-ca (the cluster is new)" in m and "prod-router-tls (it was missing)" in m for m in world.events("AuthorityIssued"))
    before = {n: s["metadata"]["resourceVersion"] for n, s in world.secrets().items()}
    world.operator.process.stop()  # a new operator finds all in order
    world.operator.process.start()
    world.operator.rest()
    assert before == {n: s["metadata"]["resourceVersion"] for n, s in world.secrets().items()}


def test_what_is_deleted_or_spoilt_is_issued_again_by_the_same_authority(world, tmp_path):
    world.kube.apply(cluster(world.space))
    world.issued(LEAVES - {"prod-kvcached-tls"})
    ca, router, agent = (world.files(n) for n in ("prod-ca", "prod-router-tls", "prod-agent-tls"))
    world.kubectl("delete", "secret", "prod-router-tls")
    again = until(lambda: (f := world.files("prod-router-tls")) and serial(f["tls.crt"]) != serial(router["tls.crt"]) and f, "it is issued again")
    assert verify(tmp_path, ca["tls.crt"], again["tls.crt"]) and world.files("prod-agent-tls") == agent
    world.kubectl("patch", "secret", "prod-agent-tls", "--type=merge", "-p", json.dumps({"stringData": {"tls.key": router["tls.key"]}}))
    again = until(lambda: (f := world.files("prod-agent-tls"))["tls.key"] not in (router["tls.key"], agent["tls.key"]) and f, "a key that does not fit is replaced")
    assert verify(tmp_path, ca["tls.crt"], again["tls.crt"])
    world.kubectl("patch", "secret", "prod-agent-tls", "--type=merge", "-p", json.dumps({"stringData": {"ca.crt": "nothing"}}))
    until(lambda: world.files("prod-agent-tls") == again, "what is trusted is put right, and the certificate stays")
    assert world.files("prod-ca") == ca
    assert any("could not be used" in m for m in world.events("CertificatesRenewed"))


def test_an_authority_that_cannot_be_read_is_not_replaced(world, tmp_path):
    world.kube.apply(cluster(world.space))
    world.issued(LEAVES - {"prod-kvcached-tls"})
    ca, router = world.files("prod-ca"), world.files("prod-router-tls")
    world.kubectl("label", "secret", "prod-ca", "app.kubernetes.io/managed-by-")  # the operator no longer sees it
    labels = until(lambda: (m := world.secrets()["prod-ca"]["metadata"]["labels"]).get("app.kubernetes.io/managed-by") and m, "it is found, and taken back")
    assert labels["app.kubernetes.io/managed-by"] == "cgn-operator" and world.files("prod-ca") == ca
    world.kubectl("patch", "secret", "prod-ca", "--type=merge", "-p", json.dumps({"stringData": {"tls.key": "nothing"}}))
    said = world.says("AuthorityBroken")
    assert said["status"] == "False" and "prod-ca" in said["message"] and "delete the Secret" in said["message"]
    assert world.files("prod-ca")["tls.key"] == "nothing" and world.files("prod-router-tls") == router
    world.kubectl("patch", "secret", "prod-ca", "--type=merge", "-p", json.dumps({"stringData": {"tls.key": ca["tls.key"]}}))
    world.says("Issued")
    assert world.files("prod-ca") == ca and world.files("prod-router-tls") == router
    # Deleted, it is another matter: there is a new one, which all trust before it signs.
    world.kubectl("delete", "secret", "prod-ca")
    new = until(lambda: (f := world.files("prod-ca")) and f["tls.crt"] != ca["tls.crt"] and f, "there is another one")
    assert subject(new["tls.crt"]) == "subject=CN = prod cluster CA 2" and ca["tls.crt"].strip() in new["ca.crt"]
    now = until(lambda: (f := world.files("prod-router-tls"))["ca.crt"] == new["ca.crt"] and f, "the programs are told of both")
    assert now["tls.crt"] == router["tls.crt"]
    assert any("its Secret was gone" in m for m in world.events("AuthorityIssued"))


def test_certificates_and_authority_are_renewed_in_time(world, tmp_path):
    """Lives of one and two minutes: the leaf at 38 s, the authority at 76 s; a leaf of the new one only when the old one's is not needed."""
    world.kube.apply(cluster(world.space, metrics={"enabled": False}, security={"certificateLifetime": "1m", "authorityLifetime": "2m", "revoked": []}))
    world.issued({"prod-router-tls", "prod-agent-tls", "prod-admin-tls"})
    ca, first = world.files("prod-ca"), world.files("prod-router-tls")
    pods = world.kube.get("deployment", "prod-router", "-n", world.space)["metadata"]["generation"]
    second = until(lambda: (f := world.files("prod-router-tls"))["tls.crt"] != first["tls.crt"] and f, world.condition, wait_s=90, step_s=0.5)
    assert second["tls.key"] != first["tls.key"] and second["ca.crt"] == first["ca.crt"] and verify(tmp_path, ca["tls.crt"], second["tls.crt"])
    assert any("two thirds of its life" in m for m in world.events("CertificatesRenewed"))
    new = until(lambda: (f := world.files("prod-ca"))["tls.crt"] != ca["tls.crt"] and f, world.condition, wait_s=120, step_s=0.5)
    assert new["ca.crt"].count("BEGIN CERTIFICATE") == 2 and subject(new["tls.crt"]).endswith("CA 2")
    third = until(lambda: verify(tmp_path, new["tls.crt"], (f := world.files("prod-router-tls"))["tls.crt"]) and f, world.condition, wait_s=90, step_s=0.5)
    assert third["ca.crt"].count("BEGIN CERTIFICATE") == 2
    # A list of each authority that programs trust, the one that signs first: they would refuse that of another one.
    assert third["crl.pem"].count("BEGIN X509 CRL") == 2
    (tmp_path / "crl.pem").write_text(third["crl.pem"])
    assert openssl("crl", "-in", tmp_path / "crl.pem", "-noout", "-issuer").strip().endswith("CA 2")
    assert world.kube.get("deployment", "prod-router", "-n", world.space)["metadata"]["generation"] == pods  # nothing was restarted
    assert world.condition()["status"] == "True" and world.operator.metric("cgn_operator_failures_total") == 0


def test_an_authority_of_ones_own(world, tmp_path):
    world.kube.apply(cluster(world.space, security={"existingSecret": "mine"}))
    said = world.says("AuthorityMissing")
    assert "mine" in said["message"] and said["status"] == "False"
    subprocess.run([BUILD / "src/ctl/cgn-ctl", "pki", "bootstrap", "--out", tmp_path / "pki", "--name", "corp", "--leaf", "x"], check=True, capture_output=True)
    world.kubectl("create", "secret", "generic", "mine", f"--from-file={tmp_path}/pki/ca.pem", f"--from-file={tmp_path}/pki/ca.key")
    world.issued(LEAVES - {"prod-kvcached-tls"})
    ca = (tmp_path / "pki/ca.pem").read_text()
    router = world.files("prod-router-tls")
    assert verify(tmp_path, ca, router["tls.crt"]) and router["ca.crt"] == ca
    assert "prod-ca" not in world.secrets() and not world.secrets()["mine"]["metadata"].get("labels")


def test_insecure_is_said_and_undone(world):
    world.kube.apply(cluster(world.space, security={"mode": "insecure"}))
    said = world.says("Insecure")
    assert said["status"] == "False" and "may do everything" in said["message"]
    config = world.kube.get("configmap", "prod-config", "-n", world.space)["data"]["cognitora.toml"]
    assert "insecure = true" in config and "prod-ca" not in world.secrets()
    world.kube.apply(cluster(world.space, security={"mode": "mutual-tls"}))
    world.issued(LEAVES - {"prod-kvcached-tls"})
    ca = world.files("prod-ca")
    world.kube.apply(cluster(world.space, security={"mode": "insecure"}))
    until(lambda: not LEAVES & set(world.secrets()), lambda: f"{set(world.secrets())}")
    assert world.files("prod-ca") == ca  # whoever comes back finds the authority that others may trust


@pytest.mark.parametrize("security, said", [
    ({"mode": "tls"}, "security.mode must be mutual-tls or insecure"),
    ({"mode": "insecure", "existingSecret": "mine"}, "leave one of them out"),
    ({"existingSecret": "Mine!"}, "must be the name of a Secret"),
    ({"certificateLifetime": "90d"}, "certificateLifetime must be a time"),
    ({"certificateLifetime": "59s"}, "certificateLifetime must be a time"),
    ({"authorityLifetime": "1m"}, "authorityLifetime must be a time"),
    ({"revoked": ["the old one"]}, "security.revoked must have serial numbers of certificates in hex"),
    ({"mode": "insecure", "revoked": []}, "mode insecure has none"),
])
def test_mistakes_are_refused_in_sentences(installed, space, security, said):  # noqa: F811
    done = installed.kubectl("apply", "-f", "-", text=json.dumps(cluster(space, security=security)), check=False)
    assert done.returncode != 0 and said in done.stderr, done.stderr


class Mount:
    """A Secret's volume, as the kubelet makes it: the files are links into a folder, which is exchanged as a whole."""

    def __init__(self, folder, files):
        self.folder, self.version = folder, 0
        folder.mkdir()
        self.put(files)
        for name in files:
            (folder / name).symlink_to(f"..data/{name}")

    def put(self, files):
        self.version += 1
        into = self.folder / f"..{self.version}"
        into.mkdir()
        for name, text in files.items():
            (into / name).write_text(text)
        (self.folder / "..next").symlink_to(into.name)
        os.rename(self.folder / "..next", self.folder / "..data")


@contextlib.contextmanager
def running(world, folder, rendered):
    """A router and an agent with the rendered configuration, and the files of their Secrets in folders of their names."""
    def mine(name):
        return {"security": {k: v.replace("/etc/cognitora-tls", str(folder / name)) for k, v in rendered["security"].items() if k.endswith("_file")}}
    with Cluster(folder) as c:
        c.common = rendered
        c.common["cluster"].update(kubernetes_config=str(world.kube.kubeconfig), kubernetes_namespace=world.space)
        c.router(mine("router"))
        node = c.node("chat-0", "--time-scale", "0", sections=mine("agent"))
        c.wait_ready()
        yield c, node


def test_programs_with_these_files_talk_over_mutual_tls(world, tmp_path):
    """cgn-router and cgn-agent with the rendered configuration and the Secrets' files; certificates that are replaced meanwhile are taken without a signal."""
    world.kube.apply(cluster(world.space))
    world.issued(LEAVES - {"prod-kvcached-tls"})
    rendered = tomllib.loads(world.kube.get("configmap", "prod-config", "-n", world.space)["data"]["cognitora.toml"])
    assert rendered["security"]["require_mtls"] and "insecure" not in rendered["security"]
    mounts = {name: Mount(tmp_path / name, world.files(f"prod-{name}-tls")) for name in ("router", "agent", "admin")}
    with running(world, tmp_path, rendered) as (c, node):
        assert c.chat("hello").status == 200
        files = [f"--{flag}={tmp_path}/admin/{name}" for flag, name in (("ca", "ca.crt"), ("cert", "tls.crt"), ("key", "tls.key"))]
        status = [BUILD / "src/ctl/cgn-ctl", "cluster", "status", "--router", f"127.0.0.1:{c.grpc_port}"]
        done = subprocess.run([*status, *files], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "1, 1 ready" in done.stdout and "INSECURE" not in done.stdout, done.stdout + done.stderr
        assert subprocess.run([*status, files[0]], capture_output=True, timeout=60).returncode != 0  # without a certificate nobody is answered
        was = node.agent.events("svc.reloaded")
        before = serial(world.files("prod-agent-tls")["tls.crt"])
        world.kubectl("delete", "secret", "prod-agent-tls")
        fresh = until(lambda: (f := world.files("prod-agent-tls")) and serial(f["tls.crt"]) != before and f, "it is issued again")
        mounts["agent"].put(fresh)
        until(lambda: len(node.agent.events("svc.reloaded")) > len(was), node.agent.log)
        shows = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{node.agent_port}", "-alpn", "h2", "-cert", tmp_path / "router/tls.crt", "-key", tmp_path / "router/tls.key"],
                               input="", capture_output=True, text=True, errors="replace", timeout=30).stdout
        pem = re.search(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", shows, re.S)
        assert pem and serial(pem[0]) == serial(fresh["tls.crt"]), shows
        assert c.chat("again").status == 200


def listed(folder, text, bundle):
    """Return the serial numbers in a list of revoked certificates, which an authority of |bundle| has signed."""
    (folder / "crl.pem").write_text(text)
    (folder / "crl-ca.pem").write_text(bundle)
    done = subprocess.run(["openssl", "crl", "-in", folder / "crl.pem", "-CAfile", folder / "crl-ca.pem", "-noout", "-text"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and "verify OK" in done.stderr, done.stderr
    return [s.lower() for s in re.findall(r"Serial Number: (\w+)", done.stdout)]


def test_revoked_certificates_are_refused(world, tmp_path):
    """A certificate in use is replaced, then put on the list, which running programs take without a restart; no other connection ends."""
    def apply(*serials):
        world.kube.apply(cluster(world.space, metrics={"enabled": False}, security={"revoked": list(serials), "certificateLifetime": "5m"}))
    apply()
    world.kube.apply(pool(world.space))
    leaves = ("router", "agent", "admin")
    world.issued({f"prod-{n}-tls" for n in leaves})
    files = {n: world.files(f"prod-{n}-tls") for n in leaves}
    assert len({f["crl.pem"] for f in files.values()}) == 1 and listed(tmp_path, files["router"]["crl.pem"], files["router"]["ca.crt"]) == []
    assert "crl.pem" not in world.files("prod-ca")
    rendered = tomllib.loads(world.kube.get("configmap", "prod-config", "-n", world.space)["data"]["cognitora.toml"])
    until(lambda: world.kube.kubectl("get", "statefulset", "chat", "-n", world.space, check=False).returncode == 0, "the pool has its pods")
    assert world.kube.get("statefulset", "chat", "-n", world.space)["spec"]["template"]["metadata"]["annotations"] == {"cognitora.dev/revoked": "crl.pem"}
    mounts = {name: Mount(tmp_path / name, files[name]) for name in leaves}
    with running(world, tmp_path, rendered) as (c, _):
        (tmp_path / "stolen").mkdir()
        for name, text in files["admin"].items():
            (tmp_path / "stolen" / name).write_text(text)

        def status(folder):
            flags = [f"--{flag}={tmp_path}/{folder}/{name}" for flag, name in (("ca", "ca.crt"), ("cert", "tls.crt"), ("key", "tls.key"))]
            return subprocess.run([BUILD / "src/ctl/cgn-ctl", "cluster", "status", "--router", f"127.0.0.1:{c.grpc_port}", *flags], capture_output=True, text=True, timeout=60)
        assert status("stolen").returncode == 0
        old = serial(files["admin"]["tls.crt"]).split("=")[1]
        apply(old)
        fresh = until(lambda: (f := world.files("prod-admin-tls")) and serial(f["tls.crt"]).split("=")[1] != old and f, world.condition)
        assert any("prod-admin-tls (it was revoked)" in m for m in world.events("CertificatesRenewed"))
        mounts["admin"].put(fresh)
        assert status("admin").returncode == 0
        now = until(lambda: (f := world.files("prod-router-tls")) and old.lower() in listed(tmp_path, f["crl.pem"], f["ca.crt"]) and f, world.condition, wait_s=90)
        assert {world.files(f"prod-{n}-tls")["crl.pem"] for n in leaves} == {now["crl.pem"]}
        assert any("1 certificates more" in m for m in world.events("CertificatesRevoked"))
        mounts["router"].put(now)
        until(lambda: status("stolen").returncode != 0, lambda: c.logs())
        assert status("admin").returncode == 0 and c.chat("again").status == 200
        # Taken out of the resource, it stays revoked: a list only grows.
        apply()
        world.operator.rest()
        assert listed(tmp_path, (f := world.files("prod-router-tls"))["crl.pem"], f["ca.crt"]) == [old.lower()]
    assert world.operator.metric("cgn_operator_failures_total") == 0

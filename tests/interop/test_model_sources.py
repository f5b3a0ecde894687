# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl model pull from a real OCI registry (Debian's docker-registry), a real S3 (PyPI's moto) and a real nginx."""
import hashlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from cluster import BUILD, free_port, until

CTL = str(BUILD / "src/ctl/cgn-ctl")
FILES = {"config.json": b'{"a": 1}\n', "model-00001.safetensors": bytes(range(256)) * 8192, "d/odd name+1.txt": b"text\n"}


def sum_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def pull(*args, **env):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CGN_", "HF_", "AWS_"))}
    return subprocess.run([CTL, "model", "pull", *map(str, args)], capture_output=True, text=True, timeout=120, env={**kept, **env})


def has(folder, names=FILES):
    assert {n: (folder / n).read_bytes() for n in names} == {n: FILES[n] for n in names}


def missing(what):
    if os.environ.get("CI"):
        pytest.fail(f"no {what}")
    pytest.skip(f"no {what}")


@pytest.fixture
def serve(tmp_path):
    """Start a server and wait until |url| answers; it ends with the test."""
    started = []

    def start(argv, url, **how):
        log = open(tmp_path / "server.log", "ab")
        p = subprocess.Popen(list(map(str, argv)), stdout=log, stderr=log, **how)
        started.append(p)

        def answers():
            assert p.poll() is None, (tmp_path / "server.log").read_text()
            try:
                urllib.request.urlopen(url, timeout=2)
            except urllib.error.HTTPError:
                return True
            except OSError:
                return False
            return True
        until(answers, f"{argv[0]} answers")
        return p
    yield start
    for p in started:
        p.terminate()
        p.wait(20)


def send(method, url, data=b"", kind="application/octet-stream"):
    rq = urllib.request.Request(url, method=method, data=data, headers={"content-type": kind})
    with urllib.request.urlopen(rq, timeout=20) as r:
        return r.status, dict(r.headers)


def push(base, repo, tag):
    """Push FILES as ORAS does: a layer for each file, with its name as the title."""
    def blob(data):
        where = send("POST", f"{base}/v2/{repo}/blobs/uploads/")[1]["Location"]
        send("PUT", where + ("&" if "?" in where else "?") + "digest=" + sum_of(data), data)
        return {"mediaType": "application/octet-stream", "digest": sum_of(data), "size": len(data)}
    layers = [{**blob(data), "annotations": {"org.opencontainers.image.title": name}} for name, data in FILES.items()]
    kind = "application/vnd.oci.image.manifest.v1+json"
    manifest = {"schemaVersion": 2, "mediaType": kind, "config": {**blob(b"{}"), "mediaType": "application/vnd.oci.empty.v1+json"}, "layers": layers}
    send("PUT", f"{base}/v2/{repo}/manifests/{tag}", json.dumps(manifest).encode(), kind)
    return sum_of(json.dumps(manifest).encode())


def test_an_oci_registry(serve, tmp_path):
    if shutil.which("docker-registry") is None:
        missing("docker-registry")
    port = free_port()
    config = tmp_path / "registry.yml"
    config.write_text(f"version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {tmp_path}/store\nhttp:\n  addr: 127.0.0.1:{port}\n")
    base = f"http://127.0.0.1:{port}"
    serve(["docker-registry", "serve", config], base + "/v2/")
    digest = push(base, "models/m", "v1")
    done = pull(f"oci://127.0.0.1:{port}/models/m:v1", "--to", tmp_path / "m")
    assert done.returncode == 0, done
    has(tmp_path / "m")
    assert pull(f"oci://127.0.0.1:{port}/models/m@{digest}", "--to", tmp_path / "n", "--include", "*.json").returncode == 0
    has(tmp_path / "n", ["config.json"])
    # A part that was left is continued: the registry serves ranges.
    (tmp_path / "n/model-00001.safetensors.part").write_bytes(FILES["model-00001.safetensors"][:1_000_000])
    assert pull(f"oci://127.0.0.1:{port}/models/m:v1", "--to", tmp_path / "n").returncode == 0
    has(tmp_path / "n")
    none = pull(f"oci://127.0.0.1:{port}/models/m:v2", "--to", tmp_path / "x")
    assert none.returncode == 1 and "404" in none.stderr


def test_s3(serve, tmp_path):
    server = pathlib.Path(sys.executable).parent / "moto_server"
    if not server.exists():
        missing("moto_server")
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    serve([server, "-H", "127.0.0.1", "-p", port], base + "/moto-api/", env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "1000"})
    boto3 = pytest.importorskip("boto3")
    s3 = boto3.client("s3", endpoint_url=base, aws_access_key_id="id", aws_secret_access_key="secret", region_name="eu-central-1")
    s3.create_bucket(Bucket="models", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    for name, data in FILES.items():
        s3.put_object(Bucket="models", Key=f"llama/8b/{name}", Body=data)
    s3.put_object(Bucket="models", Key="llama/8b-large/other", Body=b"not this one")
    key = {"AWS_ENDPOINT_URL": base, "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-central-1"}
    done = pull("s3://models/llama/8b", "--to", tmp_path / "m", **key)
    assert done.returncode == 0, done
    has(tmp_path / "m")
    assert {f["file"] for f in json.loads(pull("s3://models/llama/8b", "--dry-run", "-o", "json", "--to", tmp_path / "x", **key).stdout)} == set(FILES)
    one = pull("s3://models/llama/8b/config.json", "--to", tmp_path / "n", **key)
    assert one.returncode == 0, one
    has(tmp_path / "n", ["config.json"])
    none = pull("s3://nothing/here", "--to", tmp_path / "x", **key)
    assert none.returncode == 1 and "404" in none.stderr
    half = pull("s3://models/llama/8b", "--to", tmp_path / "x", AWS_ACCESS_KEY_ID="id")
    assert half.returncode == 2 and "AWS_SECRET_ACCESS_KEY" in half.stderr


def test_nginx_with_an_authority_of_its_own(serve, tmp_path):
    if shutil.which("nginx") is None:
        missing("nginx")
    subprocess.run([CTL, "pki", "bootstrap", "--out", tmp_path / "pki"], check=True, capture_output=True, timeout=30)
    port, root = free_port(), tmp_path / "root"
    for name, data in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    pki = tmp_path / "pki"
    conf = tmp_path / "nginx.conf"
    conf.write_text(f"daemon off; pid {tmp_path}/pid; error_log stderr; user root; events {{}}\nhttp {{ access_log off; client_body_temp_path {tmp_path}/t1; proxy_temp_path {tmp_path}/t2; fastcgi_temp_path {tmp_path}/t3; "
                    f"uwsgi_temp_path {tmp_path}/t4; scgi_temp_path {tmp_path}/t5; server {{ listen 127.0.0.1:{port} ssl http2; ssl_certificate {pki}/router.pem; ssl_certificate_key {pki}/router.key; root {root}; }} }}\n")

    p = subprocess.Popen(["nginx", "-e", "stderr", "-p", str(tmp_path), "-c", str(conf)], stderr=subprocess.DEVNULL)
    try:
        def listens():
            with socket.socket() as s:
                return s.connect_ex(("127.0.0.1", port)) == 0
        until(listens, "nginx listens")
        url = f"https://localhost:{port}/model-00001.safetensors"
        refused = pull(url, "--to", tmp_path / "m")
        assert refused.returncode == 5 and "certificate" in refused.stderr.lower(), refused
        assert not (tmp_path / "m/model-00001.safetensors").exists()
        done = pull(url, "--to", tmp_path / "m", "--ca", pki / "ca.pem", "--sha256", sum_of(FILES["model-00001.safetensors"]))
        assert done.returncode == 0, done
        has(tmp_path / "m", ["model-00001.safetensors"])
    finally:
        p.terminate()
        p.wait(20)

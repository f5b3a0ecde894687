# SPDX-License-Identifier: Apache-2.0
"""Files and results of batches in a bucket of a real S3 server (PyPI's moto), which checks signatures and permissions."""
import json
import os
import pathlib
import random
import subprocess
import sys

import pytest

from cluster import free_port, until
from test_batch import create, ended, get, jsonl, line, results, upload
from test_model_sources import missing, serve  # noqa: F401 (a fixture)

REGION = "eu-central-1"
LINES = [line(i) for i in range(30)]


class Bucket:
    def __init__(self, serve, folder):  # noqa: F811
        boto3 = pytest.importorskip("boto3")
        server = pathlib.Path(sys.executable).parent / "moto_server"
        if not server.exists():
            missing("moto_server")
        self.serve, self.folder, self.port = serve, folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = serve([server, "-H", "127.0.0.1", "-p", self.port], self.url + "/moto-api/",
                             env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "4"})
        how = {"endpoint_url": self.url, "aws_access_key_id": "first", "aws_secret_access_key": "first", "region_name": REGION}
        boto3.client("s3", **how).create_bucket(Bucket="batches", CreateBucketConfiguration={"LocationConstraint": REGION})
        iam = boto3.client("iam", **how)
        iam.create_user(UserName="router")
        self.key = iam.create_access_key(UserName="router")["AccessKey"]
        allow = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": "*"}]}
        iam.put_user_policy(UserName="router", PolicyName="all", PolicyDocument=json.dumps(allow))
        self.s3 = boto3.client("s3", **{**how, "aws_access_key_id": self.key["AccessKeyId"], "aws_secret_access_key": self.key["SecretAccessKey"]})
        self.credentials = folder / "s3.key"
        self.credentials.write_text(f"{self.key['AccessKeyId']}:{self.key['SecretAccessKey']}\n")

    def settings(self, **more):
        return {"enabled": True, "storage": "s3", "s3_endpoint": self.url, "s3_bucket": "batches", "s3_region": REGION,
                "s3_prefix": "team/a/", "s3_credentials_file": str(self.credentials), **more}

    def objects(self):
        return {o["Key"]: o["Size"] for o in self.s3.list_objects_v2(Bucket="batches").get("Contents", [])}


@pytest.fixture
def bucket(serve, tmp_path):  # noqa: F811
    return Bucket(serve, tmp_path)


def start(c, settings, *node):
    c.router({"batch": settings})
    c.node("a", *(node or ("--time-scale", "0")))
    c.wait_ready()


def again(c):
    c.router_process.kill()
    c.router_process.start()
    until(lambda: c.listens(c.http_port, c.router_process), "the router listens")


def left_here(c):
    """Return the contents that are on the router's disk."""
    return [p.name for p in c.state_dir.glob("*.batch/*.data")]


def test_contents_are_objects(cluster, bucket):
    c = cluster
    start(c, bucket.settings(max_file=100 << 20))
    content = random.Random(1).randbytes(5_000_001)
    file = upload(c, content).json()
    assert bucket.objects() == {f"team/a/{file['id']}": len(content)} and not left_here(c)
    path = f"/v1/files/{file['id']}"
    assert bucket.s3.get_object(Bucket="batches", Key=f"team/a/{file['id']}")["Body"].read() == content
    assert c.ask("GET", path + "/content").body == content
    again(c)
    assert c.ask("GET", path + "/content").body == content and c.ask("GET", path).json() == file
    small, empty = upload(c, b"x").json(), upload(c, b"").json()
    assert c.ask("GET", f"/v1/files/{small['id']}/content").body == b"x" and c.ask("GET", f"/v1/files/{empty['id']}/content").body == b""
    assert c.ask("DELETE", path).status == 200 and f"team/a/{file['id']}" not in bucket.objects()
    # more than one part of a multipart upload; the router's memory stays bounded
    before = c.router_process.rss_kib()
    large = random.Random(2).randbytes((64 << 20) + 12345)
    file = upload(c, large).json()
    assert "id" in file, file
    assert bucket.s3.head_object(Bucket="batches", Key=f"team/a/{file['id']}")["ETag"].endswith('-2"')
    assert c.ask("GET", f"/v1/files/{file['id']}/content").body == large
    assert c.router_process.rss_kib() - before < 40 << 10
    assert not left_here(c)


def test_a_batch_and_its_results(cluster, bucket):
    c = cluster
    start(c, bucket.settings(max_concurrent=4), "--time-scale", "1")
    batch = create(c, jsonl(LINES + [line(99, model="none")]))
    until(lambda: get(c, batch)["request_counts"]["completed"] > 3, "lines are done")
    again(c)
    batch = ended(c, batch)
    assert batch["status"] == "completed" and batch["request_counts"] == {"total": 31, "completed": 30, "failed": 1}
    good, bad = results(c, batch)
    assert sorted(r["custom_id"] for r in good) == sorted(r["custom_id"] for r in LINES) and [r["custom_id"] for r in bad] == ["line-99"]
    assert set(bucket.objects()) == {f"team/a/{batch[k]}" for k in ("input_file_id", "output_file_id", "error_file_id")}
    assert not left_here(c)
    c.ask("DELETE", f"/v1/files/{batch['output_file_id']}")
    assert set(bucket.objects()) == {f"team/a/{batch[k]}" for k in ("input_file_id", "error_file_id")}


def test_a_server_that_is_away(cluster, bucket):
    """Uploads and downloads are refused; a batch keeps its answers and is finished once the server is back."""
    c = cluster
    start(c, bucket.settings(max_concurrent=4), "--time-scale", "1")
    file = upload(c, b"x").json()
    batch = create(c, jsonl(LINES))
    until(lambda: get(c, batch)["status"] == "in_progress", "the input was fetched")
    os.kill(bucket.process.pid, 19)  # SIGSTOP: it is there, and does not answer
    try:
        until(lambda: get(c, batch)["status"] == "finalizing", lambda: get(c, batch))
        assert c.chat("hello").status == 200  # others are served meanwhile
    finally:
        os.kill(bucket.process.pid, 18)
    batch = ended(c, batch)
    assert batch["status"] == "completed" and len(results(c, batch)[0]) == 30
    bucket.process.terminate()
    bucket.process.wait(20)
    for answer in (upload(c, b"y"), c.ask("GET", f"/v1/files/{file['id']}/content"), c.ask("DELETE", f"/v1/files/{file['id']}")):
        assert answer.status == 503 and answer.json()["error"]["code"] == "storage_unavailable" and answer.headers["retry-after"]
        assert str(bucket.port) in answer.json()["error"]["message"]
    assert c.ask("GET", f"/v1/files/{file['id']}").json() == file  # a file that could not be deleted is still there
    assert not left_here(c)
    assert c.chat("hello").status == 200


def test_refusals_name_the_reason(cluster, bucket):
    c = cluster
    secret = bucket.credentials.read_text()
    bucket.credentials.write_text(secret.strip()[:-3] + "xyz")
    start(c, bucket.settings())
    answer = upload(c, b"x")
    assert answer.status == 507 and "SignatureDoesNotMatch" in answer.json()["error"]["message"], answer.body
    assert secret.split(":")[1].strip()[:-3] not in c.router_process.log() + answer.body.decode()
    c.router_process.stop()
    bucket.credentials.write_text(secret)
    path = c.config("router", {"batch": bucket.settings(s3_bucket="nowhere")})
    c.router({"batch": bucket.settings(s3_bucket="nowhere")})
    answer = upload(c, b"x")
    assert answer.status == 507 and "NoSuchBucket" in answer.json()["error"]["message"], answer.body
    for keys, words in (({"s3_credentials_file": str(c.folder / "none")}, "none"), ({"s3_endpoint": "127.0.0.1:9"}, "batch.s3_endpoint")):
        path = c.config("faulty", {"batch": bucket.settings(**keys), "router": {"listen": f"127.0.0.1:{free_port()}", "listen_admin": f"127.0.0.1:{free_port()}",
                                                                              "listen_grpc": f"127.0.0.1:{free_port()}"}})
        done = subprocess.run([c.router_process.argv[0], "--config", path], capture_output=True, text=True, timeout=30)
        assert done.returncode != 0 and words in done.stderr, done.stderr

# SPDX-License-Identifier: Apache-2.0
"""The official OpenAI clients for Python and JavaScript upload a file, carry out its batch, and read the answers."""
import json
import os
import shutil
import subprocess

import pytest
from conftest import HERE, until
from test_limits import key

npm = pytest.mark.skipif(not os.environ.get("CI") and not ((HERE / "node_modules").is_dir() and shutil.which("node")),
                         reason="no node, or no node_modules: npm install in tests/interop")


@pytest.fixture
def world(cluster):
    headers = key(cluster.folder, "one", "acme")
    cluster.router({"batch": {"enabled": True}, "auth": {"enabled": True, "api_keys_file": str(cluster.folder / "keys")}})
    cluster.node("a", "--time-scale", "0")
    cluster.wait_ready()
    cluster.key = headers["Authorization"].split()[1]
    return cluster


def test_python(world, tmp_path):
    openai = pytest.importorskip("openai")
    lines = [{"custom_id": f"c{i}", "method": "POST", "url": "/v1/chat/completions",
              "body": {"model": "sim", "messages": [{"role": "user", "content": f"number {i}"}], "max_tokens": 5}} for i in range(20)]
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    with openai.OpenAI(base_url=f"http://127.0.0.1:{world.http_port}/v1", api_key=world.key, max_retries=0) as c:
        with open(path, "rb") as f:
            file = c.files.create(file=f, purpose="batch")
        assert file.filename == "in.jsonl" and c.files.content(file.id).text == path.read_text()
        batch = c.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"})
        batch = until(lambda: (b := c.batches.retrieve(batch.id)).status == "completed" and b, lambda: c.batches.retrieve(batch.id))
        assert batch.request_counts.completed == 20 and batch.metadata == {"a": "b"}
        rows = [json.loads(row) for row in c.files.content(batch.output_file_id).text.splitlines()]
        assert sorted(row["custom_id"] for row in rows) == sorted(f"c{i}" for i in range(20))
        assert all(openai.types.chat.ChatCompletion.model_validate(row["response"]["body"]).choices for row in rows)
        assert [b.id for b in c.batches.list()] == [batch.id]
        assert {f.id for f in c.files.list(purpose="batch_output")} == {batch.output_file_id}
        assert c.files.delete(file.id).deleted
        with pytest.raises(openai.NotFoundError):
            c.files.retrieve(file.id)
        with pytest.raises(openai.BadRequestError):
            c.batches.cancel(batch.id)


@npm
def test_npm(world):
    env = {**os.environ, "CGN_URL": f"http://127.0.0.1:{world.http_port}", "CGN_KEY": world.key}
    done = subprocess.run(["node", "--test", "batch.test.mjs"], cwd=HERE, env=env, timeout=120, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    assert "# pass 0" not in done.stdout and "ℹ pass 0" not in done.stdout, done.stdout

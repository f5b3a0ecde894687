# SPDX-License-Identifier: Apache-2.0
"""SGLang's HiCache with cgn-kvcached below its host memory (deploy/sglang/cognitora_hicache.py): the backend as SGLang's factory
makes it, and a real SGLang on the CPU whose next process finds what the last one computed."""
import json
import os
import pathlib
import random
import socket
import subprocess

import pytest

from cluster import free_port
from engines import MODEL, ROOT, Missing, Sglang, prepare_sglang, sglang_environment, until, words
from kvbulk import Store

INTEGRATION = ROOT / "deploy/sglang"


@pytest.fixture(scope="module")
def made_sglang(tmp_path_factory):
    try:
        return prepare_sglang(tmp_path_factory.mktemp("stub"))
    except Missing as why:
        pytest.skip(f"no real SGLang: {why}")


@pytest.fixture
def store(tmp_path):
    s = Store(tmp_path, {}, resp_listen=f"127.0.0.1:{(port := free_port())}", ram="64MiB")
    s.resp = port
    s.url = f"redis://127.0.0.1:{port}"
    yield s
    s.close()


def values(store):
    with socket.create_connection(("127.0.0.1", store.resp), 5) as s:
        s.sendall(b"DBSIZE\r\n")
        return int(s.recv(64)[1:])


def environment(made):
    env = sglang_environment(made[2])
    return {**env, "PYTHONPATH": f"{INTEGRATION}:{env['PYTHONPATH']}"}


def pages(made, *steps):
    got = subprocess.run([made[0] / "bin/python", pathlib.Path(__file__).with_name("hicache_pages.py"), json.dumps(steps)], capture_output=True, text=True,
                         timeout=300, env={**os.environ, **environment(made)})
    assert got.returncode == 0, got.stderr[-3000:]
    return json.loads(got.stdout.splitlines()[-1]), got.stderr


def test_pages_of_one_process_are_found_by_another(made_sglang, store):
    url, size = store.url, 1 << 20
    assert pages(made_sglang, ("put", url, "m", 6, size))[0] == [[6, ["put"]]]
    got, said = pages(made_sglang, ("get", url, "m", 8, size), ("get", url, "m", 2, size // 2), ("get", url, "other", 2, size),
                      ("get", f"redis://127.0.0.1:{free_port()}", "m", 2, size))
    assert got == [[6, ["equal"] * 6 + ["missed"] * 2], [0, ["missed"] * 2], [0, ["missed"] * 2], [0, ["missed"] * 2]]
    assert "cgn-kvcached: 127.0.0.1" in said  # the store that is not there


def test_a_restarted_engine_reads_what_the_last_one_computed(made_sglang, store, tmp_path):
    """The second SGLang answers the same, with the prompt's pages from the store."""
    extra = {"backend_name": "cognitora", "module_path": "cognitora_hicache", "class_name": "CognitoraHiCache"}
    flags = ["--enable-hierarchical-cache", "--hicache-size", "1", "--hicache-write-policy", "write_through", "--hicache-io-backend", "direct",
             "--hicache-mem-layout", "layer_first", "--hicache-storage-prefetch-policy", "wait_complete", "--hicache-storage-backend", "dynamic",
             "--hicache-storage-backend-extra-config", json.dumps(extra)]
    body = {"model": MODEL, "temperature": 0, "max_tokens": 8, "messages": [{"role": "user", "content": words(300, random.Random("hicache"))}]}
    said = []
    for name in ("first", "second"):
        e = Sglang(tmp_path, name, *flags, made=made_sglang, more={"PYTHONPATH": str(INTEGRATION), "CGN_HICACHE_URL": store.url})
        try:
            e.start().wait()
            a = e.ask("/v1/chat/completions", body)
            assert a.status == 200, a.body
            doc = a.json()
            said.append((doc["choices"][0]["message"]["content"], doc["usage"]["prompt_tokens"], doc["usage"]["prompt_tokens_details"]["cached_tokens"]))
            until(lambda: values(store) >= doc["usage"]["prompt_tokens"] // 32, "its pages are in the store")
        finally:
            e.kill()
    (text, tokens, nothing), (again, same, cached) = said
    assert (text, tokens, nothing) == (again, same, 0) and cached >= tokens - 64, said

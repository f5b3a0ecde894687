# SPDX-License-Identifier: Apache-2.0
"""LMCache (PyPI, on the CPU) with cgn-kvcached as its remote backend: its Redis client in Python (redis://) and its own in C++
(resp://). Chunks that one process put are what another one gets, or are missed; never anything else."""
import json
import os
import pathlib
import subprocess

import pytest

from kvbulk import Store
from cluster import free_port

VERSION = "0.5.6"
NEEDS = [f"lmcache=={VERSION}", "redis==8.1.0", "nvtx==0.2.17", "sortedcontainers==2.4.0", "py-cpuinfo==9.0.0", "aiofile==3.12.3", "caio==0.12.10", "aiofiles==25.1.0"]
MIB = 1 << 20


@pytest.fixture(scope="module")
def lmcache(made):
    """Return (Python of the virtual environment with torch, folder of LMCache), from the package index the first time."""
    python, folder = made[0] / "bin/python", pathlib.Path.home() / f".cache/cognitora/lmcache-{VERSION}"
    if not (folder / "complete").exists():
        got = subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, *NEEDS], capture_output=True, text=True)
        if got.returncode != 0:
            (pytest.fail if os.environ.get("CGN_REALENGINE") == "must" else pytest.skip)(f"no LMCache: {got.stderr[-300:]}")
        (folder / "complete").touch()
    return python, folder


@pytest.fixture
def store(tmp_path, request):
    s = Store(tmp_path, {}, resp_listen=f"127.0.0.1:{(port := free_port())}", **getattr(request, "param", {}))
    s.resp = port
    yield s
    s.close()


def chunks(lmcache, what, url, first, count, size):
    python, folder = lmcache
    got = subprocess.run([python, pathlib.Path(__file__).with_name("lmcache_chunks.py"), what, url, str(first), str(count), str(size)],
                         capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": str(folder)})
    assert got.returncode == 0, got.stderr[-3000:] + got.stdout[-1000:]
    return [v for _, v in sorted((int(k), v) for k, v in json.loads(got.stdout.splitlines()[-1]).items())]


@pytest.mark.parametrize("scheme", ["redis", "resp"])
def test_chunks_of_one_process_are_found_by_another(lmcache, store, scheme):
    url = f"{scheme}://127.0.0.1:{store.resp}"
    for first, size in ((0, 4096), (100, 4 * MIB)):
        assert chunks(lmcache, "put", url, first, 6, size) == ["put"] * 6
        assert chunks(lmcache, "get", url, first, 8, size) == ["equal"] * 6 + ["missed"] * 2


@pytest.mark.parametrize("store", [{"ram": "64MiB"}], indirect=True)
@pytest.mark.parametrize("scheme", ["redis", "resp"])
def test_chunks_that_found_no_room_are_missed(lmcache, store, scheme):
    url = f"{scheme}://127.0.0.1:{store.resp}"
    assert chunks(lmcache, "put", url, 0, 40, 4 * MIB) == ["put"] * 40
    got = chunks(lmcache, "get", url, 0, 40, 4 * MIB)
    assert set(got) == {"equal", "missed"} and 4 <= got.count("equal") <= 16, got

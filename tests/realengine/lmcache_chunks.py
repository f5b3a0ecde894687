# SPDX-License-Identifier: Apache-2.0
"""Put chunks through LMCache's remote backend, or get them; run with a Python that has LMCache and torch. Chunk i of |bytes| is
drawn from its number. Prints {"i": "put" | "equal" | "other" | "missed"}."""
import argparse
import json
import os
import tempfile

a = argparse.ArgumentParser()
a.add_argument("what", choices=["put", "get"])
a.add_argument("url")
a.add_argument("first", type=int)
a.add_argument("count", type=int)
a.add_argument("bytes", type=int)
a = a.parse_args()
config = tempfile.NamedTemporaryFile("w", suffix=".yaml")
config.write(f'chunk_size: 256\nlocal_cpu: true\nmax_local_cpu_size: 1\nremote_url: "{a.url}"\nremote_serde: "naive"\n')
config.flush()
os.environ["LMCACHE_CONFIG_FILE"] = config.name

import torch  # noqa: E402
from lmcache.integration.vllm.utils import lmcache_get_or_create_config  # noqa: E402
from lmcache.v1.check.utils import EventLoopManager, create_test_key  # noqa: E402
from lmcache.v1.metadata import LMCacheMetadata  # noqa: E402
from lmcache.v1.storage_backend import RemoteBackend  # noqa: E402
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend  # noqa: E402

loop = EventLoopManager()
loop.start()
settings = lmcache_get_or_create_config()
shape = (1, 2, 256, 1, a.bytes // (2 * 256 * 2))  # layers, K and V, tokens, heads, elements of two bytes
about = LMCacheMetadata(model_name="m", world_size=1, local_world_size=1, worker_id=0, local_worker_id=0, kv_dtype=torch.bfloat16, kv_shape=shape)
cpu = LocalCPUBackend(config=settings, metadata=about, dst_device="cpu")
remote = RemoteBackend(config=settings, metadata=about, loop=loop.get_loop(), local_cpu_backend=cpu, dst_device="cpu")
wire = remote.connection.getWrappedConnector() if hasattr(remote.connection, "getWrappedConnector") else remote.connection


def content(i, like):
    draw = torch.Generator().manual_seed(i)
    return torch.randint(-1000, 1000, like.shape, generator=draw).to(like.dtype)


out = {}
for i in range(a.first, a.first + a.count):
    key = create_test_key("m", f"chunk {i}")
    if a.what == "put":
        chunk = cpu.allocate(wire.meta_shapes, wire.meta_dtypes, wire.meta_fmt)
        assert chunk.tensor.nbytes == a.bytes, chunk.tensor.shape
        chunk.tensor.copy_(content(i, chunk.tensor))
        remote.submit_put_task(key, chunk).result(30)
        chunk.ref_count_down()
        out[i] = "put"
        continue
    chunk = remote.get_blocking(key) if remote.contains(key) else None
    out[i] = "missed" if chunk is None else "equal" if torch.equal(chunk.tensor, content(i, chunk.tensor)) else "other"
    if chunk is not None:
        chunk.ref_count_down()
print(json.dumps(out), flush=True)
os._exit(0)  # LMCache's own threads do not end, with a Redis server neither

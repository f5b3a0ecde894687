# SPDX-License-Identifier: Apache-2.0
"""Put pages through SGLang's own factory of storage backends, or get them; run with a Python that has SGLang. The argument is a JSON list
of [put or get, url, model, number of pages, bytes of a page]. Page i is drawn from its number. Prints for each step [how many of the first
keys are there, what became of each page]."""
import json
import sys

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory


class Pool:
    """What a backend asks of SGLang's host memory."""

    def __init__(self, size):
        self.size = size

    def get_dummy_flat_data_page(self):
        return torch.zeros(self.size // 2, dtype=torch.bfloat16)


def content(i, size):
    return torch.randint(-1000, 1000, (size // 2,), generator=torch.Generator().manual_seed(i)).to(torch.bfloat16)


def step(what, url, model, count, size):
    config = HiCacheStorageConfig(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=False, enable_storage_metrics=False,
                                  is_page_first_layout=False, model_name=model, extra_config={
                                      "backend_name": "cognitora", "module_path": "cognitora_hicache", "class_name": "CognitoraHiCache", "url": url})
    backend = StorageBackendFactory.create_backend("dynamic", config, Pool(size))
    backend.register_mem_pool_host(Pool(size))
    keys = [f"{i:064x}" for i in range(count)]
    if what == "put":
        pages = ["put" if backend.batch_set(keys, [content(i, size) for i in range(count)]) else "refused"]
    else:
        got = backend.batch_get(keys, [Pool(size).get_dummy_flat_data_page() for _ in keys])
        pages = ["missed" if page is None else "equal" if torch.equal(page, content(i, size)) else "other" for i, page in enumerate(got)]
    return backend.batch_exists(keys), pages


print(json.dumps([step(*s) for s in json.loads(sys.argv[1])]))

# SPDX-License-Identifier: Apache-2.0
"""HiCache storage backend of SGLang (0.5.23) that keeps pages in cgn-kvcached, by the Redis protocol (kv.resp_listen). Put this file on
SGLang's PYTHONPATH and start it with

  --enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
    '{"backend_name": "cognitora", "module_path": "cognitora_hicache", "class_name": "CognitoraHiCache"}'

and the store's URL in CGN_HICACHE_URL, or as "url" above: redis://[:PASSWORD@]HOST[:PORT], by default redis://127.0.0.1:7092. It needs nothing but SGLang. A page that the store does not have, or has in another size, is missed and computed. While the store cannot
be reached every page is missed; each call tries once to connect again, at most once in RETRY_S. SGLang calls it from two threads (one
reads pages, one writes them): each has a connection of its own. Keys name the model, the page's hash, the ranks and the page's type and
size in bytes, so that engines whose pages differ never read each other's."""
import logging
import os
import socket
import threading
import time
import urllib.parse

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

logger = logging.getLogger(__name__)
TIMEOUT_S = 5
RETRY_S = 1


class Away(OSError):
    """The store cannot be reached, or broke the protocol."""


class Connection:
    """A connection that speaks RESP2. Commands of a call are sent at once; their answers are read in order."""

    def __init__(self, host, port, password):
        self.socket = socket.create_connection((host, port), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")
        if password:
            self.send([b"AUTH", password.encode()])
            if isinstance(said := self.answer(), Exception):
                raise said

    def send(self, *commands):
        for words in commands:
            head = [b"*%d\r\n" % len(words)]
            for w in words:
                if len(w) < 65536:
                    head.append(b"$%d\r\n%b\r\n" % (len(w), bytes(w)))
                    continue
                self.socket.sendall(b"".join(head) + b"$%d\r\n" % len(w))
                self.socket.sendall(w)
                head = [b"\r\n"]
            self.socket.sendall(b"".join(head))

    def line(self):
        line = self.file.readline(65536)
        if not line.endswith(b"\r\n"):
            raise Away("the store closed the connection")
        return line[:1], line[1:-2]

    def answer(self, into=None):
        """Return an integer, a text, True when |into| (a memoryview of the value's size) was filled, None for no value or one of another
        size, or an exception of what the store refused."""
        kind, rest = self.line()
        if kind == b"-":
            return RuntimeError(rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        if kind != b"$":
            return rest
        size = int(rest)
        if size < 0:
            return None
        fits = into is not None and size == len(into)
        at = 0
        while fits and at < size:
            n = self.file.readinto(into[at:])
            if not n:
                raise Away("the store closed the connection within a value")
            at += n
        value = b"" if fits else self.file.read(size)
        if len(value) + at != size or self.file.read(2) != b"\r\n":
            raise Away("the store closed the connection within a value")
        return True if fits else None


class CognitoraHiCache(HiCacheStorage):
    def __init__(self, storage_config, kwargs=None):
        more = storage_config.extra_config or {}
        url = urllib.parse.urlsplit(more.get("url") or os.environ.get("CGN_HICACHE_URL") or "redis://127.0.0.1:7092")
        if url.scheme != "redis" or not url.hostname:
            raise ValueError("the URL of cgn-kvcached (CGN_HICACHE_URL, or url of hicache-storage-backend-extra-config) must be redis://[:PASSWORD@]HOST[:PORT]")
        self.to = (url.hostname, url.port or 7092, url.password)
        c = storage_config
        ranks = f"{c.tp_rank}.{c.tp_size}.{c.pp_rank}.{c.pp_size}.{c.attn_cp_rank}.{c.attn_cp_size}.{c.dcp_size}"
        if c.is_mla_model:
            ranks = f"mla.{c.pp_rank}.{c.pp_size}.{c.dcp_size}"  # every rank of tensor parallelism has the same pages
        self.prefix = f"hicache:{c.model_name}:{ranks}:"
        self.own = threading.local()
        self.said = None

    def key(self, key, page):
        return f"{self.prefix}{str(page.dtype).removeprefix('torch.')}.{page.numel() * page.element_size()}:{key}".encode()

    def ask(self, commands, into=None):
        """Return the answers; all None when the store is away."""
        into = into or [None] * len(commands)
        link = getattr(self.own, "link", None)
        if link is None and time.monotonic() - getattr(self.own, "tried", -RETRY_S) < RETRY_S:
            return [None] * len(commands)
        try:
            if link is None:
                self.own.tried = time.monotonic()
                link = self.own.link = Connection(*self.to)
            if any(len(w) >= 65536 for words in commands for w in words):  # the store answers while it reads: one at a time
                answers = []
                for words in commands:
                    link.send(words)
                    answers.append(link.answer())
            else:
                link.send(*commands)
                answers = [link.answer(i) for i in into]
            self.tell(next((str(a) for a in answers if isinstance(a, Exception)), None))
            return [None if isinstance(a, Exception) else a for a in answers]
        except (OSError, RuntimeError, ValueError) as why:
            self.own.link = None
            self.tell(f"{self.to[0]}:{self.to[1]}: {why}")
            return [None] * len(commands)

    def tell(self, why):
        """Log once what is wrong, and once that it is over."""
        if why != self.said:
            logger.warning("cgn-kvcached: %s", why or "answers again")
        self.said = why

    @staticmethod
    def bytes_of(page):
        return memoryview(page.view(torch.uint8).flatten().numpy())

    def batch_get(self, keys, target_locations=None, target_sizes=None):
        pages = list(target_locations or [])
        got = self.ask([[b"GET", self.key(k, p)] for k, p in zip(keys, pages)], [self.bytes_of(p) for p in pages])
        return [p if ok else None for p, ok in zip(pages, got)]

    def get(self, key, target_location=None, target_sizes=None):
        return self.batch_get([key], [target_location])[0]

    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None):
        pages = [v.contiguous() for v in values or []]
        self.like = pages[0] if pages else getattr(self, "like", None)
        return all(a == b"OK" for a in self.ask([[b"SET", self.key(k, p), self.bytes_of(p)] for k, p in zip(keys, pages)]))

    def set(self, key, value=None, target_location=None, target_sizes=None):
        return self.batch_set([key], [value])

    def batch_exists(self, keys, extra_info=None):
        """Return how many of the first keys the store has, without a gap."""
        page = self.page()
        held = self.ask([[b"EXISTS", self.key(k, page)] for k in keys])
        return next((i for i, h in enumerate(held) if h != 1), len(held))

    def exists(self, key):
        return self.batch_exists([key]) == 1

    def page(self):
        """Return a page like those of the host memory."""
        pool = getattr(self, "mem_pool_host", None)
        if getattr(self, "like", None) is None and pool is not None:
            self.like = pool.get_dummy_flat_data_page()
        if getattr(self, "like", None) is None:
            raise RuntimeError("no page is known: SGLang has registered no host memory")
        return self.like

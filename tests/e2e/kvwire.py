# SPDX-License-Identifier: Apache-2.0
"""KV events as a subscriber sees them, without code of this project: ZMTP 3.0 (SUB, DEALER), msgpack, BLAKE3,
and an index built from the events of vLLM and SGLang. The index is compared with the blocks that cgn-sim
reports (/sim/blocks)."""
import collections
import functools
import socket
import struct

# ---- BLAKE3, of at most one chunk (1024 bytes) ----

IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
MIXES = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15), (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
CHUNK_START, CHUNK_END, ROOT, KEYED = 1, 2, 8, 16
MASK = 0xFFFFFFFF


def compress(cv, block, flags):
    m = list(struct.unpack("<16I", block.ljust(64, b"\0")))
    v = [*cv, *IV[:4], 0, 0, len(block), flags]
    for _ in range(7):
        for i, (a, b, c, d) in enumerate(MIXES):
            for word, first, second in ((m[2 * i], 16, 12), (m[2 * i + 1], 8, 7)):
                v[a] = (v[a] + v[b] + word) & MASK
                x = v[d] ^ v[a]
                v[d] = (x >> first | x << (32 - first)) & MASK
                v[c] = (v[c] + v[d]) & MASK
                x = v[b] ^ v[c]
                v[b] = (x >> second | x << (32 - second)) & MASK
        m = [m[k] for k in ORDER]
    return tuple(v[i] ^ v[i + 8] for i in range(8))


@functools.cache
def blake3(data, key=None):
    assert len(data) <= 1024
    cv, mode = (struct.unpack("<8I", key), KEYED) if key else (IV, 0)
    blocks = [data[i:i + 64] for i in range(0, len(data), 64)] or [b""]
    for i, block in enumerate(blocks):
        last = i == len(blocks) - 1
        cv = compress(cv, block, mode | CHUNK_START * (i == 0) | (CHUNK_END | ROOT) * last)
    return struct.pack("<8I", *cv)


def root_digest(model, salt=""):
    parts = [model.encode(), b"", salt.encode()]
    return blake3(b"cognitora.prefix.v2" + b"".join(p + struct.pack("<Q", len(p)) for p in parts))


def next_digest(previous, tokens):
    block = struct.pack(f"<{len(tokens)}I", *tokens)
    return blake3(block if len(block) <= 64 and len(block) != 32 else blake3(block), previous)


def short(digest):
    return f"{int.from_bytes(digest[:8], 'little'):016x}"


# ---- msgpack ----


def unpack(data):
    value, at = unpack_at(data, 0)
    assert at == len(data), "bytes behind the message"
    return value


def unpack_at(data, at):
    tag = data[at]
    at += 1

    def number(fmt):
        return struct.unpack_from(">" + fmt, data, at)[0], at + struct.calcsize(fmt)

    def run(n, at):
        assert at + n <= len(data)
        return data[at:at + n], at + n

    def many(n, at):
        out = []
        for _ in range(n):
            value, at = unpack_at(data, at)
            out.append(value)
        return out, at

    def pairs(n, at):
        flat, at = many(2 * n, at)
        return dict(zip(flat[::2], flat[1::2])), at

    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 256, at
    if tag < 0x90:
        return pairs(tag & 15, at)
    if tag < 0xA0:
        return many(tag & 15, at)
    if tag < 0xC0:
        raw, at = run(tag & 31, at)
        return raw.decode(), at
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at
    fixed = {0xCA: "f", 0xCB: "d", 0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q", 0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q"}
    if tag in fixed:
        return number(fixed[tag])
    sized = {0xC4: "B", 0xC5: "H", 0xC6: "I", 0xD9: "B", 0xDA: "H", 0xDB: "I", 0xDC: "H", 0xDD: "I", 0xDE: "H", 0xDF: "I"}
    n, at = number(sized[tag])  # KeyError: no msgpack
    if tag < 0xD0:
        return run(n, at)
    if tag < 0xDC:
        raw, at = run(n, at)
        return raw.decode(), at
    return many(n, at) if tag < 0xDE else pairs(n, at)


# ---- ZMTP ----


class Peer:
    def __init__(self, endpoint, kind):
        scheme, _, address = endpoint.partition("://")
        if scheme == "ipc":
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(address)
        else:
            host, _, port = address.rpartition(":")
            self.socket = socket.create_connection((host.replace("*", "127.0.0.1"), int(port)))
        self.socket.settimeout(10)
        self.file = self.socket.makefile("rb")
        self.socket.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
        greeting = self.read(64)
        assert greeting[0] == 0xFF and greeting[10] >= 3 and greeting[12:16] == b"NULL"
        self.frame(4, b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind.encode() + b"\x08Identity" + bytes(4))
        flags, ready = self.read_frame()
        assert flags & 4 and ready.startswith(b"\x05READY")

    def read(self, n):
        data = self.file.read(n)
        if len(data) < n:
            raise EOFError
        return data

    def frame(self, flags, body):
        size = struct.pack(">BQ", flags | 2, len(body)) if len(body) > 255 else bytes([flags, len(body)])
        self.socket.sendall(size + body)

    def read_frame(self):
        flags = self.read(1)[0]
        size = struct.unpack(">Q", self.read(8))[0] if flags & 2 else self.read(1)[0]
        return flags, self.read(size)

    def message(self):
        """Return the parts of the next message; commands between messages are skipped."""
        parts = []
        while True:
            flags, body = self.read_frame()
            if flags & 4:
                continue
            parts.append(body)
            if not flags & 1:
                return parts

    def hears(self, seconds):
        """Return whether a message arrives within |seconds|."""
        self.socket.settimeout(seconds)
        try:
            return len(self.file.peek(1)) > 0
        except TimeoutError:
            self.file = self.socket.makefile("rb")  # a reader that timed out once refuses further reads
            return False
        finally:
            self.socket.settimeout(10)

    def close(self):
        self.file.close()
        self.socket.close()


class Subscriber(Peer):
    def __init__(self, endpoint, topic=""):
        super().__init__(endpoint, "SUB")
        self.frame(0, b"\x01" + topic.encode())

    def batch(self):
        """Return (topic, number, payload)."""
        topic, number, payload = self.message()
        return topic.decode(), int.from_bytes(number, "big"), payload

    def poll(self, seconds):
        """Return the number of the next batch, None when none comes within |seconds|."""
        return self.batch()[1] if self.hears(seconds) else None


def replay(endpoint, start=0):
    """Return [(topic or None, number, payload)], as the ROUTER answers."""
    peer = Peer(endpoint, "DEALER")
    peer.frame(1, b"")
    peer.frame(0, start.to_bytes(8, "big"))
    out = []
    while True:
        empty, *topic, number, payload = peer.message()
        assert empty == b"" and len(topic) <= 1 and len(number) == 8
        if number == b"\xff" * 8:
            assert payload == b""
            peer.close()
            return out
        out.append((topic[0].decode() if topic else None, int.from_bytes(number, "big"), payload))


# ---- an index ----

STORED = ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx",
          "kv_cache_spec_kind", "kv_cache_spec_sliding_window"]
REMOVED = ["block_hashes", "medium", "group_idx"]
TIERS = {"GPU": "GPU", "CPU": "CPU", "CPU_PINNED": "CPU", "STORAGE": "STORAGE", "DISK": "STORAGE"}


def events_of(payload):
    """Return (events as dictionaries, rank or None) of a batch in any format."""
    batch = unpack(payload)
    if isinstance(batch, dict):
        batch = [batch["ts"], batch["events"], batch.get("data_parallel_rank")]
    assert isinstance(batch[0], float)
    out = []
    for e in batch[1]:
        if isinstance(e, list):
            tag, *fields = e
            if tag == "BlockStored" and len(fields) > 6 and isinstance(fields[6], dict):  # SGLang's metadata
                fields, extra = fields[:6], fields[6]
            else:
                extra = {}
            names = {"BlockStored": STORED, "BlockRemoved": REMOVED}.get(tag, [])
            e = {"type": tag, **dict(zip(names, fields)), **extra}
        out.append(e)
    return out, batch[2] if len(batch) > 2 else None


def number_of(block_hash):
    if isinstance(block_hash, bytes):
        assert len(block_hash) == 32
        return int.from_bytes(block_hash[-8:], "big")
    return block_hash % 2**64


class Index:
    """The blocks that a rank holds by its events. |models|: the engine's names, LoRAs after the first.
    The digests of removed blocks are kept: a prompt that ends with a full block computes it again, beside the
    cached one, which may be removed before the answer's next block names it as its parent."""

    def __init__(self, models=("sim",), groups=1):
        self.models, self.groups = models, groups
        self.unknown = 0
        self.clear()

    def clear(self):
        self.held = {"GPU": collections.defaultdict(set), "CPU": collections.defaultdict(set), "STORAGE": collections.defaultdict(set)}
        self.digests = {}

    def salt_of(self, e):
        if "cache_salt" in e:
            return e["cache_salt"]
        keys = (e.get("extra_keys") or [None])[0] or []
        words = [k for k in keys if isinstance(k, str) and k != e.get("lora_name") and len(k) != 64]
        return words[-1] if words else ""

    def model_of(self, e):
        return e.get("lora_name") or self.models[e["lora_id"] or 0]

    def stored(self, e):
        tier = TIERS[e.get("medium", "GPU")]
        hashes = [number_of(h) for h in e["block_hashes"]]
        assert len(hashes) > 0
        if e["token_ids"]:
            size = e["block_size"]
            assert len(e["token_ids"]) == size * len(hashes)
            parent = e["parent_block_hash"]
            last = root_digest(self.model_of(e), self.salt_of(e)) if parent is None else self.digests[number_of(parent)]
            for i, h in enumerate(hashes):
                last = next_digest(last, tuple(e["token_ids"][i * size:(i + 1) * size]))
                assert self.digests.setdefault(h, last) == last
        for h in hashes:
            assert h in self.digests, "stored without tokens and never seen"
            holders = self.held[tier][h]
            assert e.get("group_idx") not in holders, "stored twice"
            holders.add(e.get("group_idx"))

    def removed(self, e):
        tier = TIERS[e.get("medium", "GPU")]
        for h in map(number_of, e["block_hashes"]):
            self.held[tier][h].remove(e.get("group_idx"))
            if not self.held[tier][h]:
                del self.held[tier][h]

    def apply(self, payload, rank=None):
        events, said = events_of(payload)
        assert said is None or rank is None or said == rank
        for e in events:
            if e["type"] == "BlockStored":
                self.stored(e)
            elif e["type"] == "BlockRemoved":
                self.removed(e)
            elif e["type"] == "AllBlocksCleared":
                self.clear()
            else:
                self.unknown += 1

    def tier(self, name):
        whole = self.groups if name == "GPU" else 1
        assert all(len(groups) == whole for groups in self.held[name].values())
        return sorted(short(self.digests[h]) for h in self.held[name])

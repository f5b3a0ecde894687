# SPDX-License-Identifier: Apache-2.0
"""The clients of a soak. Each request ends in one way, and each answer is compared with what the engine says alone.

    answered  all of the answer, and the right one
    refused   an error answer in the shape of the API
    left      this client went away
    cut       an answer that began and was visibly broken off
    broken    the connection failed before an answer
    wrong     anything else, which must never be
"""
import collections
import json
import random
import socket
import struct
import threading
import time

from world import ENGINE, HTTP, ask

CHAT, TEXT, MESSAGES, RESPONSES, OLLAMA = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/api/chat"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"where": {"type": "string"}}}}}
SUBJECTS = "river bridge lamp harbour orchard letter winter kettle train mirror".split()
PROMPTS = 60
WAIT_S = 45


class Cut(Exception):
    """The answer broke off, and its end says so."""


class Broken(Exception):
    """The connection failed before the answer began."""


class Wrong(Exception):
    """The answer is no answer."""


class Item:
    """One request of the catalogue, and the text that an engine alone gives."""

    def __init__(self, number):
        dice = random.Random(number)
        words = " ".join(dice.choice(SUBJECTS) for _ in range(dice.choice((3, 20, 120, 600))))
        self.path = dice.choice((CHAT, CHAT, CHAT, TEXT, MESSAGES, RESPONSES, OLLAMA))
        self.tokens = dice.choice((1, 4, 16, 40, 120))
        self.tools = self.path == CHAT and dice.random() < 0.2
        self.prompt = f"{number}: tell me of the {words}"
        self.want = None

    def body(self, stream, path=None, model="sim"):
        path = path or self.path
        said = [{"role": "user", "content": self.prompt}]
        if path == TEXT:
            return {"model": model, "prompt": self.prompt, "max_tokens": self.tokens, "stream": stream}
        if path == RESPONSES:
            return {"model": model, "input": self.prompt, "max_output_tokens": self.tokens, "stream": stream}
        if path == OLLAMA:
            return {"model": model, "messages": said, "options": {"num_predict": self.tokens}, "stream": stream}
        more = {"tools": [TOOL], "tool_choice": "required"} if self.tools else {}
        if path == CHAT and stream:
            more["stream_options"] = {"include_usage": True}
        return {"model": model, "messages": said, "max_tokens": self.tokens, "stream": stream, **more}

    def learn(self, world):
        """Ask an engine that is no node of the cluster, and knows no fault."""
        path = CHAT if self.path == OLLAMA else self.path
        a = ask(world.at("m"), ENGINE, "POST", path, self.body(False, path))
        assert a.status == 200, (path, a.body)
        self.want = parse(path, False, a.body)


def parse(path, stream, body):
    """Return (text, tokens of the answer) of a whole answer; raise Cut or Wrong."""
    if not stream:
        try:
            return plain(path, json.loads(body))
        except (ValueError, KeyError, TypeError, IndexError) as e:
            raise Wrong(f"{e!r} in {body[:300]!r}") from None
    if path == OLLAMA:
        return ollama_stream(body)
    return event_stream(path, body)


def plain(path, doc):
    if "error" in doc and doc["error"]:
        raise Cut(f"an error behind 200: {str(doc['error'])[:200]}")
    if path == TEXT:
        return doc["choices"][0]["text"], doc["usage"]["completion_tokens"]
    if path == MESSAGES:
        return "".join(b.get("text", "") for b in doc["content"]), doc["usage"]["output_tokens"]
    if path == RESPONSES:
        return "".join(p["text"] for o in doc["output"] for p in o.get("content", ())), doc["usage"]["output_tokens"]
    if path == OLLAMA:
        return doc["message"]["content"], doc["eval_count"]
    message = doc["choices"][0]["message"]
    tools = "".join(f"{t['function']['name']}({t['function']['arguments']})" for t in message.get("tool_calls") or ())
    return (message["content"] or "") + tools, doc["usage"]["completion_tokens"]


def ollama_stream(body):
    text, last = "", {}
    for line in body.split(b"\n"):
        if not line.strip():
            continue
        try:
            last = json.loads(line)
        except ValueError:
            raise Cut("half a line") from None
        if "error" in last:
            raise Cut(str(last["error"]))
        text += last["message"]["content"]
    if not last.get("done"):
        raise Cut("no done")
    return text, last.get("eval_count")


def events_of(body):
    """Yield (event, data) of a stream; what is behind the last blank line is no event."""
    for block in body.decode().replace("\r\n", "\n").split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "data" in fields:
            yield fields.get("event"), fields["data"]


def event_stream(path, body):
    text, tokens, ended, calls = "", None, False, ""
    for name, data in events_of(body):
        if data == "[DONE]":
            ended = True
            continue
        doc = json.loads(data)
        if name == "error" or doc.get("type") == "error" or doc.get("error") or doc.get("type") == "response.failed":
            raise Cut(data[:200])
        if path == MESSAGES:
            text += doc.get("delta", {}).get("text", "")
            tokens = doc.get("usage", {}).get("output_tokens", tokens)
            ended = ended or doc["type"] == "message_stop"
        elif path == RESPONSES:
            text += doc["delta"] if doc["type"] == "response.output_text.delta" else ""
            if doc["type"] in ("response.completed", "response.incomplete"):
                ended, tokens = True, doc["response"]["usage"]["output_tokens"]
        else:
            for choice in doc["choices"]:
                delta = choice.get("delta") or {}
                text += choice.get("text") or delta.get("content") or ""
                for t in delta.get("tool_calls") or ():
                    f = t["function"]
                    calls += (f["name"] + "(" if f.get("name") else "") + (f.get("arguments") or "")
            tokens = (doc.get("usage") or {}).get("completion_tokens", tokens)
    if not ended:
        raise Cut("the stream has no end")
    return text + (calls + ")" if calls else ""), tokens


class Connection:
    """One request over a socket of its own, whose answer is read as it comes."""

    def __init__(self, host, port, path, body, headers, receive_buffer=None):
        self.sock, self.got = socket.socket(), b""
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(WAIT_S)
        data = json.dumps(body).encode() if not isinstance(body, bytes) else body
        fields = {"Host": "soak", "Content-Type": "application/json", "Content-Length": len(data), "Connection": "close", **headers}
        self.data = f"POST {path} HTTP/1.1\r\n".encode() + b"".join(f"{k}: {v}\r\n".encode() for k, v in fields.items()) + b"\r\n" + data
        try:
            self.sock.connect((host, port))
        except OSError as e:
            self.sock.close()
            raise Broken(f"connect: {e!r}") from None

    def send(self, most=None):
        try:
            self.sock.sendall(self.data[:most])
        except OSError as e:
            raise Broken(f"send: {e!r}") from None

    def read(self, most=65536):
        more = self.sock.recv(most)
        self.got += more
        return bool(more)

    def close(self, reset=False):
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def answer(self, pause=None):
        """Return (status, fields, body, whole); |whole| False: the transfer was cut."""
        try:
            while self.read(2048 if pause else 65536):
                if pause:
                    pause()
        except OSError as e:
            if b"\r\n\r\n" not in self.got:
                raise Broken(f"read: {e!r}") from None
            head, body, _ = self.split()
            return (*head, body, False)
        if b"\r\n\r\n" not in self.got:
            raise Broken(f"no answer: {len(self.got)} bytes")
        head, body, whole = self.split()
        return (*head, body, whole)

    def split(self):
        head, _, rest = self.got.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        status = int(lines[0].split()[1])
        if fields.get("transfer-encoding") == "chunked":
            body, whole = unchunked(rest)
        elif "content-length" in fields:
            body, whole = rest, len(rest) == int(fields["content-length"])
        else:
            body, whole = rest, True
        return (status, fields), body, whole


def unchunked(rest):
    out = []
    while True:
        size, found, rest = rest.partition(b"\r\n")
        try:
            n = int(size, 16) if found else -1
        except ValueError:
            return b"".join(out), False
        if n == 0:
            return b"".join(out), True
        if n < 0 or len(rest) < n + 2:
            return b"".join([*out, rest[:max(n, 0)]]), False
        out.append(rest[:n])
        rest = rest[n + 2:]


class Record:
    """What came of one request."""
    __slots__ = ("number", "path", "stream", "tenant", "router", "begin", "end", "ending", "status", "code", "detail", "tokens", "most", "request")

    def __init__(self, number, item, stream, tenant, router):
        self.number, self.path, self.stream, self.tenant, self.router = number, item.path, stream, tenant, router
        self.begin, self.end, self.ending, self.status, self.code, self.detail = time.monotonic(), 0.0, "", 0, "", ""
        self.tokens, self.most, self.request = 0, item.tokens, ""

    def tell(self):
        return {k: getattr(self, k) for k in self.__slots__}


def error_of(path, body):
    """Return the code of an error in the shape of the API, or raise Wrong."""
    try:
        doc = json.loads(body)
        error = doc["error"]
        if path == OLLAMA:
            assert isinstance(error, str) and error
            return error[:60]
        assert isinstance(error["message"], str) and error["message"]
        if path == MESSAGES:
            assert doc["type"] == "error"
        return str(error.get("code") or error.get("type"))
    except (ValueError, KeyError, TypeError, AssertionError):
        raise Wrong(f"no error of this API: {body[:300]!r}") from None


class Load:
    """|n| clients, while |going| is set. finished(record) is called for each request that ended."""

    def __init__(self, world, seed, n, finished, think_s=0.15):
        self.world, self.seed, self.finished, self.think_s = world, seed, finished, think_s
        self.items = [Item(i) for i in range(PROMPTS)]
        for item in self.items:
            item.learn(world)
        self.going, self.over, self.lock = threading.Event(), threading.Event(), threading.Lock()
        self.sent, self.under_way = 0, 0
        self.threads = [threading.Thread(target=self.work, args=(i,), daemon=True) for i in range(n)]
        for t in self.threads:
            t.start()

    def work(self, me):
        dice = random.Random(f"{self.seed} {me}")
        while not self.over.is_set():
            if not self.going.wait(0.2):
                continue
            self.one(dice)
            self.over.wait(dice.uniform(0, 2 * self.think_s))

    def one(self, dice, router=None, tenant=None, behaviour=None):
        item = dice.choice(self.items)
        tenant = tenant or dice.choices(("acme", "beta", "thrifty"), (10, 8, 1))[0]
        with self.lock:
            self.sent += 1
            self.under_way += 1
            number = self.sent
        r = Record(number, item, dice.random() < 0.6, tenant, router or dice.choice(self.world.routers))
        behaviour = behaviour or dice.choices(("read", "leave", "slow"), (14, 4, 1))[0]
        try:
            self.ask(r, item, behaviour, dice)
        except Cut as e:
            r.ending, r.detail = "cut", str(e)
        except Broken as e:
            r.ending, r.detail = "broken", str(e)
        except Exception as e:  # pylint: disable=broad-except
            r.ending, r.detail = "wrong", f"{type(e).__name__}: {e}"
        r.end = time.monotonic()
        with self.lock:
            self.under_way -= 1
        self.finished(r)
        return r

    def ask(self, r, item, behaviour, dice):
        headers = dict(self.world.keys[r.tenant])
        if dice.random() < 0.1:
            headers["X-Cgn-Priority"] = dice.choice(("high", "low"))
        c = Connection(self.world.at(r.router), HTTP, r.path, item.body(r.stream), headers, 4096 if behaviour == "slow" else None)
        try:
            if behaviour == "leave":
                self.leave(r, c, dice)
                return
            c.send()
            status, fields, body, whole = c.answer((lambda: time.sleep(0.02)) if behaviour == "slow" else None)
            r.status, r.request = status, fields.get("x-request-id", "")
            self.judge(r, item, fields, body, whole)
        finally:
            c.close(reset=behaviour == "leave" and dice.random() < 0.5)

    @staticmethod
    def leave(r, c, dice):
        """Go away at any moment: in the request, before the answer, in it."""
        where = dice.random()
        r.ending = "left"
        if where < 0.3:
            c.send(dice.randrange(1, len(c.data)))
            return
        c.send()
        if where < 0.5:
            return
        most = dice.randrange(1, 20000)
        c.sock.settimeout(dice.uniform(0.01, 2))
        try:
            while len(c.got) < most and c.read(min(4096, most)):
                pass
        except OSError:
            pass

    @staticmethod
    def judge(r, item, fields, body, whole):
        if r.status != 200:
            if not whole:
                raise Cut(f"half of an error {r.status}")
            r.ending, r.code = "refused", error_of(r.path, body)
            return
        if not whole and not r.stream:
            raise Cut("the body is not whole")
        text, tokens = parse(r.path, r.stream, body)
        if not whole:
            raise Wrong("an answer with its end, in a transfer without one")
        want, count = item.want
        if text != want or (tokens is not None and tokens != count):
            raise Wrong(f"item {item.prompt[:20]!r} from {fields.get('x-cgn-node')}: {text[:200]!r} of {tokens} tokens, not {want[:200]!r} of {count}")
        r.ending, r.tokens = "answered", count

    def stop(self):
        """Send nothing more, and wait for the requests that are under way."""
        self.going.clear()
        end = time.monotonic() + 2 * WAIT_S
        while self.under_way and time.monotonic() < end:
            time.sleep(0.05)
        return self.under_way == 0

    def end(self):
        self.over.set()
        self.going.clear()
        for t in self.threads:
            t.join(WAIT_S)


class Counts:
    """Endings by tenant and as a whole."""

    def __init__(self):
        self.endings, self.statuses, self.codes, self.by_tenant = (collections.Counter() for _ in range(4))
        self.tokens, self.open_tokens, self.spare = (collections.Counter() for _ in range(3))

    def add(self, r):
        self.endings[r.ending] += 1
        self.by_tenant[r.tenant, r.ending] += 1
        if r.ending == "refused":
            self.statuses[r.status] += 1
            self.codes[f"{r.status} {r.code}"] += 1
        if r.ending == "answered":
            self.tokens[r.tenant] += r.tokens
            self.spare[r.tenant] += 2 if r.path == TEXT and r.stream else 0
        elif r.ending != "refused":
            self.open_tokens[r.tenant] += r.most

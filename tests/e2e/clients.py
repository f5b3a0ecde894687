# SPDX-License-Identifier: Apache-2.0
"""Clients for tests of failure: streams that are read bit by bit, and many concurrent clients that know the
right answer."""
import collections
import http.client
import json
import socket
import struct
import threading

from cluster import WAIT_S, ask


def chat_body(text="go", model="sim", **more):
    return json.dumps({"model": model, "messages": [{"role": "user", "content": text}], **more}).encode()


def head_of(body_len, path="/v1/chat/completions", **fields):
    fields = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": body_len, **fields}
    return f"POST {path} HTTP/1.1\r\n".encode() + b"".join(f"{k}: {v}\r\n".encode() for k, v in fields.items()) + b"\r\n"


class Stream:
    """A chat over a socket of its own. |got| has the received bytes."""

    def __init__(self, port, text="go", receive_buffer=None, fields=None, path="/v1/chat/completions", **body):
        data = chat_body(text, **{"stream": True, **body})
        self.sock, self.got = socket.socket(), b""
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(WAIT_S)
        self.sock.connect(("127.0.0.1", port))
        self.sock.sendall(head_of(len(data), path, **(fields or {})) + data)

    def read(self):
        """Read once. Returns False at any end of the stream."""
        try:
            more = self.sock.recv(65536)
        except ConnectionResetError:
            return False
        self.got += more
        return bool(more)

    def read_until(self, what):
        while what not in self.got:
            assert self.read(), f"ended before {what!r}: {self.got[-300:]!r}"
        return self

    def read_all(self):
        while self.read():
            pass
        return self.got

    def reset(self):
        """Close with a RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self):
        self.sock.close()


def engine_state(port):
    return ask(port, "GET", "/sim/state").json()


def set_faults(port, *faults):
    assert ask(port, "POST", "/sim/faults", {"faults": list(faults)}).status == 200


class Load:
    """|n| clients that chat, every second time streamed, until told to stop. Every request ends as one of

    answered  all of the answer, and the right one
    cut       an answer that began and was visibly broken off; nodes_cut says by which nodes
    refused   an error answer of the router; statuses says which
    broken    the connection was refused, or ended before an answer
    wrong     anything else, which must never be: half an answer that looks whole, tokens missing, ...
    """

    def __init__(self, cluster, n=6, tokens=12, ask_with=None):
        self.cluster, self.tokens, self.ask_with = cluster, tokens, ask_with or cluster.ask
        self.stopping, self.lock = threading.Event(), threading.Lock()
        self.ends, self.statuses, self.nodes_cut, self.wrong = collections.Counter(), collections.Counter(), collections.Counter(), []
        self.sent, self.before = 0, {}
        self.before = self.counted()
        self.threads = [threading.Thread(target=self.work, args=(i,), daemon=True) for i in range(n)]
        for t in self.threads:
            t.start()

    def work(self, me):
        i = 0
        while not self.stopping.is_set() and not self.cluster.closed:
            i += 1
            self.one(f"client {me} asks {i} " + "and so on " * 30, i % 2 == 0)

    def one(self, text, stream):
        body = chat_body(text, stream=stream, max_tokens=self.tokens, ignore_eos=True)
        with self.lock:
            self.sent += 1
        try:
            end, detail = self.judge(self.ask_with("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"}), stream)
        except http.client.IncompleteRead:
            end, detail = "cut", "?"
        except (OSError, http.client.HTTPException) as e:
            end, detail = "broken", repr(e)
        with self.lock:
            self.ends[end] += 1
            if end == "wrong":
                self.wrong.append(detail)
            elif end == "cut":
                self.nodes_cut[detail] += 1
            elif end == "refused":
                self.statuses[detail] += 1

    def judge(self, answer, stream):
        if answer.status != 200:
            return ("refused", answer.status) if "error" in answer.json() else ("wrong", answer.body[:300])
        if not stream:
            full = answer.json()["usage"]["completion_tokens"] == self.tokens
            return ("answered", None) if full else ("wrong", answer.body[:300])
        events = answer.events()
        if events and events[-1][0] == "error" and b"[DONE]" not in answer.body:
            return "cut", answer.headers["x-cgn-node"]
        deltas = [json.loads(data)["choices"][0]["delta"] for name, data in events if name is None and data != "[DONE]"]
        full = events[-1] == (None, "[DONE]") and sum(bool(d.get("content")) for d in deltas) == self.tokens
        return ("answered", None) if full else ("wrong", answer.body[-300:])

    def counted(self):
        """Return {status: requests} as the router counts them since this load began. Refusals may have no
        model; a 200 without a model is a probe of /readyz, which may be counted after |before| was taken,
        because a request is counted when its answer was sent."""
        at_once = self.cluster.scrape()
        codes = {c: int(self.cluster.metric("cgn_requests_total", at_once, code=str(c))) for c in (200, 404, 499, 502, 503, 504)}
        codes[200] -= int(self.cluster.metric("cgn_requests_total", at_once, code="200", model=""))
        return {c: n - self.before.get(c, 0) for c, n in codes.items()}

    def reached(self, n):
        """Return whether |n| requests have ended by now."""
        with self.lock:
            return sum(self.ends.values()) >= n

    def end(self):
        self.stopping.set()
        for t in self.threads:
            t.join()
        assert not self.wrong, self.wrong[:3]
        assert self.sent == sum(self.ends.values())
        return self

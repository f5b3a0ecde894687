# SPDX-License-Identifier: Apache-2.0
"""Requests whose end two readers of HTTP may see in different places. shapes() and BAD_HEADS have those that our router refuses,
odd_shapes() those that it may answer. test_hardening.py sends them to the router itself, tests/interop/test_front_proxies.py through proxies."""
import os

from clients import chat_body

CHAT = b"POST /v1/chat/completions HTTP/1.1\r\n"
BODY = chat_body(max_tokens=1)
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
AS_CHUNK = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
HIDDEN_ID = "hidden"
# The start of a request that would swallow the first line of the next request on the connection.
HIDDEN = b"GET /v1/models/hidden HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: %s\r\nX-Swallow: " % HIDDEN_ID.encode()
# Fields that some readers take for "Transfer-Encoding: chunked" and others do not.
DISGUISES = {
    "plain": CHUNKED,
    "in capitals": b"TRANSFER-ENCODING: CHUNKED\r\n",
    "after a tab": b"Transfer-Encoding:\tchunked\r\n",
    "after a vertical tab": b"Transfer-Encoding: \x0bchunked\r\n",
    "before a form feed": b"Transfer-Encoding: chunked\x0c\r\n",
    "with a space before the colon": b"Transfer-Encoding : chunked\r\n",
    "with a tab before the colon": b"Transfer-Encoding\t: chunked\r\n",
    "with a space before the name": b" Transfer-Encoding: chunked\r\n",
    "with a NUL before the colon": b"Transfer-Encoding\0: chunked\r\n",
    "with a NUL in the value": b"Transfer-Encoding: chunked\0\r\n",
    "on a folded line": b"Transfer-Encoding:\r\n chunked\r\n",
    "on a line folded with LF": b"Transfer-Encoding:\n chunked\r\n",
    "behind LF": b"X-A: a\nTransfer-Encoding: chunked\r\n",
    "behind CR": b"X-A: a\rTransfer-Encoding: chunked\r\n",
    "behind a fold": b"X-A: a\r\n Transfer-Encoding: chunked\r\n",
    "in quotes": b'Transfer-Encoding: "chunked"\r\n',
    "with a parameter": b"Transfer-Encoding: chunked;q=1\r\n",
    "with a comma": b"Transfer-Encoding: chunked,\r\n",
    "behind a comma": b"Transfer-Encoding: , chunked\r\n",
    "behind identity": b"Transfer-Encoding: identity, chunked\r\n",
    "before identity": b"Transfer-Encoding: chunked, identity\r\n",
    "before another": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
    "behind another": b"Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n",
    "with a letter that lower case makes a k": "Transfer-Encoding: chun\u212aed\r\n".encode(),
    "with x": b"Transfer-Encoding: xchunked\r\n",
}
# First lines of a chunk: readers differ in whether they are one, or in the size.
CHUNK_LINES = {
    "LF": b"%x\n",
    "CR": b"%x\r",
    "CR CR LF": b"%x\r\r\n",
    "a space before the size": b" %x\r\n",
    "an extension with LF": b"%x;a\nb\r\n",
    "an extension with CR": b"%x;a\rb\r\n",
    "a size beyond 64 bits": b"1%016x\r\n",
    "a size with a sign": b"+%x\r\n",
    "a size with 0x": b"0x%x\r\n",
    "a size with an underscore": b"0_%x\r\n",
    "a size with a comma": b"%x,0\r\n",
    "a NUL behind the size": b"%x\0\r\n",
}


def request(*lines, first=CHAT, body=BODY, more=b""):
    """Build a request with these lines in its head; |more|: more lines."""
    return first + b"Host: localhost\r\nContent-Type: application/json\r\n" + more + b"".join(lines) + b"\r\n" + body


def whole(text):
    return b"%x\r\n%s\r\n" % (len(text), text)


def shapes(more=b""):
    """Return {what: bytes} of requests that our router answers with one error and then closes. |more|: lines for each head."""
    def made(*lines, **parts):
        return request(*lines, more=more, **parts)

    second = CHAT + b"Host: localhost\r\nX-Request-Id: %s\r\n" % HIDDEN_ID.encode() + LENGTH + b"\r\n" + BODY
    bare = CHAT + b"Host: localhost\r\n" + more
    all_shapes = {
        "length and chunked": made(LENGTH, CHUNKED, body=AS_CHUNK),
        "chunked and length": made(CHUNKED, LENGTH, body=AS_CHUNK),
        "length 0, chunked, and a second request": made(b"Content-Length: 0\r\n", CHUNKED, body=b"0\r\n\r\n" + second),
        "two lengths": made(LENGTH, b"Content-Length: 5\r\n"),
        "two lengths, the larger last": made(b"Content-Length: 5\r\n", LENGTH),
        "two lengths, the smaller 0": made(b"Content-Length: 0\r\n", b"Content-Length: %d\r\n" % len(HIDDEN), body=HIDDEN),
        "two equal lengths": made(LENGTH, LENGTH),
        "a list of lengths": made(b"Content-Length: %d, %d\r\n" % (len(BODY), len(BODY))),
        "a signed length": made(b"Content-Length: +%d\r\n" % len(BODY)),
        "a negative length": made(b"Content-Length: -1\r\n"),
        "a hexadecimal length": made(b"Content-Length: 0x10\r\n"),
        "a length beyond 64 bits": made(b"Content-Length: 99999999999999999999999\r\n"),
        "a length that 64 bits make 0": made(b"Content-Length: 18446744073709551616\r\n", body=HIDDEN),
        "a length with a space inside": made(b"Content-Length: 0 %d\r\n" % len(HIDDEN), body=HIDDEN),
        "a folded length": made(b"Content-Length: 0\r\n %d\r\n" % len(HIDDEN), body=HIDDEN),
        "an empty length": made(b"Content-Length: \r\n"),
        "bare LF": made(LENGTH).replace(b"\r\n", b"\n"),
        "bare LF in the head": made(LENGTH).replace(b"Host: localhost\r\n", b"Host: localhost\n"),
        "a head that ends in LF LF": made(LENGTH, body=b"").removesuffix(b"\r\n\r\n") + b"\n\n" + BODY,
        "bare CR in a value": made(b"X-A: a\rb\r\n", LENGTH),
        "space before the colon": made(b"Content-Length : %d\r\n" % len(BODY)),
        "tab before the colon": made(b"Transfer-Encoding\t: chunked\r\n", body=AS_CHUNK),
        "a folded field": made(b"X-A: a\r\n b\r\n", LENGTH),
        "a fold before any field": CHAT + b" Host: localhost\r\n" + more + LENGTH + b"\r\n" + BODY,
        "gzip": made(b"Transfer-Encoding: gzip\r\n"),
        "gzip, chunked": made(b"Transfer-Encoding: gzip, chunked\r\n", body=AS_CHUNK),
        "chunked, gzip": made(b"Transfer-Encoding: chunked, gzip\r\n", body=AS_CHUNK),
        "chunked twice": made(CHUNKED, CHUNKED, body=AS_CHUNK),
        "chunked, chunked": made(b"Transfer-Encoding: chunked, chunked\r\n", body=AS_CHUNK),
        "xchunked": made(b"Transfer-Encoding: xchunked\r\n", body=AS_CHUNK),
        "quoted chunked": made(b"Transfer-Encoding: \"chunked\"\r\n", body=AS_CHUNK),
        "vertical tab and chunked": made(b"Transfer-Encoding: \x0bchunked\r\n", body=AS_CHUNK),
        "identity": made(b"Transfer-Encoding: identity\r\n", LENGTH),
        "chunked in HTTP/1.0": made(CHUNKED, first=CHAT.replace(b"1.1", b"1.0"), body=b"0\r\n\r\n" + HIDDEN),
        "chunked and length in HTTP/1.0": made(CHUNKED, b"Content-Length: %d\r\nConnection: keep-alive\r\n" % (5 + len(HIDDEN)),
                                               first=CHAT.replace(b"1.1", b"1.0"), body=b"0\r\n\r\n" + HIDDEN),
        "NUL in a value": made(b"X-A: a\0b\r\n", LENGTH),
        "NUL in a name": made(b"X\0A: a\r\n", LENGTH),
        "a name with a space": made(b"X A: a\r\n", LENGTH),
        "an empty name": made(b": a\r\n", LENGTH),
        "a field without a colon": made(b"nothing\r\n", LENGTH),
        "no Host": CHAT + more + LENGTH + b"\r\n" + BODY,
        "two Hosts": made(b"Host: y\r\n", LENGTH),
        "a chunk size that is no number": made(CHUNKED, body=b"zz\r\n" + AS_CHUNK),
        "a negative chunk size": made(CHUNKED, body=b"-1\r\n" + AS_CHUNK),
        "a chunk size with 0x": made(CHUNKED, body=b"0x10\r\n" + AS_CHUNK),
        "a chunk size beyond 64 bits": made(CHUNKED, body=b"fffffffffffffffff\r\n" + AS_CHUNK),
        "a chunk shorter than it says": made(CHUNKED, body=b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY) - 3, BODY)),
        "a chunk with bare LF": made(CHUNKED, body=b"%x\n%s\n0\n\n" % (len(BODY), BODY)),
        "a last chunk with bare LF": made(CHUNKED, body=b"%x\r\n%s\r\n0\n\n" % (len(BODY), BODY) + HIDDEN),
        "an unknown version": made(LENGTH, first=CHAT.replace(b"1.1", b"3.7")),
        "version 0.9": b"POST /v1/chat/completions\r\n\r\n",
        "garbage": os.urandom(64).replace(b"P", b"\x80") + b"\r\n\r\n",
        "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x11" * 64 + b"\r\n\r\n",
        "a target with a space": made(LENGTH, first=b"POST /v1/chat /completions HTTP/1.1\r\n"),
        "a target with CR": made(LENGTH, first=b"POST /v1/chat\r/completions HTTP/1.1\r\n"),
        "a target with NUL": made(LENGTH, first=b"POST /v1/chat\0/completions HTTP/1.1\r\n"),
    }
    for name, line in DISGUISES.items():
        body = b"0\r\n\r\n" + HIDDEN
        all_shapes[f"length, then chunked {name}"] = bare + b"Content-Length: %d\r\n" % len(body) + line + b"\r\n" + body
        all_shapes[f"chunked {name}, then a short length"] = bare + line + b"Content-Length: 4\r\n\r\n" + whole(HIDDEN) + b"0\r\n\r\n"
    for name, line in CHUNK_LINES.items():
        all_shapes[f"a chunk with {name}"] = made(CHUNKED, body=line % len(BODY) + BODY + b"\r\n0\r\n\r\n" + HIDDEN)
    return all_shapes


def odd_shapes(more=b""):
    """Return {what: bytes} of requests that are allowed, or that our router reads as one request, but a proxy may read or change in
    another way."""
    def made(*lines, **parts):
        return request(*lines, more=more, **parts)

    hidden_length = b"Content-Length: %d\r\n" % len(HIDDEN)
    return {
        "a chunk extension": made(CHUNKED, body=b"%x;a=b\r\n%s\r\n0;c\r\n\r\n" % (len(BODY), BODY)),
        "a quoted chunk extension": made(CHUNKED, body=b'%x;a="0\\\r\\\n"\r\n%s\r\n0\r\n\r\n' % (len(BODY), BODY) + HIDDEN),
        "a chunk size beyond 32 bits": made(CHUNKED, body=b"1%08x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n" + HIDDEN),
        "a trailer with a length": made(CHUNKED, body=AS_CHUNK.removesuffix(b"\r\n") + hidden_length + b"\r\n" + HIDDEN),
        "a trailer with chunked": made(CHUNKED, body=AS_CHUNK.removesuffix(b"\r\n") + CHUNKED + b"\r\n" + whole(HIDDEN)),
        "a length that Connection names": made(b"Connection: keep-alive, Content-Length\r\n", hidden_length, body=HIDDEN),
        "chunked that Connection names": made(b"Connection: keep-alive, Transfer-Encoding\r\n", CHUNKED, body=whole(HIDDEN) + b"0\r\n\r\n"),
        "a key that Connection names": made(b"Connection: keep-alive, Authorization, Host\r\n", LENGTH),
        "an upgrade to h2c": made(b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n", LENGTH, body=BODY + HIDDEN),
        "an upgrade to WebSocket": made(b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
                                        first=b"GET /v1/models HTTP/1.1\r\n", body=HIDDEN),
        "an Expect, and the body at once": made(b"Expect: 100-continue\r\n", hidden_length, body=HIDDEN),
        "an unknown Expect": made(b"Expect: 200-ok\r\n", hidden_length, body=HIDDEN),
        "GET with a body": made(hidden_length, first=b"GET /v1/models HTTP/1.1\r\n", body=HIDDEN),
        "HEAD with a body": made(hidden_length, first=b"HEAD /v1/models HTTP/1.1\r\n", body=HIDDEN),
        "OPTIONS of all": made(hidden_length, first=b"OPTIONS * HTTP/1.1\r\n", body=HIDDEN),
        "an absolute target": made(hidden_length, first=b"POST http://y/v1/chat/completions HTTP/1.1\r\n", body=HIDDEN),
        "an absolute target with a user": made(hidden_length, first=b"POST http://x@y/v1/chat/completions HTTP/1.1\r\n", body=HIDDEN),
        "an absolute target without a path": made(hidden_length, first=b"POST http://y?/v1/chat/completions HTTP/1.1\r\n", body=HIDDEN),
        "a target without a slash": made(hidden_length, first=b"POST v1/models HTTP/1.1\r\n", body=HIDDEN),
        "CONNECT": made(first=b"CONNECT x:80 HTTP/1.1\r\n", body=HIDDEN),
        "Transfer_Encoding": made(b"Transfer_Encoding: chunked\r\n", hidden_length, body=HIDDEN),
        "Content_Length": made(b"Content_Length: 0\r\n", hidden_length, body=HIDDEN),
        "a length with leading zeros": made(b"Content-Length: 000%d\r\n" % len(HIDDEN), body=HIDDEN),
        "HTTP/1.0 that is kept alive": made(b"Connection: keep-alive\r\n", hidden_length, first=CHAT.replace(b"1.1", b"1.0"), body=HIDDEN),
        "empty lines before": b"\r\n\r\n" + made(LENGTH),
        "a body without a length": made(body=HIDDEN),
        "a body that is not sent": made(b"Content-Length: %d\r\n" % (len(BODY) + 100)),
        "a target with encoded CR LF": made(LENGTH, first=b"POST /v1/chat/completions%20HTTP/1.1%0d%0aX-A:%20a HTTP/1.1\r\n"),
        "a target with a fragment": made(LENGTH, first=b"POST /v1/chat/completions#/../x HTTP/1.1\r\n"),
    }


# More fields of a head over HTTP/2 that no rule of HTTP allows.
BAD_HEADS = {
    "upper case": [("X-Upper", "a")],
    "connection": [("connection", "keep-alive")],
    "transfer-encoding": [("transfer-encoding", "chunked")],
    "te gzip": [("te", "gzip")],
    "a pseudo field late": [(":path", "/other")],
    "an unknown pseudo field": [(":evil", "1")],
    "CR LF in a value": [("x-a", "a\r\nContent-Length: 5")],
    "CR LF and a second request in a value": [("x-a", b"a\r\n\r\n" + HIDDEN)],
    "LF in a value": [("x-a", "a\ntransfer-encoding: chunked")],
    "CR LF in a name": [("x-a: a\r\ntransfer-encoding", "chunked")],
    "a colon in a name": [("transfer-encoding: chunked\r\nx", "a")],
    "NUL in a value": [("x-a", "a\0b")],
    "a length that lies": [("content-length", "3")],
    "two lengths": [("content-length", str(len(BODY))), ("content-length", str(len(BODY) + 1))],
}

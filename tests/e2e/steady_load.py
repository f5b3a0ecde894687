# SPDX-License-Identifier: Apache-2.0
"""Clients that ask routers all the time, while a test replaces programs."""
import http.client
import json
import threading

from cluster import until


class Load:
    """Clients that ask the places in turn, each time on a new connection. All that is no whole answer is lost, a refused connection too."""

    def __init__(self, places, headers=None, text="", max_tokens=8, threads=4):
        """|places|: [(host, port)]; another list may take its place while clients ask."""
        self.places, self.headers, self.text, self.max_tokens = places, headers or {}, text, max_tokens
        self.ends, self.done, self.lost = False, 0, []
        self.threads = [threading.Thread(target=self.work, args=(i,)) for i in range(threads)]

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.ends = True
        for t in self.threads:
            t.join()

    def work(self, n):
        while not self.ends:
            n += 1
            places = self.places
            host, port = places[n % len(places)]
            try:
                self.one(host, port, n)
                self.done += 1
            except (OSError, http.client.HTTPException, AssertionError) as e:
                self.lost.append(f"{host}:{port}: {e!r}")

    def one(self, host, port, n):
        c = http.client.HTTPConnection(host, port, timeout=60)
        try:
            stream = n % 2 == 0
            body = {"model": "sim", "max_tokens": self.max_tokens, "stream": stream, "messages": [{"role": "user", "content": f"{self.text}number {n % 7}"}]}
            c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json", "Connection": "close", **self.headers})
            r = c.getresponse()
            data = r.read()
            assert r.status == 200, (r.status, data[-300:])
            assert data.rstrip().endswith(b"data: [DONE]") if stream else json.loads(data)["choices"], data[-300:]
            assert b"event: error" not in data, data[-300:]
        finally:
            c.close()

    def more(self, n=30):
        """Wait for |n| further answers."""
        want = self.done + n
        until(lambda: self.done >= want or self.lost, lambda: f"{self.done} answers, lost: {self.lost[:3]}", wait_s=120)
        assert not self.lost, self.lost[:5]

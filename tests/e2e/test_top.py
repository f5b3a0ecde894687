# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl top on a terminal, in a pipe, as JSON."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from cluster import BUILD, WAIT_S, until

CTL = str(BUILD / "src/ctl/cgn-ctl")
FAST = ("--time-scale", "0")


class Screen:
    """cgn-ctl top on a terminal of its own. |lines|: the screen that was drawn last, without colours."""

    def __init__(self, *args, rows=24, columns=80):
        self.master, slave = pty.openpty()
        self.size(rows, columns)
        self.before = termios.tcgetattr(slave)
        self.slave, self.text = slave, ""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("CGN_", "COGNITORA__"))}
        self.p = subprocess.Popen([CTL, "top", "--every", "200ms", *args], stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True,
                                  preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0))

    def size(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self):
        while select.select([self.master], [], [], 0.02)[0]:
            try:
                part = os.read(self.master, 65536)
            except OSError:
                return
            if not part:
                return
            self.text += part.decode(errors="replace")

    @property
    def lines(self):
        self.read()
        screens = re.findall(r"\x1b\[\?2026h\x1b\[H(.*?)\x1b\[J\x1b\[\?2026l", self.text, re.S)
        return [re.sub(r"\x1b\[[0-9;]*[mK]", "", line) for line in re.split("\r*\n", screens[-1])] if screens else []

    def until(self, what, want):
        until(lambda: want(self.lines), lambda: f"{what}: {self.lines}")
        return self.lines

    def key(self, text):
        os.write(self.master, text.encode())

    def end(self):
        """Wait for the end of the program; the terminal is as it was before."""
        deadline = time.monotonic() + WAIT_S
        while self.p.poll() is None and time.monotonic() < deadline:
            self.read()
        self.read()
        assert self.text.endswith("\x1b[?25h\x1b[?1049l"), self.text[-80:]
        assert termios.tcgetattr(self.slave) == self.before
        return self.p.wait(1)

    def close(self):
        if self.p.poll() is None:
            self.p.kill()
        self.p.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def screen(request):
    opened = []

    def start(cluster, *args, **size):
        opened.append(Screen("--router", f"127.0.0.1:{cluster.grpc_port}", *args, **size))
        return opened[-1]
    yield start
    for s in opened:
        s.close()


def three(cluster):
    cluster.router()
    for name in "abc":
        cluster.node(name, *FAST)
    cluster.wait_ready(3)


def nodes_of(lines):
    return [line.split()[0] for line in lines[3:-1] if line.strip()]


def test_it_fits_the_screen_and_follows_its_size(cluster, screen):
    three(cluster)
    s = screen(cluster)
    lines = s.until("three nodes", lambda v: v and nodes_of(v) == ["a", "b", "c"])
    assert len(lines) == 24 and "3 of 3 nodes ready" in lines[0] and "MODELS" in lines[2] and "ADDRESS" not in lines[2]
    for rows, columns in ((10, 200), (5, 40), (24, 80)):
        s.size(rows, columns)
        s.p.send_signal(signal.SIGWINCH)
        lines = s.until("the new size", lambda v, rows=rows: len(v) == rows)
        assert max(map(len, lines)) <= columns and lines[2].count("STATE") == 1
        assert ("ADDRESS" in lines[2]) == (columns == 200)
    s.key("q")
    assert s.end() == 0


def test_keys_sort_filter_scroll_and_explain(cluster, screen):
    three(cluster)
    subprocess.run([CTL, "cluster", "cordon", "b", "--router", f"127.0.0.1:{cluster.grpc_port}"], check=True, capture_output=True, timeout=30)
    s = screen(cluster)
    s.until("b is cordoned", lambda v: v and "cordoned" in v[4])
    s.key("R")
    s.until("the other order", lambda v: nodes_of(v) == ["c", "b", "a"])
    s.key("R")
    s.key("s")
    s.until("sorted by state", lambda v: ">STATE" in v[2] and nodes_of(v) == ["b", "a", "c"])
    s.key("\x1b[C")
    s.until("sorted by the next column", lambda v: ">INFL" in v[2])
    s.key("/cordoned\r")
    s.until("one node", lambda v: nodes_of(v) == ["b"] and "filter: cordoned" in v[-1])
    s.key("\x1b")
    s.until("all nodes", lambda v: len(nodes_of(v)) == 3)
    s.size(6, 80)
    s.p.send_signal(signal.SIGWINCH)
    s.key("n\x1b[B")
    s.until("scrolled by one", lambda v: nodes_of(v) == ["b", "c"] and "2 to 3 of 3" in v[-1])
    s.key("\x1b[B\x1b[B\x1b[B")
    s.key("?")
    s.until("the keys", lambda v: any("sort by" in line for line in v))
    s.key("x")
    s.until("not beyond the end", lambda v: nodes_of(v) == ["b", "c"])
    s.p.send_signal(signal.SIGTERM)
    assert s.end() == 0


def test_a_router_that_starts_again(cluster, screen):
    three(cluster)
    s = screen(cluster)
    s.until("three nodes", lambda v: v and len(nodes_of(v)) == 3)
    router = cluster.processes[0]
    router.kill()
    lines = s.until("the trouble is told", lambda v: "trying again" in v[-1])
    assert nodes_of(lines) == ["a", "b", "c"]
    router.start()
    s.until("it answers again", lambda v: "3 of 3 nodes ready" in v[0] and "sorted by" in v[-1])
    s.key("\x03")
    assert s.end() == 0


def top(cluster, *args, **how):
    return subprocess.run([CTL, "top", "--router", f"127.0.0.1:{cluster.grpc_port}", "--every", "100ms", *args], capture_output=True, text=True, timeout=60, **how)


def test_in_a_pipe_and_as_json(cluster):
    three(cluster)
    cluster.chat("hello " * 40, max_tokens=2)
    plain = top(cluster, "--count", "2")
    assert plain.returncode == 0 and "\x1b" not in plain.stdout and plain.stdout.count("3 of 3 nodes ready") == 2
    rows = [json.loads(line) for line in top(cluster, "--count", "2", "-o", "json").stdout.splitlines()]
    assert [[n["node"] for n in r["nodes"]] for r in rows] == [["a", "b", "c"]] * 2
    assert rows[0]["nodes"][0]["requests_per_second"] is None and rows[1]["nodes"][0]["requests_per_second"] is not None
    # A reader that leaves ends it without a word.
    done = subprocess.run(f"{CTL} top --every 100ms --router 127.0.0.1:{cluster.grpc_port} | head -n 3; echo ${{PIPESTATUS[0]}}", shell=True,
                          executable="/bin/bash", capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0" and done.stderr == ""


def test_a_wrong_period_and_no_router(cluster):
    assert "at least 100ms" in top(cluster, "--every", "1ms").stderr
    none = top(cluster, "--count", "1")
    assert none.returncode == 4 and "router" in none.stderr

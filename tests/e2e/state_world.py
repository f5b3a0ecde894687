# SPDX-License-Identifier: Apache-2.0
"""Both sides of membership without router and agent: tests/helpers/state_demo.c as a process that can be killed."""
import pathlib
import queue
import subprocess
import threading
import time

from cluster import BUILD, WAIT_S, toml


class Demo:
    """A state_demo process; its printed lines are a queue."""

    def __init__(self, folder, name, config, *args):
        path = pathlib.Path(folder) / f"{name}.toml"
        path.write_text(toml(config))
        with open(pathlib.Path(folder) / f"{name}.log", "ab") as log:
            self.popen = subprocess.Popen([BUILD / "state_demo", args[0], path, *args[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                          stderr=log, text=True, bufsize=1)
        self.lines, self.seen, self.name = queue.Queue(), [], name
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.popen.stdout:
            self.lines.put(line.strip())
        self.lines.put(None)

    def say(self, line):
        self.popen.stdin.write(line + "\n")

    def expect(self, *wanted, wait_s=WAIT_S):
        """Wait for the next lines, in any order, with these beginnings, and return them."""
        wanted, got, end = list(wanted), [], time.monotonic() + wait_s
        while wanted:
            try:
                line = self.lines.get(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{self.name}: waited for {wanted}, saw {self.seen}") from None
            assert line is not None, f"{self.name} ended; waited for {wanted}, saw {self.seen}"
            self.seen.append(line)
            match = next((w for w in wanted if line.startswith(w)), None)
            assert match is not None, f"{self.name}: '{line}' while waiting for {wanted}; before: {self.seen}"
            wanted.remove(match)
            got.append(line)
        return got

    def silent(self, seconds):
        """Expect no line for this time: only waiting can show an absence."""
        time.sleep(seconds)
        assert self.lines.empty(), f"{self.name}: {list(self.lines.queue)}"

    def kill(self):
        self.popen.kill()
        self.popen.wait()

    def stop(self):
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

# SPDX-License-Identifier: Apache-2.0
"""A program with a terminal as its standard output."""
import os
import pty
import subprocess
import termios


def on_terminal(*argv, columns=80, path="", **how):
    """Run a program with a terminal of that width as stdout and |path| before $PATH; return (exit status, what it wrote, stderr)."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (24, columns))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CGN_", "COGNITORA__"))}
    env["PATH"] = path + env["PATH"]
    p = subprocess.Popen(list(map(str, argv)), stdout=its, stderr=subprocess.PIPE, env=env, **how)
    os.close(its)
    text = b""
    try:
        while part := os.read(ours, 65536):
            text += part
    except OSError:  # EIO: the other end is closed
        pass
    os.close(ours)
    err = p.stderr.read().decode()
    p.stderr.close()
    return p.wait(60), text.decode(errors="replace").replace("\r\n", "\n"), err

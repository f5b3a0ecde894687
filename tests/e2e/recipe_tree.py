# SPDX-License-Identifier: Apache-2.0
"""A recipe as a user has it, in a copy of the recipes and scripts with other ports, so that a running cluster
is left alone."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from cluster import BUILD, ROOT, free_port


class Recipe:
    def __init__(self, folder, name, programs=("router", "agent", "sim", "ctl")):
        self.tree, self.bin_dir = folder / "tree", folder / "bin"
        self.short = pathlib.Path(tempfile.mkdtemp(prefix="cgn-"))  # a Unix socket's path has 90 bytes at most
        self.run_dir = self.short / "run"
        for part in ("recipes", "scripts"):
            shutil.copytree(ROOT / part, self.tree / part)
        self.bin_dir.mkdir()
        for program in programs:
            (self.bin_dir / f"cgn-{program}").symlink_to(BUILD / "src" / program / f"cgn-{program}")
        self.name, self.folder, self.port = name, self.tree / "recipes" / name, {}
        for f in sorted(self.folder.glob("*.toml")):
            f.write_text(re.sub(r"127\.0\.0\.1:(\d+)", lambda m: f"127.0.0.1:{self.other(int(m.group(1)))}", f.read_text()))
        self.env = {**os.environ, "CGN_RUN_DIR": str(self.run_dir), "CGN_BIN": str(self.bin_dir), "CGN_PREBUILT": "1", "CGN_UP_TIMEOUT": "60",
                    "PATH": f"{self.bin_dir}:{os.environ['PATH']}"}

    def other(self, port):
        return self.port.setdefault(port, self.port.get(port) or free_port())

    def run(self, *argv):
        return subprocess.run(argv, cwd=self.tree, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)

    def up(self):
        return self.run("bash", f"recipes/{self.name}/up.sh")

    def down(self):
        return self.run("scripts/down")

    def close(self):
        self.down()
        shutil.rmtree(self.short, ignore_errors=True)

    def processes(self):
        """Return our pids whose command line is in this tree, or that listen on our engine ports."""
        engines = "".join(f"|127.0.0.1:{p}|--port {p}" for was, p in self.port.items() if 8000 <= was < 8080)
        out = subprocess.run(["pgrep", "-f", f"{self.bin_dir}{engines}"], capture_output=True, text=True).stdout
        return [int(p) for p in out.split()]

# SPDX-License-Identifier: Apache-2.0
"""Run the commands of a page of docs/ as a reader would: its blocks in order, in one shell, in a copy of the source tree's scripts and recipes
with the programs of this build, in a network namespace of its own, so that the page's ports are free.

```sh              a block that runs; a command that fails ends the page
```sh not-run      a block that needs what a test has not (a GPU, a cloud, another machine)
```output          what the block before it prints: each line of it occurs, in this order; ... stands for any text

```toml NAME        a file, written before the commands below it; json, yaml and conf the same"""
import os
import pathlib
import re
import shutil
import subprocess

from cluster import BUILD, ROOT

# The page's programs end with its shell: they are all in its namespace of processes.
ALONE = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
FENCE = re.compile(r"^```(\w+)(?: ([^\n]*))?\n(.*?)^```$", re.M | re.S)


def usable():
    """Return why no network namespace can be made here, or None."""
    done = subprocess.run([*ALONE, "ip", "link", "set", "lo", "up"], capture_output=True, text=True)
    return None if done.returncode == 0 else done.stderr.strip() or "no network namespace"


def steps(page):
    """Return [(kind, info, text)] of a page's blocks."""
    return [(m[1], m[2] or "", m[3]) for m in FENCE.finditer((ROOT / page).read_text())]


class Tutorial:
    def __init__(self, folder, page, before="true"):
        """|before|: commands that make what the page takes for granted."""
        self.folder, self.page, self.before, self.blocks, self.expected = folder, page, before, [], {}
        for kind, info, text in steps(page):
            if kind == "sh" and info == "":
                self.blocks.append(text)
            elif kind == "output" and self.blocks:
                self.expected[len(self.blocks) - 1] = text
            elif kind in ("toml", "json", "yaml", "conf") and info:
                self.blocks.append(f"mkdir -p \"$(dirname {info})\"; cat > {info} <<'END_OF_FILE'\n{text}END_OF_FILE\n")
        self.tree = folder / "cognitora"
        for part in ("scripts", "recipes", "deploy"):
            shutil.copytree(ROOT / part, self.tree / part, symlinks=True)
        programs = self.tree / "build/release/bin"
        programs.mkdir(parents=True)
        for program in BUILD.glob("src/*/cgn-*"):
            if program.is_file() and os.access(program, os.X_OK):
                (programs / program.name).symlink_to(program)

    def script(self):
        lines = ["ip link set lo up", "set -e", f"exec >{self.folder}/prepared 2>&1", self.before]
        for n, block in enumerate(self.blocks):
            lines += [f"exec >{self.folder}/printed-{n} 2>&1", block]
        return "\n".join(lines)

    def environment(self):
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("CGN_", "COGNITORA_", "XDG_", "OTEL_"))}
        # The programs are there already: scripts/up neither builds nor installs packages.
        return {**kept, "HOME": str(home), "CGN_PREBUILT": "1", "CGN_RUN_DIR": str(self.folder / "run"), "CGN_UP_TIMEOUT": "120"}

    def run(self, timeout=240):
        """Run the page; return what each block printed. A failure tells the block, what it printed and the programs' last lines."""
        done = subprocess.run([*ALONE, "bash", "-c", self.script()], cwd=self.tree, env=self.environment(), timeout=timeout, stdin=subprocess.DEVNULL)
        printed = [p.read_text(errors="replace") for n in range(len(self.blocks)) if (p := self.folder / f"printed-{n}").exists()]
        last = len(printed) - 1
        assert printed, f"{self.page}: nothing of it ran:\n{(self.folder / 'prepared').read_text(errors='replace')}"
        assert done.returncode == 0, f"{self.page}: block {last + 1} ended with {done.returncode}:\n{self.blocks[last]}\nprinted:\n{printed[last]}"
        return printed

    def wrong_output(self, printed):
        """Return what the page says that a block prints, and that it did not print."""
        wrong = []
        for n, text in self.expected.items():
            at = 0
            lines = printed[n].splitlines()
            for line in text.splitlines():
                pattern = re.compile(".*".join(re.escape(part.strip()) for part in line.split("...")))
                found = next((i for i in range(at, len(lines)) if pattern.fullmatch(lines[i].strip())), None)
                if found is None:
                    wrong.append(f"{self.page}: after\n{self.blocks[n]}the page has the line\n{line}\nbut the commands printed\n{printed[n]}")
                    break
                at = found + 1
        return wrong

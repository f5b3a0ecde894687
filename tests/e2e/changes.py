# SPDX-License-Identifier: Apache-2.0
"""The changes that pages of docs/change show, made in a copy of the source tree and built there.

```diff FILE     lines of FILE: those that begin with a space stand there, once; those with + are added, those with - removed
```c FILE        a new file
The copy is an overlay of the tree in a mount namespace, at the path of the tree: its build folder compiles only what the changes touch."""
import pathlib
import re
import shutil
import subprocess

from cluster import BUILD, ROOT

PAGES = ("docs/change/add.md", "docs/change/add-kind.md")
BLOCK = re.compile(r"^```(diff|c) (\S+)\n(.*?)^```$", re.M | re.S)
ALONE = ("unshare", "--map-root-user", "--mount")
OVERLAY = """set -e
mount -t tmpfs -o size=4g none {work}
mkdir {work}/upper {work}/work
mount -t overlay -o lowerdir={root},upperdir={work}/upper,workdir={work}/work none {root}
cd {root}
"""


def sections():
    """Return {heading: [(kind, file, text)]} of the pages' sections that change files."""
    out = {}
    for page in PAGES:
        for part in re.split(r"^## ", (ROOT / page).read_text(), flags=re.M)[1:]:
            if blocks := BLOCK.findall(part):
                out[part.splitlines()[0]] = blocks
    return out


def edited(text, diff):
    """Return |text| with a block's lines changed. What the block expects must stand there once."""
    have, marked = text.splitlines(), [(line[:1], line[1:]) for line in diff.splitlines()]
    before = [line for mark, line in marked if mark in " -"]
    at = [i for i in range(len(have)) if have[i:i + len(before)] == before]
    assert before and len(at) == 1, f"these lines do not stand there once: {before}"
    have[at[0]:at[0] + len(before)] = [line for mark, line in marked if mark in " +"]
    return "\n".join(have) + "\n"


def changed_files():
    """Return {file: text} after all changes."""
    out = {}
    for blocks in sections().values():
        for kind, file, text in blocks:
            path = ROOT / file
            assert (kind == "c") != path.exists(), f"{file}: {'is there already' if path.exists() else 'is not there'}"
            out[file] = text if kind == "c" else edited(out.get(file) or path.read_text(), text)
    return out


def in_a_copy(folder, commands):
    """Run the commands in the copy; return what they print."""
    (folder / "work").mkdir()
    script = OVERLAY.format(work=folder / "work", root=ROOT) + commands
    done = subprocess.run([*ALONE, "bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL)
    (folder / "work").rmdir()
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def usable():
    """Return why the tree cannot be copied here, or None."""
    if not (BUILD / "build.ninja").exists() or ROOT not in BUILD.parents:
        return f"{BUILD} is not a build folder of this tree"
    done = subprocess.run([*ALONE, "bash", "-c", 'd=$(mktemp -d); mount -t tmpfs none $d && mkdir $d/u $d/w && mount -t overlay -o lowerdir="$1",upperdir=$d/u,workdir=$d/w none "$1"',
                           "-", ROOT], capture_output=True, text=True)
    return None if done.returncode == 0 else done.stderr.strip() or "no mount namespace"


def build(folder, programs):
    """Make all changes in the copy, build the programs, run scripts/gen, and return a folder like BUILD with them."""
    for file, text in changed_files().items():
        (folder / "new" / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "new" / file).write_text(text)
    out = folder / "build"
    targets = " ".join(f"src/{p.removeprefix('cgn-')}/{p}" for p in programs)
    save = "".join(f"install -D {BUILD}/{t} {out}/{t}\n" for t in targets.split())
    in_a_copy(folder, f"cp -r {folder}/new/. .\nninja -C {BUILD} {targets} reference\nscripts/gen {BUILD}\nscripts/check-format\nscripts/check-includes\n{save}"
                      f"cp -r docs/reference {out}\n")
    shutil.rmtree(folder / "new")
    return pathlib.Path(out)

# SPDX-License-Identifier: Apache-2.0
"""scripts/check-words finds each kind of unplain word where people read it: each is planted in a tree of its own."""
import shutil
import subprocess

import pytest

from cluster import ROOT

pytestmark = pytest.mark.plain
DOCS = "docs"  # scripts/check-pages would take the whole name of an absent page for a fault of this file


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "scripts").mkdir()
    for name in ("check-words", "_args.py"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts" / name)
    (tmp_path / "scripts/words.allow").write_text("")
    return tmp_path


def checked(tree):
    """Return what the check prints of the tree, without its last line; nothing: it finds no fault."""
    done = subprocess.run([tree / "scripts/check-words"], capture_output=True, text=True, timeout=60)
    *said, last = done.stdout.splitlines()
    assert last.startswith("words: ") and (done.returncode == 0) == (not said), done.stdout + done.stderr
    return said


@pytest.mark.parametrize("name, text, kind", [
    ("src/a.c", "/* names what is queued */\n", "vague"),
    ("src/a.c", "/* asked by nobody */\n", "banned"),
    ("src/a.c", "/* of a peer */\n", "fragment"),
    ("src/a.c", "static void end(void)\n{\n}\n", "name"),
    ("src/a.c", "/* a text that is no number */\n", "vague"),
    ("src/a.c", 'f("%s is no number", x);\n', "denial"),
    ("src/flags.def", 'FLAG("a NAME that is no role")\n', "denial"),
    ("scripts/tool", "echo 'these are no files'\n", "denial"),
    ("deploy/installer/install.sh", "fail 'it is no archive'\n", "denial"),
    (f"{DOCS}/laptop/page.md", "A name that is\nno role is refused.\n", "denial"),
])
def test_a_fault_is_found(tree, name, text, kind):
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / name).write_text(text)
    assert checked(tree) == [f"{name}: 1 findings of kind '{kind}', 0 allowed; scripts/check-words --list {name}"]


@pytest.mark.parametrize("name, text", [
    ("src/a.c", 'f("there is no number"); g("it is no longer served; is no better"); h("not a number");\n'),
    ("src/a.c", "bool number_is_no; /* there is no number */\n"),
    (f"{DOCS}/reference/page.md", "A name that is no role is refused.\n"),
    (f"{DOCS}/change/adr/0001.md", "A name that is no role is refused.\n"),
])
def test_plain_words_pass(tree, name, text):
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / name).write_text(text)
    assert checked(tree) == []

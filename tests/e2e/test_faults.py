# SPDX-License-Identifier: Apache-2.0
"""scripts/faults in a small tree of its own: what --check finds, and how faults are put back and judged."""
import json
import os
import shutil
import subprocess

import pytest

from cluster import ROOT

pytestmark = pytest.mark.plain
SOURCE = "int doubled(int n)\n{\n\treturn 2 * n;\n}\n\nint halved(int n)\n{\n\treturn n / 2;\n}\n"
TEST = """#include <stdio.h>
int doubled(int n);
int main(void)
{
\tif (doubled(3) != 6)
\t\tputs("[  FAILED  ] six_is_three_doubled");
\treturn doubled(3) != 6;
}
"""
MESON = """project('faults', 'c')
executable('unit_numbers', 'src/numbers.c', 'tests/unit/numbers.c')
"""


def patch_of(old, new):
    lines = SOURCE.splitlines()
    at = lines.index("\t" + old)
    return (f"--- a/src/numbers.c\n+++ b/src/numbers.c\n@@ -{at},3 +{at},3 @@\n {lines[at - 1]}\n-\t{old}\n+\t{new}\n {lines[at + 1]}\n")


def row(name, **more):
    fields = {"name": name, "group": "store", "seen": "A number was wrong.", "mend": "0123abcd", "tests": ["unit numbers"]} | more
    return "[[fault]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in fields.items())


class Tree:
    def __init__(self, path):
        self.path = path
        files = {"src/numbers.c": SOURCE, "tests/unit/numbers.c": TEST, "meson.build": MESON,
                 "meson_options.txt": "option('tests', type: 'boolean', value: false)\n", ".gitignore": "/build*/\n"}
        for name, text in files.items():
            self.put(name, text)
        for folder in ("docs/proof", "docs/reference", "tests/faults"):
            (path / folder).mkdir(parents=True)
        (path / "scripts").mkdir()
        shutil.copy2(ROOT / "scripts/faults", path / "scripts/faults")
        subprocess.run(["git", "init", "-q", path], check=True)

    def put(self, name, text):
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)

    def faults(self, rows, **patches):
        self.put("tests/faults/faults.toml", "\n".join(rows))
        for name, text in patches.items():
            self.put(f"tests/faults/{name}.patch", text)

    def run(self, *args):
        p = subprocess.run([self.path / "scripts/faults", *args], cwd=self.path, capture_output=True, text=True, env={**os.environ, "CCACHE_DISABLE": "1"})
        return p.returncode, p.stdout + p.stderr


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def test_the_faults_of_this_tree_can_be_put_back():
    p = subprocess.run([ROOT / "scripts/faults", "--check"], capture_output=True, text=True)
    assert p.returncode == 0, p.stdout


def test_a_check_names_what_is_wrong(tree):
    tree.faults([row("good"), row("moved"), row("odd", group="house"), row("alone"), row("alone")],
                good=patch_of("return 2 * n;", "return 3 * n;"), moved=patch_of("return 2 * n;", "return 3 * n;").replace("-\treturn 2 * n;", "-\treturn 4 * n;"),
                odd=patch_of("return n / 2;", "return n / 3;"), nobody="")
    status, said = tree.run("--check")
    assert status == 1
    for words in ("src/numbers.c:2 has other lines now", 'odd: there is no group "house"', "alone has no patch", "alone is listed twice",
                  "nobody.patch is of no fault", "docs/proof/faults.md is out of date", "docs/reference/faults.md is out of date"):
        assert words in said, said
    assert "good" not in said, said


def test_pages_follow_the_list(tree):
    tree.faults([row("tripled")], tripled=patch_of("return 2 * n;", "return 3 * n;"))
    assert tree.run("--pages") == (0, "")
    assert tree.run("--check") == (0, "1 faults: each patch applies\n")
    assert "| `tripled` | A number was wrong. | 0123abcd | not judged |" in (tree.path / "docs/reference/faults.md").read_text()
    tree.faults([row("tripled", seen="Three times.")])
    assert "docs/reference/faults.md is out of date" in tree.run("--check")[1]


def test_a_patch_finds_its_lines_where_they_moved(tree):
    tree.faults([row("tripled")], tripled=patch_of("return 2 * n;", "return 3 * n;"))
    tree.put("src/numbers.c", "/* One line more. */\n" + SOURCE)
    tree.run("--pages")
    assert tree.run("--check")[0] == 0
    tree.put("src/numbers.c", SOURCE + SOURCE.replace("doubled", "twice"))
    assert tree.run("--check")[0] == 0, "the place that the patch names is the one"
    tree.put("src/numbers.c", "\n" + SOURCE + SOURCE.replace("doubled", "twice"))
    assert "has other lines now" in tree.run("--check")[1], "two places fit"


def test_faults_are_found_or_not_or_do_not_build(tree):
    tree.faults([row("tripled"), row("third"), row("broken")], tripled=patch_of("return 2 * n;", "return 3 * n;"),
                third=patch_of("return n / 2;", "return n / 3;"), broken=patch_of("return n / 2;", "return m;"))
    status, said = tree.run("all")
    rows = {words[0]: words[1:] for words in (line.split() for line in said.splitlines()) if words and words[0] in ("tripled", "third", "broken")}
    assert status == 1, said
    assert rows["tripled"][0] == "found" and rows["tripled"][-1] == "six_is_three_doubled", said
    assert rows["third"][:2] == ["NOT", "FOUND"] and rows["broken"][:3] == ["does", "not", "build"], said
    assert "3 faults: 1 found (33 %), 1 not found, 1 do not build" in said, said
    report = json.loads((tree.path / "build/faults/report.json").read_text())
    assert {r["name"]: r["found"] for r in report["faults"]} == {"tripled": True, "third": False, "broken": False}
    assert (tree.path / "build/faults/tree/src/numbers.c").read_text() == SOURCE, "the copy is as it was"


def test_a_command_judges(tree):
    tree.faults([row("tripled"), row("third")], tripled=patch_of("return 2 * n;", "return 3 * n;"), third=patch_of("return n / 2;", "return n / 3;"))
    judge = 'test "$FAULT" != third || { echo "found by: the command"; exit 3; }'
    status, said = tree.run("--target", "unit_numbers", "--judge", judge, "--json", "out/report.json", "all")
    assert status == 0 and "2 faults: 1 found (50 %), 1 not found" in said, said
    report = json.loads((tree.path / "out/report.json").read_text())
    assert report["judge"] == judge and [(r["name"], r["found"], r["by"]) for r in report["faults"]] == [("third", True, "the command"), ("tripled", False, "")]
    assert tree.run("--target", "unit_numbers", "--judge", judge, "--least", "80", "all")[0] == 1

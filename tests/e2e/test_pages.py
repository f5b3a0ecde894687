# SPDX-License-Identifier: Apache-2.0
"""scripts/check-pages finds what keeps readers from a page: each fault is planted in a copy of the documents."""
import shutil
import subprocess

import pytest

from cluster import ROOT

pytestmark = pytest.mark.plain
DOCS = "docs"  # the check would take the whole name of an absent page for a fault of this file
NEXT = "\nIt is new.\n\n## Next\n\n- [Start](start.md)\n"


def copy_of_documents(to):
    """Copy the documents that git knows to the folder |to|, with a new page that the door of laptop/ links."""
    shutil.copytree(ROOT / "docs", to / "docs")
    (to / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/groups", to / "scripts/groups")
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, to / name)
    with (to / DOCS / "laptop/README.md").open("a") as door:
        door.write("- [New](new.md)\n")
    (to / DOCS / "laptop/new.md").write_text("# New\n" + NEXT)
    return to


def findings(tree):
    """Return what the check prints of the tree, with the files that git would keep."""
    for argv in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", "-C", tree, *argv], check=True, timeout=60)
    done = subprocess.run([ROOT / "scripts/check-pages", tree], capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) == done.stdout.startswith("pages: "), done.stdout + done.stderr
    return [] if done.returncode == 0 else done.stdout.splitlines()


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """What the documents of today lack: the suite house says it, and it is no finding of a test here."""
    return findings(copy_of_documents(tmp_path_factory.mktemp("today")))


@pytest.fixture
def tree(tmp_path):
    return copy_of_documents(tmp_path)


@pytest.mark.parametrize("name, text, says", [
    (f"{DOCS}/laptop/new.md", "# New\n\nIt is new.\n", f'{DOCS}/laptop/new.md: does not end in a section "## Next" with links'),
    (f"{DOCS}/laptop/new.md", "# New\n\nIt is new.\n\n## Next\n\nNothing.\n", f'{DOCS}/laptop/new.md: does not end in a section "## Next" with links'),
    (f"{DOCS}/laptop/new.md", "# New\n\n" + "word " * 1500 + NEXT, f"{DOCS}/laptop/new.md: 1509 words, at most 1500: split it by the questions that it answers"),
    (f"{DOCS}/laptop/other.md", "# Other\n" + NEXT, f"{DOCS}/laptop/other.md: no door leads here: link it in the README.md of its folder"),
    (f"{DOCS}/garden/README.md", "# Garden\n\nA door.\n\n## Next\n\n- [Laptop](../laptop/README.md)\n", f"{DOCS}/garden/README.md: the README does not link this door"),
    (f"{DOCS}/laptop/new.md", "# New\n\n```sh\nscripts/up\n```\n" + NEXT, f"{DOCS}/laptop/new.md: begins without a sentence: say which question it answers"),
    (f"{DOCS}/laptop/new.md", "# New\n\nIt starts as told [below](start.md).\n" + NEXT, f'{DOCS}/laptop/new.md: calls another page "below": name it'),
    ("src.c", f"/* {DOCS}/laptop/absent.md has the rest. */\n", f"src.c:1: {DOCS}/laptop/absent.md does not exist"),
    ("rules.yml", f"runbook: {DOCS}/laptop/new.md#absent\n", f"rules.yml:1: {DOCS}/laptop/new.md has no heading #absent"),
    ("scripts/groups", "policy/cellar   what nobody sees\n", f"{DOCS}/change/house.svg: no line names the groups of policy (scripts/groups): cellar"),
])
def test_a_fault_is_found(tree, known, name, text, says):
    (tree / name).parent.mkdir(exist_ok=True)
    (tree / name).write_text(text)
    assert [f for f in findings(tree) if f not in known] == [says]


def test_a_page_that_looks_things_up_may_be_long(tree, known):
    (tree / "docs/reference/metrics.md").write_text("# Metrics\n\n" + "word " * 5000)
    assert findings(tree) == known

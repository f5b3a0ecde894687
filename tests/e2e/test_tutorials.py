# SPDX-License-Identifier: Apache-2.0
"""The pages that a reader follows command by command: each runs from its own text and prints what it says."""
import shutil
import subprocess

import pytest

from cluster import BUILD, ROOT, SANITIZER
from tutorials import Tutorial, steps, usable

PAGES = ["README.md", "docs/laptop/start.md", "docs/laptop/ports.md", "docs/fleet/start.md", "docs/fleet/routers.md", "docs/fleet/access/keys.md", "docs/fleet/traffic/batch.md",
         "docs/operate/lost-node.md"]
alone = pytest.mark.skipif(usable() is not None, reason=str(usable()))
pytestmark = [pytest.mark.plain, pytest.mark.skipif(bool(SANITIZER), reason="the pages start programs that leave no reports")]


@alone
@pytest.mark.parametrize("page", PAGES)
def test_the_page_does_what_it_says(page, tmp_path):
    tutorial = Tutorial(tmp_path, page)
    if page == "docs/fleet/routers.md" and shutil.which("haproxy") is None:
        pytest.skip("no haproxy: apt install haproxy")
    assert tutorial.blocks and tutorial.expected
    wrong = tutorial.wrong_output(tutorial.run())
    assert not wrong, "\n".join(wrong)


@alone
def test_a_command_that_fails_fails_the_page(tmp_path):
    tutorial = Tutorial(tmp_path, PAGES[0])
    tutorial.blocks = ["echo before\n", "cgn-router --no-such-flag\n", "echo behind\n"]
    with pytest.raises(AssertionError, match="block 2 ended with"):
        tutorial.run()
    tutorial.blocks, tutorial.expected = ["echo one two\n"], {0: "one ...\n"}
    assert not tutorial.wrong_output(tutorial.run())
    tutorial.expected = {0: "two\n"}
    assert tutorial.wrong_output(tutorial.run())


def test_settings_in_documents_are_valid(tmp_path):
    """Each ```toml block without a file's name is a configuration that the programs take, but for the files that it names."""
    wrong, seen = [], 0
    for page in ("README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))):
        for kind, info, text in steps(page):
            if (kind, info) == ("toml", "") and "credential:" not in text:
                seen += 1
                (tmp_path / "c.toml").write_text(text)
                done = subprocess.run([BUILD / "src/ctl/cgn-ctl", "config", "check", tmp_path / "c.toml"], capture_output=True, text=True, timeout=20)
                wrong += [f"{page}: {done.stderr.strip()}\n{text}"] if done.returncode else []
    assert not wrong and seen > 80, "\n".join(wrong)

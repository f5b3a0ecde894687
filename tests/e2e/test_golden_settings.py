# SPDX-License-Identifier: Apache-2.0
"""Settings of kept versions (tests/golden): none disappears without a word, and no default changes without one."""
import re
import subprocess
import sys

import pytest

from cluster import BUILD, ROOT

sys.path.insert(0, str(ROOT / "tests/golden"))
from settings import settings  # noqa: E402

pytestmark = pytest.mark.plain
REFERENCE = ROOT / "docs/reference/configuration.md"
RENAMED = dict(re.findall(r'^MOVED\("([\w.]+)", +"(.*)"\)$', (ROOT / "src/policy/config/renamed.def").read_text(), re.M))
VERSIONS = sorted(p for p in (ROOT / "tests/golden").iterdir() if p.name[0].isdigit())


def plain(section, key):
    """The name of a key in renamed.def."""
    return section.replace('."NAME"', "") + "." + key


@pytest.mark.parametrize("version", VERSIONS, ids=lambda p: p.name)
def test_settings_stay_or_are_renamed(version):
    now, told = settings(REFERENCE), (ROOT / "docs/operate/upgrade.md").read_text()
    kept = [line.split(" ", 2) for line in (version / "settings.txt").read_text().splitlines()]
    assert len(kept) > 300
    for section, key, preset in kept:
        if (section, key) not in now:
            assert plain(section, key) in RENAMED, f"[{section}] {key} is gone: say in src/policy/config/renamed.def what to do"
        elif now[section, key] != preset:
            assert f"`{plain(section, key)}`" in told, f"the default of [{section}] {key} was {preset}: say in docs/operate/upgrade.md what changes"


def test_renamed_keys_are_answered(tmp_path):
    known = settings(REFERENCE)
    assert RENAMED
    for key, then in RENAMED.items():
        section, _, name = key.rpartition(".")
        assert (section, name) not in known and (f'{section}."NAME"', name) not in known, f"{key} is a key"
        file = tmp_path / "c.toml"
        file.write_text(f"[{section + '.x' if section in ('models', 'tenants', 'peers') else section}]\n{name} = 1\n")
        done = subprocess.run([BUILD / "src/ctl/cgn-ctl", "config", "check", file], capture_output=True, text=True)
        assert done.returncode == 3 and then.replace('\\"', '"') in done.stderr and f"{file}:2:1" in done.stderr, done

# SPDX-License-Identifier: Apache-2.0
"""deploy/terraform, as the real providers of Hetzner and of local files judge it."""
import json
import pathlib
import shutil
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from cloud import tool  # noqa: E402
from providers import PROVIDERS, rows, run  # noqa: E402

pytestmark = [pytest.mark.skipif(tool() is None, reason="neither terraform nor tofu in PATH"),
              pytest.mark.skipif(not (shutil.which("go") or pathlib.Path("/usr/local/go/bin/go").exists()), reason="no go: providers are built by it")]


@pytest.mark.parametrize("cloud", PROVIDERS)
def test_the_provider_takes_the_files(cloud, tmp_path):
    done = run(tmp_path, cloud, "validate", "-no-color")
    assert done.returncode == 0 and "The configuration is valid" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("cloud, change, said", [
    ("hetzner", ("main.tf", "ip_range = ", "ip_rang = "), 'An argument named "ip_rang" is not expected here'),
    ("hetzner", ("main.tf", 'type         = "cloud"', 'type         = "clouds"'), "expected type to be one of"),
    ("hetzner", ("main.tf", "10.80.0.0/16", "10.80.0.0/160"), "10.80.0.0/160"),
    ("baremetal", ("main.tf", "filename", "file_name"), 'An argument named "file_name" is not expected here'),
])
def test_a_mistake_is_found(cloud, change, said, tmp_path):
    done = run(tmp_path, cloud, "validate", "-no-color", change=change)
    assert done.returncode != 0 and said in " ".join((done.stdout + done.stderr).split()), done.stdout + done.stderr


@pytest.mark.parametrize("cloud", PROVIDERS)
def test_the_kept_schemas_are_the_providers(cloud, tmp_path):
    """tests/clouds/schemas.json, by which the files are judged where no provider is, says what the provider itself says."""
    kept = json.loads((HERE / "schemas.json").read_text())
    told = {name: row for name, row in rows(tmp_path, cloud).items() if name in kept}
    assert told and told == {name: ordered(kept[name]) for name in told}


def ordered(row):
    return {**row, "required": sorted(row["required"]), "optional": sorted(row["optional"]), "blocks": {k: ordered(b) for k, b in sorted(row["blocks"].items())}}

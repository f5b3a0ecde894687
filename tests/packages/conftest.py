# SPDX-License-Identifier: Apache-2.0
"""The .deb packages of this tree, made once for all tests."""
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def deb_build(out, *args):
    done = subprocess.run([ROOT / "scripts/deb", "--out", out, *args], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    return {p.name.split("_")[0]: p for p in out.glob("*.deb")}


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    """Packages of this version and of an older one, {version: {name: file}}. $CGN_DEBS: a folder with new/ and old/ that scripts/deb wrote."""
    if "CGN_DEBS" in os.environ:
        return {v: {p.name.split("_")[0]: p for p in pathlib.Path(os.environ["CGN_DEBS"], v).glob("*.deb")} for v in ("new", "old")}
    folder = tmp_path_factory.mktemp("debs")
    return {"new": deb_build(folder / "new"), "old": deb_build(folder / "old", "--version", "0.0.9")}

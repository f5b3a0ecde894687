# SPDX-License-Identifier: Apache-2.0
"""Programs of two versions in one cluster: those of $CGN_BUILD, and the earlier ones of $CGN_OLD (scripts/build-kept)."""
import os
import pathlib
import sys

import pytest

for folder in ("interop", "e2e"):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / folder))
import cluster as module  # noqa: E402

FOLDERS = {"new": module.BUILD, "old": pathlib.Path(os.environ.get("CGN_OLD", "/nonexistent")).resolve()}
PROGRAMS = ("cgn-router", "cgn-agent", "cgn-kvcached", "cgn-metrics", "cgn-ctl")


def pytest_configure(config):
    for marker in ("plain", "threads"):
        config.addinivalue_line("markers", f"{marker}: of the suite e2e")


class Versions:
    """Which version of each program starts from now on. cgn-sim, which stands for engines, is always the new one."""

    def __init__(self):
        self.of = dict.fromkeys(PROGRAMS, "new")

    def set(self, version, *programs):
        for program in programs or PROGRAMS:
            self.of[program] = version

    def place(self, process):
        """Give the process the program of its version."""
        name = pathlib.Path(process.argv[0]).name
        if name in PROGRAMS:
            process.argv[0] = str(self.path(name))

    def path(self, program):
        return FOLDERS[self.of.get(program, "new")] / "src" / program.removeprefix("cgn-") / program


@pytest.fixture
def versions(monkeypatch):
    """Every program that a test starts, or starts again, is of the version that is set."""
    for program in PROGRAMS[:2]:
        assert (FOLDERS["old"] / "src" / program.removeprefix("cgn-") / program).exists(), "$CGN_OLD is not a build: scripts/build-kept makes one"
    v = Versions()
    start = module.Process.start

    def start_version(self):
        v.place(self)
        start(self)
    monkeypatch.setattr(module.Process, "start", start_version)
    return v

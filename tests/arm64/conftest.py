# SPDX-License-Identifier: Apache-2.0
"""The programs of a release for arm64, each as a script that runs it by qemu-user with the libraries of build/root-arm64. The folder has the shape of a build's,
so that the cluster of tests/e2e starts them."""
import os
import pathlib
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
WRAPPER = """#!/bin/sh
exec qemu-aarch64 -L {root} -0 "$0" {program} "$@"
"""
_folder = pathlib.Path(tempfile.mkdtemp(prefix="cgn-arm64-"))
_archive = next(pathlib.Path(os.environ["CGN_ARM64_DIST"]).glob("cognitora-*-linux-arm64.tar.gz"))
with tarfile.open(_archive) as _tar:
    _tar.extractall(_folder)
for _program in _folder.glob("cognitora-*/bin/cgn-*"):
    _wrapper = _folder / "build/src" / _program.name.removeprefix("cgn-") / _program.name
    _wrapper.parent.mkdir(parents=True)
    _wrapper.write_text(WRAPPER.format(root=ROOT / "build/root-arm64", program=_program))
    _wrapper.chmod(0o755)
os.environ["CGN_BUILD"] = str(_folder / "build")
os.environ.setdefault("CGN_TEST_WAIT_S", "120")  # emulated programs are slow

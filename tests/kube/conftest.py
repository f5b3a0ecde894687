# SPDX-License-Identifier: Apache-2.0
"""The control plane is started once for all tests; each test has a namespace of its own."""
import itertools
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from kube_world import ROOT, Kube  # noqa: E402
from operator_world import Operator, install  # noqa: E402

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def binaries():
    done = subprocess.run([ROOT / "scripts/run/kubernetes"], capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="session")
def kube(binaries, tmp_path_factory):
    k = Kube(tmp_path_factory.mktemp("kube"), binaries)
    yield k
    k.close()


@pytest.fixture
def space(kube):
    return kube.namespace(f"t{next(_numbers)}")


@pytest.fixture(scope="session")
def installed(kube):
    install(kube)
    return kube


@pytest.fixture
def operator(installed, tmp_path, space):
    o = Operator(installed, tmp_path, namespace=space)
    yield o
    o.stop()

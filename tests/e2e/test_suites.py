# SPDX-License-Identifier: Apache-2.0
"""How scripts/test judges cases that fail, in a tree with cases of its own."""
import os
import re
import shutil
import subprocess
import sys

import pytest

from cluster import ROOT

pytestmark = pytest.mark.plain
JUDGE = """set -uo pipefail; . scripts/_lib.sh; . scripts/_cases.sh; out=$PWD/out; mkdir $out; exec 3>&1; export CGN_PROGRESS_FD=3
pytests e2e tests/e2e; echo "first: $ok $bad $waiting"; passed=$ok failed=$bad; run_again; echo "last: $passed passed, $failed failed" """
HEAD = """import os, pathlib, pytest, time
def runs(name):
    with open(f"{os.environ['RUNS']}/{name}", "a") as f:
        f.write("x")
    return os.path.getsize(f.name)
"""


@pytest.fixture
def judged(tmp_path):
    """Run the cases in |text|; return what is printed, and how often each case ran."""
    for name in ("scripts/_lib.sh", "scripts/_cases.sh", "tests/conftest.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    (tmp_path / "tests/e2e").mkdir()
    (tmp_path / "runs").mkdir()

    def run(text, until=None):
        (tmp_path / "tests/e2e/test_it.py").write_text(HEAD + text)
        said = ""
        with subprocess.Popen(["bash", "-c", JUDGE], cwd=tmp_path, stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "RUNS": str(tmp_path / "runs"), "CGN_HEARTBEAT": "0.1"}) as p:
            for line in p.stdout:
                said += line
                if until and until in line:
                    (tmp_path / "runs/told").touch()
        return said, {f.name: f.stat().st_size for f in (tmp_path / "runs").iterdir()}
    return run


def test_a_case_that_passes_three_times_alone_is_unsteady(judged):
    said, runs = judged('def test_late():\n    assert runs("late") > 1, "it was too early"\ndef test_good():\n    runs("good")\n')
    assert "first: 1 0 1\n" in said and "last: 2 passed, 0 failed\n" in said and "\n1 unsteady\n" in said, said
    assert "unsteady: tests/e2e/test_it.py::test_late (e2e" in said and "it was too early" in said.split("unsteady: ")[1], said
    assert runs == {"late": 4, "good": 1}


def test_a_case_that_fails_alone_has_failed(judged):
    said, runs = judged('def test_never():\n    assert runs("never") < 0\ndef test_often():\n    assert runs("often") not in (1, 3)\n')
    assert "last: 0 passed, 2 failed\n" in said and "unsteady" not in said and said.count("(alone too)") == 2, said
    assert runs == {"never": 2, "often": 3}


@pytest.mark.parametrize("text", [
    'print("==1==ERROR: AddressSanitizer: heap-use-after-free"); assert False', "assert -11 == 0", 'raise AssertionError("router ended by itself with -6:")',
    '(tmp_path / "router.log").write_text("src/x.c:1: broken invariant: p != NULL"); assert False', "os._exit(3)"])
def test_a_crash_or_a_report_is_never_forgiven(judged, text):
    said, runs = judged(f'def test_it(tmp_path):\n    if runs("it") == 1:\n        {text}\n')
    assert "last: 0 passed, 1 failed\n" in said and "unsteady" not in said and runs == {"it": 1}, said


@pytest.mark.slow
def test_many_unsteady_cases_count_as_failed(judged):
    said, _ = judged('@pytest.mark.parametrize("n", range(4))\ndef test_late(n):\n    assert runs(f"late{n}") > 1\n')
    assert said.count("unsteady: ") == 4 and "more than 3 unsteady cases count as failed" in said and "last: 0 passed, 4 failed\n" in said, said


def test_too_many_failures_are_not_run_again(judged):
    said, runs = judged('@pytest.mark.parametrize("n", range(13))\ndef test_late(n):\n    assert runs("late") < 0\n')
    assert "last: 0 passed, 13 failed\n" in said and runs == {"late": 13}, said


def test_a_fixture_that_fails_once_is_judged_like_its_case(judged):
    said, runs = judged('@pytest.fixture\ndef world():\n    yield\n    assert runs("world") > 1\ndef test_it(world):\n    pass\n')
    assert "first: 0 0 1\n" in said and "last: 1 passed, 0 failed\n" in said and runs == {"world": 4}, said


def test_without_a_case_the_suite_has_failed(judged):
    assert "last: 0 passed, 1 failed\n" in judged("")[0]
    assert "last: 0 passed, 1 failed\n" in judged("import nothing_of_this_name\n")[0]


def test_a_run_shows_how_far_it_is(judged):
    wait = 'while not pathlib.Path(os.environ["RUNS"], "told").exists():\n        time.sleep(0.01)\n'
    said, _ = judged(f"def test_a():\n    pass\ndef test_b():\n    {wait}", until="    e2e 1 of 2, 0 failed, ")
    assert "last: 2 passed, 0 failed\n" in said, said


def test_slow_cases_begin_first_and_a_fixture_of_a_file_is_made_once(tmp_path):
    (tmp_path / "tests").mkdir()
    shutil.copy2(ROOT / "tests/conftest.py", tmp_path / "tests")
    # The other cases let the slow one begin, on whichever worker it is; one that waits in vain comes before it.
    note = ("import pathlib, pytest, time\norder = pathlib.Path(%r)\ndef note(what):\n"
            "    for _ in range(500 if what in 'ab' else 0):\n        if order.exists() and 'slow' in order.read_text():\n            break\n        time.sleep(0.01)\n"
            "    with open(order, 'a') as f:\n        f.write(what + ' ')\n") % str(tmp_path / "order")
    (tmp_path / "tests/test_a.py").write_text(
        note + "@pytest.fixture(scope='module')\ndef world():\n    note('world')\n".replace("'", '"') +
        "@pytest.mark.parametrize('n', range(6))\ndef test_it(world, n):\n    note('a')\n")
    (tmp_path / "tests/test_b.py").write_text(
        note + "@pytest.mark.parametrize('n', range(6))\ndef test_it(n):\n    note('b')\n@pytest.mark.slow\ndef test_slow():\n    note('slow')\n")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", "2", "--suite", "asan", "tests"], cwd=tmp_path, capture_output=True, text=True)
    order = (tmp_path / "order").read_text().split()
    assert done.returncode == 0 and "13 passed" in done.stdout, done.stdout
    assert order.index("slow") < 3 and order.count("world") == 1 and len(order) == 14, order


def test_a_target_is_fuzzed_for_its_seconds_of_processor_time(tmp_path):
    """A target that sleeps has no processor time, and goes on; libFuzzer ends at SIGUSR1."""
    for name in ("scripts/_lib.sh", "scripts/fuzz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    target = tmp_path / "build/fuzz/fuzz_it"
    target.parent.mkdir(parents=True)
    target.write_text("#!/bin/bash\ntrap 'echo stat::number_of_executed_units: $n; exit 0' USR1\nsleep 1.5\nwhile :; do n=$((n + 1)); done\n")
    target.chmod(0o755)
    done = subprocess.run(["bash", "scripts/fuzz", "--one", "it", "1"], cwd=tmp_path, capture_output=True, text=True)
    said = re.fullmatch(r"ok   it \((\d+) inputs\)\n", done.stdout)
    assert said and int(said[1]) > 1000, done


def test_fuzz_targets_are_built_without_being_run(tmp_path):
    """scripts/test builds them ahead, where no one sees an error."""
    for name in ("scripts/_lib.sh", "scripts/fuzz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    (tmp_path / "build/fuzz/src").mkdir(parents=True)
    (tmp_path / "build/fuzz/build.ninja").touch()
    (tmp_path / "bin").mkdir()
    for name in ("ninja", "clang++"):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/{name}\n')
        (tmp_path / "bin" / name).chmod(0o755)

    def fuzz(*args):
        return subprocess.run(["bash", "scripts/fuzz", *args], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"})
    done = fuzz("--build")
    assert done.returncode == 0 and (tmp_path / "ninja").read_text() == f"-C {tmp_path}/build/fuzz\n", done
    assert fuzz("--bulid").returncode == 2

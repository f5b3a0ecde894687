# SPDX-License-Identifier: Apache-2.0
"""What scripts/test asks of pytest: select the cases of a suite, show how far the run is, and write what came out.

    python3 -m pytest --suite asan --progress asan --outcome FOLDER tests/e2e

A failed case is "hard" when a sanitizer reported something or a program crashed. scripts/test runs the other failed
cases again, alone."""
import functools
import hashlib
import inspect
import os
import pathlib
import re
import stat
import threading
import time

import pytest

# A report of a sanitizer, or an assertion of ours, in the output of a program.
REPORTS = ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "WARNING: ThreadSanitizer", "runtime error:", "broken invariant")
# A program that ended by a signal of its own making (SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV) or with a sanitizer's exit code, as our messages,
# subprocess and pytest's comparisons show it.
CRASHED = re.compile(r"(ended by itself with|returncode=|exit code|assert) ?(-(4|5|6|7|8|11)|132|133|134|135|136|139|99)\b|"
                     r"core dumped|Segmentation fault|worker '\w+' crashed")
LESS = re.compile(r"\bSANITIZER\b|\bCGN_SANITIZER\b|\bscaled\(")  # a case that has this in its source does less with a sanitizer
SAMPLE_OF = 14  # the sample has one in so many cases of each file, and at least one
LOG_MOST = 4 << 20


def marked(item, name):
    return item.get_closest_marker(name) is not None


SUITES = {
    "e2e": lambda item: marked(item, "plain") or marked(item, "both"),
    "asan": lambda item: not marked(item, "plain"),
    "rest": lambda item: not marked(item, "plain") and not marked(item, "both"),
    "tsan": lambda item: marked(item, "threads"),
}
ALWAYS = ("e2e", "asan")  # the suites of each run of scripts/test that have all cases between them


def sample(items):
    """Return a sample of the cases: of each file the same ones each time, and none that is marked slow."""
    files = {}
    for item in items:
        if not marked(item, "slow"):
            files.setdefault(item.nodeid.split("::")[0], []).append(item)
    chosen = set()
    for cases in files.values():
        cases.sort(key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())
        chosen.update(item.nodeid for item in cases[:-(-len(cases) // SAMPLE_OF)])
    return [item for item in items if item.nodeid in chosen]


def pytest_addoption(parser):
    group = parser.getgroup("scripts/test")
    group.addoption("--suite", choices=[*SUITES, "sample"], help="only the cases of this suite")
    group.addoption("--unrun", action="store_true", help="print the cases that no suite runs wholly, and fail if there are some; run nothing")
    group.addoption("--outcome", help="write what came out to this folder, and why each case failed")
    group.addoption("--progress", help="show how far the run is, under this name")
    group.addoption("--later-s", type=float, default=0, help="seconds that later suites take")


def pytest_configure(config):
    for line in ("threads: worth running under ThreadSanitizer, many threads of a program meet",
                 "plain: foreign programs or a plain program's memory are looked at: the case runs in the plain build only",
                 "both: the case does less with a sanitizer, so it runs in both builds",
                 "slow: the case takes long (10 s): it begins before the others, and is not in the sample of scripts/test quick"):
        config.addinivalue_line("markers", line)
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        config.pluginmanager.register(Outcome(config.option), "outcome")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    suite = config.option.suite
    if config.option.unrun:
        wrong = list(filter(None, map(unrun, items)))
        print("\n".join([*dict.fromkeys(wrong), f"{len(items)} cases, {len(wrong)} that no suite runs wholly"]))
        pytest.exit("nothing was run", returncode=1 if wrong else 0)
    if suite:
        keep = sample(items) if suite == "sample" else [item for item in items if SUITES[suite](item)]
        chosen = set(map(id, keep))
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen])
        items[:] = sorted(keep, key=lambda item: not marked(item, "slow"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give a worker the next case when it has nearly done the last one, and the cases of a file with a fixture of its own
    together. xdist's own scheduler hands out long rows: at the end one worker has long cases to do, the others none."""
    if config.getoption("suite") is None or config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class InTurn(LoadScopeScheduling):
        def _split_scope(self, case):
            path = case.split("::")[0]
            return path if has_fixture(config.rootpath / path) else case
    return InTurn(config, log)


@functools.cache
def has_fixture(path):
    return 'scope="module"' in path.read_text()


def unrun(item):
    """Return why scripts/test does not run all of this case, or None."""
    name = item.nodeid.split("[")[0]
    if not any(SUITES[suite](item) for suite in ALWAYS):
        return f"{name}: no suite of {', '.join(ALWAYS)} selects it"
    fixtures = (d.func for defs in item._fixtureinfo.name2fixturedefs.values() for d in defs if d.func.__module__.startswith(("test_", "conftest")))
    if SUITES["e2e"](item) or not any(map(does_less, (item.function, *fixtures))) and not skips_less(item.module):
        return None
    return f"{name}: it does less with a sanitizer, so it needs the mark plain or both"


@functools.cache
def does_less(function):
    return LESS.search(inspect.getsource(function))


@functools.cache
def skips_less(module):
    return any(map(LESS.search, re.findall(r"^pytestmark = .*$", inspect.getsource(module), re.M)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.began = time.time()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Add to the report of a failed case what a sanitizer reported, if the case does not print it."""
    outcome = yield
    report = outcome.get_result()
    if report.failed and (found := reported(item)):
        report.sections.append(("a sanitizer's report", found))


def reported(item):
    """Return the first report of a sanitizer in a file that a program of this case wrote, or an empty text."""
    for path in item.config._tmp_path_factory.getbasetemp().rglob("*"):
        try:
            at = path.lstat()
            if not stat.S_ISREG(at.st_mode) or at.st_size > LOG_MOST or at.st_mtime < item.began:
                continue
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for i, line in enumerate(lines):
            if any(r in line for r in REPORTS):
                return "\n".join([f"{path}:", *lines[i:i + 60]])
    return ""


class Outcome:
    """Count what comes out, and show it: on a terminal in one line that is replaced, elsewhere in a line every
    CGN_HEARTBEAT seconds."""

    def __init__(self, option):
        self.option, self.began = option, time.monotonic()
        self.total, self.done, self.passed, self.skipped, self.failed, self.broken = 0, 0, set(), set(), {}, []
        self.fd = int(os.environ.get("CGN_PROGRESS_FD", 2))
        self.live = os.isatty(self.fd)
        self.ended = threading.Event()
        if option.progress:
            threading.Thread(target=self.show, daemon=True).start()

    def show(self):
        while not self.ended.wait(1 if self.live else float(os.environ.get("CGN_HEARTBEAT", 20))):
            os.write(self.fd, (f"\r\033[K{self.text()[:79]}" if self.live else f"    {self.text()}\n").encode())

    def text(self):
        """Say what runs, how much is done, and how long the rest takes if it goes on as it went."""
        spent = time.monotonic() - self.began
        so_far = f"{self.option.progress} {self.done} of {self.total}, {len(self.failed)} failed, {spent:.0f} s"
        if self.done * 20 < max(self.total, 20):
            return so_far
        left = spent * (self.total - self.done) / self.done
        return so_far + f", about {left:.0f} s left" + (f", {left + self.option.later_s:.0f} s with later suites" if self.option.later_s else "")

    def pytest_collection_finish(self, session):
        self.total = self.total or len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node, ids):
        self.total = len(ids)

    def pytest_collectreport(self, report):
        if report.failed:
            self.broken.append(report.nodeid)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            parts = [report.longreprtext, *(f"--- {name}\n{text}" for name, text in report.sections)]
            self.failed[report.nodeid] = "\n".join([*filter(None, [self.failed.get(report.nodeid)]), *parts])
        elif report.skipped:
            self.skipped.add(report.nodeid)
        elif report.when == "call":
            self.passed.add(report.nodeid)
        self.done += report.when not in ("setup", "call")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self):
        self.ended.set()
        if self.live and self.option.progress:
            os.write(self.fd, b"\r\033[K")
        if self.option.outcome:
            self.write(pathlib.Path(self.option.outcome))

    def write(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f"passed {len(self.passed - self.failed.keys())}", f"skipped {len(self.skipped)}", f"broken {len(self.broken)}"]
        for i, (case, text) in enumerate(sorted(self.failed.items())):
            lines.append(f"{'hard' if is_hard(text) else 'soft'} {i} {case}")
            (folder / str(i)).write_text(text + "\n")
        (folder / "cases").write_text("\n".join(lines) + "\n")


def is_hard(text):
    """Say whether the output of a failed case has a sanitizer's report, a broken invariant or a crash."""
    return any(r in text for r in REPORTS) or CRASHED.search(text) is not None

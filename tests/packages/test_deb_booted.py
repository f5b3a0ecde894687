# SPDX-License-Identifier: Apache-2.0
"""The .deb packages on machines that a systemd boots: Debian 13 and 12, Ubuntu 24.04. The tests of one machine build on each other, in this order."""
import os
import pathlib
import shutil
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "boot"))
from booted import PROGRAMS, Load, Machine, why_not  # noqa: E402

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="booting a root of its own needs root")
UNITS = [f"cgn-{p}.service" for p in PROGRAMS]
RUNNING = [u for u in UNITS if u != "cgn-metrics.service"]
SETTINGS = "etc/cognitora/cognitora.toml"
STATES = ("var/lib/cognitora", "var/log/cognitora")
# What a machine that runs writes itself: systemd, apt and dpkg.
OWN = ("/var/lib/dpkg", "/var/lib/apt", "/var/lib/systemd", "/var/log/journal", "/var/log/apt", "/var/log/dpkg.log", "/var/cache", "/var/tmp")


class Packaged(Machine):
    def apt(self, *args):
        return self.run("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", *args)

    def install(self, files, *options):
        """Install these packages by apt, as an administrator does."""
        folder = self.root / "debs"
        folder.mkdir()
        for f in files.values():
            shutil.copy(f, folder)
        done = self.apt("install", "--no-install-recommends", *options, *(f"/debs/{f.name}" for f in files.values()))
        shutil.rmtree(folder)
        return done

    def version(self, name):
        return self.run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", name).stdout

    def settings(self):
        return (self.root / SETTINGS).read_text()

    def pids(self):
        return {u: self.property(u, "MainPID") for u in UNITS}

    def files(self):
        """All paths of the machine below /etc, /usr and /var, but those that it writes without us."""
        found = set()
        for top in ("etc", "usr", "var"):
            for folder, folders, files in os.walk(self.root / top):
                here = "/" + str(pathlib.Path(folder).relative_to(self.root))
                found |= {f"{here}/{n}" for n in folders + files}
        return {p for p in found if not p.startswith(OWN)}

    def named(self):
        """All paths of the machine that have our name, also where systemd and dpkg keep notes."""
        return self.run("find", "/", "-xdev", "(", "-name", "*cgn-*", "-o", "-name", "*cognitora*", ")", "-not", "-path", "/proc/*").stdout.split()


def number(files):
    """Return the version of these packages."""
    return files["cognitora"].name.split("_")[1]


@pytest.fixture(scope="module", params=["trixie", "bookworm", "noble"])
def machine(request, tmp_path_factory):
    if why_not(request.param):
        pytest.skip(why_not(request.param))
    m = Packaged(tmp_path_factory.mktemp("machine"), request.param, programs=())
    m.boot()
    m.before, m.noted = m.files(), m.named()
    yield m
    m.close()
    shutil.rmtree(m.root)


def test_an_installation_starts_nothing(machine, packages):
    machine.install(packages["old"])
    assert machine.version("cognitora-router") == f"installed {number(packages['old'])}"
    for unit in (*UNITS, "cognitora.target"):
        assert machine.run("systemctl", "is-enabled", unit, check=False).stdout.strip() == "disabled"
        assert machine.property(unit, "ActiveState") == "inactive"
    for folder in STATES:
        assert machine.run("stat", "-c", "%U %a", f"/{folder}").stdout.split() == ["cognitora", "750"]


def test_a_chat_is_answered(machine):
    machine.run("systemctl", "enable", "--now", "--quiet", "engine.service", "cognitora.target", *UNITS)
    machine.all_run(UNITS)
    machine.answers()
    for unit in UNITS:
        assert machine.run("stat", "-c", "%U", f"/proc/{machine.property(unit, 'MainPID')}").stdout.strip() == "cognitora"


@pytest.mark.parametrize("way", ["upgrade", "downgrade"])
def test_another_version_restarts_what_runs_and_refuses_nobody(machine, packages, tmp_path, way):
    files = packages["new" if way == "upgrade" else "old"]
    (machine.root / SETTINGS).write_text(machine.settings() + f"# {way}\n")
    mine = machine.settings()
    machine.run("systemctl", "disable", "--now", "--quiet", "cgn-metrics.service")
    before = machine.pids()
    with Load(machine, tmp_path) as load:
        machine.install(files, *(["--allow-downgrades"] if way == "downgrade" else []))
        load.more(5)
    assert load.failed == 0 and load.asked >= 10, load.said
    assert machine.version("cognitora-router") == f"installed {number(files)}"
    now = machine.pids()
    assert all(now[u] not in ("0", before[u]) for u in RUNNING), "what ran was started again"
    assert now["cgn-metrics.service"] == "0", "what was stopped stays so"
    assert machine.run("systemctl", "is-enabled", "cgn-metrics.service", check=False).stdout.strip() == "disabled"
    for unit in RUNNING:
        assert machine.run("readlink", f"/proc/{now[unit]}/exe").stdout.strip() == f"/usr/bin/{unit.removesuffix('.service')}", "the program is that of the package"
    assert machine.settings() == mine
    machine.answers()


def test_it_survives_a_reboot(machine):
    machine.poweroff()
    machine.boot()
    machine.all_run(RUNNING)
    machine.answers()
    assert machine.property("cgn-metrics.service", "ActiveState") == "inactive"


def test_a_removal_stops_what_runs_and_keeps_settings_and_state(machine, packages):
    mine = machine.settings()
    (machine.root / "var/lib/cognitora/kept").write_text("state")
    machine.apt("remove", *packages["old"])
    assert machine.programs() == ["cgn-sim"], "the engine's unit is not the packages'"
    assert not list((machine.root / "usr/bin").glob("cgn-*")) and machine.settings() == mine and (machine.root / "var/lib/cognitora/kept").exists()
    assert not [line for line in machine.units("--all") if "not-found" not in line]
    # Again: the enabled units stay enabled, with the settings as they were.
    machine.install(packages["new"])
    assert machine.settings() == mine
    machine.run("systemctl", "start", "cognitora.target")
    machine.run("systemctl", "restart", "engine.service")
    machine.all_run(RUNNING)
    machine.answers()


def test_a_purge_leaves_nothing(machine, packages):
    machine.run("systemctl", "disable", "--now", "--quiet", "engine.service")
    machine.apt("purge", *packages["new"])
    # The user stays, as is usual in Debian: files may belong to it.
    left = {p for p in machine.files() - machine.before if not p.startswith(("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/.pwd.lock"))}
    assert left == set() and set(machine.named()) <= set(machine.noted), (left, machine.named())
    assert machine.unit_files() == [] and machine.failed() == [] and machine.programs() == []

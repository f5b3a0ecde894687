# SPDX-License-Identifier: Apache-2.0
"""deploy/installer/install.sh on a machine that a systemd boots: a release from a folder, its units, another version and back under load, a reboot, and its
removal. The tests build on each other, in this order."""
import hashlib
import os
import shutil
import subprocess
import tarfile

import pytest
from booted import BUILD, PROGRAMS, ROOT, Load, Machine

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="booting a root of its own needs root")
UNITS = [f"cgn-{p}.service" for p in PROGRAMS]
PLATFORM = {"x86_64": "linux-x86_64", "aarch64": "linux-arm64"}[os.uname().machine]
KEPT = ("etc/cognitora", "etc/passwd", "etc/group", "etc/shadow", "etc/gshadow", "etc/.pwd.lock")


class Released(Machine):
    def release(self, folder, version):
        """Put a release of this build's files into /VERSION: the same programs, with other bytes at their end."""
        name, dist = f"cognitora-{version}-{PLATFORM}", self.root / version
        shutil.copytree(folder, dist / name, symlinks=True)
        for program in (dist / name / "bin").iterdir():
            with open(program, "ab") as f:
                f.write(version.encode())
        with tarfile.open(dist / f"{name}.tar.gz", "w:gz", compresslevel=1) as tar:
            tar.add(dist / name, name)
        shutil.rmtree(dist / name)
        (dist / "SHA256SUMS").write_text(f"{hashlib.sha256((dist / f'{name}.tar.gz').read_bytes()).hexdigest()}  {name}.tar.gz\n")
        (dist / "LATEST").write_text(version + "\n")
        shutil.copy(ROOT / "deploy/installer/install.sh", dist)

    def install(self, version):
        said = self.run("env", f"CGN_BASE_URL=file:///{version}", "sh", f"/{version}/install.sh").stdout
        then = next(line for line in said.splitlines() if line.startswith("Then: ")).removeprefix("Then: ").split(", and ")[0]
        self.run("sh", "-c", then)
        return said

    def has(self, version):
        return all((self.root / f"usr/local/bin/cgn-{p}").read_bytes().endswith(version.encode()) for p in PROGRAMS)

    def files(self):
        return {str(p.relative_to(self.root)) for top in ("etc", "usr") for p in (self.root / top).rglob("*")}


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release")
    subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--strip", "--quiet"], env={**os.environ, "DESTDIR": str(folder)}, check=True, capture_output=True)
    m = Released(tmp_path_factory.mktemp("machine"), programs=())
    for version in ("1.0.0", "1.1.0"):
        m.release(folder / "usr/local", version)
    m.unit("engine", (m.root / "etc/systemd/system/engine.service").read_text().replace("/usr/bin/", "/usr/local/bin/"))
    m.boot()
    m.before = m.files()
    yield m
    m.close()
    shutil.rmtree(m.root)


def test_a_release_is_installed_and_answers(machine):
    machine.install("1.0.0")
    assert machine.has("1.0.0") and machine.programs() == [], "nothing is started"
    shutil.copy(ROOT / "deploy/debian/cognitora.toml", machine.root / "etc/cognitora")
    machine.run("systemctl", "enable", "--now", "--quiet", "engine.service", "cognitora.target", *UNITS)
    machine.all_run(UNITS)
    machine.answers()
    assert machine.failed() == []


@pytest.mark.parametrize("way", ["upgrade", "downgrade"])
def test_another_version_refuses_nobody(machine, tmp_path, way):
    version = "1.1.0" if way == "upgrade" else "1.0.0"
    before = {u: machine.property(u, "MainPID") for u in UNITS}
    with Load(machine, tmp_path) as load:
        assert "replaced 1." in machine.install(version)
        assert {u: machine.property(u, "MainPID") for u in UNITS} == before, "what runs goes on"
        machine.run("systemctl", "restart", "cognitora.target")
        machine.all_run(UNITS)
        load.more(5)
    assert load.failed == 0 and load.asked >= 10, load.said
    assert machine.has(version) and all(machine.property(u, "MainPID") not in ("0", before[u]) for u in UNITS)


def test_it_survives_a_reboot(machine):
    machine.poweroff()
    machine.boot()
    machine.all_run(UNITS)
    machine.answers()


def test_uninstall_leaves_settings_alone(machine):
    machine.run("systemctl", "disable", "--now", "--quiet", "engine.service", "cognitora.target", *UNITS)
    machine.run("sh", "/1.0.0/install.sh", "--uninstall")
    machine.run("systemctl", "daemon-reload")
    assert {p for p in machine.files() - machine.before if not p.startswith(KEPT)} == set()
    assert machine.unit_files() == [] and machine.units("--all") == [] and machine.programs() == []

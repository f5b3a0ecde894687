# SPDX-License-Identifier: Apache-2.0
"""The .deb packages in minimal Debians: lintian, install, settings kept, upgrade, downgrade, remove, purge. Nothing is booted: dpkg runs in a
root of its own by chroot, where maintainer scripts find no systemd that runs."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUITES = ["bookworm", "trixie"]
PROGRAMS = ["router", "agent", "kvcached", "metrics"]
ALL = ["cognitora", "cognitora-common", "cognitora-ctl", "cognitora-operator", *(f"cognitora-{p}" for p in PROGRAMS)]
SETTINGS = "etc/cognitora/cognitora.toml"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="roots of their own need root")


def base(suite):
    """Return the folder of a minimal Debian; it is made once (half a minute)."""
    folder = ROOT / f"build/root-{suite}"
    if not (folder / "etc/debian_version").exists():
        listed = subprocess.run(["apt-get", "indextargets", "--format", "$(CODENAME) $(SITE)", "Created-By: Packages"], capture_output=True, text=True, check=True).stdout
        site = next(line.split()[1] for line in listed.splitlines() if re.match(r"(bookworm|trixie) ", line))
        new = folder.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "--include=systemd", suite, new, site], check=True, timeout=900)
        new.rename(folder)
    return folder


def number(files):
    """Return the version of these packages."""
    return files["cognitora"].name.split("_")[1]


class Machine:
    def __init__(self, folder):
        self.root = folder
        (folder / "debs").mkdir()

    def run(self, *args, code=0):
        done = subprocess.run(["unshare", "--mount", "--pid", "--fork", f"--root={self.root}", "--mount-proc", *args], capture_output=True, text=True, timeout=300,
                              env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}, stdin=subprocess.DEVNULL)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def install(self, files, *options):
        for f in files:
            shutil.copy(f, self.root / "debs")
        said = self.run("dpkg", *options, "-i", *(f"/debs/{f.name}" for f in files))
        for f in files:
            (self.root / "debs" / f.name).unlink()
        return said

    def version(self, name):
        return self.run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", name)

    def files(self):
        """All paths, but those that dpkg itself writes."""
        found = set()
        for folder, folders, files in os.walk(self.root):
            here = "/" + str(pathlib.Path(folder).relative_to(self.root))
            if here.startswith(("/var/lib/dpkg", "/var/log", "/var/cache", "/proc", "/dev", "/debs")) and not here.startswith("/var/log/cognitora"):
                continue
            found |= {f"{here}/{n}".replace("//", "/") for n in folders + files}
        return found

    def settings(self):
        return (self.root / SETTINGS).read_text()


@pytest.fixture(params=SUITES)
def machine(request, tmp_path):
    folder = tmp_path / "root"
    subprocess.run(["cp", "-a", "--reflink=auto", base(request.param), folder], check=True)
    yield Machine(folder)
    shutil.rmtree(folder)


def test_lintian(packages):
    """Of severity warning and error there is nothing, other than what an override explains."""
    assert sorted(packages["new"]) == sorted(ALL)
    done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error,warning", *packages["new"].values()], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout == "", done.stdout + done.stderr


def test_install_and_purge(machine, packages):
    before = machine.files()
    said = machine.install(packages["new"].values())
    assert "error" not in said.lower(), said
    assert all(machine.version(name).startswith("installed ") for name in ALL)
    for program in (*PROGRAMS, "ctl"):
        assert machine.run(f"/usr/bin/cgn-{program}", "--version").startswith(f"cgn-{program} ")
    for program in PROGRAMS:  # the settings of the package are valid, and units name programs that exist
        machine.run(f"/usr/bin/cgn-{program}", "--check", "--config", f"/{SETTINGS}")
        unit = next(p for p in (machine.root / d / f"cgn-{program}.service" for d in ("usr/lib/systemd/system", "lib/systemd/system")) if p.exists())
        assert f"ExecStart=/usr/bin/cgn-{program}" in unit.read_text()
        machine.run("systemctl", "is-enabled", f"cgn-{program}", code=1)
    assert "disabled" in machine.run("systemctl", "is-enabled", "cgn-router", code=1)
    machine.run("systemctl", "enable", "cgn-router", "cognitora.target")
    assert "cognitora:" in (machine.root / "etc/passwd").read_text()
    for folder in ("var/lib/cognitora", "var/log/cognitora"):
        there = machine.root / folder
        assert there.is_dir() and there.stat().st_uid != 0
        (there / "state").write_text("something")
    assert machine.run("cgn-ctl", "doctor", "--only", "settings", "--only", "state-dir", "--program", "router").startswith("settings /etc/cognitora")
    machine.run("dpkg", "--remove", *ALL)
    assert machine.settings() and (machine.root / "var/lib/cognitora/state").exists(), "a removal keeps settings and state"
    assert not (machine.root / "usr/bin/cgn-router").exists()
    machine.run("dpkg", "--purge", *ALL)
    left = machine.files() - before
    # The user stays, as is usual in Debian: files may belong to it.
    assert {p for p in left if not re.search(r"^/etc/(passwd|group|shadow|gshadow|\.pwd\.lock)", p)} == set(), left


def test_settings_are_kept(machine, packages):
    """A file that the administrator changed is kept; one that is as it came is not asked about."""
    machine.install(packages["old"].values())
    assert machine.version("cognitora-router") == f"installed {number(packages['old'])}"
    mine = machine.settings() + "\n[log]\nlevel = \"debug\"\n"
    (machine.root / SETTINGS).write_text(mine)
    (machine.root / "etc/cognitora/keys").write_text("k")
    (machine.root / "var/lib/cognitora/state").write_text("s")
    machine.install(packages["new"].values())
    assert machine.version("cognitora-router") != f"installed {number(packages['old'])}" and machine.settings() == mine
    assert (machine.root / "var/lib/cognitora/state").read_text() == "s"
    machine.install(packages["old"].values(), "--force-downgrade")
    assert machine.version("cognitora-router") == f"installed {number(packages['old'])}" and machine.settings() == mine
    machine.run("dpkg", "--purge", *ALL)
    assert not (machine.root / SETTINGS).exists() and (machine.root / "etc/cognitora/keys").exists(), "the administrator's own files stay"


def test_an_upgrade_asks_only_where_both_changed(machine, packages, tmp_path):
    """A newer package has other settings: the administrator's stay with --force-confold, which unattended upgrades use, and the new ones lie beside."""
    machine.install(packages["old"].values())
    changed = tmp_path / "changed"
    subprocess.run(["dpkg-deb", "-R", packages["new"]["cognitora-common"], changed], check=True)
    (changed / SETTINGS).write_text((changed / SETTINGS).read_text() + "\n# new\n")
    newer = tmp_path / packages["new"]["cognitora-common"].name
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", changed, newer], check=True, capture_output=True)
    files = [newer if name == "cognitora-common" else f for name, f in packages["new"].items()]
    mine = machine.settings().replace("8080", "8081")
    (machine.root / SETTINGS).write_text(mine)
    machine.install(files, "--force-confold")
    assert machine.settings() == mine and "# new" in (machine.root / f"{SETTINGS}.dpkg-dist").read_text()


def test_parts_stand_alone(machine, packages):
    """The command line needs nothing else; a daemon needs the common package."""
    machine.install([packages["new"]["cognitora-ctl"]])
    assert machine.run("cgn-ctl", "doctor", "--list")
    shutil.copy(packages["new"]["cognitora-router"], machine.root / "debs/r.deb")
    assert "cognitora-common" in machine.run("dpkg", "-i", "/debs/r.deb", code=1)

# SPDX-License-Identifier: Apache-2.0
"""deploy/installer/install.sh: installs what it has verified, and nothing else."""
import atexit
import functools
import hashlib
import http.server
import io
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time

import pytest

from cluster import BUILD, ROOT

SCRIPT = ROOT / "deploy/installer/install.sh"
PLATFORM = {"x86_64": "linux-x86_64", "aarch64": "linux-arm64"}[os.uname().machine]
pytestmark = pytest.mark.plain


@functools.cache
def program():
    """A cgn-ctl without the debug information, which would be packed for a long time."""
    to = pathlib.Path(tempfile.mkdtemp(prefix="cgn-installer-")) / "cgn-ctl"
    subprocess.run(["strip", "-o", to, BUILD / "src/ctl/cgn-ctl"], check=True)
    atexit.register(shutil.rmtree, to.parent)
    return to


def release(folder, version="1.2.3", extra=(), names=None):
    """Make the files of a release of this build's cgn-ctl in |folder|."""
    folder.mkdir(exist_ok=True)
    name = f"cognitora-{version}-{PLATFORM}"
    files = {"LICENSE": b"license", "share/cognitora/x": b"x", "lib/systemd/system/cgn-router.service": b"[Service]\nExecStart=/usr/bin/cgn-router\n", **dict(extra)}
    with tarfile.open(folder / f"{name}.tar.gz", "w:gz", compresslevel=1) as tar:
        tar.add(program(), f"{name}/bin/cgn-ctl")
        for path, content in files.items():
            info = tarfile.TarInfo(path if path.startswith("/") or ".." in path else f"{name}/{path}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    sums(folder)
    (folder / "LATEST").write_text(version + "\n")
    return folder / f"{name}.tar.gz"


def sums(folder):
    (folder / "SHA256SUMS").write_text("".join(f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in sorted(folder.glob("*.tar.gz"))))


def install(tmp_path, *args, base=None, wrap=(), script=SCRIPT, **env):
    plain = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(tmp_path / "home"), "CGN_BASE_URL": base or f"file://{tmp_path}/dist",
             "CGN_PREFIX": str(tmp_path / "prefix")}
    plain.update(env)
    return subprocess.run([*wrap, "/bin/sh", script, *args], env={k: v for k, v in plain.items() if v is not None}, capture_output=True, text=True, timeout=60)


def installed(tmp_path):
    prefix = tmp_path / "prefix"
    return sorted(str(p.relative_to(prefix)) for p in prefix.rglob("*") if p.is_file())


def refused(done, tmp_path, *words):
    assert done.returncode == 1 and not installed(tmp_path), done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].startswith("install.sh: ")


def test_install_upgrade_downgrade_uninstall(tmp_path):
    release(tmp_path / "dist", "1.0.0", {"share/cognitora/old": b"old"}.items())
    release(tmp_path / "dist", "1.2.3")
    done = install(tmp_path, CGN_VERSION="1.0.0")
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path) == ["bin/cgn-ctl", "lib/systemd/system/cgn-router.service", "share/cognitora/installed", "share/cognitora/old",
                                   "share/cognitora/x", "share/doc/cognitora/LICENSE"]
    own = tmp_path / "prefix/share/cognitora/mine"
    own.write_text("mine")
    done = install(tmp_path)
    assert done.returncode == 0 and "replaced 1.0.0" in done.stdout, done.stderr
    assert "share/cognitora/old" not in installed(tmp_path) and own.exists()
    assert install(tmp_path).returncode == 0  # again
    done = install(tmp_path, CGN_VERSION="1.0.0")
    assert "replaced 1.2.3" in done.stdout and "share/cognitora/old" in installed(tmp_path)
    assert subprocess.run([tmp_path / "prefix/bin/cgn-ctl", "--version"], capture_output=True).returncode == 0
    done = install(tmp_path, "--uninstall")
    assert done.returncode == 0 and installed(tmp_path) == ["share/cognitora/mine"]
    done = install(tmp_path, "--uninstall")
    assert done.returncode == 1 and "nothing is installed" in done.stderr


def test_interrupted(tmp_path):
    release(tmp_path / "dist", extra={f"share/cognitora/many/{i}": b"x" for i in range(500)}.items())
    prefix = tmp_path / "prefix"
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "CGN_BASE_URL": f"file://{tmp_path}/dist", "CGN_PREFIX": str(prefix)}
    running = subprocess.Popen(["/bin/sh", SCRIPT], env=env, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while not (prefix / "share/cognitora/many").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    running.kill()
    running.stdout.read()  # to its end: what the script had started, such as mv, has ended too
    running.wait()
    partly = len(installed(tmp_path))
    assert 1 < partly < 500  # some files are there, not all
    shutil.copytree(prefix, tmp_path / "copy")
    assert install(tmp_path, "--uninstall").returncode == 0 and installed(tmp_path) == []
    shutil.copytree(tmp_path / "copy", prefix, dirs_exist_ok=True)
    assert install(tmp_path).returncode == 0 and len(installed(tmp_path)) > 500
    assert install(tmp_path, "--uninstall").returncode == 0 and installed(tmp_path) == []


def test_others_can_run_what_a_careful_root_installs(tmp_path):
    release(tmp_path / "dist")
    done = install(tmp_path, wrap=("/bin/sh", "-c", 'umask 077; exec "$@"', "sh"))
    assert done.returncode == 0, done.stderr
    assert all(p.stat().st_mode & 0o055 == 0o055 for p in (tmp_path / "prefix", tmp_path / "prefix/bin", tmp_path / "prefix/bin/cgn-ctl"))


def test_a_corrupted_archive(tmp_path):
    file = release(tmp_path / "dist")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    refused(install(tmp_path), tmp_path, "checksum", "nothing was installed")


def test_what_is_missing(tmp_path):
    file = release(tmp_path / "dist")
    refused(install(tmp_path, CGN_VERSION="9.9.9"), tmp_path, "9.9.9", "missing")
    (tmp_path / "dist/SHA256SUMS").write_text("")
    refused(install(tmp_path), tmp_path, "does not name")
    (tmp_path / "dist/SHA256SUMS").unlink()
    refused(install(tmp_path), tmp_path, "SHA256SUMS is missing")
    file.unlink()
    refused(install(tmp_path), tmp_path, file.name)


@pytest.mark.parametrize("path", ["../outside", "/tmp/outside-of-cognitora", "other/file"])
def test_files_outside_of_the_release(tmp_path, path):
    file = release(tmp_path / "dist")
    with tarfile.open(file, "w:gz", compresslevel=1) as tar:
        tar.add(program(), f"{file.name[:-7]}/bin/cgn-ctl")
        info = tarfile.TarInfo(path)
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    sums(tmp_path / "dist")
    refused(install(tmp_path), tmp_path, "outside")
    assert not pathlib.Path("/tmp/outside-of-cognitora").exists()


def test_programs_that_do_not_run_here(tmp_path):
    file = release(tmp_path / "dist")
    with tarfile.open(file, "w:gz", compresslevel=1) as tar:
        info = tarfile.TarInfo(f"{file.name[:-7]}/bin/cgn-ctl")
        info.size, info.mode = 4, 0o755
        tar.addfile(info, io.BytesIO(b"\x7fELF"))
    sums(tmp_path / "dist")
    refused(install(tmp_path), tmp_path, "do not run here")


@pytest.mark.parametrize("env, words", [
    ({"CGN_VERSION": "../1"}, ["is not a version"]), ({"CGN_PREFIX": "relative"}, ["absolute"]), ({"CGN_BASE_URL": "ftp://x"}, ["ftp://x", "https://"]),
    ({"CGN_BASE_URL": "http://127.0.0.1:9"}, ["http://127.0.0.1:9/LATEST", "cannot be fetched"])])
def test_bad_settings(tmp_path, env, words):
    refused(install(tmp_path, **env), tmp_path, *words)


@pytest.mark.parametrize("program", ["curl", "wget"])
def test_without_a_published_release(tmp_path, program):
    """One line says what to set. The tools of this test fetch nothing, and say so as curl does."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("uname", "mktemp", "rm", "id"):
        (tools / name).symlink_to(shutil.which(name))
    (tools / program).write_text('#!/bin/sh\ncase " $* " in *" -S "*) echo "curl: (22) 404" >&2 ;; esac\nexit 22\n')
    (tools / program).chmod(0o755)
    done = install(tmp_path, PATH=str(tools), CGN_BASE_URL=None)
    refused(done, tmp_path, "cognitora/cognitora/releases/latest/download/LATEST cannot be fetched", "set CGN_BASE_URL", "CGN_REPO")
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_arguments(tmp_path):
    done = install(tmp_path, "--help")
    assert done.returncode == 0 and "CGN_BASE_URL" in done.stdout and "set -eu" not in done.stdout
    refused(install(tmp_path, "--what"), tmp_path, "--what")
    refused(install(tmp_path, "--uninstall", "x"), tmp_path, "unexpected")


def test_over_http(tmp_path):
    release(tmp_path / "dist")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *a, **k):
            super().__init__(*a, directory=str(tmp_path / "dist"), **k)

        def log_message(self, *_):
            pass
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = install(tmp_path, base=f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()
    assert done.returncode == 0 and "bin/cgn-ctl" in installed(tmp_path), done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
def test_without_root(tmp_path):
    release(tmp_path / "dist")
    (tmp_path / "home").mkdir()
    for p in [tmp_path, *tmp_path.parents]:
        if p != pathlib.Path("/tmp") and str(p).startswith("/tmp/"):
            p.chmod(0o755)
    os.chown(tmp_path / "home", 65534, 65534)
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    done = install(tmp_path, wrap=nobody, CGN_PREFIX=None)
    assert done.returncode == 0 and (tmp_path / "home/.local/bin/cgn-ctl").exists(), done.stderr
    assert "PATH" in done.stdout
    done = install(tmp_path, wrap=nobody, CGN_PREFIX="/usr/local/cognitora-of-nobody")
    refused(done, tmp_path, "cannot be written", "CGN_PREFIX")


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("bwrap"), reason="needs root and bubblewrap")
def test_as_root_units_go_where_systemd_looks(tmp_path):
    release(tmp_path / "dist")
    (tmp_path / "prefix").mkdir()
    boxed = ["bwrap", "--dev-bind", "/", "/", "--bind", str(tmp_path / "prefix"), "/usr/local", "--tmpfs", "/etc/systemd/system", "/bin/sh", "-c",
             'sh "$0" && cat /etc/systemd/system/cgn-router.service && sh "$0" --uninstall && ls -A /etc/systemd/system', str(SCRIPT)]
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "CGN_BASE_URL": f"file://{tmp_path}/dist"}
    done = subprocess.run(boxed, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "ExecStart=/usr/local/bin/cgn-router" in done.stdout and not installed(tmp_path)
    assert done.stdout.rstrip().endswith("stay")  # no unit is left


@pytest.mark.skipif(not shutil.which("minisign"), reason="minisign is not installed")
def test_signature(tmp_path):
    release(tmp_path / "dist")

    def sign(key):
        subprocess.run(["minisign", "-G", "-W", "-f", "-p", tmp_path / f"{key}.pub", "-s", tmp_path / f"{key}.key"], check=True, capture_output=True)
        subprocess.run(["minisign", "-S", "-s", tmp_path / f"{key}.key", "-m", tmp_path / "dist/SHA256SUMS"], check=True, capture_output=True)
        return (tmp_path / f"{key}.pub").read_text().splitlines()[1]
    ours, other = sign("ours"), None
    assert install(tmp_path, CGN_PUBLIC_KEY=ours).returncode == 0
    assert install(tmp_path, "--uninstall").returncode == 0
    other = sign("other")
    refused(install(tmp_path, CGN_PUBLIC_KEY=ours), tmp_path, "signature")
    assert install(tmp_path, CGN_PUBLIC_KEY=other).returncode == 0
    assert install(tmp_path, "--uninstall").returncode == 0
    (tmp_path / "dist/SHA256SUMS.minisig").unlink()
    refused(install(tmp_path, CGN_PUBLIC_KEY=other), tmp_path, "minisig is missing")


@pytest.mark.skipif(not shutil.which("minisign") or not shutil.which("openssl"), reason="minisign or openssl is not installed")
@pytest.mark.parametrize("tool", ["minisign", "openssl", "openssl, legacy", "none"])
def test_the_installer_of_a_signed_release_checks_its_signature(tmp_path, tool):
    """As scripts/release writes it: with the public key. OpenSSL checks where minisign is not installed."""
    release(tmp_path / "dist")
    keys = {}
    for name in ("ours", "other"):
        subprocess.run(["minisign", "-G", "-W", "-p", tmp_path / f"{name}.pub", "-s", tmp_path / f"{name}.key"], check=True, capture_output=True)
        keys[name] = (tmp_path / f"{name}.pub").read_text().splitlines()[1]

    def sign(key):
        subprocess.run(["minisign", "-S", *(["-l"] if "legacy" in tool else []), "-s", tmp_path / f"{key}.key", "-m", tmp_path / "dist/SHA256SUMS"], check=True, capture_output=True)
    script = tmp_path / "install.sh"
    script.write_text(SCRIPT.read_text().replace("release_key=''", f"release_key='{keys['ours']}'"))
    tools = tmp_path / "bin"
    tools.mkdir()
    lacks = {"minisign": "openssl", "none": "openssl minisign"}.get(tool, "minisign").split()
    for path in ("/usr/bin", "/bin"):
        for f in pathlib.Path(path).iterdir():
            if f.name not in lacks and not (tools / f.name).exists():
                (tools / f.name).symlink_to(f)
    where = {"script": script, "PATH": str(tools)}
    sign("ours")
    if tool == "none":
        refused(install(tmp_path, **where), tmp_path, "minisign or openssl is needed")
        assert install(tmp_path, CGN_PUBLIC_KEY="", **where).returncode == 0
        return
    done = install(tmp_path, **where)
    assert done.returncode == 0, done.stderr
    assert install(tmp_path, "--uninstall", **where).returncode == 0
    with (tmp_path / "dist/SHA256SUMS").open("a") as f:
        f.write("0  x\n")
    refused(install(tmp_path, **where), tmp_path, "the signature of SHA256SUMS is not by")
    sign("other")
    refused(install(tmp_path, **where), tmp_path, "the signature of SHA256SUMS is not by")
    assert install(tmp_path, CGN_PUBLIC_KEY=keys["other"], **where).returncode == 0

# SPDX-License-Identifier: Apache-2.0
"""scripts/images: an OCI layout of a release, whose programs run without anything else; and the compose files' settings."""
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tarfile

import pytest

from cluster import BUILD, ROOT, ask, free_port, until

PROGRAMS = ("agent", "ctl", "router", "sim")  # and cgn-lab, in the image of cgn-ctl
ARCH = {"x86_64": ("x86_64", "amd64"), "aarch64": ("arm64", "arm64")}[os.uname().machine]
pytestmark = pytest.mark.plain
boxed = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    """The images of a small release of this build's programs."""
    folder = tmp_path_factory.mktemp("images")
    release = folder / f"cognitora-1.2.3-linux-{ARCH[0]}.tar.gz"
    with tarfile.open(release, "w:gz", compresslevel=1) as tar:
        for program in (*PROGRAMS, "lab"):
            subprocess.run(["strip", "-o", folder / program, BUILD / f"src/{'ctl' if program == 'lab' else program}/cgn-{program}"], check=True)
            info = tar.gettarinfo(folder / program, f"cognitora-1.2.3/bin/cgn-{program}")
            info.mtime = 1700000000
            with open(folder / program, "rb") as f:
                tar.addfile(info, f)
    images(release, folder / "one")
    images(release, folder / "two")
    return folder


def images(release, out, code=0):
    done = subprocess.run([ROOT / "scripts/images", release, out], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


def blob(layout, entry):
    data = (layout / "one/blobs" / entry["digest"].replace(":", "/")).read_bytes()
    assert entry["digest"] == "sha256:" + hashlib.sha256(data).hexdigest() and entry["size"] == len(data)
    return data


@functools.cache
def root(layout, program):
    """Unpack the image of |program| and return its root folder and its configuration."""
    index = json.loads((layout / "one/index.json").read_text())
    (entry,) = [m for m in index["manifests"] if m["annotations"]["org.opencontainers.image.ref.name"] == f"cgn-{program}-1.2.3"]
    manifest = json.loads(blob(layout, entry))
    to = layout / f"root-{program}"
    for layer in manifest["layers"]:
        blob(layout, layer)
        with tarfile.open(layout / "one/blobs" / layer["digest"].replace(":", "/")) as tar:
            tar.extractall(to)
    return to, json.loads(blob(layout, manifest["config"]))


def argv(layout, program, *args, state=None, **env):
    to, config = root(layout, program)
    user, group = config["config"]["User"].split(":")
    box = ["bwrap", "--ro-bind", str(to), "/", "--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev", "--unshare-user", "--uid", user, "--gid", group, "--clearenv",
           "--die-with-parent"]
    if state:
        box += ["--bind", str(state), "/var/lib/cognitora"]
    for key, value in [*(e.split("=", 1) for e in config["config"]["Env"]), *env.items()]:
        box += ["--setenv", key, value]
    return [*box, *config["config"]["Entrypoint"], *args]


@pytest.mark.slow
def test_the_same_release_gives_the_same_images(layout):
    one, two = ((layout / name / "index.json").read_text() for name in ("one", "two"))
    assert one == two and len(json.loads(one)["manifests"]) == len(PROGRAMS)
    images(layout / f"cognitora-1.2.3-linux-{ARCH[0]}.tar.gz", layout / "two")
    assert (layout / "two/index.json").read_text() == one  # nothing twice


def test_an_image_has_one_program_and_no_shell(layout):
    to, config = root(layout, "router")
    assert [p.name for p in (to / "usr/bin").iterdir()] == ["cgn-router"] and not (to / "bin").exists()
    assert config["architecture"] == ARCH[1] and config["config"]["User"] == "65532:65532"
    assert all(not p.stat().st_mode & 0o6000 for p in to.rglob("*") if p.is_file())


@boxed
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_runs_with_what_is_in_its_image(layout, program):
    done = subprocess.run(argv(layout, program, "--version"), capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith(f"cgn-{program} "), done.stderr


@boxed
def test_the_image_of_cgn_ctl_measures_too(layout):
    done = subprocess.run(argv(layout, "ctl", "bench", "workload", "chat", "--requests", "3"), capture_output=True, text=True)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 3, done.stderr


@pytest.mark.slow
@boxed
def test_a_cluster_of_images_answers(layout, tmp_path):
    engine, grpc, http, admin, agent, agent_admin = (str(free_port()) for _ in range(6))
    at = "127.0.0.1:"
    started = []
    try:
        for program, args, env in (
                ("sim", ("--listen", at + engine, "--model", "sim", "--time-scale", "0"), {}),
                ("router", (), {"COGNITORA__ROUTER__LISTEN": at + http, "COGNITORA__ROUTER__LISTEN_GRPC": at + grpc, "COGNITORA__ROUTER__LISTEN_ADMIN": at + admin}),
                ("agent", (), {"COGNITORA__CLUSTER__ROUTER": at + grpc, "COGNITORA__AGENT__LISTEN": at + agent, "COGNITORA__AGENT__LISTEN_ADMIN": at + agent_admin,
                               "COGNITORA__AGENT__NODE_ID": "a", "COGNITORA__ENGINE__KIND": "sim", "COGNITORA__ENGINE__URL": f"http://{at}{engine}"})):
            state = tmp_path / program
            state.mkdir()
            started.append(subprocess.Popen(argv(layout, program, *args, state=state, **env), stdout=subprocess.DEVNULL, stderr=open(tmp_path / f"{program}.log", "w")))
        logs = lambda: "\n".join((tmp_path / f"{p}.log").read_text()[-1500:] for p in ("agent", "router", "sim"))  # noqa: E731

        def answered():
            try:
                return ask(int(http), "POST", "/v1/chat/completions", {"model": "sim", "messages": [{"role": "user", "content": "hi"}]}).status == 200
            except OSError:
                return False
        until(answered, logs)
        for program, env in (("router", {"COGNITORA__ROUTER__LISTEN_ADMIN": at + admin}), ("agent", {"COGNITORA__AGENT__LISTEN_ADMIN": at + agent_admin})):
            health = root(layout, program)[1]["config"]["Healthcheck"]["Test"]
            assert health[:2] == ["CMD", f"/usr/bin/cgn-{program}"], "a program of the image, and no shell"
            done = subprocess.run(argv(layout, program, *health[2:], **env), capture_output=True, text=True)
            assert done.returncode == 0, (program, done.stderr)
    finally:
        for p in started:
            p.terminate()
        for p in started:
            p.wait(30)


@pytest.mark.parametrize("name, word", [("cognitora.tar.gz", "is not a tarball of a release"), ("missing/cognitora-1-linux-x86_64.tar.gz", "is not a tarball")])
def test_what_is_no_release(tmp_path, name, word):
    (tmp_path / "cognitora.tar.gz").write_bytes(b"x")
    assert word in images(tmp_path / name, tmp_path / "out", code=1).stderr and not (tmp_path / "out").exists()


@pytest.mark.parametrize("file", sorted(p.name for p in (ROOT / "deploy/compose").glob("*.yaml")))
def test_settings_of_a_compose_file_are_valid(file, tmp_path):
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((ROOT / "deploy/compose" / file).read_text())["services"]
    ours = {name: s for name, s in services.items() if "/cgn-" in s["image"]}
    assert len(ours) >= 2
    for name, service in ours.items():
        program = re.search(r"/(cgn-\w+):", service["image"])[1]
        env = {"PATH": "/usr/bin", "COGNITORA__CLUSTER__STATE_DIR": str(tmp_path), **service["environment"]}
        done = subprocess.run([BUILD / "src" / program.removeprefix("cgn-") / program, "--check"], env=env, capture_output=True, text=True)
        assert done.returncode == 0, (name, done.stdout, done.stderr)
        assert service["healthcheck"]["test"] == ["CMD", f"/usr/bin/{program}", "--probe", "ready"]
        assert service["read_only"] and service["cap_drop"] == ["ALL"]

# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl install and uninstall, into a folder that stands for a machine's root; and the programs with the files that were installed, each with
its own credentials as its unit gives them."""
import re
import shutil
import subprocess

import pytest

from cluster import BUILD, Process, ask, free_port, until

CTL = BUILD / "src/ctl/cgn-ctl"
RECORD = "var/lib/cognitora/install.sha256"
SETTINGS = "etc/cognitora/cognitora.toml"


def ctl(*args):
    return subprocess.run([CTL, *map(str, args)], capture_output=True, text=True)


def install(root, *args):
    return ctl("install", "single-node", "--root", root, "--engine", "sim", *args)


def content(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def installed(root):
    done = install(root, "--apply")
    assert done.returncode == 0, done.stderr
    return root


def test_nothing_is_written_without_apply(root):
    done = install(root)
    assert done.returncode == 0 and not content(root), done.stderr
    assert "+kind = \"sim\"" in done.stdout and "create  /etc/systemd/system/cgn-router.service\n" in done.stdout
    assert "nothing was written; with --apply " in done.stdout


def test_a_second_time_changes_nothing(installed):
    before = content(installed)
    done = install(installed, "--apply")
    assert done.returncode == 0 and done.stdout == "nothing to do: the machine has these files\n", done.stdout
    assert content(installed) == before
    keys = list((installed / "etc/cognitora/pki").glob("*.key"))
    assert len(keys) == 5 and all(k.stat().st_mode & 0o777 == 0o600 for k in keys)


def test_the_record_is_one_of_sha256sum(installed):
    text = (installed / RECORD).read_text().replace("  /", "  ./")
    done = subprocess.run(["sha256sum", "-c", "--strict", "-"], input=text, cwd=installed, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {line.split("  ./")[1] for line in text.splitlines()} == set(content(installed)) - {RECORD}


def test_our_files_are_updated_and_changed_ones_are_kept(installed):
    done = install(installed, "--listen", "127.0.0.1:8181", "--apply")
    assert done.returncode == 0 and "update  /etc/cognitora/cognitora.toml" in done.stdout, done.stdout
    settings = installed / SETTINGS
    settings.write_text(settings.read_text() + "# mine\n")
    done = install(installed, "--apply")
    assert done.returncode == 1 and "keep    /etc/cognitora/cognitora.toml" in done.stdout and "-# mine" in done.stdout, done.stdout
    assert "1 files were kept" in done.stderr and settings.read_text().endswith("# mine\n")


def test_a_file_of_somebody_else_is_not_touched(root):
    settings = root / SETTINGS
    settings.parent.mkdir(parents=True)
    settings.write_text("[router]\n")
    assert install(root, "--apply").returncode == 1
    assert settings.read_text() == "[router]\n"
    assert ctl("uninstall", "--root", root, "--apply").returncode == 0
    assert set(content(root)) == {SETTINGS}


def test_uninstall_undoes_an_install(installed):
    before = content(installed)
    done = ctl("uninstall", "--root", installed)
    assert done.returncode == 0 and "nothing was removed" in done.stdout and content(installed) == before
    done = ctl("uninstall", "--root", installed, "--apply")
    assert done.returncode == 0, done.stderr
    assert not list((installed / "etc").rglob("*")) and not content(installed), done.stdout
    done = ctl("uninstall", "--root", installed, "--apply")
    assert done.returncode == 1 and "has written nothing here" in done.stderr


def test_uninstall_keeps_what_was_changed(installed):
    unit, settings = installed / "etc/systemd/system/cgn-agent.service", installed / SETTINGS
    unit.write_text(unit.read_text() + "# mine\n")
    settings.unlink()  # gone already: no error
    (installed / "etc/cognitora/keys").write_text("mine\n")
    done = ctl("uninstall", "--root", installed, "--apply")
    assert done.returncode == 1 and "keep    /etc/systemd/system/cgn-agent.service" in done.stdout, done.stdout
    assert set(content(installed)) == {"etc/systemd/system/cgn-agent.service", "etc/cognitora/keys", RECORD}


@pytest.mark.parametrize("args, says", [
    (["--engine", "nonsense"], 'engine.kind is "nonsense"'),
    (["--store-ram", "a lot"], "kv.ram"),
    (["--listen", 'x"\n[router]'], "router.listen"),
])
def test_a_wrong_value_is_named_and_nothing_is_written(root, args, says):
    done = install(root, *args, "--apply")
    assert done.returncode == 2 or done.returncode == 3, done
    assert says in done.stderr and not content(root), done.stderr


def test_a_broken_record_is_refused(installed):
    for line in ["../../etc/passwd", "0" * 64 + "  /../outside", "0" * 64 + "  relative"]:
        (installed / RECORD).write_text(line + "\n")
        done = ctl("uninstall", "--root", installed, "--apply")
        assert done.returncode == 2 and "a line is not" in done.stderr and (installed / SETTINGS).exists(), done.stderr


@pytest.mark.plain
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
def test_systemd_accepts_what_was_installed(installed):
    shutil.copytree("/lib/systemd/system", installed / "lib/systemd/system", symlinks=True)
    programs = ["router", "agent", "kvcached", "metrics"]
    for program in [*(f"usr/bin/cgn-{p}" for p in programs), "bin/kill"]:
        (installed / program).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/true", installed / program)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", "--root", installed, "cognitora.target", *(f"cgn-{p}.service" for p in programs)],
                          capture_output=True, text=True)
    wrong = [line for line in (done.stdout + done.stderr).splitlines() if "cognitora" in line or "cgn-" in line]
    assert not wrong, wrong


def credentials(root, folder, program):
    """Copy what the unit's LoadCredential= lines name."""
    folder.mkdir()
    text = (root / f"etc/systemd/system/{program}.service.d/credentials.conf").read_text()
    for name, path in re.findall(r"^LoadCredential=([^:]+):/(.*)$", text, re.MULTILINE):
        shutil.copy(root / path, folder / name)
    assert len(list(folder.iterdir())) == 3
    return folder


def test_the_installed_settings_serve_a_chat(tmp_path, root, monkeypatch):
    http, engine, first = free_port(), free_port(), free_port(4)
    assert install(root, "--listen", f"127.0.0.1:{http}", "--engine-url", f"http://127.0.0.1:{engine}", "--apply").returncode == 0
    # Other tests use the default ports, and /var/lib: only these differ from what was installed.
    moved = [("router.listen_grpc", first), ("agent.listen", first + 1), ("router.listen_admin", first + 2), ("agent.listen_admin", first + 3)]
    moves = [x for key, port in moved for x in ("--set", f"{key}=127.0.0.1:{port}")] + ["--set", f"cluster.router=127.0.0.1:{first}"]
    sim = Process(tmp_path, "sim", "cgn-sim", "--listen", f"127.0.0.1:{engine}", "--time-scale", "0")
    started = [sim]
    try:
        for program in ["cgn-router", "cgn-agent"]:
            monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials(root, tmp_path / f"{program}.credentials", program)))
            state = tmp_path / f"{program}.state"
            state.mkdir()
            started.append(Process(tmp_path, program, program, "--config", root / SETTINGS, *moves, "--set", f"cluster.state_dir={state}"))
        body = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}

        def answers():
            try:
                return ask(http, "POST", "/v1/chat/completions", body).status == 200
            except OSError:
                return False
        until(answers, lambda: "\n".join(p.log()[-1500:] for p in started))
    finally:
        for p in reversed(started):
            p.kill()

# SPDX-License-Identifier: Apache-2.0
"""The completion of cgn-ctl in real shells on a terminal: what is typed, then Tab, then Enter runs the completed line."""
import fcntl
import os
import pty
import select
import shutil
import subprocess
import termios
import time

import pytest

from cluster import BUILD, ROOT, WAIT_S

CTL = BUILD / "src/ctl/cgn-ctl"
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source <(cgn-ctl completion bash)"),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit; compinit -u -D; source <(cgn-ctl completion zsh)"),
    "fish": (["fish", "--no-config", "-i"], "cgn-ctl completion fish | source"),
}


class Shell:
    """An interactive shell in |folder|."""

    def __init__(self, name, folder):
        argv, self.setup = SHELLS[name]
        if not shutil.which(argv[0]):
            pytest.skip(f"{name} is not installed")
        self.ours, its = pty.openpty()
        env = {"PATH": f"{CTL.parent}:{os.environ['PATH']}", "HOME": str(folder), "TERM": "xterm", "PS1": "$ ", "CGN_RECIPES": str(ROOT / "recipes"),
               "XDG_CONFIG_HOME": str(folder / "config"), "LANG": "C.UTF-8"}
        self.popen = subprocess.Popen(argv, stdin=its, stdout=its, stderr=its, env=env, cwd=folder, start_new_session=True,
                                      preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))  # fish wants a controlling terminal
        os.close(its)
        self.seen = ""
        self.type(f"{self.setup}; echo rea''dy\r", "ready")

    def type(self, keys, wanted):
        """Type |keys| and wait for |wanted| in what appears after them."""
        self.seen = ""
        os.write(self.ours, keys.encode())
        end = time.monotonic() + WAIT_S
        while wanted not in self.seen:
            left = end - time.monotonic()
            assert left > 0 and select.select([self.ours], [], [], left)[0], f"no {wanted!r} after {keys!r}: {self.seen!r}"
            self.seen += os.read(self.ours, 65536).decode(errors="replace")
        return self.seen

    def close(self):
        self.popen.kill()
        self.popen.wait()
        os.close(self.ours)


@pytest.fixture(params=SHELLS)
def shell(request, tmp_path):
    s = Shell(request.param, tmp_path)
    yield s
    s.close()


def test_tab_completes_verbs_flags_values_and_names(shell, tmp_path):
    (tmp_path / "some-file.toml").write_text('[cluster]\nname = "found by tab"\n')
    shell.type("cgn-ctl clus\tnod\t--he\t\r", "usage: cgn-ctl cluster nodes")
    assert "command not found" not in shell.seen
    shell.type("cgn-ctl version -o js\t\r", '{"version":')
    shell.type("cgn-ctl recipe show quickstart/sim/a\t\r", "--- router.toml ---")
    shell.type("cgn-ctl config check some\t\r", "found by tab")
    shell.type("cgn-ctl kv put --fi\t\x15echo li''ne\r", "line")  # Ctrl-U: the line is still ours


def test_completion_is_refused_for_other_shells():
    r = subprocess.run([CTL, "completion", "tcsh"], capture_output=True, text=True)
    assert r.returncode == 2 and "tcsh" in r.stderr and r.stdout == ""


def test_zsh_finds_the_script_in_its_function_path(tmp_path):
    """As an installed file _cgn-ctl, not sourced."""
    if not shutil.which("zsh"):
        pytest.skip("zsh is not installed")
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions/_cgn-ctl").write_text(subprocess.run([CTL, "completion", "zsh"], capture_output=True, text=True).stdout)
    s = Shell("zsh", tmp_path)
    try:
        s.type(f"unset '_comps[cgn-ctl]'; unfunction _cgn_ctl; fpath+=({tmp_path}/functions); compinit -u -D; echo aga''in\r", "again")
        s.type("cgn-ctl clus\tnod\t--he\t\r", "usage: cgn-ctl cluster nodes")
        s.type("cgn-ctl key cre\t--he\t\r", "usage: cgn-ctl key create")
    finally:
        s.close()

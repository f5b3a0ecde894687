# SPDX-License-Identifier: Apache-2.0
"""Codex and Claude Code through the gateway, in a network namespace without a network: an engine that is silent before its answer, at its
beginning and in its middle, commands that the agents run, an agent that is ended, and Codex's attempt at a WebSocket. coding_agents.py runs more
cases, and silences of a minute."""
import fcntl
import json
import os
import shutil
import subprocess
import sys

import pytest
from cluster import BUILD, ROOT

HERE = ROOT / "tests/interop"
FOLDER = ROOT / "build/coding-agents"
PACKAGES = ("@openai/codex@0.171.0", "@anthropic-ai/claude-code@2.1.197")
ALONE = ("unshare", "--map-root-user", "--net")


def left_out(why):
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="module")
def npm():
    """Return a folder with the packages, which are about 650 MB."""
    if shutil.which("npm") is None:
        left_out("no npm")
    FOLDER.mkdir(parents=True, exist_ok=True)
    done, wanted = FOLDER / "installed", "\n".join(PACKAGES)
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists() or done.read_text() != wanted:
            argv = ["npm", "install", "--prefix", FOLDER, "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES]
            made = subprocess.run(argv, capture_output=True, text=True, timeout=600)
            if made.returncode != 0:
                left_out(f"npm cannot install the agents: {made.stderr.strip().splitlines()[-1:]}")
            done.write_text(wanted)
    return FOLDER


@pytest.mark.parametrize("agent", ["codex", "claude"])
def test_an_agent_asks_once(npm, tmp_path, agent):
    if subprocess.run([*ALONE, "true"], capture_output=True).returncode != 0:
        left_out("this user may not make a network namespace")
    line = 'ip link set lo up && exec "$@"'
    done = subprocess.run([*ALONE, "sh", "-c", line, "sh", sys.executable, HERE / "coding_agents.py", npm, tmp_path / "run", agent, "1", "2"],
                          capture_output=True, text=True, timeout=400, env={**os.environ, "CGN_BUILD": str(BUILD)})
    cases = {c["case"]: c for c in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0 and all(c["good"] for c in cases.values()), done.stdout + done.stderr[-3000:]
    assert set(cases) == {"silent", "left"} | ({"websocket"} if agent == "codex" else set())
    assert cases["silent"]["turns"] == 3 and cases["silent"]["breaker"] == ["closed"]
    if agent == "codex":
        assert cases["websocket"]["requests"] == [["GET", "/v1/responses", 426], ["POST", "/v1/responses", 200]]

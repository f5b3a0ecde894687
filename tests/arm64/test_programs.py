# SPDX-License-Identifier: Apache-2.0
"""The programs of the release for arm64 work together: a request through router, agent and simulated engine, its prefix found again, and blocks of a store."""
import json
import pathlib
import struct
import subprocess

import pytest

from cluster import BUILD, Cluster, until

PROGRAMS = ("router", "agent", "kvcached", "metrics", "operator", "sim", "ctl")


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_is_a_program_for_arm64_that_starts(program):
    wrapper = BUILD / "src" / program / f"cgn-{program}"
    path = pathlib.Path(wrapper.read_text().split()[-2])
    head = path.read_bytes()[:20]
    assert head[:5] == b"\x7fELF\x02" and struct.unpack("<H", head[18:20]) == (183,)  # EM_AARCH64
    args = ["version"] if program == "ctl" else ["--version"]
    done = subprocess.run([wrapper, *args], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "0." in done.stdout, done.stdout + done.stderr


def test_a_cluster_answers_and_finds_a_prefix_again(tmp_path):
    with Cluster(tmp_path) as c:
        c.router()
        c.node("a", "--time-scale", "0")
        c.node("b", "--time-scale", "0")
        c.wait_ready(2)
        text = "the same beginning of a prompt " * 40
        first = c.chat(text)
        assert first.status == 200, first.body
        until(lambda: json.loads(c.chat(text).body)["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0) > 0, "no prefix was found again")

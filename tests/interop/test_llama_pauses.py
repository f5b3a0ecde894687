# SPDX-License-Identifier: Apache-2.0
"""An agent that waits for a tool, before a real llama-server whose slots others take meanwhile: its history is not computed
again, and its state is in a slot before its next request is there."""
import argparse
import sys

from cluster import ROOT

sys.path.append(str(ROOT / "bench"))
import pauses  # noqa: E402


def test_the_state_is_in_a_slot_when_the_tool_has_run(binary, tmp_path):
    o = argparse.Namespace(agents=1, slots=2, turns=9, warm=6, tokens=2000, pause=1.0, visitors=2)
    b = pauses.Bench(tmp_path, binary, o, "sessions")
    try:
        got = b.run()
        assert got["cached_share"] > 0.9, got
        assert got["pauses"].get("restored", 0) >= 1 and got["prompts"].get("held", 0) >= 1, got
    finally:
        b.close()

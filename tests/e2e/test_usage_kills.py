# SPDX-License-Identifier: Apache-2.0
"""A router that is killed under load (usage_kills.py): what clients got is charged, and the budgets know it."""
import pytest

from usage_kills import kills


@pytest.mark.slow
def test_what_clients_got_before_a_kill_is_charged(tmp_path):
    got = kills(tmp_path, 4, 3000, 12)
    # Records are milliseconds old, and machines that run tests are busy.
    assert 0.97 * got["delivered"] <= got["charged"] <= 1.05 * got["computed"], got
    assert 0 < got["estimated"] < got["requests"], got
    budgets, usage = got["budgets"], got["usage"]
    assert (budgets["tokens"], budgets["requests"]) == (usage["tokens"], usage["requests"]), got
    assert budgets["USD"] == pytest.approx(usage["money"], rel=1e-6), got

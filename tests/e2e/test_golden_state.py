# SPDX-License-Identifier: Apache-2.0
"""What the programs of kept versions left on disk (tests/golden), read by those of this build. Usage and batches end by time, so that their
files are only parsed here; tests/skew compares all of it."""
import pathlib

import pytest

import kept_state
from cluster import ROOT, until

VERSIONS = sorted(p for p in (ROOT / "tests/golden").iterdir() if p.name[0].isdigit())


@pytest.mark.parametrize("version", VERSIONS, ids=lambda p: p.name)
def test_a_router_goes_on_with_its_folder(cluster, version):
    c = cluster
    kept_state.unpack(version / "state.tar.xz", c.state_dir, c.http_port)
    before = {p.relative_to(c.state_dir) for p in c.state_dir.rglob("*") if p.is_file()}
    assert len(before) >= 10, before
    c.headers = kept_state.key(c.folder, "one", "acme")
    kept_state.begin_at(c, ready=("a",))
    until(lambda: c.states().get("b") == "cordoned", c.logs)
    assert kept_state.policy(c) == "weighted"
    assert c.chat("hello", c.headers, max_tokens=2).status == 200
    wrong = [e for e in c.router_process.log().splitlines()
             if any(word in e for word in ("statefile.", "filestore.bad", "batch.bad", "state.members_unreadable", "state.bad"))]
    assert not wrong, wrong
    assert not list(c.state_dir.rglob("*.bad*"))


@pytest.mark.parametrize("version", VERSIONS, ids=lambda p: p.name)
def test_a_store_has_its_blocks(tmp_path, version):
    kept_state.unpack(version / "ssd.tar.xz", tmp_path / "ssd")
    store = kept_state.store_at(tmp_path, tmp_path / "ssd")
    try:
        kept_state.has_all(store)
        assert not list(pathlib.Path(tmp_path / "ssd").rglob("*.aside*"))
    finally:
        store.close()

# SPDX-License-Identifier: Apache-2.0
"""cgn-kvcached's SSD tier from outside: restarts, kill -9, damage, a full disk, and folders of other owners."""
import contextlib
import os
import random
import shutil
import signal
import subprocess

import pytest

from cluster import ROOT, SANITIZER, Process, ask, scaled, until
from kvdisks import Store, fill, tmpfs, value  # noqa: F401 (a fixture)


def metrics_are(s, *lines):
    """Wait until the metrics, which are set once a second, have each line; a line may be a function."""
    return until(lambda: all("\n" + (x() if callable(x) else x) + "\n" in ask(s.admin, "GET", "/metrics").body.decode() for x in lines),
                 lambda: [line for line in ask(s.admin, "GET", "/metrics").body.decode().splitlines() if line.startswith("cgn_kv_ssd")])


def test_a_restart_keeps_blocks(tmp_path):
    with Store(tmp_path) as s:
        fill(s, 40, 200000)
        fill(s, 40, 900, first=100)
        s("SET", "k3", value(3, 5000, 2))
        s("DEL", "k4")
        s.again()
        assert s.tell()["ssd"]["blocks"] == 79 and s.tell()["ram"]["blocks"] == 0
        for i in [*range(40), *range(100, 140)]:
            want = value(3, 5000, 2) if i == 3 else None if i == 4 else value(i, 200000 if i < 100 else 900)
            assert s("GET", f"k{i}") == want
        assert s.tell()["corrupt"] == 0
        until(lambda: f'cgn_kv_blocks{{tier="ssd"}} 79' in ask(s.admin, "GET", "/metrics").body.decode(), "the metric")


@pytest.mark.parametrize("size", [900, 200000])
def test_an_old_value_is_returned_from_ssd(tmp_path, size):
    with Store(tmp_path) as s:
        fill(s, 6, size)
        s.again()
        assert s.tell()["ram"]["blocks"] == 0
        assert s("GETDEL", "k0") == value(0, size) and s("GETDEL", "k0") is None
        for i, new in ((1, b"small"), (2, value(7, 50000))):
            assert s("GETSET", f"k{i}", new) == value(i, size)
            assert s("GET", f"k{i}") == new
        assert s("SET", "k3", b"new", "NX", "GET") == value(3, size) == s("GET", "k3")
        assert s("SET", "k4", b"new", "XX", "GET") == value(4, size) and s("GET", "k4") == b"new"
        assert s("SETNX", "k5", b"new") == s("MSETNX", "more", b"x", "k5", b"new") == b":0" and s("GET", "more") is None
        assert s("EXPIRE", "k5", "-1") == b":1" and s("GETSET", "k5", b"new") is None


@pytest.mark.slow
def test_by_default_nothing_that_fits_is_lost(tmp_path):
    """Values that are put once, three times as much as RAM holds, into an SSD tier with room for all of them."""
    with Store(tmp_path, ssd="1GiB", ssd_admission=None) as s:
        for i in range(200):
            assert s("SET", f"k{i}", value(i, 1 << 20)) == b"+OK"
            if i % 16 == 15:
                s.settle()
        assert [i for i in range(200) if s("EXISTS", f"k{i}") != b":1"] == []
        until(lambda: s.tell()["ssd"]["blocks"] == 200, s.tell)
        s.again(signal.SIGKILL)
        assert [i for i in range(200) if s("GET", f"k{i}") != value(i, 1 << 20)] == []
        left = s.tell()["ssd_write_budget_bytes"]
        assert 0 < left < (1 << 30)
        until(lambda: "\ncgn_kv_ssd_write_budget_bytes " in ask(s.admin, "GET", "/metrics").body.decode(), "the metric")


def test_the_write_budget(tmp_path):
    """A fiftieth of the tier a day at most; a restart does not give it back."""
    with Store(tmp_path, ssd="1GiB", ssd_admission="auto", ssd_writes_per_day=0.02, ram="32MiB") as s:
        for i in range(60):
            assert s("SET", f"k{i}", value(i, 1 << 20)) == b"+OK"
            s.settle()
        written = s.tell()["ssd"]["blocks"]
        assert 10 <= written <= 21
        s.again()
        for i in range(100, 160):
            assert s("SET", f"k{i}", value(i, 1 << 20)) == b"+OK"
            s.settle()
        assert s.tell()["ssd"]["blocks"] <= 21


def test_what_is_read_once_is_not_written(tmp_path):
    with Store(tmp_path, ssd_admission="reused") as s:
        for i in range(10):
            s("SET", f"k{i}", value(i, 100000))
        s("GET", "k1")
        s.settle()
        until(lambda: s.tell()["ssd"]["blocks"] == 1, s.tell)
        s.again()
        assert s("GET", "k1") == value(1, 100000) and s("GET", "k2") is None


@pytest.mark.both
def test_killed_again_and_again(tmp_path):
    with Store(tmp_path) as s:
        dice = random.Random(7)
        versions, settled = {}, {}
        for round in range(scaled(6, 3)):
            for _ in range(40):
                i = dice.randrange(60)
                versions[i] = round * 1000 + dice.randrange(1000)
                assert s("SET", f"k{i}", value(i, 1000 + i * 3000, versions[i])) == b"+OK"
            s.settle()
            settled.update(versions)
            for _ in range(dice.randrange(20)):  # these may be lost, but are never wrong
                i = dice.randrange(100, 130)
                s("SET", f"k{i}", value(i, 50000))
            s.again(signal.SIGKILL)
            for i, version in settled.items():
                assert s("GET", f"k{i}") == value(i, 1000 + i * 3000, version)
            for i in range(100, 130):
                assert s("GET", f"k{i}") in (None, value(i, 50000))
        assert s.tell()["corrupt"] == 0
        assert s.tell()["ssd"]["bytes"] <= s.tell()["ssd"]["budget_bytes"]


def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        b = f.read(1)
        f.seek(at)
        f.write(bytes([b[0] ^ 4]))


def test_flipped_bits(tmp_path):
    with Store(tmp_path) as s:
        fill(s, 60, 100000)
        s.process.stop()
        dice = random.Random(3)
        for slab in s.dir.glob("slab-*"):
            for _ in range(12):
                flip(slab, dice.randrange(4096, slab.stat().st_size))
        s.process.start()
        s.ready()
        answers = [s("GET", f"k{i}") for i in range(60)]
        assert all(a in (None, value(i, 100000)) or a.startswith(b"-") for i, a in enumerate(answers))
        assert s.tell()["corrupt"] > 0
        assert sum(a == value(i, 100000) for i, a in enumerate(answers)) >= 60 - s.tell()["corrupt"]


@pytest.mark.parametrize("harm", ["CURRENT", "MANIFEST"])
def test_an_index_that_is_gone(tmp_path, harm):
    with Store(tmp_path) as s:
        fill(s, 30, 100000)
        s("DEL", "k5")
        s.again()
        s.process.stop()
        for f in (s.dir / "index").glob(harm + "*"):
            f.unlink()
        s.process.start()
        s.ready()
        assert s.process.events("kvstore.ssd_index_rebuilt")
        assert [s("GET", f"k{i}") for i in range(30)] == [None if i == 5 else value(i, 100000) for i in range(30)]


@pytest.mark.plain
@pytest.mark.skipif(bool(SANITIZER), reason="a sanitizer must be loaded before any other library")
def test_a_start_that_is_ended_while_it_makes_the_index_again(tmp_path, monkeypatch):
    """By SIGKILL, then by SIGTERM: the next start goes on, and does not take what is there for the whole."""
    library, mark = tmp_path / "slow_disk.so", tmp_path / "ssd/index.unfinished"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, ROOT / "tests/helpers/failing_disk.c", "-ldl"], check=True)
    with Store(tmp_path) as s:
        fill(s, 300, 100000)
        fill(s, 20, 900, first=1000)
        s.process.stop()
        shutil.rmtree(s.dir / "index")
        for name, to in (("LD_PRELOAD", library), ("FAIL_DIR", s.dir), ("SLOW_READ_MS", "20")):
            monkeypatch.setenv(name, str(to))
        whole = 0
        for end, code in ((s.process.kill, -9), (s.process.stop, 0)):
            s.process.start()
            until(lambda: mark.exists() and int(mark.read_text() or "0", 16) > whole or not s.process.alive(), s.process.log)
            whole = int(mark.read_text(), 16)
            assert end() == code, s.process.log()
        assert "the next start goes on" in s.process.events("svc.start_ended")[0]["why"]
        assert len(s.process.events("svc.ready")) == 1
        monkeypatch.delenv("LD_PRELOAD")
        s.process.start()
        s.ready()
        assert "an earlier start ended" in s.process.events("kvstore.ssd_index_rebuilt")[-1]["why"] and not mark.exists()
        keys = [*range(300), *range(1000, 1020)]
        assert [i for i in keys if s("GET", f"k{i}") != value(i, 100000 if i < 1000 else 900)] == []


def slab_of_another_store(s):
    other = s.folder / "other"
    other.mkdir()
    with Store(other) as o:
        fill(o, 4, 100000)
        o.process.stop()
        next(o.dir.glob("slab-*")).rename(s.dir / "slab-000000aa")


def slab_copied(s):
    shutil.copy(next(s.dir.glob("slab-*")), s.dir / "slab-000000aa")


def slab_twice_as_long(s):
    slab = next(s.dir.glob("slab-*"))
    slab.write_bytes(slab.read_bytes() * 2)


def slab_is_a_folder(s):
    (s.dir / "slab-000000aa").mkdir()


def zeros_in_the_marker(s):
    (s.dir / "cognitora-kv").write_bytes(bytes(4096))


def text_in_the_marker(s):
    (s.dir / "cognitora-kv").write_text("cognitora kv store, format 1, sl")


HARMS = {slab_of_another_store: ("slab-000000aa", 60), slab_copied: ("slab-000000aa", 60), slab_is_a_folder: ("slab-000000aa", 60),
         slab_twice_as_long: (None, 60), zeros_in_the_marker: ("cognitora-kv", 60), text_in_the_marker: ("cognitora-kv", 60)}


@pytest.mark.parametrize("harm", HARMS, ids=lambda f: f.__name__)
def test_a_file_that_is_in_the_way_is_set_aside(tmp_path, harm):
    name, left = HARMS[harm]
    with Store(tmp_path) as s:
        fill(s, 30, 100000)
        fill(s, 30, 900, first=100)
        s.process.stop()
        harm(s)
        s.process.start()
        s.ready()
        got = [s("GET", f"k{i}") == value(i, 100000 if i < 100 else 900) for i in [*range(30), *range(100, 130)]]
        assert sum(got) == left and s.tell()["corrupt"] == 0
        events = s.process.events("kvstore.ssd_file_aside")
        assert [(e["file"], e["renamed_to"]) for e in events] == ([(name, f"{name}.aside")] if name else [])
        assert s.tell()["ssd_aside"] == len(events)
        assert metrics_are(s, f"cgn_kv_ssd_aside_total {len(events)}")
        fill(s, 30, 100000, first=200)
        s.settle()
        written = {what: f'cgn_kv_ssd_written_bytes_total{{what="{what}"}} ' for what in ("values", "all")}
        assert metrics_are(s, lambda: written["all"] + str(s.tell()["ssd_written_bytes"]), "cgn_kv_ssd_queue_bytes 0")
        said = ask(s.admin, "GET", "/metrics").body.decode()
        (values,) = (int(float(line.split()[-1])) for line in said.splitlines() if line.startswith(written["values"]))
        assert 30 * 100000 <= values <= s.tell()["ssd_written_bytes"]
        assert not name or (s.dir / f"{name}.aside").exists()
        s.again()  # from here on without a word
        assert len(s.process.events("kvstore.ssd_file_aside")) == len(events)
        assert s("GET", "k5") == value(5, 100000)


@pytest.mark.parametrize("database", ["index", "small"])
@pytest.mark.parametrize("harm", ["CURRENT", "MANIFEST-*", "*.sst", "*.log"])
@pytest.mark.parametrize("how", ["zeros", "gone"])
def test_a_damaged_database_is_set_aside(tmp_path, database, harm, how):
    """What the other files have is kept, the store starts and works."""
    with Store(tmp_path) as s:
        fill(s, 30, 100000)
        fill(s, 400, 3000, first=100)
        s.again()
        s.process.stop()
        files = list((s.dir / database).glob(harm))
        for f in files:
            f.write_bytes(bytes(f.stat().st_size)) if how == "zeros" else f.unlink()
        s.process.start()
        s.ready()
        large = [s("GET", f"k{i}") == value(i, 100000) for i in range(30)]
        small = [s("GET", f"k{i}") for i in range(100, 500)]
        assert all(v is None or v == value(i, 3000) or v[:1] == b"-" for i, v in enumerate(small, 100))
        assert all(large) if database == "small" or harm != "*.log" else True
        aside = (s.dir / f"{database}.damaged").exists()
        assert not aside or s.tell()["ssd_aside"] == 1
        assert not aside or s.process.events("kvstore.ssd_index_rebuilt" if database == "index" else "kvstore.ssd_small_lost")
        assert aside or harm in ("*.sst", "*.log")
        fill(s, 20, 900, first=1000)
        s.again()
        assert s("GET", "k1001") == value(1001, 900)


def refused(tmp_path, *args):
    p = Process(tmp_path, "refused", "cgn-kvcached", "--ram", "16MiB", "--set", f"kv.uds={tmp_path}/other.sock", "--set", "kv.resp_listen=", "--set",
                "kv.listen=", "--admin", "127.0.0.1:0", *args)
    status = p.wait()
    return status, p.log()


def test_folders_that_are_not_its_own(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.tex").write_text("years of work")
    status, log = refused(tmp_path, "--ssd-dir", theirs)
    assert status == 8 and "thesis.tex" in log
    assert [p.name for p in theirs.iterdir()] == ["thesis.tex"] and (theirs / "thesis.tex").read_text() == "years of work"
    with Store(tmp_path) as s:
        status, log = refused(tmp_path, "--ssd-dir", s.dir)
        assert status == 8 and "another process" in log
        assert s("SET", "a", "b") == b"+OK"
    marker = tmp_path / "ssd" / "cognitora-kv"
    marker.write_text(marker.read_text().replace("format 1", "format 9"))
    status, log = refused(tmp_path, "--ssd-dir", tmp_path / "ssd")
    assert status == 8 and "format 9" in log
    status, log = refused(tmp_path, "--ssd-dir", "/proc/none")
    assert status == 8 and "/proc/none" in log
    status, log = refused(tmp_path, "--ssd-dir", tmp_path / "small", "--ssd", "1MiB")
    assert status == 3 and "at least" in log


def test_a_full_disk(tmp_path, tmpfs):
    with Store(tmp_path, ssd="1GiB", ssd_dir=tmpfs / "kv") as s:
        assert s.process.events("kvstore.ssd_capped")
        fill(s, 60, 300000)
        there = s.tell()["ssd"]["blocks"]
        assert there > 30
        hog = tmpfs / "hog"
        with open(hog, "wb") as f:  # another program takes all the room that is left
            try:
                while True:
                    f.write(b"x" * 65536)
            except OSError:
                pass
        for i in range(1000, 1300):
            assert s("SET", f"k{i}", value(i, 300000)) == b"+OK"  # RAM takes the value
        s.settle()
        assert s("GET", "k1299") == value(1299, 300000)
        s.again(signal.SIGKILL)
        right = 0
        for i in range(60):
            got = s("GET", f"k{i}")
            assert got in (None, value(i, 300000))
            right += got is not None
        for i in range(1000, 1300):
            assert s("GET", f"k{i}") in (None, value(i, 300000))
        os.unlink(hog)
        fill(s, 20, 300000, first=5000)
        until(lambda: s("SET", "again", value(1, 300000)) == b"+OK" and s.tell()["ssd"]["blocks"] > 0, s.tell)
        s.settle()
        s.again()
        assert s("GET", "again") in (value(1, 300000),)


@pytest.mark.slow
def test_a_disk_is_full_for_a_while(tmp_path, tmpfs):
    """The values are served from RAM meanwhile, and counted; they are written when there is room again,
    without a restart."""
    with Store(tmp_path, ssd="1GiB", ssd_dir=tmpfs / "kv") as s:
        fill(s, 20, 300000)
        hog = tmpfs / "hog"
        with open(hog, "wb", buffering=0) as f, contextlib.suppress(OSError):
            while True:
                f.write(b"x" * 65536)
        latest = 0

        def put(name):
            nonlocal latest
            latest += 1
            assert s("SET", f"{name}{latest}", value(latest, 300000)) == b"+OK"
            assert s("GET", f"{name}{latest}") == value(latest, 300000)
            s.settle()
        # The store writes on into its files, until it checks the free room (every ten seconds) and drops some files.
        until(lambda: put("full") or s.tell()["ssd_skipped"] > 0, s.tell, step_s=0.05)
        assert 'cgn_kv_ssd_skipped_total{reason="failed"}' in ask(s.admin, "GET", "/metrics").body.decode()
        os.unlink(hog)
        before = s.tell()["ssd_written_bytes"]
        until(lambda: put("after") or s.tell()["ssd_written_bytes"] >= before + 300000, s.tell, step_s=0.1)
        s.again()
        assert s("GET", f"after{latest}") == value(latest, 300000)
        assert s.tell()["corrupt"] == 0


def test_a_disk_that_is_read_only(tmp_path, tmpfs):
    subprocess.run(["mount", "-o", "remount,ro", str(tmpfs)], check=True)
    status, log = refused(tmp_path, "--ssd-dir", tmpfs / "kv")
    assert status == 8 and "ead-only" in log

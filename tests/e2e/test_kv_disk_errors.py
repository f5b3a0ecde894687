# SPDX-License-Identifier: Apache-2.0
"""cgn-kvcached on disks that fail: full, with I/O errors, read-only for a while. The store goes on, says so, and
writes again afterwards."""
import json
import pathlib
import random
import subprocess
import sys

import pytest

from cluster import BUILD, ROOT, SANITIZER, ask, scaled, until
from kvdisks import Hog, Store, ext4, sweep, tmpfs, value  # noqa: F401 (a fixture)


class Values:
    """Values of both kinds, small ones (RocksDB) and larger ones (slab files), put under keys of their own."""

    def __init__(self, store, keys=400):
        self.s, self.keys, self.dice, self.versions = store, keys, random.Random(5), {}

    def put(self, n):
        for _ in range(n):
            i = self.dice.randrange(self.keys)
            version = 60000 if i % 4 == 0 else 4000, self.dice.randrange(1 << 30)
            assert self.s("SET", f"k{i}", value(i, *version)) == b"+OK"
            self.versions.setdefault(i, set()).add(version)
            if self.dice.randrange(16) == 0:
                self.s("DEL", f"k{self.dice.randrange(self.keys)}")

    def count(self):
        """Compare every value that the store has with those that were put; return how many it has."""
        n = 0
        for i, versions in self.versions.items():
            got = self.s("GET", f"k{i}")
            assert got is None or any(got == value(i, *v) for v in versions)
            n += got is not None
        return n


def refusing(s):
    return '\ncgn_kv_ssd_refusing 1\n' in ask(s.admin, "GET", "/metrics").body.decode()


def stats(s):
    """What cgn-ctl prints, as text and as JSON."""
    ctl = [BUILD / "src/ctl/cgn-ctl", "kv", "stats", "--addr", f"unix:{s.folder}/kv.sock"]
    text = subprocess.run(ctl, capture_output=True, text=True, check=True).stdout
    return text, json.loads(subprocess.run([*ctl, "-o", "json"], capture_output=True, text=True, check=True).stdout)


def until_refusing(s, values, why):
    until(lambda: values.put(20) or refusing(s), s.tell, step_s=0.05)
    until(lambda: s.process.events("kvstore.ssd_refuses"), s.process.log)
    text, data = stats(s)
    if data["ssd_trouble"]:  # it may have come back just now
        assert why in data["ssd_trouble"] and "takes no writes" in text and data["ssd_failed"] > 0
    assert why in s.process.events("kvstore.ssd_refuses")[0]["why"]


def until_written_again(s, values):
    until(lambda: values.put(5) or not refusing(s), s.tell, step_s=0.1)
    until(lambda: s.process.events("kvstore.ssd_writes_again"), s.process.log)
    before = s.tell()["ssd_written_bytes"]
    until(lambda: values.put(5) or s.tell()["ssd_written_bytes"] > before, s.tell, step_s=0.1)


def test_a_disk_that_fills_and_is_emptied(tmp_path):
    with ext4(tmp_path, 96) as disk, Store(tmp_path, ssd="1GiB", ssd_dir=disk / "kv", ram="16MiB") as s:
        hog, values = Hog(disk), Values(s)
        values.put(60)
        s.settle()
        hog.take()
        values.put(800)
        hog.take()
        until_refusing(s, values, "No space left")
        assert values.count() > 0
        hog.free()
        until_written_again(s, values)
        s.again()
        assert values.count() > 0 and s.tell()["corrupt"] == 0


@pytest.fixture
def shim(tmp_path, monkeypatch):
    """A switch for I/O errors below tmp_path/ssd, for programs started meanwhile."""
    if SANITIZER:
        pytest.skip("a sanitizer must be loaded before any other library")
    library, switch = tmp_path / "failing_disk.so", tmp_path / "switch"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, ROOT / "tests/helpers/failing_disk.c", "-ldl"], check=True)
    for name, to in (("LD_PRELOAD", library), ("FAIL_DIR", tmp_path / "ssd"), ("FAIL_SWITCH", switch)):
        monkeypatch.setenv(name, str(to))
    yield switch
    monkeypatch.undo()


@pytest.mark.plain
def test_input_output_errors(tmp_path, shim):
    with Store(tmp_path, ram="16MiB") as s:
        values = Values(s)
        values.put(200)
        s.settle()
        shim.write_text("100")
        until_refusing(s, values, "nput/output error")
        assert values.count() > 0
        before = s.tell()["ssd"]["blocks"]
        shim.unlink()
        until(lambda: s.process.events("kvstore.ssd_writes_again"), s.process.log)
        assert s.process.events("kvstore.ssd_writes_again")[0]["not_written"] > 0
        until(lambda: s.tell()["ssd"]["blocks"] >= s.tell()["ram"]["blocks"] > before, s.tell)  # nobody used them meanwhile
        assert s.tell()["ssd_reopened"] > 0
        s.again()
        assert values.count() > 0 and s.tell()["corrupt"] == 0


@pytest.mark.plain
def test_errors_now_and_then(tmp_path, shim):
    """Calls fail in any place, also while databases are reopened."""
    with Store(tmp_path, ram="16MiB") as s:
        values = Values(s)
        for percent in (1, 5, 20, 60) * scaled(2, 1):
            shim.write_text(str(percent))
            for _ in range(8):
                values.put(40)
                s.settle()
            shim.unlink()
            values.put(40)
        values.count()
        until(lambda: values.put(5) or not refusing(s), s.tell, step_s=0.1)
        s.settle()
        s.again()
        values.count()


def test_the_disk_of_a_killed_test_goes(tmp_path, tmpfs):
    """Of these tests themselves: a full one would be kept in memory for ever."""
    left = tmp_path / "left"
    left.mkdir()
    code = f"import kvdisks, os, pathlib\nwith kvdisks.mounted(pathlib.Path({str(left)!r}), '', '-t', 'tmpfs', 'tmpfs'): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code], cwd=pathlib.Path(__file__).parent).returncode == -9
    assert (left / "cgn-disk").is_mount()
    sweep()
    assert not (left / "cgn-disk").is_mount() and tmpfs.is_mount()


def test_a_disk_that_turns_read_only(tmp_path):
    """As ext4 does after an error of its own. What is on SSD and in RAM is served on."""
    with ext4(tmp_path, 96, "errors=remount-ro") as disk, Store(tmp_path, ssd="1GiB", ssd_dir=disk / "kv", ram="8MiB") as s:
        values = Values(s, keys=1200)
        for _ in range(30):
            values.put(40)
            s.settle()
        device = pathlib.Path(subprocess.run(["findmnt", "-n", "-o", "SOURCE", disk], capture_output=True, text=True, check=True).stdout.strip())
        trigger = pathlib.Path("/sys/fs/ext4") / device.name / "trigger_fs_error"
        if not trigger.exists():
            pytest.skip("this kernel has no trigger_fs_error for ext4")
        held = s.tell()["ssd"]["blocks"]
        trigger.write_text("read-only, please")
        until(lambda: values.put(20) or refusing(s), s.tell, step_s=0.05)
        until(lambda: s.process.events("kvstore.ssd_refuses"), s.process.log)
        hits = s.tell()["ssd"]["hits"]
        assert values.count() > held // 2 and s.tell()["ssd"]["hits"] > hits
        assert s.tell()["ssd_trouble"]

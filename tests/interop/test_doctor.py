# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl doctor and a real etcd. tests/e2e/test_doctor.py has all other checks."""
import json
import os
import shutil
import subprocess

import pytest

from cluster import BUILD, WAIT_S, free_port, toml
from etcd_world import World, until

pytestmark = pytest.mark.skipif(not shutil.which("etcd") and not os.environ.get("CI"), reason="no etcd: apt-get install etcd-server etcd-client")


@pytest.fixture
def world(tmp_path):
    w = World(tmp_path)
    yield w
    w.close()


def etcd_check(folder, *urls):
    path = folder / "c.toml"
    path.write_text(toml({"cluster": {"state_backend": "etcd", "etcd_endpoints": list(urls), "state_dir": str(folder)}}))
    done = subprocess.run([BUILD / "src/ctl/cgn-ctl", "doctor", "--only", "etcd", "--config", path, "-o", "json"], capture_output=True, text=True,
                          timeout=WAIT_S)
    found = [(f["result"], f["seen"], f["do"]) for f in json.loads(done.stdout)["findings"]]
    assert done.returncode == any(f[0] == "problem" for f in found), done
    return found


def test_one_member(world, tmp_path):
    dead = f"http://127.0.0.1:{free_port()}"
    (found,) = etcd_check(tmp_path, dead)
    assert found[0] == "problem" and dead in found[1] and "etcdctl" in found[2]
    alone = world.etcd()
    (found,) = etcd_check(tmp_path, alone.url)
    assert found[0] == "warning" and "one member" in found[1]
    assert [f[0] for f in etcd_check(tmp_path, alone.url, dead)] == ["warning", "warning"]


def test_three_members(world, tmp_path):
    members = world.etcd_cluster(3)
    urls = [m.url for m in members]
    assert etcd_check(tmp_path, *urls) == [("ok", "3 endpoints are healthy, 3 members", "")]
    members[0].kill()
    until(lambda: len(etcd_check(tmp_path, *urls)) == 1, "the other two have a leader")
    (found,) = etcd_check(tmp_path, *urls)
    assert found[0] == "warning" and urls[0] in found[1]

# SPDX-License-Identifier: Apache-2.0
"""Two routers that share Debian's etcd accept a token once, whichever of them is asked."""
import concurrent.futures
import os
import shutil
import subprocess

import pytest

from etcd_world import Etcd, until
from cluster import Cluster
from kvpeers import CTL
from test_join import World, answers, signer, with_part

pytestmark = pytest.mark.skipif(not shutil.which("etcd") and not os.environ.get("CI"), reason="no etcd: apt-get install etcd-server etcd-client")


def test_two_routers_accept_a_token_once(tmp_path):
    etcd = Etcd(tmp_path)
    etcd.start()
    backend = {"state_backend": "etcd", "etcd_endpoints": [etcd.url]}
    (tmp_path / "two").mkdir()
    try:
        with Cluster(tmp_path) as c, Cluster(tmp_path / "two") as d:
            c.common["cluster"] = d.common["cluster"] = backend
            w = World(c, tmp_path)
            other = signer(w.pki)
            d.router(other)
            listen = other["security"]["listen_join"]
            until(lambda: c.status()["state_connected"] and d.status()["state_connected"] and answers(int(listen.rpartition(":")[2])), "etcd answers")

            def join(at):
                name, token = at
                return subprocess.run([CTL, "node", "join", token, "--dir", tmp_path / name], capture_output=True, text=True)
            for i in range(3):
                token = w.invite("--node", f"n{i}")
                there = with_part(token, 6, listen)
                until(lambda: parts_known(etcd, token), "the invite is in etcd")
                with concurrent.futures.ThreadPoolExecutor(2) as pool:
                    done = list(pool.map(join, ((f"{i}-here", token), (f"{i}-there", there))))
                assert sorted(x.returncode for x in done) == [0, 1], [x.stderr for x in done]
                assert any(why in x.stderr for x in done for why in ("used by another machine", "no invite has this token"))
                again = [join((f"{i}-late", t)) for t in (token, there)]
                assert all(x.returncode == 1 for x in again), [x.stderr for x in again]
    finally:
        etcd.kill()


def parts_known(etcd, token):
    return token.split("/")[3] in etcd.ctl("get", "/cognitora/cognitora/invites", "--print-value-only").stdout

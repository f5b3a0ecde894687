#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure how long an installation takes on a fresh machine, from its first command to the first answered chat.

Each round boots a minimal Debian or Ubuntu of its own by systemd-nspawn (root; tests/boot/booted.py), in which a simulated engine runs already. The files
of the installation lie on the machine: nothing is downloaded. --debs: packages of scripts/deb; --release: files of scripts/release; the rack is installed
with the programs of $CGN_BUILD. JSON to --out, a line for each way to standard output."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import statistics
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "tests" / d) for d in ("e2e", "boot", "packages")]
START = "systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload && systemctl enable --now --quiet cgn-router cgn-agent cgn-metrics cognitora.target"


def fresh(folder, suite="bookworm", **more):
    """Boot a machine whose engine runs."""
    from booted import BUILD, ENGINE, Machine
    m = Machine(folder, suite, programs=(), **more)
    shutil.copy(BUILD / "src/sim/cgn-sim", m.root / "opt/engine")
    m.unit("engine", ENGINE.replace("/usr/bin/cgn-sim", "/opt/engine"))
    m.enable("engine.service")
    m.boot()
    return m


def timed(machine, commands, host="127.0.0.1"):
    """Run commands, shell texts or functions, until a chat is answered; return the seconds of each and of all."""
    began, parts = time.monotonic(), []
    for command in commands:
        at = time.monotonic()
        command() if callable(command) else machine.run("sh", "-ec", command)
        parts.append(time.monotonic() - at)
    while not machine.chat(host).startswith("200 "):
        time.sleep(0.05)
    return {"total_s": time.monotonic() - began, "parts_s": parts}


def packages(suite):
    def measure(folder, args):
        m = fresh(folder, suite)
        shutil.copytree(args.debs, m.root / "debs")
        try:
            return timed(m, ["DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends /debs/cognitora*.deb",
                             "systemctl enable --now --quiet cgn-router cgn-agent cgn-metrics cognitora.target"])
        finally:
            m.close()
    return measure


def single_node(folder, args):
    m = fresh(folder)
    shutil.copytree(args.release, m.root / "dist")
    try:
        return timed(m, ["CGN_BASE_URL=file:///dist CGN_PREFIX=/usr sh /dist/install.sh",
                         "cgn-ctl install single-node --engine openai_compat --engine-url http://127.0.0.1:8000 --apply", START])
    finally:
        m.close()


def rack(folder, args):
    from test_rack_booted import Racked
    m = Racked(folder, "root")
    m.boot()
    m.user_add("root")
    try:
        return timed(m, [lambda: m.ok("install", "--apply")])
    finally:
        m.close()


WAYS = {"deb, Debian 13": packages("trixie"), "deb, Debian 12": packages("bookworm"), "deb, Ubuntu 24.04": packages("noble"),
        "install.sh and single-node, Debian 12": single_node, "baremetal, one host with all roles, Debian 12": rack}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--debs", type=pathlib.Path, required=True)
    p.add_argument("--release", type=pathlib.Path, required=True)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--out", type=pathlib.Path)
    args = p.parse_args()
    if os.geteuid() != 0:
        sys.exit("machines of their own need root")
    results = {}
    for name, measure in WAYS.items():
        rounds = []
        for _ in range(args.rounds):
            with tempfile.TemporaryDirectory(prefix="cgn-install-", ignore_cleanup_errors=True) as folder:
                rounds.append(measure(pathlib.Path(folder), args))
        results[name] = rounds
        times = [r["total_s"] for r in rounds]
        print(f"{name}: {statistics.median(times):.1f} s ({min(times):.1f} to {max(times):.1f})", flush=True)
    if args.out:
        head = {"bench": "install", "date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "kernel": platform.release()}
        args.out.write_text(json.dumps({**head, "rounds": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()

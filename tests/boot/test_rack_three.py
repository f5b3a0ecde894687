# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl install baremetal on three booted machines in one network: an etcd of three, a loss of one machine and its replacement, a loss of power of the
whole rack. The tests of one rack build on each other, in this order."""
import json
import os
import shutil
import subprocess

import pytest
from booted import BUILD, PROGRAMS, Load, Machine, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="booting a root of its own needs root")
CTL = BUILD / "src/ctl/cgn-ctl"
INVENTORY = """
[cluster]
name = "three"
[defaults]
user = "root"
ssh_config = "ssh_config"
roles = ["etcd", "agent", "store"]
engine = { kind = "openai_compat", url = "http://127.0.0.1:8000" }
settings.kv.ram = "64MiB"
[hosts.a]
address = "10.78.0.1"
roles = ["etcd", "router", "metrics"]
settings.router.listen = "10.78.0.1:8080"
[hosts.b]
address = "10.78.0.2"
[hosts.c]
address = "10.78.0.3"
"""
NAMES = "abc"


def ip(*args):
    subprocess.run(["ip", *args], check=True, timeout=60)


class Plugged(Machine):
    """A machine with an sshd and a cable to the switch of the rack."""

    def __init__(self, rack, name):
        folder = rack.folder / f"{name}-{rack.made}"
        folder.mkdir()
        rack.made += 1
        super().__init__(folder, more=("openssh-server", "sudo", "etcd-server"), programs=("sim",))
        self.rack, self.name_, self.address = rack, name, f"10.78.0.{NAMES.index(name) + 1}"
        self.enable("engine.service")
        home = self.root / "root/.ssh"
        home.mkdir(mode=0o700, exist_ok=True)
        (home / "authorized_keys").write_text((rack.folder / "id.pub").read_text())

    def boot(self):
        super().boot()
        cable = f"c{os.getpid() % 10000}{self.name_}{self.rack.made}b{self.boots}"
        ip("link", "add", cable, "type", "veth", "peer", "name", "rack0", "netns", self.leader)
        ip("link", "set", cable, "netns", self.rack.switch)
        ip("-n", self.rack.switch, "link", "set", cable, "master", "switch", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "rack0")
        self.run("ip", "link", "set", "rack0", "up")


class Rack:
    def __init__(self, folder):
        self.folder, self.made, self.switch = folder, 0, f"cgn-switch-{os.getpid()}"
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "switch", "type", "bridge")
        ip("-n", self.switch, "link", "set", "switch", "up")
        ip("-n", self.switch, "address", "add", "10.78.0.100/24", "dev", "switch")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "id"], check=True)
        (folder / "rack.toml").write_text(INVENTORY)
        self.machines = {name: Plugged(self, name) for name in NAMES}
        self.keys()

    def keys(self):
        known = "".join(f"{m.address} {(m.root / 'etc/ssh/ssh_host_ed25519_key.pub').read_text()}" for m in self.machines.values())
        (self.folder / "known_hosts").write_text(known)
        (self.folder / "ssh_config").write_text(f"IdentityFile {self.folder}/id\nIdentitiesOnly yes\nUserKnownHostsFile {self.folder}/known_hosts\nLogLevel ERROR\n")

    def here(self, *args):
        """Run a program of this machine at the rack's switch."""
        return subprocess.run(["ip", "netns", "exec", self.switch, *map(str, args)], capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)

    def rack(self, verb, *args):
        more = ["--programs", self.folder / "programs"] if verb == "install" else []
        return self.here(CTL, verb, "baremetal", "--inventory", self.folder / "rack.toml", *more, *args)

    def ok(self, *args):
        done = self.rack(*args)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr + self.journals()
        return done.stdout

    def journals(self):
        return "".join(f"---- {name}\n{m.journal()}" for name, m in self.machines.items())

    def pki(self, *flags):
        return [x for flag, file in zip(flags, ("ca.pem", "admin.pem", "admin.key")) for x in (flag, self.folder / "pki" / file)]

    def nodes(self):
        done = self.here(CTL, "cluster", "nodes", "-o", "json", "--router", "10.78.0.1:9090", *self.pki("--ca", "--cert", "--key"))
        return {n["node"]: n["state"] for n in json.loads(done.stdout)} if done.returncode == 0 else {}

    def members(self):
        """Return the members of etcd that have a vote and answer."""
        def ask(*args):
            return self.here("env", "ETCDCTL_API=3", "etcdctl", "--endpoints", ",".join(f"https://{m.address}:2379" for m in self.machines.values()),
                             *self.pki("--cacert", "--cert", "--key"), *args, "-w", "json")
        done = ask("member", "list")
        return sorted(m["name"] for m in json.loads(done.stdout)["members"] if not m.get("isLearner")) if done.returncode == 0 else []

    def serves(self, nodes):
        until(lambda: self.nodes() == dict.fromkeys(nodes, "ready"), lambda: f"{self.nodes()}\n{self.journals()}", wait_s=120, step_s=0.5)
        self.machines["a"].answers("10.78.0.1")

    def close(self):
        for m in self.machines.values():
            m.close()
        ip("netns", "delete", self.switch)


@pytest.fixture(scope="module")
def rack(tmp_path_factory):
    r = Rack(tmp_path_factory.mktemp("rack"))
    (r.folder / "programs").mkdir()
    for program in (*PROGRAMS, "ctl"):
        shutil.copy(BUILD / f"src/{program}/cgn-{program}", r.folder / "programs")
    for m in r.machines.values():
        m.boot()
    yield r
    r.close()
    for folder in r.folder.glob("?-*/root"):
        shutil.rmtree(folder)


def test_it_comes_up(rack):
    assert "done; next" in rack.ok("install", "--apply")
    rack.serves("bc")
    assert rack.members() == ["a", "b", "c"]
    assert rack.ok("install", "--apply").endswith("nothing to do: all hosts are as the inventory says\n")


def test_a_machine_that_is_lost_costs_no_request_and_is_replaced(rack, tmp_path):
    with Load(rack.machines["a"], tmp_path, "10.78.0.1") as load:
        load.more(20)
        rack.machines["c"].close()
        load.more(20)
        until(lambda: rack.nodes().get("c") != "ready", rack.journals, wait_s=60, step_s=0.5)
        load.more(20)
        # Another machine with its name and address, and a disk without anything.
        rack.machines["c"] = Plugged(rack, "c")
        rack.keys()
        rack.machines["c"].boot()
        plan = rack.ok("install")
        assert "leave   c (https://10.78.0.3:2380): " in plan and "join    c\n" in plan
        assert "etcd: member c has a vote\n" in rack.ok("install", "--apply")
        load.more(20)
    assert load.failed == 0, load.said
    rack.serves("bc")
    assert rack.members() == ["a", "b", "c"]
    assert rack.ok("install", "--apply").endswith("nothing to do: all hosts are as the inventory says\n")


def test_a_new_member_is_one_after_its_reboot(rack):
    """What a member reads only before it has data is gone then."""
    rack.machines["c"].poweroff()
    rack.machines["c"].boot()
    rack.serves("bc")
    rack.machines["a"].run("systemctl", "stop", "etcd")  # b and c are the majority
    until(lambda: rack.machines["c"].property("etcd.service", "ActiveState") == "active", rack.journals, wait_s=60, step_s=0.5)
    rack.serves("bc")
    rack.machines["a"].run("systemctl", "start", "etcd")


def test_one_becomes_of_three_and_three_again(rack):
    text = (rack.folder / "rack.toml").read_text()
    (rack.folder / "rack.toml").write_text(text.replace('roles = ["etcd", "agent"', 'roles = ["agent"'))
    rack.ok("install", "--apply")
    assert rack.members() == ["a"] and rack.machines["b"].property("etcd.service", "ActiveState") == "inactive"
    rack.serves("bc")
    (rack.folder / "rack.toml").write_text(text)
    rack.ok("install", "--apply")
    assert rack.members() == ["a", "b", "c"]
    rack.serves("bc")


def test_a_rack_without_power_comes_back(rack):
    for m in rack.machines.values():
        m.cut_power()
    for m in rack.machines.values():
        m.boot()
    rack.serves("bc")
    assert rack.members() == ["a", "b", "c"]
    assert rack.ok("install", "--apply").endswith("nothing to do: all hosts are as the inventory says\n")


def test_it_goes(rack):
    assert "removed; certificates and keys stay" in rack.ok("uninstall", "--apply")
    for m in rack.machines.values():
        assert m.programs() == ["cgn-sim"] and m.unit_files() == []

# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl install baremetal on a machine that a systemd boots, by its real sshd: as root by an address of IPv4, and as a user with sudo by one of IPv6. The
tests of one machine build on each other, in this order."""
import json
import os
import shutil
import subprocess

import pytest
from booted import BUILD, PROGRAMS, Load, Machine, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="booting a root of its own needs root")
UNITS = ["etcd.service", *(f"cgn-{p}.service" for p in PROGRAMS)]
CTL = BUILD / "src/ctl/cgn-ctl"
INVENTORY = """
[cluster]
name = "booted"
[defaults]
user = "{user}"
sudo = {sudo}
ssh_config = "ssh_config"
roles = ["etcd", "router", "agent", "store", "metrics"]
engine = {{ kind = "openai_compat", url = "http://127.0.0.1:8000" }}
[hosts.one]
address = "{written}"
settings.router.listen = "{listen}"
settings.router.policy = "{policy}"
settings.kv.ram = "64MiB"
"""
# The address as a person may write it, and as the programs do.
WAYS = {
    "root": {"user": "root", "sudo": "false", "written": "10.77.0.1", "address": "10.77.0.1", "grpc": "10.77.0.1:9090", "gateway": "127.0.0.1", "listen": "127.0.0.1:8080"},
    "sudo": {"user": "op", "sudo": "true", "written": "FD00:77:0::1", "address": "fd00:77::1", "grpc": "[fd00:77::1]:9090", "gateway": "::1", "listen": "[::1]:8080"},
}


class Racked(Machine):
    """A machine with an sshd, and what its installer has: an inventory, a key, and the programs."""

    def __init__(self, folder, way):
        super().__init__(folder, more=("openssh-server", "sudo", "etcd-server"), programs=("sim",), addresses=("10.77.0.1/32", "fd00:77::1/128"))
        self.folder, self.way, self.address = folder, WAYS[way], WAYS[way]["address"]
        self.enable("engine.service")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "id"], check=True)
        key = (self.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text()
        (folder / "known_hosts").write_text(f"{self.address} {key}")
        (folder / "ssh_config").write_text(f"IdentityFile {folder}/id\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known_hosts\nLogLevel ERROR\n")
        for name in ("old", "new"):
            self.programs_make(name)
        self.inventory()

    def programs_make(self, name):
        """Make the programs as they would be in another version: the same, with other bytes at their end."""
        folder = self.folder / name
        folder.mkdir()
        for program in (*PROGRAMS, "ctl"):
            shutil.copy(BUILD / f"src/{program}/cgn-{program}", folder)
            with open(folder / f"cgn-{program}", "ab") as f:
                f.write(name.encode())

    def inventory(self, policy="kv", **other):
        (self.folder / "rack.toml").write_text(INVENTORY.format(policy=policy, **{**self.way, **other}))

    def user_add(self, user, sudo=False):
        """Let a user in by the installer's key."""
        home = "/root" if user == "root" else f"/home/{user}"
        if user != "root":
            self.run("useradd", "--create-home", "--shell", "/bin/bash", user)
        if sudo:
            (self.root / "etc/sudoers.d/installer").write_text(f"{user} ALL=(ALL) NOPASSWD: ALL\n")
        self.run("sh", "-c", f"mkdir -p -m 0700 {home}/.ssh && cat >{home}/.ssh/authorized_keys <<'.'\n{(self.folder / 'id.pub').read_text()}.\nchown -R {user}: {home}/.ssh")

    def rack(self, verb, *args, programs="old"):
        more = ["--programs", self.folder / programs] if verb == "install" else []
        return self.here(CTL, verb, "baremetal", "--inventory", self.folder / "rack.toml", *more, *args)

    def ok(self, *args, **more):
        done = self.rack(*args, **more)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr + self.journal()
        return done.stdout

    def node(self):
        """Return the state of the node, as a router of the cluster says it to the administrator."""
        pki = [x for flag, file in (("--ca", "ca.pem"), ("--cert", "admin.pem"), ("--key", "admin.key")) for x in (flag, self.folder / "pki" / file)]
        done = self.here(CTL, "cluster", "nodes", "-o", "json", "--router", self.way["grpc"], *pki)
        return {n["node"]: n["state"] for n in json.loads(done.stdout)} if done.returncode == 0 else {}

    def serves(self):
        self.all_run(UNITS)
        until(lambda: self.node() == {"one": "ready"}, self.journal, wait_s=60, step_s=0.5)
        self.answers(self.way["gateway"])

    def pids(self):
        return {u: self.property(u, "MainPID") for u in UNITS}

    def files(self):
        return {str(p.relative_to(self.root)) for top in ("etc", "usr", "var/lib/cognitora", "var/log/cognitora") for p in (self.root / top).rglob("*")}


@pytest.fixture(scope="module", params=sorted(WAYS))
def machine(request, tmp_path_factory):
    m = Racked(tmp_path_factory.mktemp("machine"), request.param)
    m.boot()
    m.user_add(m.way["user"], sudo=m.way["sudo"] == "true")
    m.user_add("guest")
    m.before = m.files()
    yield m
    m.close()
    shutil.rmtree(m.root)


def test_a_user_without_rights_is_named(machine):
    machine.inventory(user="guest", sudo="false")
    for args in (["install"], ["install", "--apply"], ["uninstall"]):
        done = machine.rack(*args)
        assert done.returncode == 4 and "host one: the user guest may not write /etc: " in done.stderr, done.stderr
    machine.inventory(user="guest", sudo="true")
    assert "a password is required" in machine.rack("install").stderr
    assert machine.files() == machine.before
    machine.inventory()


def test_it_installs_and_answers(machine):
    plan = machine.ok("install")
    assert "nothing was changed; with --apply 1 of 1 hosts would be" in plan and machine.files() == machine.before
    assert "done; next" in machine.ok("install", "--apply")
    machine.serves()
    for unit in UNITS:
        assert machine.run("systemctl", "is-enabled", unit).stdout.strip() == "enabled"
        user = machine.run("stat", "-c", "%U", f"/proc/{machine.property(unit, 'MainPID')}").stdout.strip()
        assert user == ("etcd" if unit == "etcd.service" else "cognitora")
    assert machine.failed() == []


def test_a_second_run_has_nothing_to_do(machine):
    before = machine.pids()
    assert machine.ok("install", "--apply").endswith("nothing to do: all hosts are as the inventory says\n")
    assert machine.pids() == before


def test_the_doctor_finds_no_problem(machine):
    done = machine.run("cgn-ctl", "doctor", check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_setting_of_the_router_restarts_the_router_alone(machine):
    before = machine.pids()
    machine.inventory("round_robin")
    assert "cgn-router restarted" in machine.ok("install", "--apply")
    now = machine.pids()
    assert [u for u in UNITS if now[u] != before[u]] == ["cgn-router.service"]
    machine.serves()


@pytest.mark.parametrize("way", ["upgrade", "downgrade"])
def test_other_programs_replace_those_that_run(machine, tmp_path, way):
    programs = "new" if way == "upgrade" else "old"
    before = machine.pids()
    with Load(machine, tmp_path, machine.way["gateway"]) as load:
        machine.ok("install", "--apply", programs=programs)
        load.more(5)
    assert load.failed == 0 and load.asked >= 10, load.said
    now = machine.pids()
    assert [u for u in UNITS if now[u] == before[u]] == ["etcd.service"]
    for program in (*PROGRAMS, "ctl"):
        assert (machine.root / f"usr/bin/cgn-{program}").read_bytes() == (machine.folder / programs / f"cgn-{program}").read_bytes()
    machine.serves()


@pytest.mark.parametrize("way", ["reboot", "power"])
def test_it_survives_a_reboot_and_a_loss_of_power(machine, way):
    machine.poweroff() if way == "reboot" else machine.cut_power()
    machine.boot()
    machine.serves()
    assert machine.ok("install", "--apply").endswith("nothing to do: all hosts are as the inventory says\n")


def test_uninstall_leaves_state_alone(machine):
    assert "removed; certificates and keys stay" in machine.ok("uninstall", "--apply")
    # State and the user stay; the links of etcd's start script are the distribution's, whose unit was disabled.
    kept = ("var/lib/cognitora", "var/log/cognitora", "etc/passwd", "etc/group", "etc/shadow", "etc/gshadow", "etc/.pwd.lock", "etc/rc")
    left = machine.files() - machine.before
    assert not [p for p in left if not p.startswith(kept)], left
    assert machine.programs() == ["cgn-sim"] and machine.unit_files() == [] and machine.units("--all") == []
    assert "no host has files of an installation" in machine.ok("uninstall", "--apply")

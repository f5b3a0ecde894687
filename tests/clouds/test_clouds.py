# SPDX-License-Identifier: Apache-2.0
"""deploy/terraform: the real tool reads and evaluates it, resources have what the providers' schemas allow, and machines boot by the user data."""
import base64
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys

import hcl2
import pytest
import yaml

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]
from cloud import CLOUDS, EXAMPLES, ROOT, TERRAFORM, evaluate, run, tool  # noqa: E402
from cluster import until  # noqa: E402
from machines import ADDRESS, Machine, base, make_release  # noqa: E402

needs_tool = pytest.mark.skipif(tool() is None, reason="neither terraform nor tofu in PATH")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="no root: machines need mounts and networks")
META = {"for_each", "count", "depends_on", "provider", "lifecycle", "__comments__", "__is_block__", "__start_line__", "__end_line__"}


@needs_tool
def test_files_are_formatted():
    run("fmt", "-check", "-recursive", "-diff", cwd=TERRAFORM)


def plain(name):
    return name.strip('"')


def wrong(where, have, schema):
    """Yield what a block has and its schema does not, and what it lacks."""
    names = {plain(k) for k in have} - META
    for name in names - set(schema["required"]) - set(schema["optional"]) - set(schema["blocks"]):
        yield f"{where} has no argument {name}"
    needed = set(schema["required"]) | {k for k, b in schema["blocks"].items() if b["required_block"]}
    for name in needed - names:
        yield f"{where} needs {name}"
    for key, value in have.items():
        if plain(key) in schema["blocks"] and isinstance(value, list):
            for block in value:
                if isinstance(block, dict):
                    yield from wrong(f"{where}.{plain(key)}", block, schema["blocks"][plain(key)])


@pytest.mark.parametrize("cloud", CLOUDS)
def test_resources_are_what_the_providers_take(cloud):
    schemas = json.loads((HERE / "schemas.json").read_text())
    seen, bad = 0, []
    for path in (TERRAFORM / cloud).glob("*.tf"):
        for resource in hcl2.loads(path.read_text()).get("resource", []):
            for kind, named in resource.items():
                if plain(kind) in META:
                    continue
                for name, body in named.items():
                    seen += 1
                    bad += wrong(f"{plain(kind)}.{plain(name)}", body, schemas[plain(kind)])
    assert seen and not bad, bad


MACHINES = {"aws": ("aws_instance", {"ami", "key_name", "user_data"}),
            "gcp": ("google_compute_instance", {"boot_disk[0].initialize_params", 'metadata["user-data"]'}),
            "azure": ("azurerm_linux_virtual_machine", {"admin_ssh_key", "custom_data", "source_image_reference"}),
            "hetzner": ("hcloud_server", {"image", "ssh_keys", "user_data"})}


@pytest.mark.parametrize("cloud", MACHINES)
def test_a_new_release_replaces_no_machine(cloud):
    """Providers make a machine anew when these change, and its CA, keys and state are gone."""
    kind, wanted = MACHINES[cloud]
    resources = [r for path in (TERRAFORM / cloud).glob("*.tf") for r in hcl2.loads(path.read_text()).get("resource", [])]
    machines = [body for r in resources for k, named in r.items() if plain(k) == kind for name, body in named.items() if not name.startswith("__")]
    assert machines
    for body in machines:
        ignored = {re.sub(r"^\$\{(.*)\}$", r"\1", str(x)).replace('\\"', '"') for block in body.get("lifecycle", []) for x in block["ignore_changes"]}
        assert ignored == wanted, ignored


def test_a_wrong_argument_would_be_found():
    schema = json.loads((HERE / "schemas.json").read_text())["aws_instance"]
    assert list(wrong("i", {"instance_typ": "x", "metadata_options": [{"http_token": "required"}]}, schema)) == [
        "i has no argument instance_typ", "i.metadata_options has no argument http_token"]


@needs_tool
@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("cloud", CLOUDS)
def test_user_data_is_cloud_init_s(cloud, example, tmp_path):
    """The tool renders it, cloud-init's own schema takes it, nobody's secret is in it, and clouds have room for it (AWS: 16 KiB)."""
    for name, text in evaluate(tmp_path, cloud, example).items():
        assert len(text) < 16384
        files = {f["path"]: base64.b64decode(f["content"]).decode() for f in yaml.safe_load(text)["write_files"]}
        assert files["/usr/local/sbin/cognitora-setup"] == (TERRAFORM / "shared/cognitora-setup").read_text()
        assert not re.search(r"cgn_[A-Za-z0-9_-]{40}|PRIVATE KEY", text + "".join(files.values())), name
        (base() / "tmp/user-data").write_text(text)
        said = subprocess.run(["chroot", base(), "cloud-init", "schema", "--config-file", "/tmp/user-data"], capture_output=True, text=True)
        assert said.returncode == 0 and "Valid cloud-config" in said.stdout, said.stdout + said.stderr


@needs_tool
@pytest.mark.parametrize("values, sentence", [
    ({"gpu_nodes": ["router"]}, "neither router nor single"),
    ({"cluster_name": "It's"}, "cluster_name is lower-case letters"),
    ({"release": {"version": "1", "base_url": "https://x/", "installer_sha256": "zz"}}, "64 hexadecimal digits"),
    ({"release": {"version": "1", "base_url": "http://x/'", "installer_sha256": "0" * 64}}, "release.base_url is https"),
])
def test_wrong_values_are_refused_with_a_sentence(tmp_path, values, sentence):
    with pytest.raises(AssertionError) as refused:
        evaluate(tmp_path, "hetzner", "one-node", **values)
    assert sentence in re.sub(r"\s*\n[│\s]*", " ", str(refused.value))


# ---- machines

@pytest.fixture
def rack(tmp_path):
    """Make machines in a network of its own, which has the router's address."""
    space = f"cgc{os.getpid()}"
    release = tmp_path / "release"
    release.mkdir()
    sha256 = make_release(release)
    with contextlib.ExitStack() as stack:
        subprocess.run(["ip", "netns", "add", space], check=True)
        stack.callback(subprocess.run, ["ip", "netns", "del", space])
        for args in (["link", "set", "lo", "up"], ["addr", "add", f"{ADDRESS}/24", "dev", "lo"]):
            subprocess.run(["ip", "-n", space, *args], check=True)

        def make(name):
            m = Machine(tmp_path, name, space, release)
            stack.callback(m.close)
            return m
        make.release = {"version": "0.1.0", "base_url": "file:///release", "installer_sha256": sha256}
        yield make


def chat(machine, key):
    done = machine.run("curl", "-sS", "-m", "20", "-H", f"Authorization: Bearer {key}", "-d",
                       '{"model":"sim","messages":[{"role":"user","content":"Hello"}],"max_tokens":4}', "http://127.0.0.1:8080/v1/chat/completions", check=False)
    return done.stdout


def answers(machine, key):
    return '"completion_tokens":4' in chat(machine, key)


@needs_tool
@needs_root
def test_one_node_boots_and_answers(rack, tmp_path):
    machine = rack("single")
    said = machine.boot(evaluate(tmp_path, "hetzner", "one-node", release=rack.release)["single"])
    assert (machine.root / "etc/cognitora/cognitora.toml").exists(), said
    for path in ("cognitora.toml", "keys"):
        stat = (machine.root / "etc/cognitora" / path).stat()
        assert stat.st_mode & 0o777 == 0o640, path
    machine.start("cgn-router")
    machine.start("cgn-agent")
    key = (machine.root / "etc/cognitora/api-key").read_text().strip()
    until(lambda: answers(machine, key), lambda: chat(machine, key) + machine.log("cgn-router") + machine.log("cgn-agent"), wait_s=60, step_s=0.2)
    before = {p: (machine.root / "etc/cognitora" / p).read_bytes() for p in ("cognitora.toml", "keys", "api-key")}
    machine.enable("boot")
    assert before == {p: (machine.root / "etc/cognitora" / p).read_bytes() for p in before}, "a second run changes nothing"
    # What the machine does at its next boot: multi-user.target brings cognitora.target, which brings the programs.
    units = machine.root / "etc/systemd/system"
    assert (units / "multi-user.target.wants/cognitora.target").is_symlink()
    assert sorted(p.name for p in (units / "cognitora.target.wants").iterdir()) == ["cgn-agent.service", "cgn-router.service"]


@needs_tool
@needs_root
def test_a_fleet_boots_and_joins_by_tokens(rack, tmp_path):
    engine = {"kind": "sim", "managed": True, "model": "sim"}
    data = evaluate(tmp_path, "hetzner", "fleet", release=rack.release, engine=engine, prepare=["touch /prepared"], gpu_nodes=["gpu-1"])
    router, node = rack("router"), rack("gpu-1")
    router.boot(data["router"])
    node.boot(data["gpu-1"])
    assert (node.root / "prepared").exists() and not (router.root / "prepared").exists()
    assert not (node.root / "etc/cognitora/cognitora.toml").exists()
    router.start("cgn-router")
    until(lambda: "svc.ready" in router.log("cgn-router"), lambda: router.log("cgn-router"))
    # shared/join with a shell in the machine's root instead of ssh.
    ssh = tmp_path / "ssh"
    roots = {"root@router": router, "root@gpu-1": node}
    ssh.write_text("#!/bin/sh\ncase $1 in\n" + "".join(f"{who}) shift; exec {' '.join(m.command('sh', '-c'))} \"$1\" ;;\n" for who, m in roots.items()) + "esac\nexit 9\n")
    ssh.chmod(0o755)
    join = subprocess.run([TERRAFORM / "shared/join", "root@router", "gpu-1=root@gpu-1"], env={**os.environ, "CGN_SSH": str(ssh)}, capture_output=True, text=True)
    assert join.returncode == 0, join.stdout + join.stderr
    node.start("cgn-agent")
    key = (router.root / "etc/cognitora/api-key").read_text().strip()
    until(lambda: answers(router, key), lambda: chat(router, key) + router.log("cgn-router") + node.log("cgn-agent"), wait_s=60, step_s=0.2)
    assert not (node.root / "etc/cognitora/pki/ca.key").exists()
    again = node.run("/usr/local/sbin/cognitora-setup", "join", text="token\n", check=False)
    assert again.returncode == 1 and "this machine has joined" in again.stderr


@needs_tool
@needs_root
def test_another_installer_is_not_run(rack, tmp_path):
    machine = rack("single")
    wrong_sum = {**rack.release, "installer_sha256": "0" * 64}
    machine.boot(evaluate(tmp_path, "aws", "one-node", release=wrong_sum)["single"])
    assert not (machine.root / "usr/bin/cgn-router").exists() and not (machine.root / "etc/cognitora/cognitora.toml").exists()
    said = machine.run("/usr/local/sbin/cognitora-setup", "boot", check=False)
    assert said.returncode == 1 and "it was not run" in said.stderr

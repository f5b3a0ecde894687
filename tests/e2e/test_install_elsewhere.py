# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl install for clouds and Kubernetes, as far as it needs neither. tests/clouds and tests/kube have the rest: the real terraform, the real
API server."""
import hashlib
import os
import subprocess

import pytest

from cluster import BUILD, ROOT, free_port

CTL = BUILD / "src/ctl/cgn-ctl"
CLOUDS = ("aws", "azure", "gcp", "hetzner")
pytestmark = pytest.mark.plain


def ctl(folder, *args, **env):
    return subprocess.run([CTL, *args], cwd=folder, env={"PATH": "/nowhere", **env}, capture_output=True, text=True, timeout=60)


def edited(settings):
    for was, now in (("203.0.113.", "10.1.1."), ("ami-0123456789abcdef0", "ami-1"), ("00000000-0000", "12345678-0000"), ("AAAA me", "AAAAC3 me"),
                     ("my-project", "ours")):
        settings.write_text(settings.read_text().replace(was, now))


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_first_run_makes_a_folder_with_settings_to_edit(cloud, tmp_path):
    done = ctl(tmp_path, "install", cloud)
    assert done.returncode == 0, done.stderr
    made = tmp_path / f"cognitora-{cloud}"
    for source in (f"{cloud}/main.tf", f"{cloud}/machines.tf", f"{cloud}/outputs.tf", f"{cloud}/variables.tf", "shared/cognitora-setup", "shared/join",
                   "shared/user-data.yaml.tftpl"):
        assert (made / source).read_bytes() == (ROOT / "deploy/terraform" / source).read_bytes()
        assert os.access(made / source, os.X_OK) == os.access(ROOT / "deploy/terraform" / source, os.X_OK)
    settings = made / cloud / "cluster.auto.tfvars"
    text = settings.read_text()
    assert hashlib.sha256((ROOT / "deploy/installer/install.sh").read_bytes()).hexdigest() in text and "/releases/download/v" in text
    lines = [line for line in done.stdout.splitlines() if line.startswith("edit ")]
    assert len(lines) >= 2 and f"{cloud}/cluster.auto.tfvars:8: client_cidrs" in lines[0] and "next: edit " in done.stdout
    again = ctl(tmp_path, "install", cloud)
    assert again.returncode == 2 and f"{len(lines)} lines of cognitora-{cloud}/{cloud}/cluster.auto.tfvars have values of the example" in again.stderr
    edited(settings)
    done = ctl(tmp_path, "install", cloud)
    assert done.returncode == 4 and "neither terraform nor tofu can be run" in done.stderr and "edit " not in done.stdout


def test_a_fleet_of_another_release_in_another_folder(tmp_path):
    done = ctl(tmp_path, "install", "aws", "--fleet", "--dir", "fleets/west", "--release-url", "https://mirror.example.org/c")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "fleets/west/aws/cluster.auto.tfvars").read_text()
    assert 'gpu_nodes = ["gpu-1", "gpu-2"]' in text and 'base_url         = "https://mirror.example.org/c"' in text


def test_modules_are_renewed_and_what_the_user_changed_is_kept(tmp_path):
    ctl(tmp_path, "install", "gcp")
    made = tmp_path / "cognitora-gcp"
    settings, module, output, record = (made / name for name in ("gcp/cluster.auto.tfvars", "gcp/main.tf", "gcp/outputs.tf", ".cognitora-files.sha256"))
    edited(settings)
    mine = settings.read_text()
    module.write_text(module.read_text() + "# mine\n")
    old = output.read_text()
    output.write_text("# of an older release\n")
    was, now = (hashlib.sha256(text.encode()).hexdigest() for text in (old, output.read_text()))
    record.write_text(record.read_text().replace(was, now))
    done = ctl(tmp_path, "install", "gcp")
    assert "keep    cognitora-gcp/gcp/main.tf: it was changed" in done.stdout and "update  cognitora-gcp/gcp/outputs.tf" in done.stdout
    assert module.read_text().endswith("# mine\n") and output.read_text() == old and settings.read_text() == mine


def test_a_cloud_that_was_not_installed_cannot_be_uninstalled(tmp_path):
    done = ctl(tmp_path, "uninstall", "aws")
    assert done.returncode == 1 and "there is no cognitora-aws/aws/main.tf: cgn-ctl install aws made no folder here" in done.stderr


def test_mistakes_are_found_before_kubernetes_is_asked(tmp_path):
    done = ctl(tmp_path, "install", "kubernetes", "--engine", "vllm")
    assert done.returncode == 2 and "--engine vllm needs --engine-image" in done.stderr
    done = ctl(tmp_path, "install", "kubernetes", "--routers", "0")
    assert done.returncode == 2 and "--routers takes a whole number from 1 to 100" in done.stderr
    done = ctl(tmp_path, "install", "kubernetes", "--root", "x")
    assert done.returncode == 2 and "--root" in done.stderr
    for verb in ("install", "uninstall"):
        done = ctl(tmp_path, verb, "kubernetes")
        assert done.returncode == 4 and "kubectl cannot be run" in done.stderr


def test_uninstall_of_a_machine_is_as_before(tmp_path):
    done = ctl(tmp_path, "uninstall", "--root", str(tmp_path))
    assert done.returncode == 1 and "has no files" in done.stderr

# SPDX-License-Identifier: Apache-2.0
"""cgn-ctl install and uninstall of a cloud with the real tool. The cloud's resources are replaced by ones that need no provider: the folder is the
user's, and a module that he changed is kept."""
import json
import os
import subprocess

import pytest
from cloud import CLOUDS, ROOT, tool

pytestmark = pytest.mark.skipif(tool() is None, reason="neither terraform nor tofu in PATH")
CTL = ROOT / os.environ.get("CGN_BUILD", "build/ci") / "src/ctl/cgn-ctl"
MODULE = """
resource "terraform_data" "machine" {
  for_each = local.roles
  input    = { role = each.value.role, user_data = local.user_data[each.key] }
}
"""
EXAMPLES = (("203.0.113.", "10.1.1."), ("ami-0123456789abcdef0", "ami-1"), ("00000000-0000", "12345678-0000"), ("AAAA me", "AAAAC3 me"), ("my-project", "ours"))


def ctl(folder, *args, code=0):
    env = {k: v for k, v in os.environ.items() if not k.startswith("TF_")}
    done = subprocess.run([CTL, *args], cwd=folder, env={**env, "CHECKPOINT_DISABLE": "1"}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("cloud", sorted(set(CLOUDS) - {"baremetal"}))
def test_a_cloud_is_planned_made_left_alone_and_removed(cloud, tmp_path):
    ctl(tmp_path, "install", cloud, "--fleet")
    folder = tmp_path / f"cognitora-{cloud}" / cloud
    settings, state = folder / "cluster.auto.tfvars", folder / "terraform.tfstate"
    for was, now in EXAMPLES:
        settings.write_text(settings.read_text().replace(was, now))
    (folder / "main.tf").write_text(MODULE)
    (folder / "outputs.tf").write_text('output "machines" { value = [for m in terraform_data.machine : m.output.role] }\n')
    said = ctl(tmp_path, "install", cloud)
    assert "3 to add" in said and "nothing was changed in the cloud; with --apply this plan would be carried out" in said
    assert not state.exists() and not (folder / "cognitora.plan").exists()
    said = ctl(tmp_path, "install", cloud, "--apply")
    assert "3 added" in said and "output -raw join | sh" in said and not (folder / "cognitora.plan").exists()
    assert sorted(json.loads(state.read_text())["outputs"]["machines"]["value"]) == ["node", "node", "router"]
    assert "nothing to do: the cloud has what the folder says" in ctl(tmp_path, "install", cloud, "--apply")
    said = ctl(tmp_path, "uninstall", cloud)
    assert "3 to destroy" in said and json.loads(state.read_text())["resources"]
    said = ctl(tmp_path, "uninstall", cloud, "--apply")
    assert "3 destroyed" in said and not json.loads(state.read_text())["resources"] and settings.exists()
    assert "nothing to do" in ctl(tmp_path, "uninstall", cloud, "--apply")


def test_what_the_tool_refuses_is_told(tmp_path):
    ctl(tmp_path, "install", "aws")
    folder = tmp_path / "cognitora-aws/aws"
    settings = folder / "cluster.auto.tfvars"
    for was, now in EXAMPLES:
        settings.write_text(settings.read_text().replace(was, now))
    (folder / "main.tf").write_text(MODULE)
    (folder / "outputs.tf").write_text("")
    settings.write_text(settings.read_text() + 'cluster_name = "Not a name"\n')
    said = ctl(tmp_path, "install", "aws", "--apply", code=4)
    assert "cluster_name is lower-case letters" in said and "plan failed; what it says is above" in said

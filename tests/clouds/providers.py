# SPDX-License-Identifier: Apache-2.0
"""Real providers of Terraform, as far as Go can build them from its module proxy (scripts/run/terraform-providers): Hetzner's, and hashicorp/local."""
import functools
import json
import os
import pathlib
import shutil
import subprocess

from cloud import ROOT, TERRAFORM, tool

PROVIDERS = {"hetzner": "hetznercloud/hcloud", "baremetal": "hashicorp/local"}


@functools.cache
def built():
    """Return the folder of the providers, which are built when they are not there."""
    done = subprocess.run([ROOT / "scripts/run/terraform-providers"], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run(folder, cloud, *args, change=None):
    """Run the tool in a copy of a cloud's files; |change|: (file, text, other text). Return the process that has ended."""
    work = pathlib.Path(folder) / cloud
    shutil.copytree(TERRAFORM / "shared", work.parent / "shared", dirs_exist_ok=True)
    shutil.copytree(TERRAFORM / cloud, work, dirs_exist_ok=True)
    if change:
        file, before, after = change
        text = (work / file).read_text()
        assert before in text
        (work / file).write_text(text.replace(before, after, 1))
    config = work.parent / "terraformrc"
    overrides = "".join(f'    "{p}" = "{built()}"\n' for p in PROVIDERS.values())
    config.write_text("provider_installation {\n  dev_overrides {\n" + overrides + "  }\n}\n")
    env = {**{k: v for k, v in os.environ.items() if not k.startswith("TF_")}, "TF_CLI_CONFIG_FILE": str(config), "CHECKPOINT_DISABLE": "1"}
    return subprocess.run([tool(), *args], cwd=work, capture_output=True, text=True, timeout=120, env=env)


def shape(block):
    """Return a block of a provider's schema in the shape of schemas.json. Every resource has an id, which nobody sets."""
    out = {"required": [], "optional": [], "blocks": {}}
    for name, a in sorted(block.get("attributes", {}).items()):
        if name != "id" and (a.get("required") or a.get("optional")):
            out["required" if a.get("required") else "optional"].append(name)
    for name, b in sorted(block.get("block_types", {}).items()):
        out["blocks"][name] = {"required_block": b.get("min_items", 0) > 0, **shape(b["block"])}
    return out


def rows(folder, cloud):
    """Return {resource: shape} of all resources of a cloud's provider."""
    done = run(folder, cloud, "providers", "schema", "-json")
    assert done.returncode == 0, done.stdout + done.stderr
    schemas = json.loads(done.stdout)["provider_schemas"].values()
    return {name: shape(r["block"]) for s in schemas for name, r in s.get("resource_schemas", {}).items()}

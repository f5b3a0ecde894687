# SPDX-License-Identifier: Apache-2.0
"""deploy/terraform, as the real tool evaluates it, and machines that boot by the user data: a minimal Debian with the real cloud-init."""
import functools
import json
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
TERRAFORM = ROOT / "deploy/terraform"
CLOUDS = ("aws", "azure", "gcp", "hetzner", "baremetal")
EXAMPLES = ("one-node", "fleet")


@functools.cache
def tool():
    """Return terraform or tofu; None: neither is here."""
    return shutil.which("terraform") or shutil.which("tofu")


def run(*args, cwd=None, check=True):
    env = {k: v for k, v in os.environ.items() if not k.startswith("TF_")}
    done = subprocess.run([tool(), *args], cwd=cwd, capture_output=True, text=True, timeout=120, env={**env, "CHECKPOINT_DISABLE": "1"})
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def evaluate(folder, cloud, example, **values):
    """Return the user data of each machine. The files of a cloud that need no provider are evaluated by the tool itself."""
    work = folder / f"{cloud}-{example}" / cloud
    shutil.copytree(TERRAFORM / "shared", work.parent / "shared")
    work.mkdir()
    for name in ("variables.tf", "machines.tf", f"{example}.tfvars"):
        shutil.copy(TERRAFORM / cloud / name, work)
    (work / "result.tf").write_text('output "user_data" { value = local.user_data }\n')
    run("init", "-no-color", cwd=work)
    more = [f"-var={k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in values.items()]
    run("apply", "-auto-approve", "-no-color", f"-var-file={example}.tfvars", *more, cwd=work)
    return json.loads(run("output", "-json", "user_data", cwd=work).stdout)

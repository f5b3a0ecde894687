#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write tests/clouds/schemas.json: what the Terraform providers' schemas say about the resources that deploy/terraform uses.

usage: tests/clouds/read_schemas.py FOLDER    FOLDER has the unpacked packages of npm @cdktf/provider-aws, -azurerm, -google and -local,
                                              each in a folder of its name (aws, azurerm, ...)

CDKTF generates these packages from the providers' schemas; each argument has a link to its documentation, which has its Terraform name.
The rows of Hetzner's provider, for which there is no such package, are read from the provider itself (providers.py)."""
import json
import pathlib
import re
import sys
import tempfile

import providers

HERE = pathlib.Path(__file__).resolve().parent
TERRAFORM = HERE.parents[1] / "deploy/terraform"
OUT = HERE / "schemas.json"


def interfaces(text):
    """Return {interface: [(terraform name, is required, type)]}."""
    out = {}
    for name, body in re.findall(r"^export interface (\w+) (?:extends \S+ )?\{\n(.*?)^\}", text, re.M | re.S):
        out[name] = [(m[1], m[2] != "?", m[3]) for m in re.finditer(r"#(\w+) [\w#]+\}\s*(?:\*[^/]*)?\*/\s*readonly \w+(\??): ([^;]+);", body)]
    return out


def shape(known, name):
    out = {"required": [], "optional": [], "blocks": {}}
    for key, required, kind in known[name]:
        below = next((w for w in re.findall(r"\w+", kind) if w in known), None)
        if below:
            out["blocks"][key] = {"required_block": required, **shape(known, below)}
        else:
            out["required" if required else "optional"].append(key)
    return out


def read(folder, resource):
    provider, _, rest = resource.partition("_")
    path = next(pathlib.Path(folder, provider).glob(f"**/lib/{rest.replace('_', '-')}/index.d.ts"))
    known = interfaces(path.read_text())
    config = next(n for n in known if n.endswith("Config") and n.lower() == rest.replace("_", "") + "config")
    return shape(known, config)


def main(folder):
    used = sorted({r for f in TERRAFORM.rglob("*.tf") for r in re.findall(r'^resource "(\w+)"', f.read_text(), re.M)})
    with tempfile.TemporaryDirectory() as work:
        hetzner = providers.rows(work, "hetzner")
    rows = {r: hetzner[r] if r in hetzner else read(folder, r) for r in used}
    OUT.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])

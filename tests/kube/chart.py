# SPDX-License-Identifier: Apache-2.0
"""The chart, as helm renders it."""
import functools
import pathlib
import subprocess
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))

CHART = ROOT / "deploy/helm/cognitora"
KUBE_VERSION = "1.35.0"
NAMESPACE = "ai"


@functools.cache
def helm_path():
    """Return the path of helm, which is built when it is not there."""
    done = subprocess.run([ROOT / "scripts/run/chart-tools.sh"], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    return f"{done.stdout.strip()}/helm"


def helm(*args, check=True, **more):
    done = subprocess.run([helm_path(), *map(str, args)], capture_output=True, text=True, timeout=300, **more)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def values_file(folder, values):
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def render(folder, values):
    """Return the objects of a release with these values."""
    return objects(helm("template", "cognitora", CHART, "-n", NAMESPACE, "--kube-version", KUBE_VERSION, "-f", values_file(folder, values)).stdout)


def refusal(folder, values):
    """Return what helm says against these values."""
    done = helm("template", "cognitora", CHART, "--kube-version", KUBE_VERSION, "-f", values_file(folder, values), check=False)
    assert done.returncode != 0, "helm took these values"
    return done.stderr


def objects(text):
    return [o for o in yaml.safe_load_all(text) if o]


def quickstart():
    return objects((ROOT / "deploy/quickstart/cognitora.yaml").read_text())


def find(objs, kind, name):
    return next(o for o in objs if o["kind"] == kind and o["metadata"]["name"] == name)


def workloads(objs):
    return [o for o in objs if o["kind"] in ("Deployment", "StatefulSet", "DaemonSet")]


def containers(workload):
    """Return the containers of a workload's pods, init containers included."""
    pod = workload["spec"]["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]

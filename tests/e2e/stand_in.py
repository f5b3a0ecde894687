#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for vLLM, SGLang and llama-server: records its command line in $STAND_IN_DIR, then becomes a cgn-sim that listens at the same port,
serves the same model and publishes KV events at the same endpoints. Linked as vllm, python3 and llama-server into a folder of PATH. A python3
that is not asked for SGLang is the real one."""
import json
import os
import sys

REAL_PYTHON = "/usr/bin/python3"


def value(*names):
    for name in names:
        if name in sys.argv:
            return sys.argv[sys.argv.index(name) + 1]
    return None


def main():
    name = os.path.basename(sys.argv[0])
    if name == "python3" and sys.argv[1:3] != ["-m", "sglang.launch_server"]:
        if sys.argv[1:2] == ["-c"] and "find_spec('sglang')" in sys.argv[2]:
            return 0  # the module that the driver looks for is there
        os.execv(REAL_PYTHON, [name, *sys.argv[1:]])
    port = value("--port")
    wanted = ("CUDA_", "VLLM_", "LMCACHE_", "DYN_", "SGLANG_", "NCCL_", "OMP_", "GLOO_", "HF_", "TRANSFORMERS_", "DO_NOT_TRACK")
    with open(os.path.join(os.environ["STAND_IN_DIR"], f"{name}-{port}.json"), "w") as f:
        json.dump({"argv": [name, *sys.argv[1:]], "env": {k: v for k, v in os.environ.items() if k.startswith(wanted)}}, f)
    sim = ["cgn-sim", "--listen", f"{value('--host')}:{port}", "--model", value("--served-model-name", "--alias") or "model", "--time-scale", "0"]
    for flag, to in (("--block-size", "--block-tokens"), ("--data-parallel-size", "--workers")):
        if value(flag):
            sim += [to, value(flag)]
    events = value("--kv-events-config")
    if events:
        events = json.loads(events)
        for key, flag in (("endpoint", "--kv-events"), ("replay_endpoint", "--kv-events-replay")):
            if key in events:
                sim += [flag, events[key].replace("*", "127.0.0.1")]
    os.execvp("cgn-sim", sim)


if __name__ == "__main__":
    sys.exit(main())

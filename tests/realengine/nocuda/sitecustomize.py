# SPDX-License-Identifier: Apache-2.0
"""Lets SGLang's CPU device run code that was only ever run on CUDA (LoRA, the hand-off, HiCache's host memory): events, streams,
pinned memory and its registration do nothing, as on a CPU. Python imports this from PYTHONPATH; torch is changed
when SGLang is imported first."""
import builtins
import importlib.abc
import sys


class Event:
    def __init__(self, *_, **__):
        pass

    def record(self, *_):
        pass

    def wait(self, *_):
        pass

    def synchronize(self):
        pass

    def query(self):
        return True

    def elapsed_time(self, _):
        return 0.0


class Stream:
    cuda_stream = 0

    def __init__(self, *_, **__):
        pass

    def synchronize(self):
        pass

    def wait_stream(self, _):
        pass

    def wait_event(self, _):
        pass

    def record_event(self, event=None):
        return event or Event()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Runtime:
    class cudaError:
        success = 0

    def cudaHostRegister(self, *_):
        return 0

    def cudaHostUnregister(self, *_):
        return 0


def without_pinning(make):
    def made(*args, **kw):
        kw.pop("pin_memory", None)
        return make(*args, **kw)
    return made


def transfer_kv_direct(src_layers, dst_layers, src_indices, dst_indices, page_size):
    """sgl_kernel has this copy of tokens between the engine's memory and the host's for CUDA only, and SGLang does not import it on a CPU."""
    for src, dst in zip(src_layers, dst_layers):
        dst[dst_indices] = src[src_indices].reshape(dst[dst_indices].shape)


def change(torch):
    builtins.transfer_kv_direct = transfer_kv_direct
    torch.cpu.Event, torch.cpu.Stream = Event, Stream
    torch.cpu.current_stream = lambda *_: Stream()
    torch.cpu.stream = lambda s: s if isinstance(s, Stream) else Stream()
    torch.cuda.Event, torch.cuda.Stream = Event, Stream
    torch.cuda.current_stream = lambda *_: Stream()
    torch.cuda.stream = lambda s: s if isinstance(s, Stream) else Stream()
    torch.cuda.cudart = Runtime
    torch.cuda.synchronize = lambda *_: None
    for name in ("empty", "zeros", "ones", "tensor", "full", "empty_like", "zeros_like"):
        setattr(torch, name, without_pinning(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *_, **__: self


class Hook(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "sglang.srt":
            sys.meta_path.remove(self)
            import torch
            if not torch.cuda.is_available():
                change(torch)
        return None


sys.meta_path.insert(0, Hook())

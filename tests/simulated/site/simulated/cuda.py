"""torch.cuda as the simulated GPUs have it: events and streams on their clock, properties, memory, devices."""

# ruff: noqa: ARG002, ARG005, EM101, FBT001, FBT002, PLC0415, PLW0108, SLF001, TRY003 (torch names them so)

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

from . import autograd, casts, gpu, nccl, tensors


class Event:
    """torch.cuda.Event on the simulated clock."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        gpu.Gpu.start()
        self.timing = enable_timing
        self.at: float | None = None

    def record(self, stream: Any = None) -> None:
        self.at = gpu.Gpu.clock

    def wait(self, stream: Any = None) -> None:
        return

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return

    def elapsed_time(self, end_event: Any) -> float:
        if not (self.timing and end_event.timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.at is None or end_event.at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return float(end_event.at - self.at) * 1000


class Stream:
    """torch.cuda.Stream; everything on it is done at once."""

    def __init__(self, device: Any = None, priority: int = 0, **_ids: Any) -> None:
        import torch

        gpu.Gpu.start()
        self.device, self.priority = torch.device("cuda", gpu.Gpu.current), priority
        self.cuda_stream = self.stream_id = id(self)
        self.device_index, self.device_type = self.device.index, 1

    def wait_event(self, event: Any) -> None:
        return

    wait_stream = wait_event

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        return

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return


class _Properties:
    def __init__(self, index: int) -> None:
        self.name = gpu.NAME
        self.major, self.minor = gpu.CAPABILITY
        self.total_memory = gpu.MEMORY
        self.multi_processor_count = 132
        self.uuid = gpu.uuid_of(gpu.visible()[index]).removeprefix("GPU-")
        self.L2_cache_size = 50 << 20
        self.pci_bus_id, self.pci_domain_id, self.pci_device_id = 16 + gpu.visible()[index], 0, 0
        self.is_integrated, self.is_multi_gpu_board = 0, 0
        self.warp_size, self.max_threads_per_multi_processor = 32, 2048


def _started(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        gpu.Gpu.start()
        return function(*args, **kwargs)

    return call


def _replaced(original: Any, replacement: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement, refusing arguments that the original refuses."""
    try:
        signature = inspect.signature(original)
    except (TypeError, ValueError):
        return replacement

    @functools.wraps(replacement)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        return replacement(*bound.args, **bound.kwargs)

    return call


def _functions(torch: Any) -> dict[str, Callable[..., Any]]:
    """Return torch.cuda's functions, by name."""

    def set_device(device: Any) -> None:
        index = gpu.index_of(device)
        if index >= 0:
            gpu.Gpu.start()
            gpu.Gpu.current = index

    def stream_here(*_: Any) -> Stream:
        return Stream()

    def exchange(device: int) -> int:
        before, gpu.Gpu.current = gpu.Gpu.current, device if device >= 0 else gpu.Gpu.current
        return before

    started: dict[str, Callable[..., Any]] = {
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "current_device": lambda: gpu.Gpu.current,
        "get_device_properties": lambda device=None: _Properties(gpu.index_of(device)),
        "synchronize": lambda device=None: gpu.index_of(device) and None,
        "mem_get_info": lambda device=None: (gpu.index_of(device) and None) or (gpu.MEMORY - (16 << 20), gpu.MEMORY),
        **{f"{most}memory_allocated": lambda device=None: gpu.Gpu.allocated for most in ("", "max_")},
        **{f"{most}memory_reserved": lambda device=None: gpu.Gpu.allocated for most in ("", "max_")},
        "reset_peak_memory_stats": lambda device=None: None,
        "memory_stats": lambda device=None: {},
        "empty_cache": lambda: None,
        "current_stream": stream_here,
        "default_stream": stream_here,
        "can_device_access_peer": lambda device, peer_device: gpu.index_of(device) != gpu.index_of(peer_device),
        # Its numbers are the CPU's (see autograd.py), and so is their state.
        "get_rng_state": lambda device="cuda": torch.random.get_rng_state(),
        "set_rng_state": lambda new_state, device="cuda": torch.random.set_rng_state(new_state),
        "is_bf16_supported": lambda including_emulation=True: including_emulation or gpu.CAPABILITY >= (8, 0),
        "get_arch_list": lambda: gpu.ARCHES.split(),
    }
    untouched: dict[str, Callable[..., Any]] = {
        "is_available": lambda: bool(gpu.visible()),
        "device_count": lambda: len(gpu.visible()),
        "is_initialized": lambda: gpu.Gpu.up_in == os.getpid(),
        "_is_in_bad_fork": lambda: gpu.Gpu.up_in not in (None, os.getpid()),
        "set_device": set_device,
        "stream": lambda stream: contextlib.nullcontext(stream),
        "set_stream": lambda stream: None,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange,
        "is_current_stream_capturing": lambda: False,
    }
    return {**{name: _started(function) for name, function in started.items()}, **untouched}


def install(torch: Any) -> None:
    """Give this process its GPUs; called once, right after torch was imported."""
    for name, function in _functions(torch).items():
        if hasattr(torch.cuda, name):
            setattr(torch.cuda, name, _replaced(getattr(torch.cuda, name), function))
    torch.cuda.Event, torch.cuda.Stream = Event, Stream
    torch.version.cuda = gpu.CUDA
    version = f"{str(torch.__version__).partition('+')[0]}+cu{gpu.CUDA.replace('.', '')}"
    torch.__version__ = type(torch.__version__)(version)
    torch._C._cuda_getArchFlags = lambda: gpu.ARCHES
    torch.cuda.nccl.version = lambda: (2, 27, 5)
    _modules(torch)
    tensors.install(torch)
    autograd.install(torch)
    casts.install(torch)
    _accelerator(torch)
    if torch.distributed.is_available():
        nccl.install(torch)
    tensors.mode_of(torch)().__enter__()


def _modules(torch: Any) -> None:
    for name in ("get_rng_state", "set_rng_state", "manual_seed_all"):
        setattr(torch.cuda.random, name, getattr(torch.cuda, name))
    torch.cuda.memory.mem_get_info = torch.cuda.mem_get_info
    torch.backends.cudnn.version, torch.backends.cudnn.is_available = lambda: 91002, lambda: True
    torch.backends.cuda.is_built = lambda: True
    # oneDNN is the CPU's: its 16-bit convolutions read what lies beyond their input on some CPUs (torch 2.13, AMX).
    torch.backends.mkldnn.set_flags(_enabled=False)


def _accelerator(torch: Any) -> None:
    if not hasattr(torch, "accelerator"):
        return
    here = torch.accelerator
    data = {
        "is_available": lambda: bool(gpu.visible()),
        "device_count": lambda: len(gpu.visible()),
        "current_accelerator": lambda check_available=False: torch.device("cuda") if gpu.visible() else None,
        "current_device_index": lambda: gpu.Gpu.current,
        "current_device_idx": lambda: gpu.Gpu.current,
        "set_device_index": torch.cuda.set_device,
        "set_device_idx": torch.cuda.set_device,
        "synchronize": torch.cuda.synchronize,
        "current_stream": lambda device=None: Stream(),
    }
    for name, function in data.items():
        if hasattr(here, name):
            setattr(here, name, function)

"""Make every Python that starts with this directory on its path see simulated GPUs. See simulated/gpu.py."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

# Sizes that take a GPU a moment and a CPU minutes; what they are is no part of what is simulated.
SMALLER: dict[str, dict[str, Any]] = {
    "env.gemm_throughput": {"SIZE": 512, "PREHEAT": 0.05, "WARMUP": 1, "ITERATIONS": 3},
    "env.memory_bandwidth": {"ON_CARD": 1 << 23, "ACROSS": 1 << 22, "TURNS": (2, 5)},
    "support.gpu_speed": {"FLUSH": 1 << 20},
    "env.fingerprint": {"SIZE": {"cuda": 256}, "REPEATS": {"cuda": 3}},
    "collectives.collective_cases": {"LARGE": {"cuda": 4099}},
    "env.straggler": {"SIZE": {"cuda": 192}, "ROUNDS": {"cuda": 300}, "PRODUCTS": {"cuda": 1}},
    "env.memory_patterns": {"CHUNK": {"cuda": 1 << 20}},
    "env.training_load": {"SECONDS": 1.5, "INTERVAL": 0.1, "WIDTH": 64, "BATCH": 64, "ALONE": 0},
    "env.peer_to_peer": {"VALUES": (1 << 18) + 3},
    "env.transport": {"SIZE": 1 << 20},
    "env.sustained_gemm": {"SIZE": 128, "SECONDS": 3.0, "BATCH": 5e-8, "INTERVAL": 0.2},
    "collectives.timed_collectives": {
        "SIZES": {"cuda": [1 << 20, 1 << 22, 1 << 24]},
        "WARMUP": {"cuda": 1},
        "MOST": 5,
        "SMALL_ITERATIONS": {"cuda": 20},
    },
}


def _shrink(module: ModuleType) -> None:
    for name, value in SMALLER[module.__name__.removeprefix("envcheck.checks.")].items():
        known = getattr(module, name)
        setattr(module, name, {**known, **value} if isinstance(known, dict) else value)


def _simulate(module: ModuleType) -> None:
    importlib.import_module("simulated.cuda").install(module)


def _drive(_: ModuleType) -> None:
    importlib.import_module("simulated.driver").install()


def _load(pynvml: Any) -> None:
    pynvml.nvmlLib = importlib.import_module("simulated.driver").library()


AFTER: dict[str, Callable[[ModuleType], None]] = {"torch": _simulate}
AFTER |= {"envcheck.checks.support.sampler": _drive, "pynvml": _load}
AFTER |= {f"envcheck.checks.{name}": _shrink for name in SMALLER}


class _HookLoader(importlib.abc.Loader):
    """A loader that does something once the module is there."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Leave it to the real loader."""
        made: ModuleType | None = self.loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then what is to follow."""
        self.loader.exec_module(module)
        AFTER[module.__name__](module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds what is to be changed where it lies, for _Then to load."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own spec with another loader; None for everything else."""
        if name not in AFTER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _HookLoader(spec.loader)
        return spec


if os.environ.get("SIMULATED_GPUS"):
    sys.meta_path.insert(0, _Finder())

"""An extension may install and import, and still do without its native part, compute nothing, or end the process.

Seen in the wild: torchao logs "Skipping import of cpp extensions" and goes on (pytorch/ao#2919), and aborted the
interpreter beside another torch (pytorch/ao#2908); xformers says "can't load C++/CUDA extensions"; onnxruntime takes
the CPU instead of the GPU (microsoft/onnxruntime#21684); torchcodec finds no FFmpeg (meta-pytorch/torchcodec#762).
Each extension is imported in a process of its own, its libraries are loaded, and its smallest operation is run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple, Optional

from envcheck.binaries import native_library
from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View
from envcheck.checks.extensions import installed, trials
from envcheck.checks.extensions.installed import InstalledExtension
from envcheck.checks.extensions.operations import OPERATIONS

CHECK = Check(
    promise="every installed extension imports, loads its native part, and computes its smallest operation right",
    level="quick",
    # Which extensions there are is known only when it runs: without any it takes 0.3 s, with some it took up to 22 s on
    # CPUs (not measured on GPUs). A budget must not be exceeded, so an environment with some is planned.
    seconds=12.0,
    cpu_seconds=15.0,
    timeout=560.0,
)
# What is left of the timeout is for reading the libraries.
_PATIENCE = 500.0


def measure(rank: Rank) -> Measured:
    """Try each installed extension in a process of its own."""
    extensions = installed.extensions(installed.distributions())
    gpu = rank.device.startswith("cuda")
    results = trials.run_all(extensions, Path(rank.scratch), _PATIENCE, gpu=gpu)
    return {
        "rank": rank.rank,
        "gpu": gpu,
        "interpreter": installed.interpreter(),
        "extensions": [_row(extension, results[extension.name]) for extension in extensions],
    }


def _row(extension: installed.InstalledExtension, trial: Measured | None) -> Measured:
    return {
        "name": extension.name,
        "version": extension.version,
        "built": built_against(extension)._asdict(),
        "libraries": len(extension.libraries),
        "gpu_code": any(library.sass or library.ptx for library in extension.libraries),
        "operation": extension.name in OPERATIONS,
        "trial": trial,
    }


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on each extension that does not import, goes on without its native part, or computes something else."""
    # Facts and version rules are for envcheck's own process; `measure` runs in the environment's Python.
    from envcheck.checks import loaded_judge

    return loaded_judge.judge(view, ranks)


# flash-attn: 2.8.3+cu12torch2.9cxx11abiTRUE; PyG: 2.1.2+pt24cu121; others: 0.24.1+cu128.
_TORCH_IN_LOCAL = re.compile(r"torch(\d+\.\d+)|pt(\d)(\d+)")
_CUDA_IN_LOCAL = re.compile(r"cu(\d{2,3})")
# torchvision and others write version.py: cuda = '12.8', with or without a type.
_CUDA_IN_VERSION = re.compile(r"^cuda\s*(?::[^=]*)?=\s*[\"']([\d.]+)[\"']", re.MULTILINE)
_TWO_DIGITS = 2


class BuiltAgainst(NamedTuple):
    """Versions as far as they are written down ("2.9", "12.8" or a major), and where. None: not written down."""

    torch: Optional[str]  # noqa: UP045 (Python 3.9 evaluates the fields of a NamedTuple)
    cuda: Optional[str]  # noqa: UP045
    source: str


def built_against(extension: InstalledExtension) -> BuiltAgainst:
    """Return what an extension was built for; the more exact source counts, and for CUDA's major the libraries."""
    written = _cpp_lib(extension) or _local(extension.version) or _version_py(extension)
    majors = native_library.cuda_majors(name for library in extension.libraries for name in library.needed)
    by_libraries = majors[0] if len(majors) == 1 else None
    if written is None:
        return BuiltAgainst(None, by_libraries, "DT_NEEDED" if by_libraries else "")
    return written._replace(cuda=written.cuda or by_libraries)


def _cpp_lib(extension: InstalledExtension) -> BuiltAgainst | None:
    """Return what xformers writes beside its library: {"version": {"torch": "2.9.1+cu128", "cuda": 1208}}."""
    try:
        version = json.loads(_text(extension, "cpp_lib.json"))["version"]
        cuda, torch = version.get("cuda"), version.get("torch")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    dotted = f"{cuda // 100}.{cuda % 100}" if isinstance(cuda, int) else None
    return BuiltAgainst(str(torch) if torch else None, dotted, "cpp_lib.json")


def _version_py(extension: InstalledExtension) -> BuiltAgainst | None:
    match = _CUDA_IN_VERSION.search(_text(extension, "version.py"))
    return BuiltAgainst(None, match[1], "version.py") if match else None


def _text(extension: InstalledExtension, name: str) -> str:
    try:
        path = Path(extension.root, extension.name.replace("-", "_"), name)
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _local(version: str) -> BuiltAgainst | None:
    local = version.partition("+")[2]
    torch, cuda = _TORCH_IN_LOCAL.search(local), _CUDA_IN_LOCAL.search(local)
    if torch is None and cuda is None:
        return None
    digits = cuda[1] if cuda else ""
    dotted = digits if len(digits) <= _TWO_DIGITS else f"{digits[:2]}.{digits[2:]}"
    minor = (torch[1] or f"{torch[2]}.{torch[3]}") if torch else None
    return BuiltAgainst(minor, dotted or None, "the version")

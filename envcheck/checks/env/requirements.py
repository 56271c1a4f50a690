"""An environment can be installed and still be wrong: a package that another one needs, in a version it refuses."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import re
import site
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided, warned, worst
from envcheck.checks.support import package_files, process_group
from envcheck.counting import counted

CHECK = checks.Check(promise="every installed package finds the packages it needs", level="static", seconds=1.2)

LIMIT = checks.Limit(0, "requirements", "the packages' own metadata, as `pip check` reads it", "equal")
# Whoever brings the module `packaging`; uv and pip make environments without the first.
READERS = ("packaging", "pip._vendor.packaging", "setuptools._vendor.packaging")
# What a CUDA wheel of torch brings; NCCL, which nothing else needs on a CPU, tells that it was one.
COMPANION = re.compile(
    r"nvidia-(cublas|cuda-(cupti|nvrtc|runtime)|cudnn|cufft|cufile|curand|cusolver|cusparse|cusparselt|nccl|nvjitlink"
    r"|nvshmem|nvtx)(-cu\d\d)?|(pytorch-)?triton"
)
NCCL = re.compile(r"nvidia-nccl-cu\d\d")
# NVIDIA lets newer ones of a major take the place of older ones: PyTorch 2.9.1 asks for that (pytorch/pytorch#166643,
# #168167), and SGLang's images do it (sgl-project/sglang#35696).
EXCHANGEABLE = re.compile(r"(nvidia-(?:cudnn|nccl)-cu\d\d)\s*\(?==\s*((\d+)(?:\.\d+)*)(?![\w.*+])\)?")
# What apt installed it looks after: python3-gi never brings pycairo (openvinotoolkit/openvino#5061). pip's it does not.
APT = "/usr/lib/python3/dist-packages"
FAMILY = re.compile(r"(torch|torchvision|torchaudio|triton) ")
_SHOWN = 3
# What a file imports and no metadata asks for, before a Python: TensorBoard 2.20, torch before 2.0, torch 2.6 to 2.8.
UNDECLARED = (
    ("tensorboard", "tensorboard/default.py", "pkg_resources", (4,), "tensorflow/tensorboard#7064"),
    ("torch.utils.cpp_extension", "torch/utils/cpp_extension.py", "pkg_resources", (4,), "geopavlakos/hamer#139"),
    ("torchrun", "torch/distributed/elastic/rendezvous/registry.py", "importlib_metadata", (3, 10), "pytorch#163946"),
)
# What torch does not pin, though it pins CUDA's headers: of another minor, nothing of these compiles at first use.
COMPILES = {"flashinfer-python", "vllm", "sglang"}
TOOLCHAIN = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm")

_Packages = dict[str, importlib.metadata.Distribution]


def measure(rank: Rank) -> Measured:
    """Return what is required and is not there, or is there in a version that is refused."""
    reader: Any = None
    for name in READERS:
        with contextlib.suppress(Exception):  # absent, or damaged: the next one may do
            reader = importlib.import_module(f"{name}.requirements")
            break
    installed, hidden, shadowed = _installed()
    broken, behind = _broken(reader, installed, hidden) if reader else ([], set())
    return {
        "rank": rank.rank,
        "packages": len(installed),
        "reader": reader and reader.__name__.split(".")[0],
        "broken": sorted([*broken, *_undeclared(installed)]),
        "behind": sorted(behind),
        "shadowed": shadowed,
        "left": _left(installed),
    }


def _broken(reader: Any, installed: _Packages, hidden: _Packages) -> tuple[list[str], set[str]]:
    broken, behind = [], set()
    for dist in installed.values():
        for text in dist.requires or []:
            problem, named = _problem(reader, text, installed), re.match(r"[\w.-]+", text.strip())
            name = package_files.key(named[0]) if problem and named else ""
            line, apt = f"{dist.metadata['Name']} {dist.version} {problem}", str(dist.locate_file("")).startswith(APT)
            ours = name in installed and not str(installed[name].locate_file("")).startswith(APT)
            broken += [line] if problem and (FAMILY.match(line) or not apt or ours) else []
            if name in hidden and not _problem(reader, text, hidden):
                behind.add(f"{name} {hidden[name].version}, hidden by {installed[name].version}")
    return broken, behind


def _undeclared(installed: _Packages) -> Iterator[str]:
    headers = installed.get("nvidia-cuda-runtime")
    minor = ".".join(str(headers and headers.version).split(".")[:2])
    for name in TOOLCHAIN if headers and TOOLCHAIN[0] in installed and not COMPILES.isdisjoint(installed) else ():
        if name in installed and not str(installed[name].version).startswith(f"{minor}."):
            yield f"nvidia-cuda-runtime {minor} needs {name}=={minor}.*, and has {installed[name].version} (vllm#44305)"
    for user, path, module, before, why in UNDECLARED:
        file = Path(getattr(importlib.util.find_spec(path.split("/")[0]), "origin", None) or "").parent.parent / path
        imports = file.is_file() and re.search(rf"(?m)^\s*(import|from) {module}\b", file.read_text(encoding="utf-8"))
        if imports and sys.version_info < before and importlib.util.find_spec(module) is None:
            yield f"{user} needs {module}, which is not installed ({why})"


def _left(installed: _Packages) -> list[str]:
    """Return torch's companions that no other package names, in any extra of its own."""
    others = [dist for name, dist in installed.items() if not COMPANION.fullmatch(name)]
    named = [re.match(r"[\w.-]+", text.strip()) for dist in others for text in dist.requires or []]
    needed = {package_files.key(match[0]) for match in named if match}
    return sorted(name for name in installed if COMPANION.fullmatch(name) and name not in needed)


def _installed() -> tuple[_Packages, _Packages, list[str]]:
    """Return what Python imports, what a copy in ~/.local hides of it, and all that is hidden, in words."""
    installed: _Packages = {}
    hidden: _Packages = {}
    shadowed = set()
    for dist in importlib.metadata.distributions():
        name = dist.metadata["Name"]
        first = installed.setdefault(package_files.key(name), dist) if name else dist
        if first.version != dist.version:
            shadowed.add(f"{name} {dist.version}, hidden by {first.version}")
            if str(first.locate_file("")).startswith(site.getusersitepackages()):
                hidden.setdefault(package_files.key(name), dist)
    return installed, hidden, sorted(shadowed)


def _problem(reader: Any, text: str, installed: _Packages) -> str | None:
    try:
        requirement = reader.Requirement(EXCHANGEABLE.sub(r"\1>=\2,==\3.*", text))
    except reader.InvalidRequirement:
        return None
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return None
    version = installed.get(package_files.key(requirement.name))
    if version is None:
        return f"needs {requirement.name}, which is not installed"
    if not version.version:
        return f"needs {requirement.name}, whose metadata has no version"
    if not requirement.specifier.contains(version.version, prereleases=True):
        return f"needs {requirement.name}{requirement.specifier}, and has {version.version}"
    return None


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail where torch's own family is affected, warn elsewhere; where nothing reads requirements, skip."""
    entry = ranks[0] if ranks else {}
    conflicts = _conflicts(entry)
    left = [str(name) for name in entry.get("left") or []]
    without_cuda = "cuda" in view.environment and not view.environment["cuda"]
    if not without_cuda or not any(NCCL.fullmatch(name) for name in left):
        return conflicts
    text = f"this torch is built without CUDA, and what a CUDA wheel brought is there still: {', '.join(left)}"
    fix = f"pip uninstall {' '.join(left)}; or install the torch of that CUDA again (`envcheck resolve`)"
    over = warned(text, fix=fix, code="requirements.left", culprit=next(filter(NCCL.fullmatch, left)))
    return worst([over, *([conflicts] if conflicts.status not in ("pass", "skip") else [])], otherwise=over)


def _conflicts(entry: Measured) -> Outcome:
    if not process_group.counts(entry.get("packages")) or not entry["packages"]:
        return undecided("no installed package was found", code="requirements.no-packages")
    broken = entry.get("broken")
    if not broken and not isinstance(entry.get("reader"), str):
        text = "nothing in this environment reads requirements (packaging, pip, setuptools)"
        return skipped(text, code="requirements.no-reader")
    if not isinstance(broken, list):
        return undecided("the requirements were not read", code="requirements.unmeasured")
    shadowed = entry.get("shadowed") or []
    if broken:
        text = "; ".join(broken[:_SHOWN]) + (f"; {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else "")
        fix = "install what is named (pkg_resources: 'setuptools<82'), or build the environment again from its lock"
        behind = entry.get("behind")
        if behind:  # ~/.local before a conda environment: spinalcordtoolbox/spinalcordtoolbox#3067
            fix = f"{behind[0]}: uninstall what hides it, or leave ~/.local out (PYTHONNOUSERSITE=1); {fix}"
        verdict = failed if any(FAMILY.match(line) for line in broken) else warned
        about: dict[str, Any] = {"value": len(broken), "limit": LIMIT, "broken": broken}
        return verdict(text, fix=fix, code="requirements.conflict", **about)
    hidden = f"; hidden by another version: {len(shadowed)}, first {shadowed[0]}" if shadowed else ""
    summary = f"{counted(entry['packages'], 'package')} without a conflict{hidden}"
    return passed(summary, value=0, limit=LIMIT, shadowed=shadowed)

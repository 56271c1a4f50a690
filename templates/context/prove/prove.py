# ruff: noqa: INP001, PLC0415, SLF001, T201 (a script of a build; torch is imported late; no other API works without GPU)
"""prove.py NAME=VALUE... [ADDED...]: exit 1, naming each difference, unless torch is what was promised.

A promise `fabric` names libraries that have to load, as NCCL will load them, beside a provider of libibverbs.

ADDED are packages of the user's own: exit 1 also where one of them overwrote a file of another package.

Runs inside the last RUN that installs for it, before that layer exists: a wrong torch never becomes an image.
"""

import ctypes
import glob
import importlib.metadata
import platform
import re
import sys
from typing import Dict, List, Tuple  # noqa: UP035 (the oldest Python of the matrix)

CUDNN_9 = 90000
# Debian's and Ubuntu's place: libibverbs lists the devices that one of these knows.
PROVIDERS = "/usr/lib/*/libibverbs/*-rdmav*.so"


def imported() -> Dict[str, str]:  # noqa: UP006 (as above)
    """Return what torch says once imported; without a device torch.cuda.get_arch_list() would be empty."""
    import torch

    if torch.version.cuda is None:
        return {"torch": torch.__version__, "cuda": "none", "cudnn": "none", "nccl": "none", "arch-list": "none"}
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": dotted(torch.backends.cudnn.version()),
        "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()[:3]),
        "arch-list": torch._C._cuda_getArchFlags() or "none",
    }


def dotted(cudnn: int) -> str:
    """Return 9.10.2 for 91002; before cuDNN 9, 8.9.2 for 8902."""
    scale = 10000 if cudnn >= CUDNN_9 else 1000
    return f"{cudnn // scale}.{cudnn % scale // 100}.{cudnn % 100}"


def same(name: str, promised: str, found: str) -> bool:
    """Compare one promise; the order of architectures means nothing, and "unknown" promises nothing."""
    if name == "arch-list":
        return promised == "unknown" or set(promised.split()) == set(found.split())
    return promised in {"unknown", found}


def fabric(promised: str) -> str:
    """Return the promised libraries that load; of libibverbs without a provider, that."""
    loaded = [name for name in promised.split() if loads(name)]
    providers = [path for path in glob.glob(PROVIDERS) if loads(path)]  # noqa: PTH207 (its patterns are absolute)
    return " ".join(loaded if providers else [*loaded, "without a provider"]) or "none"


def loads(library: str) -> bool:
    """Tell whether the loader finds a library and all that it needs."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def overwritten(added: List[str]) -> List[str]:  # noqa: UP006 (as above)
    """Return a line for each package of which one of `added` overwrote files: both RECORDs list them, not alike."""
    owners: Dict[str, List[Tuple[str, str]]] = {}  # noqa: UP006 (as above)
    for package in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()
        for file in package.files or []:
            if file.hash is not None:
                owners.setdefault(str(file), []).append((name, file.hash.value))
    lost: Dict[Tuple[str, str], List[str]] = {}  # noqa: UP006 (as above)
    for file, records in owners.items():
        for owner, theirs in records:
            for other, ours in records:
                if owner not in added and other in added and theirs != ours:
                    lost.setdefault((other, owner), []).append(file)
    return [f"{pair[0]} overwrote {len(files)} of {pair[1]}, e.g. {files[0]}" for pair, files in sorted(lost.items())]


def main(arguments: List[str]) -> int:  # noqa: UP006 (as above)
    """Compare, and name on stderr what differs."""
    promised = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    replaced = overwritten([argument for argument in arguments if "=" not in argument])
    found = imported()
    found["python"] = ".".join(platform.python_version_tuple()[:2])
    if "fabric" in promised:
        found["fabric"] = fabric(promised["fabric"])
    wrong = [(name, value) for name, value in found.items() if not same(name, promised[name], value)]
    for name, value in wrong:
        print(f"envcheck: proof failed: {name} is {value}, promised was {promised[name]}", file=sys.stderr)
    for line in replaced:
        print(f"envcheck: overwritten: {line}", file=sys.stderr)
    return 1 if wrong or replaced else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Which torch and CUDA an installed extension was built for, where the package or its libraries say so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple, Optional

from envcheck.binaries import native_library
from envcheck.checks.env.support.extensions.installed import InstalledExtension

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

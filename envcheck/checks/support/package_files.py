"""The files that a package brought, as its installer wrote them down, and whether they are still those.

RECORD: "Recording installed projects" of the Python packaging specifications; a hash is base64url without padding.
conda: conda-meta/PACKAGE.json, `paths_data`. Standard library only; torch is not imported.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

FAMILY = re.compile(r"(torch|triton|pytorch-triton(-\w+)?|torchvision|torchaudio|nvidia-.+|functorch|torchgen)")
# What an installer itself leaves behind, and may write anew.
OWN = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
BLOCK = 1 << 20
# What conda calls the packages of a distribution, where that is another name; libraries may have one of their own.
CONDA = {"torch": ("pytorch", "libtorch"), "triton": ("torchtriton", "pytorch-triton")}
# libs-cu13 puts other files in the places of libs-base's, and the GPU decides which serve: NVIDIA/cutlass#3170, #3227,
# vllm-project/vllm#40082, sgl-project/sglang#25938.
OVERLAID = re.compile("nvidia-cutlass-dsl")
# PEP 610, as pip and uv write it: the files are in a checkout, where PyTorch's README has them built (pytorch#195737).
EDITABLE = re.compile(r'"editable":\s*true')
# What conda makes at installation, or links to files that have digests of their own.
MADE = ("pyc_file", "unix_python_entry_point", "directory", "softlink")
# What Python or its tools run at every start, or import before anything else.
STARTUP = ("sitecustomize", "usercustomize")


class RecordedFile(NamedTuple):
    """One file that must be there: its path, how its digest was made, the digest in hexadecimal, and its owner."""

    path: Path
    algorithm: str
    digest: str
    owner: str


class Package(NamedTuple):
    """One installed package: where its metadata lies, its files, and who wrote them down ("" where nobody did)."""

    name: str
    version: str
    where: str
    ledger: str
    files: list[RecordedFile]


def key(name: str) -> str:
    """Return the normalised name of a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def packages() -> list[Package]:
    """Return torch's family as installed on sys.path, all copies of a name."""
    distributions = []
    for dist in importlib.metadata.distributions():
        name = key(dist.metadata["Name"] or "")
        if FAMILY.fullmatch(name):
            distributions.append(_package(name, dist))
    return distributions


def _package(name: str, dist: importlib.metadata.Distribution) -> Package:
    where = Path(str(getattr(dist, "_path", "")))
    editable = EDITABLE.search(dist.read_text("direct_url.json") or "")
    # torch's kin pass by the few files that RECORD has of them; of torch that would be another one than is imported.
    listed = list(_record("" if editable and name == "torch" else dist.read_text("RECORD") or "", where.parent, name))
    byconda = (dist.read_text("INSTALLER") or "").strip() == "conda"
    # conda writes its prefix and library paths into files after RECORD was made, and keeps the digests of the result.
    conda = _conda(name) if byconda or not (listed or editable) else []
    ledger = "conda-meta" if conda else "RECORD" if listed else ""
    return Package(name, dist.version, str(where), ledger, conda or listed)


def _record(text: str, root: Path, owner: str) -> Iterator[RecordedFile]:
    for row in csv.reader(text.splitlines()):
        if len(row) < 2 or not row[0]:  # noqa: PLR2004 (path and hash)
            continue
        algorithm, _, code = row[1].partition("=")
        if row[0].endswith(".pyc") or Path(row[0]).name in OWN:
            continue
        digest = base64.urlsafe_b64decode(code + "=" * (-len(code) % 4)).hex() if code else ""
        yield RecordedFile(Path(os.path.normpath(root / row[0])), algorithm, digest, owner)


def _conda(name: str) -> list[RecordedFile]:
    prefix, names, files = Path(sys.prefix), {name, *CONDA.get(name, ())}, []
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        if key(str(data.get("name"))) in names:
            rows = (data.get("paths_data") or {}).get("paths") or []
            files += [
                RecordedFile(
                    prefix / row["_path"], "sha256", row.get("sha256_in_prefix") or row.get("sha256") or "", name
                )
                for row in rows
                if row.get("path_type") not in MADE
            ]
    return [listed for listed in files if listed.path.suffix != ".pyc"]


def _digest(listed: RecordedFile) -> str:
    made = hashlib.new(listed.algorithm, usedforsecurity=False)
    with listed.path.open("rb") as file:
        while block := file.read(BLOCK):
            made.update(block)
    return made.hexdigest()


def compare(files: Iterable[RecordedFile]) -> dict[str, Any]:
    """Return counts, bytes and seconds, and which files are missing, changed, unreadable or have no digest."""
    places: dict[Path | RecordedFile, list[RecordedFile]] = {}
    for item in files:
        places.setdefault(item.path if OVERLAID.match(item.owner) else item, []).append(item)
    begun, waiting, lock = time.monotonic(), iter(places.values()), threading.Lock()
    measured: dict[str, Any] = {"files": 0, "bytes": 0, "missing": [], "changed": [], "unreadable": [], "without": []}

    def work() -> None:
        while True:
            with lock:
                listed = next(waiting, None)
            if listed is None:
                return
            kind, size = min(map(_state, listed))  # "" where one is as it was brought
            with lock:
                measured["files"] += 1
                measured["bytes"] += size
                if kind:
                    measured[kind].append(str(listed[0].path))

    # hashlib lets other threads run while it digests a block.
    threads = [threading.Thread(target=work) for _ in range(min(8, len(os.sched_getaffinity(0))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {**measured, "seconds": round(time.monotonic() - begun, 2)}


def _state(listed: RecordedFile) -> tuple[str, int]:
    if not listed.algorithm or not listed.digest:
        return ("without" if listed.path.exists() else "missing"), 0
    try:
        return ("" if _digest(listed) == listed.digest.lower() else "changed"), listed.path.stat().st_size
    except FileNotFoundError:
        return "missing", 0
    except (OSError, ValueError):
        return "unreadable", 0


def strangers(package: Package, others: Iterable[Package]) -> list[str]:
    """Return Python files and libraries in the package's own directories that no package of the family brought."""
    listed = {str(item.path) for owner in (package, *others) for item in owner.files}
    root = Path(package.where).parent
    own, depth = [item.path.parts for item in package.files], len(root.parts)
    tops = {parts[depth] for parts in own if parts[:depth] == root.parts and len(parts) > depth + 1}
    unlisted = []
    for top in sorted(top for top in tops if (root / top).is_dir() and not top.endswith((".dist-info", ".egg-info"))):
        for directory, _, names in os.walk(root / top):
            for name in names:
                path = os.path.join(directory, name)  # noqa: PTH118 (ten thousand of them)
                if name.endswith((".py", ".so", ".pth")) or ".so." in name:
                    unlisted += [] if path in listed else [path]
    return unlisted

"""The files that a package brought, as its installer wrote them down, and whether they are still those.

RECORD: "Recording installed projects" of the Python packaging specifications; a hash is base64url without padding.
Debian: /var/lib/dpkg/info/PACKAGE.md5sums. conda: conda-meta/PACKAGE.json, `paths_data`. Standard library only; torch
is not imported.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
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
ROOT = Path("/")
DPKG = "var/lib/dpkg/info"
# What conda calls the packages of a distribution, where that is another name; libraries may have one of their own.
CONDA = {"torch": ("pytorch", "libtorch"), "triton": ("torchtriton", "pytorch-triton")}
# Debian's packages with the libraries of torch, apart from headers and tests.
LIBTORCH = re.compile(r"libtorch(-cuda)?[-.\d]*(:\w+)?")
# What conda makes at installation, or links to files that have digests of their own.
MADE = ("pyc_file", "unix_python_entry_point", "directory", "softlink")
# What Python or its tools run at every start, or import before anything else.
STARTUP = ("sitecustomize", "usercustomize")
MAGIC, HEADER = importlib.util.MAGIC_NUMBER, 16
CHECKED_HASH = 0b11


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
    listed = list(_record(dist.read_text("RECORD") or "", where.parent, name))
    # conda writes its prefix and library paths into files after RECORD was made, and keeps the digests of the result.
    by_conda = (dist.read_text("INSTALLER") or "").strip() == "conda"
    conda = _conda(name) if by_conda or not listed else []
    if conda:
        return Package(name, dist.version, str(where), "conda-meta", conda)
    if listed:
        return Package(name, dist.version, str(where), "RECORD", listed)
    debian = _debian(where)
    return Package(name, dist.version, str(where), "dpkg" if debian else "", debian)


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
    """Return the files of the conda packages that a distribution is made of."""
    prefix, names, files = Path(sys.prefix), {name, *CONDA.get(name, ())}, []
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        if key(str(data.get("name"))) in names:
            rows = (data.get("paths_data") or {}).get("paths") or []
            files += [_in_prefix(prefix, row, name) for row in rows if row.get("path_type") not in MADE]
    return [listed for listed in files if listed.path.suffix != ".pyc"]


def _in_prefix(prefix: Path, row: dict[str, Any], owner: str) -> RecordedFile:
    return RecordedFile(prefix / row["_path"], "sha256", row.get("sha256_in_prefix") or row.get("sha256") or "", owner)


def _debian(where: Path) -> list[RecordedFile]:
    """Return the files of the Debian package that owns this metadata, and of torch's libraries beside it."""
    inside = ROOT / "usr/lib/python3" in where.parents
    listings = sorted((ROOT / DPKG).glob("*.list")) if inside else []
    owned = f"/{where.relative_to(ROOT)}" if listings else ""
    owners = [listing for listing in listings if owned in _lines(listing)]
    if owners and where.name.startswith("torch-"):
        owners += [listing for listing in listings if LIBTORCH.fullmatch(listing.stem)]
    return [listed for listing in owners for listed in _summed(listing)]


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _summed(listing: Path) -> Iterator[RecordedFile]:
    sums = listing.with_suffix(".md5sums")
    for line in _lines(sums) if sums.exists() else []:
        digest, _, name = line.partition("  ")
        if name:
            yield RecordedFile(ROOT / name, "md5", digest, listing.stem)


def digest(listed: RecordedFile) -> str:
    """Return a file's digest by the algorithm its ledger used."""
    made = hashlib.new(listed.algorithm, usedforsecurity=False)
    with listed.path.open("rb") as file:
        while block := file.read(BLOCK):
            made.update(block)
    return made.hexdigest()


def compare(files: Iterable[RecordedFile]) -> dict[str, Any]:
    """Return counts, bytes and seconds, and which files are missing, changed, unreadable or have no digest."""
    begun, waiting, lock = time.monotonic(), iter(list(files)), threading.Lock()
    measured: dict[str, Any] = {"files": 0, "bytes": 0, "missing": [], "changed": [], "unreadable": [], "without": []}

    def work() -> None:
        while True:
            with lock:
                listed = next(waiting, None)
            if listed is None:
                return
            kind, size = _state(listed)
            with lock:
                measured["files"] += 1
                measured["bytes"] += size
                if kind:
                    measured[kind].append(str(listed.path))

    # hashlib lets other threads run while it digests a block.
    threads = [threading.Thread(target=work) for _ in range(min(8, len(os.sched_getaffinity(0))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {**measured, "seconds": round(time.monotonic() - begun, 2)}


def _state(listed: RecordedFile) -> tuple[str, int]:
    """Return what is wrong with a file ("" for nothing), and its size."""
    if not listed.algorithm or not listed.digest:
        return ("without" if listed.path.exists() else "missing"), 0
    try:
        size = listed.path.stat().st_size
        return ("" if digest(listed) == listed.digest.lower() else "changed"), size
    except FileNotFoundError:
        return "missing", 0
    except (OSError, ValueError):
        return "unreadable", 0


def strangers(package: Package, others: Iterable[Package]) -> list[str]:
    """Return Python files and libraries in the package's own directories that no package of the family brought."""
    listed = {str(item.path) for owner in (package, *others) for item in owner.files}
    root = Path(package.where).parent
    tops = {item.path.relative_to(root).parts[0] for item in package.files if _below(item.path, root)}
    unlisted = []
    for top in sorted(top for top in tops if (root / top).is_dir() and not top.endswith((".dist-info", ".egg-info"))):
        for directory, _, names in os.walk(root / top):
            for name in names:
                path = os.path.join(directory, name)  # noqa: PTH118 (ten thousand of them)
                if name.endswith((".py", ".so", ".pth")) or ".so." in name:
                    unlisted += [] if path in listed else [path]
    return unlisted


def _below(path: Path, root: Path) -> bool:
    parts = path.parts
    return parts[: len(root.parts)] == root.parts and len(parts) > len(root.parts) + 1


def stale(sources: Iterable[Path]) -> list[str]:
    """Return bytecode that Python would run in place of a source it was not made from.

    Python takes a .pyc whose header names the source's time and size, or its hash (PEP 552). Its code has no hash of
    its own, so that the source is compiled again and the two are compared.
    """
    return [str(path) for path in map(_bytecode, sources) if path is not None]


def _bytecode(source: Path) -> Path | None:
    cached = Path(importlib.util.cache_from_source(str(source)))
    try:
        data, text, stat = cached.read_bytes(), source.read_bytes(), source.stat()
    except OSError:
        return None
    if data[:4] != MAGIC:
        return None
    flags = int.from_bytes(data[4:8], "little")
    if flags & CHECKED_HASH == CHECKED_HASH:
        used = data[8:16] == importlib.util.source_hash(text)
    elif flags:
        used = True  # unchecked: Python believes it
    else:
        recorded = (int(stat.st_mtime) & 0xFFFFFFFF, stat.st_size & 0xFFFFFFFF)
        used = (int.from_bytes(data[8:12], "little"), int.from_bytes(data[12:16], "little")) == recorded
    return cached if used and not _same_code(data[HEADER:], text, str(source)) else None


def _same_code(marshalled: bytes, text: bytes, name: str) -> bool:
    """Return whether bytecode is what this source compiles to, wherever it was compiled."""
    import marshal

    code = marshal.loads(marshalled)  # noqa: S302 (bytecode that this Python would run anyway is only looked at)
    return _shape(code) == _shape(compile(text, name, "exec", dont_inherit=True, optimize=sys.flags.optimize))


def _shape(code: Any) -> tuple[Any, ...]:
    """Return what of a code object does not depend on where its source lay."""
    constants = tuple(map(_constant, code.co_consts))
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, constants


def _constant(value: Any) -> Any:
    if hasattr(value, "co_code"):
        return _shape(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else (type(value).__name__, repr(value))

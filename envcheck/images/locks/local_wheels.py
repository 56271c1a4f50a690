"""Files of a lock that lie on this machine: in find-links directories and file indexes, accepted by hash only."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from envcheck.images.locks.model import Lock, Pin
from envcheck.mirrors.profiles.model import Index

_LINK: Final = re.compile(r"<a\b[^>]*\bhref=[\"'](?P<href>[^\"'#]+)", re.IGNORECASE)


def local_wheels(locks: Iterable[Lock], indexes: Iterable[Index], python: str) -> dict[str, Path]:
    """Return sha256 -> path of each file of the locks for this Python that the local ones among `indexes` hold."""
    indexes = [index for index in indexes if index.local is not None]
    wheels: dict[str, Path] = {}
    for pin in (pin for lock in locks for pin in lock.pins):
        for path in (path for index in indexes for path in _files(index, pin.name)):
            if set(pin.sha256) & wheels.keys():
                break
            if _may_be(path, pin, python) and (digest := sha256(path)) in pin.sha256:
                wheels.setdefault(digest, path)
    return wheels


def refused_wheels(lock: Lock, indexes: Iterable[Index], python: str, wheels: Mapping[str, Path]) -> list[str]:
    """Return the names of local files that a lock asks for by name but not by hash, `wheels` being those it takes."""
    indexes = [index for index in indexes if index.local is not None]
    missing = [pin for pin in lock.pins if not set(pin.sha256) & wheels.keys()]
    files = ((pin, path) for pin in missing for index in indexes for path in _files(index, pin.name))
    return sorted({path.name for pin, path in files if _may_be(path, pin, python)})


def _files(index: Index, package: str) -> Iterator[Path]:
    directory = index.local
    if directory is None:
        return
    if index.kind == "find-links" and directory.is_dir():
        yield from sorted(directory.glob("*.whl"))
        return
    page = directory if index.kind == "find-links" else directory / package / "index.html"
    if page.is_file():
        hrefs = (unescape(m["href"]) for m in _LINK.finditer(page.read_text(errors="replace")))
        local = (
            Path(unquote(href.removeprefix("file://"))) for href in hrefs if "://" not in href.removeprefix("file://")
        )
        yield from (page.parent / path for path in local)


def named(name: str, pin: Pin, python: str, machine: str | None = None) -> bool:
    """Tell whether a wheel of this file name is one of a pin, for this Python and architecture (this machine's)."""
    machine = machine or os.uname().machine
    try:
        project, version, _, tags = parse_wheel_filename(name)
    except ValueError:
        return False
    same = canonicalize_name(project) == pin.name and version == Version(pin.version)
    return same and any(_fits(tag, python) and tag.platform.endswith(("any", machine)) for tag in tags)


def _may_be(path: Path, pin: Pin, python: str) -> bool:
    return named(path.name, pin, python) and path.is_file()


def _fits(tag: Tag, python: str) -> bool:
    """Tell whether a wheel's tag is for this CPython; a lock may hold files for several."""
    minor = int(python.partition(".")[2].rstrip("t"))
    if tag.interpreter.startswith("py3"):
        return True
    if tag.abi == "abi3":
        oldest = tag.interpreter.removeprefix("cp3") or "0"
        return tag.interpreter.startswith("cp3") and oldest.isdecimal() and int(oldest) <= minor
    return tag.abi == f"cp{python.replace('.', '')}"


def sha256(path: Path) -> str:
    """Return a file's sha256."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()

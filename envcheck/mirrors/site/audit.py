"""Hash again what a mirror serves, and take out of its cache what is not what the locks say.

A cache never looks at a file again: what it once took wrongly it serves for ever. nginx keeps no hash of the content.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from envcheck.errors import UnavailableError
from envcheck.mirrors.http import Client, NetworkError
from envcheck.mirrors.locate import Found, Need, locate
from envcheck.mirrors.profile import Index
from envcheck.mirrors.site.cachefile import Slice, slices
from envcheck.mirrors.site.model import Site
from envcheck.mirrors.site.render import places

Verdict = Literal["clean", "poisoned", "not cached", "in part", "not to be had"]
_CHUNK: Final = 1 << 20


@dataclasses.dataclass(frozen=True)
class Finding:
    """One file that the locks know: what the mirror has under its name. `purged` are cache files that were removed."""

    name: str
    verdict: Verdict
    about: str = ""
    purged: tuple[str, ...] = ()


def listed(base: str, needs: Iterable[Need], client: Client) -> tuple[list[Found], list[Finding]]:
    """Return where the mirror has each file of the needs, and what its indexes do not list under a lock's hash."""
    indexes = {"pypi": [Index(url=f"{base}/pypi/simple")], "pytorch": [Index(url=f"{base}/pytorch/whl/{{variant}}")]}
    answers = [_listed(need, indexes, client) for need in needs]
    found = [file for answer in answers if isinstance(answer, list) for file in answer]
    return found, [answer for answer in answers if isinstance(answer, Finding)]


def _listed(need: Need, indexes: Mapping[str, Sequence[Index]], client: Client) -> list[Found] | Finding:
    try:
        return locate([need], indexes, client)
    except UnavailableError as error:
        return Finding(need.project, "not to be had", error.message)


def served(files: Sequence[Found], client: Client) -> list[Finding]:
    """Judge what a mirror sends; what it does not have cached, it fetches for this."""
    return [_served(file, client) for file in files]


def _served(file: Found, client: Client) -> Finding:
    url = file.urls[0]
    digest = hashlib.sha256()
    try:
        with client.get(url) as answer:
            if answer.status != 200:  # noqa: PLR2004 (HTTP's OK)
                return Finding(file.name, "not to be had", f"it answers {answer.status}")
            for chunk in answer.chunks(_CHUNK):
                digest.update(chunk)
    except NetworkError as error:
        return Finding(file.name, "not to be had", str(error))
    if digest.hexdigest() == file.sha256:
        return Finding(file.name, "clean")
    return Finding(file.name, "poisoned", f"{urlsplit(url).path} has {digest.hexdigest()}, the lock {file.sha256}")


def cached(site: Site, files: Sequence[Found]) -> list[Finding]:
    """Judge what a site's cache holds, asking no upstream, and remove what is wrong; nginx then fetches it anew."""
    held: dict[str, dict[str, list[Slice]]] = {}
    for piece in slices(Path(site.root, "cache/files")):
        held.setdefault(unquote(piece.url), {}).setdefault(piece.url, []).append(piece)
    return [finding for file in files for finding in _cached(file, held.get(_upstream(site, file.urls[0]), {}))]


def _cached(file: Found, spellings: dict[str, list[Slice]]) -> Iterator[Finding]:
    """Yield what became of each spelling of the URL under which the cache holds a file."""
    if not spellings:
        yield Finding(file.name, "not cached")
    for pieces in spellings.values():
        digest = _digest(sorted(pieces, key=lambda piece: piece.start))
        if digest == file.sha256:
            yield Finding(file.name, "clean")
        elif digest is None:
            yield Finding(file.name, "in part")
        else:
            about = f"the cache has {digest}, the lock {file.sha256}"
            yield Finding(file.name, "poisoned", about, tuple(_removed(piece.path) for piece in pieces))


def _digest(pieces: Sequence[Slice]) -> str | None:
    """Return the hash of a whole file, or None where slices of it are not there."""
    digest, at = hashlib.sha256(), 0
    for piece in pieces:
        if piece.start != at:
            return None
        with piece.path.open("rb") as file:
            file.seek(piece.body)
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                at += len(chunk)
    return digest.hexdigest() if pieces and at == pieces[-1].total else None


def _removed(path: Path) -> str:
    path.unlink(missing_ok=True)
    return str(path)


def _upstream(site: Site, url: str) -> str:
    """Return the upstream's URL, unquoted, of what the site has at a URL of its own."""
    path = unquote(urlsplit(url).path)
    place = next((one for one in reversed(places(site)) if path.startswith(f"{one['at']}/")), None)
    return "" if place is None else f"{place['to']}{path.removeprefix(place['at'])}"


def record(site: Site, findings: Sequence[Finding]) -> None:
    """Write down what the exporter tells of the audit; nothing where no file could be looked for: that was none."""
    if all(finding.verdict == "not to be had" for finding in findings):
        return
    judged = [finding for finding in findings if finding.verdict in {"clean", "poisoned"}]
    poisoned = sum(finding.verdict == "poisoned" for finding in judged)
    path = Path(site.root, "state/audit.json")
    part = path.with_name("audit.json.part")
    part.write_text(json.dumps({"time": time.time(), "files": len(judged), "poisoned": poisoned}))
    os.replace(part, path)  # noqa: PTH105 (a rename that may go over an older file, said as such)

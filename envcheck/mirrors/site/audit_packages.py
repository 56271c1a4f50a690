"""Judge the packages in nginx's cache by the locks, and remove what is wrong; nginx then fetches it anew.

A lock holds no file names: which of its files a URL must be, the index pages in the same cache say. Where they do not,
the site is asked, if it runs. A file that no lock holds is counted, whatever its own upstream says of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from envcheck.mirrors.http import Client
from envcheck.mirrors.locate import Need
from envcheck.mirrors.site import audit_pages
from envcheck.mirrors.site.audit import Finding, not_read, unreadable
from envcheck.mirrors.site.audit_disk import Unread, fed, removed
from envcheck.mirrors.site.audit_pages import Says
from envcheck.mirrors.site.cachefile import Slice, slices
from envcheck.mirrors.site.model import Site

_METADATA: Final = ".metadata"


@dataclasses.dataclass(frozen=True)
class Held:
    """A file as the cache holds it under one spelling of its URL: `sha256` of the whole, else why it has none."""

    url: str
    pieces: tuple[Slice, ...]
    sha256: str | None = None
    about: str = ""
    broken: bool = False

    @property
    def name(self) -> str:
        """Return the file's name."""
        return _name(self.url)

    @property
    def paths(self) -> list[Path]:
        """Return its cache files."""
        return [piece.path for piece in self.pieces]


def audit(site: Site, needs: Sequence[Need], client: Client) -> Iterator[Finding]:
    """Yield what every file in a site's cache is; what is wrong is removed as it is found."""
    root, by_url, by_name = Path(site.root, "cache/files"), dict[str, list[Slice]](), _by_name(needs)
    for piece in slices(root):
        if isinstance(piece, Unread):
            yield not_read("packages", piece, root)
        else:
            by_url.setdefault(piece.url, []).append(piece)
    pages = audit_pages.read(site, {unquote(url) for url in by_url})
    yield from pages.left
    doubtful = []
    for url, pieces in sorted(by_url.items()):
        held = _whole(url, pieces)
        known, says = by_name.get(_named(_name(url)), []), pages.says.get(unquote(url), set())
        if isinstance(held, Finding):
            yield held
        elif held.sha256 and known and not says and not any(held.sha256 in need.sha256 for need in known):
            doubtful.append((held, known))
        else:
            yield from _settled(held, known, says, {})
    yield from _asked(site, doubtful, client)
    there = {_named(_name(url)) for url in by_url}
    yield from (Finding(f"{key[0]}-{key[1]}", "not cached") for key in by_name if key not in there)


def _asked(site: Site, doubtful: Sequence[tuple[Held, list[Need]]], client: Client) -> Iterator[Finding]:
    """Ask the site for what its cached pages do not say of files that locks hold under other hashes."""
    needs = dict.fromkeys(need for _, known in doubtful for need in known)
    says, reasons = audit_pages.asked(site, needs, client)
    for held, known in doubtful:
        yield from _settled(held, known, says.get(unquote(held.url), set()), reasons)


def _settled(held: Held, known: Sequence[Need], says: set[Says], reasons: Mapping[Need, str]) -> Iterator[Finding]:
    finding = _purged(judged(held, known, says, reasons), held.paths)
    yield finding
    yield from _pages(finding, held, says)


def _name(url: str) -> str:
    """Return the file's name that a URL ends with."""
    return unquote(url).rpartition("/")[2]


def _by_name(needs: Iterable[Need]) -> dict[tuple[str, str], list[Need]]:
    """Return the needs by project and version."""
    found: dict[tuple[str, str], list[Need]] = {}
    for need in needs:
        key = (canonicalize_name(need.project), str(Version(need.version)) if need.version else "")
        found.setdefault(key, []).append(need)
    return found


def _named(name: str) -> tuple[str, str]:
    """Return the project and version that a file's name tells, empty where it tells none."""
    try:
        told = parse_wheel_filename(name)[:2] if name.endswith(".whl") else parse_sdist_filename(name)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return "", ""
    return told[0], str(told[1])


def _whole(url: str, pieces: Sequence[Slice]) -> Held | Finding:
    """Hash a file whose slices are all there; what cannot be read is a finding."""
    ordered = tuple(sorted(pieces, key=lambda piece: piece.start))
    held = Held(url, ordered)
    try:
        short = next((piece for piece in ordered if _length(piece) != piece.length), None)
        if short is not None:
            about = f"{short.path} has {_length(short)} bytes, its answer had {short.length}"
            return dataclasses.replace(held, about=about, broken=True)
        if len({piece.total for piece in ordered}) > 1:
            return dataclasses.replace(held, about="its pieces are of files of several lengths", broken=True)
        digest, at = hashlib.sha256(), 0
        for piece in ordered:
            if piece.start != at:
                break
            at += fed(piece.path, [digest], piece.body)
    except FileNotFoundError:
        return dataclasses.replace(held, about="nginx has just taken a piece of it away")
    except OSError as error:
        return unreadable("packages", held.name, Path(error.filename or url), error)
    if at != ordered[0].total:
        there = sum(piece.length for piece in ordered)
        return dataclasses.replace(held, about=f"{there} of {ordered[0].total} bytes are there")
    return dataclasses.replace(held, sha256=digest.hexdigest())


def _length(piece: Slice) -> int:
    return piece.path.stat().st_size - piece.body


def judged(held: Held, needs: Sequence[Need], says: set[Says], reasons: Mapping[Need, str]) -> Finding:
    """Return what a file in the cache is. `needs` are the locks' of its project and version, `says` what pages say."""
    locked = {digest for need in needs for digest in need.sha256}
    said = {one.sha256 for one in says}
    if held.broken:
        return Finding(held.name, "poisoned", held.about, by="upstream")
    if held.sha256 is None:
        return Finding(held.name, "in part", held.about)
    if said and held.sha256 not in said and (said & locked or held.sha256 not in locked):
        right = next(iter(sorted(said & locked or said)))
        who = "the lock" if said & locked else "its index"
        about = f"{unquote(held.url)}: the cache has {held.sha256}, {who} {right}"
        return Finding(held.name, "poisoned", about, by="lock" if said & locked else "upstream")
    if held.sha256 in locked:
        return Finding(held.name, "clean", by="lock")
    why = next((reasons[need] for need in needs if need in reasons), None)
    if why is not None:
        return Finding(held.name, "unknown", f"no cached page says which file of the locks it is; the site: {why}")
    whose = "its index says the same" if said else "no cached page lists it"
    return Finding(held.name, "unknown", f"no lock holds it; {whose}")


def _pages(finding: Finding, held: Held, says: set[Says]) -> Iterator[Finding]:
    """Yield the pages that give a file another hash than the lock that it fits: they are purged too."""
    for said in says if finding.verdict == "clean" else ():
        if said.sha256 != held.sha256 and said.page is not None:
            about = f"it says that {held.name} has {said.sha256}, the lock {held.sha256}"
            yield _purged(Finding(f"the page of {held.name}", "poisoned", about, by="lock"), [said.page])


def _purged(finding: Finding, paths: Sequence[Path]) -> Finding:
    """Remove what is poisoned; return the finding with what is gone, and what is not."""
    if finding.verdict != "poisoned":
        return finding
    gone, still = removed(paths)
    about = "; ".join(text for text in (finding.about, still) if text)
    return dataclasses.replace(finding, about=about, purged=gone)

"""Criteria that a mirror must meet before its speed counts: TLS, coverage, hash or size, ranges, own hosts. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from envcheck.counting import counted
from envcheck.mirrors.probe.measurements import FileResponse, FileStatus, MirrorMeasurement

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class Criterion(msgspec.Struct, frozen=True, kw_only=True):
    """One criterion. `passed` is None if undetermined. A hard criterion that is not passed excludes the mirror."""

    name: str
    passed: bool | None
    hard: bool
    why: str


class PeerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts from all mirrors of one probe, to compare each with: sizes by hash, the newest page and serial."""

    sizes: dict[str, int] = {}
    modified: float | None = None
    serial: int | None = None


def peer_facts(measurements: Iterable[MirrorMeasurement]) -> PeerFacts:
    """Return the facts of all mirrors to compare each one with."""
    measured = list(measurements)
    listed_by_hash = [file for measurement in measured for file in measurement.files if file.listed == "hash"]
    pages = [page for measurement in measured for page in measurement.pages]
    return PeerFacts(
        sizes=_agreed_sizes(listed_by_hash),
        modified=max((page.modified for page in pages if page.modified is not None), default=None),
        serial=max((page.serial for page in pages if page.serial is not None), default=None),
    )


def _agreed_sizes(listed_by_hash: Sequence[FileStatus]) -> dict[str, int]:
    """Return the size in bytes by hash: the size on a page, else the size if all mirrors with that hash agree."""
    served: dict[str, set[int]] = {}
    for file in listed_by_hash:
        size = served_size(file)
        if size is not None:
            served.setdefault(str(file.sha256), set()).add(size)
    agreed = {digest: sizes.pop() for digest, sizes in served.items() if len(sizes) == 1}
    return agreed | {str(file.sha256): file.size for file in listed_by_hash if file.size is not None}


def criteria_of(measurement: MirrorMeasurement, peers: PeerFacts, *, no_redirects: bool = False) -> list[Criterion]:
    """Return every criterion of a mirror, in the order in which failures are reported."""
    common = [
        _tls(measurement),
        _coverage(measurement),
        _hash(measurement, peers),
        _ranges(measurement),
        _stays(measurement, hard=no_redirects or measurement.closed),
    ]
    return common if measurement.commit is None else [*common, _commit(measurement, measurement.commit)]


def all_pass(criteria: Iterable[Criterion]) -> bool:
    """Tell whether every hard criterion is passed; an undetermined one is not."""
    return all(criterion.passed for criterion in criteria if criterion.hard)


def _tls(measurement: MirrorMeasurement) -> Criterion:
    name = "tls"
    if measurement.untrusted is not None:
        return Criterion(name=name, passed=False, hard=True, why=measurement.untrusted)
    if measurement.missing is not None or not measurement.answered:
        why = "no host was asked" if any(_is_available(file) for file in measurement.files) else "nothing answered"
        return Criterion(name=name, passed=None, hard=False, why=why)
    if measurement.latency is not None and measurement.latency.version is None:
        return Criterion(name=name, passed=None, hard=False, why="plain http: only the lock's hashes protect the bytes")
    return Criterion(name=name, passed=True, hard=True, why="every certificate is trusted")


def _coverage(measurement: MirrorMeasurement) -> Criterion:
    name = "coverage"
    if measurement.missing is not None:
        return Criterion(name=name, passed=False, hard=True, why=measurement.missing)
    available = {file.need for file in measurement.files} - {
        file.need for file in measurement.files if not _is_available(file)
    }
    # The next criterion reports files under a wrong hash.
    wrong_hash = {file.need for file in measurement.files if file.listed == "other"}
    missing = [file for file in measurement.files if not _is_available(file) and file.listed != "other"]
    if measurement.needs == 0 or (not measurement.files and not missing):
        return Criterion(name=name, passed=False, hard=True, why="no file was requested, or no answer came in time")
    if missing:
        more = f" (and {len({f.need for f in missing}) - 1} more)" if len({f.need for f in missing}) > 1 else ""
        why = (
            f"has {len(available | wrong_hash)} of {counted(measurement.needs, 'file')}; "
            f"{missing[0].need}: {missing[0].why}{more}"
        )
        if measurement.commit is not None and not available and all(_is_not_found(file) for file in missing):
            why = f"lacks commit {measurement.commit[:12]}: {why}"
        return Criterion(name=name, passed=False, hard=True, why=why)
    local = sum(_is_local(file) for file in measurement.files)
    where = f"{local} in this machine's directories" if local else "each one reached on the host that serves it"
    return Criterion(
        name=name,
        passed=True,
        hard=True,
        why=f"has {measurement.needs} of {counted(measurement.needs, 'file')}, {where}",
    )


def _is_available(file: FileStatus) -> bool:
    reached = file.reached
    return reached is not None and (reached.status in {200, 206} or reached.total == 0)


def _is_local(file: FileStatus) -> bool:
    """Tell whether a file is in a directory of this machine, so that no host serves it."""
    return file.reached is not None and not file.reached.hosts


def _is_not_found(file: FileStatus) -> bool:
    return file.reached is not None and file.reached.status == HTTPStatus.NOT_FOUND


def _hash(measurement: MirrorMeasurement, peers: PeerFacts) -> Criterion:
    name = "hash"
    faults = [fault for file in measurement.files if (fault := _mismatch(file, peers)) is not None]
    if faults:
        return Criterion(name=name, passed=False, hard=True, why=faults[0])
    available = [file for file in measurement.files if _is_available(file)]
    if not available:
        return Criterion(name=name, passed=None, hard=False, why="no file to compare")
    if all(file.listed == "url" for file in available):
        return _hash_of_url(available[0])
    unverifiable = [file for file in available if file.listed == "name" and _expected_size(file, peers) is None]
    if unverifiable:
        why = f"{unverifiable[0].need}: its page gives no hash, and no page gives the size"
        return Criterion(name=name, passed=None, hard=True, why=why)
    sized = sum(_expected_size(file, peers) is not None and served_size(file) is not None for file in available)
    if measurement.commit is not None:
        linked = sum(file.reached is not None and file.reached.linked == file.sha256 is not None for file in available)
        why = (
            f"X-Linked-Etag equals the lock's sha256 for {counted(linked, 'file')}, the "
            f"size for {sized} of {len(available)}"
        )
        return Criterion(name=name, passed=True, hard=True, why=why)
    by_name, local = sum(file.listed == "name" for file in available), sum(_is_local(file) for file in available)
    counts = {"the page's hash": len(available) - by_name - local, "name and size": by_name, "hashing the file": local}
    methods = ", ".join(f"{number} by {way}" for way, number in counts.items() if number)
    return Criterion(
        name=name,
        passed=True,
        hard=True,
        why=f"{methods}; {sized} of {counted(len(available), 'size')} compared",
    )


def _hash_of_url(file: FileStatus) -> Criterion:
    """Return the criterion for a file that no index lists: its expected hash, if any, is that of the command line."""
    name, size = "hash", served_size(file)
    if file.sha256 is None:
        return Criterion(name=name, passed=None, hard=False, why=f"no expected hash; the file has {size} bytes")
    if needs_hashing(file) and file.hashed is None:
        return Criterion(name=name, passed=None, hard=True, why=file.hash_why or "the file was not downloaded")
    way = f"hashing its {size} bytes" if file.hashed is not None else "X-Linked-Etag"
    return Criterion(name=name, passed=True, hard=True, why=f"the expected sha256, by {way}")


def needs_hashing(file: FileStatus) -> bool:
    """Tell whether only a download shows that a file has its expected hash."""
    linked = file.reached.linked if file.reached is not None else None
    return file.listed == "url" and _is_available(file) and file.sha256 not in {None, linked}


def _mismatch(file: FileStatus, peers: PeerFacts) -> str | None:
    if file.listed == "other":
        return f"{file.need}: {file.why}"
    reached, expected, size = file.reached, _expected_size(file, peers), served_size(file)
    if reached is not None and expected is not None and size is not None and size != expected:
        return f"{file.need}: {reached.hosts[-1]} has {size} bytes, expected {expected}"
    linked = reached.linked or "" if reached is not None else ""
    served = file.hashed or (linked if _SHA256.fullmatch(linked) else None)
    if served is not None and file.sha256 not in {None, served}:
        return f"{file.need}: served with sha256 {served[:12]}..., expected {str(file.sha256)[:12]}..."
    return None


def _expected_size(file: FileStatus, peers: PeerFacts) -> int | None:
    return file.size if file.size is not None else peers.sizes.get(file.sha256 or "")


def served_size(file: FileStatus) -> int | None:
    """Return the size in bytes that the serving host reports, or None."""
    return file.reached.total if file.reached is not None else None


def _ranges(measurement: MirrorMeasurement) -> Criterion:
    name = "ranges"
    if measurement.range_fault is not None:
        return Criterion(
            name=name, passed=False, hard=True, why=f"range in the middle of a file: {measurement.range_fault}"
        )
    served = [file for file in measurement.files if _is_available(file) and not _is_local(file)]
    available = [file.reached for file in served if file.reached is not None and file.reached.total]
    without_ranges = [reached for reached in available if not reached.ranged]
    if without_ranges:
        why = f"{without_ranges[0].hosts[-1]} answers {without_ranges[0].status} to a range: no resume or split"
        return Criterion(name=name, passed=False, hard=True, why=why)
    if not available:
        return Criterion(name=name, passed=None, hard=False, why="no file to request a range of")
    return Criterion(name=name, passed=True, hard=True, why="206 with the right Content-Range")


def _stays(measurement: MirrorMeasurement, *, hard: bool) -> Criterion:
    name = "stays"
    available = [file.reached for file in measurement.files if _is_available(file) and file.reached is not None]
    foreign = sorted({host for reached in available for host in reached.hosts} - set(measurement.own))
    if foreign:
        served = sum(_redirects_out(reached, measurement.own) for reached in available)
        hosts = ", ".join(f"{host}{_host_kind(host)}" for host in foreign)
        why = f"{served} of {counted(len(available), 'file')} from {hosts}"
        return Criterion(name=name, passed=False, hard=hard, why=why)
    if not available:
        return Criterion(name=name, passed=None, hard=False, why="no file to follow")
    return Criterion(name=name, passed=True, hard=hard, why="no request left the mirror's own hosts")


def _host_kind(host: str) -> str:
    """Return the kind of a host that serves models, or "" if its name does not show it."""
    name = host.partition(":")[0]
    if "xet" in name:
        return " (a xet host)"
    return " (the hub's own CDN)" if name.endswith((".hf.co", ".huggingface.co")) else ""


def _commit(measurement: MirrorMeasurement, pinned: str) -> Criterion:
    """Compare X-Repo-Commit with the pinned commit: huggingface_hub refuses a file without it."""
    available = [
        (file, file.reached.commit) for file in measurement.files if _is_available(file) and file.reached is not None
    ]
    wrong = next(((file, commit) for file, commit in available if commit != pinned), None)
    if wrong is not None:
        commit = (
            f"X-Repo-Commit is {wrong[1][:12]}" if wrong[1] else "no X-Repo-Commit, so huggingface_hub refuses the file"
        )
        return Criterion(name="commit", passed=False, hard=True, why=f"{wrong[0].need}: {commit}")
    if not available:
        return Criterion(name="commit", passed=None, hard=False, why="no file to compare")
    return Criterion(name="commit", passed=True, hard=True, why=f"{pinned[:12]} for every file")


def _redirects_out(reached: FileResponse, own: Sequence[str]) -> bool:
    return any(host not in own for host in reached.hosts)

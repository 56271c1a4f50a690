"""What a mirror must pass before its speed counts: coverage, hash or size, TLS, ranges, staying. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from envcheck.mirrors.probe.measurements import Measured, Reached, Sight

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """One condition. `passed` is None where it could not be told; only a `hard` one that did not pass excludes."""

    name: str
    passed: bool | None
    hard: bool
    why: str


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """What the mirrors of one probe tell of each other: sizes of files by hash, the newest page and serial."""

    sizes: dict[str, int] = {}
    modified: float | None = None
    serial: int | None = None


def peers(all_measured: Iterable[Measured]) -> Peers:
    """Gather what one mirror can be held against from all of them."""
    seen = list(all_measured)
    sure = [file for one in seen for file in one.files if file.listed == "hash"]
    pages = [page for one in seen for page in one.pages]
    return Peers(
        sizes=_sizes(sure),
        modified=max((page.modified for page in pages if page.modified is not None), default=None),
        serial=max((page.serial for page in pages if page.serial is not None), default=None),
    )


def _sizes(sure: Sequence[Sight]) -> dict[str, int]:
    """Return the bytes that a file of a hash has: as a page says, else as all say who list it under that hash."""
    served: dict[str, set[int]] = {}
    for file in sure:
        size = total(file)
        if size is not None:
            served.setdefault(str(file.sha256), set()).add(size)
    agreed = {digest: sizes.pop() for digest, sizes in served.items() if len(sizes) == 1}
    return agreed | {str(file.sha256): file.size for file in sure if file.size is not None}


def gates(one: Measured, others: Peers, *, must_stay: bool = False) -> list[Gate]:
    """Return every gate of a mirror, the first that fails first to be told."""
    common = [_tls(one), _coverage(one), _hash(one, others), _ranges(one), _stays(one, hard=must_stay or one.closed)]
    return common if one.commit is None else [*common, _commit(one, one.commit)]


def passes(found: Iterable[Gate]) -> bool:
    """Tell whether every hard gate is passed; what could not be told is not."""
    return all(gate.passed for gate in found if gate.hard)


def _tls(one: Measured) -> Gate:
    name = "tls"
    if one.untrusted is not None:
        return Gate(name=name, passed=False, hard=True, why=one.untrusted)
    if one.missing is not None or not one.answered:
        why = "nobody was asked" if any(_there(file) for file in one.files) else "nothing answered"
        return Gate(name=name, passed=None, hard=False, why=why)
    if one.latency is not None and one.latency.version is None:
        return Gate(name=name, passed=None, hard=False, why="plain http: only the lock's hashes protect the bytes")
    return Gate(name=name, passed=True, hard=True, why="every certificate is trusted")


def _coverage(one: Measured) -> Gate:
    name = "coverage"
    if one.missing is not None:
        return Gate(name=name, passed=False, hard=True, why=one.missing)
    there = {file.need for file in one.files} - {file.need for file in one.files if not _there(file)}
    # What is there under a wrong hash is the next gate's.
    wrong = {file.need for file in one.files if file.listed == "other"}
    lost = [file for file in one.files if not _there(file) and file.listed != "other"]
    if one.needs == 0 or (not one.files and not lost):
        return Gate(name=name, passed=False, hard=True, why="nothing was asked for, or nothing answered in time")
    if lost:
        more = f" (and {len({f.need for f in lost}) - 1} more)" if len({f.need for f in lost}) > 1 else ""
        why = f"{len(there | wrong)} of {one.needs} there; {lost[0].need}: {lost[0].why}{more}"
        if one.commit is not None and not there and all(_absent(file) for file in lost):
            why = f"it has no commit {one.commit[:12]}: {why}"
        return Gate(name=name, passed=False, hard=True, why=why)
    here = sum(_here(file) for file in one.files)
    where = f"{here} in this machine's directories" if here else "down to the host that serves them"
    return Gate(name=name, passed=True, hard=True, why=f"all {one.needs} there, {where}")


def _there(file: Sight) -> bool:
    reached = file.reached
    return reached is not None and (reached.status in {200, 206} or reached.total == 0)


def _here(file: Sight) -> bool:
    """Tell whether a file is in a directory of this machine, so that nobody serves it."""
    return file.reached is not None and not file.reached.hosts


def _absent(file: Sight) -> bool:
    return file.reached is not None and file.reached.status == HTTPStatus.NOT_FOUND


def _hash(one: Measured, others: Peers) -> Gate:
    name = "hash"
    faults = [fault for file in one.files if (fault := _wrong(file, others)) is not None]
    if faults:
        return Gate(name=name, passed=False, hard=True, why=faults[0])
    there = [file for file in one.files if _there(file)]
    if not there:
        return Gate(name=name, passed=None, hard=False, why="there is no file to compare")
    if all(file.listed == "url" for file in there):
        return Gate(name=name, passed=None, hard=False, why=f"nothing says its hash; it has {total(there[0])} bytes")
    unsure = [file for file in there if file.listed == "name" and _expected(file, others) is None]
    if unsure:
        why = f"{unsure[0].need}: its page gives no hash, and nobody tells the size"
        return Gate(name=name, passed=None, hard=True, why=why)
    sized = sum(_expected(file, others) is not None and total(file) is not None for file in there)
    if one.commit is not None:
        linked = sum(file.reached is not None and file.reached.linked == file.sha256 is not None for file in there)
        why = f"X-Linked-Etag is the lock's sha256 for {linked}, the size is right for {sized} of {len(there)}"
        return Gate(name=name, passed=True, hard=True, why=why)
    by_name, here = sum(file.listed == "name" for file in there), sum(_here(file) for file in there)
    ways = {"the page's hash": len(there) - by_name - here, "name and size": by_name, "hashing the file": here}
    how = ", ".join(f"{number} by {way}" for way, number in ways.items() if number)
    return Gate(name=name, passed=True, hard=True, why=f"{how}; {sized} of {len(there)} sizes compared")


def _wrong(file: Sight, others: Peers) -> str | None:
    if file.listed == "other":
        return f"{file.need}: {file.why}"
    reached, expected, size = file.reached, _expected(file, others), total(file)
    if reached is not None and expected is not None and size is not None and size != expected:
        return f"{file.need}: {reached.hosts[-1]} has {size} bytes where {expected} are meant"
    linked = reached.linked or "" if reached is not None else ""
    if _SHA256.fullmatch(linked) and file.sha256 not in {None, linked}:
        return f"{file.need}: it says the sha256 is {linked[:12]}..., the lock says {str(file.sha256)[:12]}..."
    return None


def _expected(file: Sight, others: Peers) -> int | None:
    return file.size if file.size is not None else others.sizes.get(file.sha256 or "")


def total(file: Sight) -> int | None:
    """Return the bytes a file was said to have by who serves it."""
    return file.reached.total if file.reached is not None else None


def _ranges(one: Measured) -> Gate:
    name = "ranges"
    if one.range_fault is not None:
        return Gate(name=name, passed=False, hard=True, why=f"asked for the middle of a file: {one.range_fault}")
    served = [file for file in one.files if _there(file) and not _here(file)]
    there = [file.reached for file in served if file.reached is not None and file.reached.total]
    whole = [reached for reached in there if not reached.ranged]
    if whole:
        why = f"{whole[0].hosts[-1]} answers {whole[0].status} to a range: nothing can be resumed or divided"
        return Gate(name=name, passed=False, hard=True, why=why)
    if not there:
        return Gate(name=name, passed=None, hard=False, why="there is no file to ask a range of")
    return Gate(name=name, passed=True, hard=True, why="206 with the right Content-Range")


def _stays(one: Measured, *, hard: bool) -> Gate:
    name = "stays"
    there = [file.reached for file in one.files if _there(file) and file.reached is not None]
    out = sorted({host for reached in there for host in reached.hosts} - set(one.own))
    if out:
        served = sum(_leaves(reached, one.own) for reached in there)
        named = ", ".join(f"{host}{_class(host)}" for host in out)
        why = f"{served} of {len(there)} files come from {named}"
        return Gate(name=name, passed=False, hard=hard, why=why)
    if not there:
        return Gate(name=name, passed=None, hard=False, why="there is no file to follow")
    return Gate(name=name, passed=True, hard=hard, why="no request left the mirror's own hosts")


def _class(host: str) -> str:
    """Return what kind of host it is that serves a model, where its name says so."""
    name = host.partition(":")[0]
    if "xet" in name:
        return " (xet's data plane)"
    return " (the hub's own CDN)" if name.endswith((".hf.co", ".huggingface.co")) else ""


def _commit(one: Measured, pinned: str) -> Gate:
    """Hold X-Repo-Commit against the pinned commit: without it huggingface_hub refuses the file."""
    there = [(file, file.reached.commit) for file in one.files if _there(file) and file.reached is not None]
    wrong = next(((file, said) for file, said in there if said != pinned), None)
    if wrong is not None:
        said = f"it says commit {wrong[1][:12]}" if wrong[1] else "no X-Repo-Commit, huggingface_hub refuses that"
        return Gate(name="commit", passed=False, hard=True, why=f"{wrong[0].need}: {said}")
    if not there:
        return Gate(name="commit", passed=None, hard=False, why="there is no file that could say it")
    return Gate(name="commit", passed=True, hard=True, why=f"{pinned[:12]} for every file")


def _leaves(reached: Reached, own: Sequence[str]) -> bool:
    return any(host not in own for host in reached.hosts)

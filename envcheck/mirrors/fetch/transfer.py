"""Fetch one file whose sha256 is known: whole at its name, or not there."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from envcheck.errors import ConfigError, EnvcheckError, PromiseError, UnavailableError
from envcheck.mirrors.asking import LaterError, NobodyError, in_turn
from envcheck.mirrors.fetch import answers, disk
from envcheck.mirrors.fetch.job import Job
from envcheck.mirrors.fetch.verify import digest_of
from envcheck.mirrors.fetch.wanted import Fetched, Means, Wanted
from envcheck.mirrors.http import NetworkError
from envcheck.mirrors.remedies import joined, of_status
from envcheck.mirrors.urls import host_of


def fetch(wanted: Wanted, means: Means) -> Fetched:
    """Put the file at its path, whole and of that hash, or leave nothing there.

    What an earlier process left is gone on with; a second process waits for the first. Raise PromiseError when what
    the sources have is not the file, UnavailableError when they cannot be reached or the disk has no room, StoppedError
    when the means were told to stop.
    """
    began = time.monotonic()
    if wanted.path.is_dir():
        message = f"{wanted.path}: a directory has the name of the file"
        raise ConfigError(message, fix="name another directory (--to)")
    wanted.path.parent.mkdir(parents=True, exist_ok=True)
    part = disk.part_of(wanted)
    with disk.locked(part, means) as file:
        size = _already(wanted)
        if size is not None:
            disk.discard(part)
            return Fetched(wanted.path, size, 0, size, time.monotonic() - began, {})
        if os.path.lexists(wanted.path):
            means.note(_other(wanted.path))
        taken = disk.taken(wanted.local, part, wanted.path, lambda copy: _is(wanted, copy))
        if taken is not None:
            return Fetched(wanted.path, taken, 0, taken, time.monotonic() - began, {"this machine": taken})
        job = _done(wanted, means, part, file)
        disk.publish(part, file, wanted.path)
        return Fetched(wanted.path, job.size, job.moved, job.found, time.monotonic() - began, job.sources())


def _done(wanted: Wanted, means: Means, part: Path, file: int) -> Job:
    """Return the finished job. Where nothing but the sources tell a size, each size that one tells is tried."""
    failed: EnvcheckError | None = None
    for size in _sizes(wanted, means) if wanted.size is None else [wanted.size]:
        job = Job(wanted, means, part, file, size)
        try:
            job.run()
        except (PromiseError, UnavailableError) as error:
            failed = failed if isinstance(failed, PromiseError) else error
        else:
            return job
        finally:
            job.close()
    if isinstance(failed, PromiseError):
        disk.discard(part)
    raise failed or AssertionError


def _sizes(wanted: Wanted, means: Means) -> Iterator[int]:
    """Yield the sizes that the sources tell, each once. Raise UnavailableError where none tells one.

    Who is busy is waited for where no other source tells one.
    """
    try:
        first, teller = in_turn(wanted.urls, lambda url: _told(url, means), means.stop)
    except NobodyError as error:
        reasons = "; ".join(f"{host_of(url)}: {reason}" for url, reason in error.reasons.items())
        message = f"{wanted.path.name}: no source gives it: {reasons or 'there is none to ask'}"
        raise UnavailableError(message, fix=joined(reason.fix for reason in error.reasons.values())) from error
    yield first
    sizes = {first}
    for url in wanted.urls:
        with contextlib.suppress(NetworkError):
            if url != teller and (told := _told(url, means)) not in sizes:
                sizes.add(told)
                yield told


def _told(url: str, means: Means) -> int:
    """Return the size that a source tells. Raise NetworkError where it tells none, LaterError where it may later."""
    with means.client.get(url, {"Range": "bytes=0-0"}) as answer:
        size = answers.total(answer.status, answer.headers)
        if size is not None:
            return size
        busy = answers.busy(answer.status, answer.headers, time.time())
        if busy is None:
            message = f"it answers {answer.status} and no size"
            raise NetworkError(message, of_status(answer.status))
        means.note(f"{host_of(url)}: {busy.reason}" + (f", asks for {busy.after:.0f} s" if busy.after else ""))
        raise LaterError(busy.reason, busy.after)


def _already(wanted: Wanted) -> int | None:
    """Return the size of a file that is there and is the right one."""
    return wanted.path.stat().st_size if _is(wanted, wanted.path) else None


def _other(path: Path) -> str:
    """Return what a person reads of another file at the name: a link's target is not touched."""
    if path.is_symlink():
        return f"{path}: is a link to another file; what is fetched replaces the link alone"
    return f"{path}: is another file; what is fetched replaces it, once it is whole and of its hash"


def _is(wanted: Wanted, path: Path) -> bool:
    """Tell whether a file is there and has the hash."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        size = os.fstat(file).st_size
        return wanted.size in {None, size} and digest_of(file, size) == wanted.sha256
    finally:
        os.close(file)

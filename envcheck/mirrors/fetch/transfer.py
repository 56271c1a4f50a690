"""Fetch one file whose sha256 is known: whole at its name, or not there."""

from __future__ import annotations

import os
import time

from envcheck.errors import UnavailableError
from envcheck.mirrors.fetch import answers, disk
from envcheck.mirrors.fetch.job import Job
from envcheck.mirrors.fetch.verify import digest_of
from envcheck.mirrors.fetch.wanted import Fetched, Means, Wanted, label
from envcheck.mirrors.http import NetworkError


def fetch(wanted: Wanted, means: Means) -> Fetched:
    """Put the file at its path, whole and of that hash, or leave nothing there.

    What an earlier process left is gone on with; a second process waits for the first. Raise PromiseError when what
    the sources have is not the file, UnavailableError when they cannot be reached or the disk has no room.
    """
    began = time.monotonic()
    wanted.path.parent.mkdir(parents=True, exist_ok=True)
    part = wanted.path.with_name(f".{wanted.path.name}.{wanted.sha256[:8]}.part")
    with disk.locked(part, means.note) as file:
        size = _already(wanted)
        if size is not None:
            part.unlink()
            return Fetched(wanted.path, size, 0, size, time.monotonic() - began, {})
        size = _size(wanted, means) if wanted.size is None else wanted.size
        job = Job(wanted, means, part, file, size)
        try:
            job.run()
        finally:
            job.close()
        disk.publish(part, file, wanted.path)
        return Fetched(wanted.path, size, job.moved, job.found, time.monotonic() - began, job.sources())


def _size(wanted: Wanted, means: Means) -> int:
    """Ask the sources, in order, how large the file is."""
    reasons = []
    for url in wanted.urls:
        told = _told(url, means)
        if isinstance(told, int):
            return told
        reasons.append(f"{label(url)}: {told}")
    message = f"{wanted.path.name}: no source gives it: {'; '.join(reasons)}"
    raise UnavailableError(message, fix="name another mirror (--mirror)")


def _told(url: str, means: Means) -> int | str:
    """Return the size that a source tells, or why it tells none."""
    try:
        with means.client.get(url, {"Range": "bytes=0-0"}) as answer:
            size = answers.total(answer.status, answer.headers)
            return f"it answers {answer.status} and no size" if size is None else size
    except NetworkError as error:
        return str(error)


def _already(wanted: Wanted) -> int | None:
    """Return the size of a file that is there and is the right one."""
    try:
        file = os.open(wanted.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(file).st_size
        return size if digest_of(file, size) == wanted.sha256 else None
    finally:
        os.close(file)

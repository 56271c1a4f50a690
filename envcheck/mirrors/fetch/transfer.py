"""Fetch files whose hashes are known. The name of a file appears only when it is complete."""

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

from envcheck.counting import counted
from envcheck.errors import EnvcheckError, NotFoundError, PromiseError, refuse
from envcheck.mirrors.fetch import disk
from envcheck.mirrors.fetch.download import FileDownload
from envcheck.mirrors.fetch.request import FetchedFile, TransferOptions, WantedFile

AT_ONCE: Final = 4
_TICK: Final = 0.2


def fetch(target: WantedFile, options: TransferOptions) -> FetchedFile:
    """Fetch the file and verify its hash, or leave nothing at its path; resume what an earlier process left.

    Raise PromiseError if the sources have other bytes, UnavailableError if no source can be reached or the disk is
    full, StoppedError if `options.stop` is set.
    """
    if target.path.is_dir():
        refuse(f"{target.path} is a directory, not a file", "choose another directory (--output)")
    target.path.parent.mkdir(parents=True, exist_ok=True)
    part = disk.part_path(target)
    with disk.locked(part, target.digest, options) as file:
        try:
            return _fetch_locked(target, options, part, file)
        except OSError as error:
            # A full disk may be reported only by the sync (delayed allocation, NFS), and then without a file name.
            raise disk.disk_error(error, target.path, max(os.fstat(file).st_size, target.size or 0)) from error


def _fetch_locked(target: WantedFile, options: TransferOptions, part: Path, file: int) -> FetchedFile:
    began = time.monotonic()
    if disk.has_hash(target, target.path):
        disk.discard(part)
        size = target.path.stat().st_size
        return FetchedFile(target.path, size, 0, size, time.monotonic() - began, {})
    if os.path.lexists(target.path):
        options.note(f"{target.path} is another file or a link: the verified download replaces it")
    linked = disk.take_local_copy(target, part)
    if linked is not None:
        return FetchedFile(target.path, linked, 0, linked, time.monotonic() - began, {"this machine": linked})
    download = FileDownload(target, options, part, file)
    download.run()
    # A small file is not synced on its own: after a power cut, the next fetch verifies its hash.
    disk.publish(part, file, target.path, durable=not download.small)
    seconds = time.monotonic() - began
    return FetchedFile(target.path, download.size, download.moved, download.found, seconds, download.sources())


def fetch_all(
    targets: Sequence[WantedFile], options: TransferOptions, on_fetched: Callable[[FetchedFile], None]
) -> list[FetchedFile]:
    """Fetch every file, the largest first; return the results in order, and call `on_fetched` for each as it ends.

    Raise the error of a file after the other files have ended. An interrupt keeps complete pieces.
    """
    present, sizes, lock = [0] * len(targets), [target.expected or 0 for target in targets], threading.Lock()

    def fetch_one(number: int) -> FetchedFile:
        def progress(done: int, size: int) -> None:
            with lock:
                present[number], sizes[number] = done, size
                options.progress(sum(present), sum(sizes))

        fetched = fetch(targets[number], dataclasses.replace(options, progress=progress))
        progress(fetched.size, fetched.size)
        return fetched

    order = sorted(range(len(targets)), key=lambda number: -(targets[number].expected or 0))
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch") as pool:
        try:
            futures = {number: pool.submit(fetch_one, number) for number in order}
            waiting: set[Future[FetchedFile]] = set(futures.values())
            while waiting:
                ended, waiting = wait(waiting, _TICK, FIRST_COMPLETED)
                for future in ended:
                    if future.exception() is None:
                        on_fetched(future.result())
        except BaseException:
            options.stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return _results([futures[number] for number in range(len(targets))])


def _results(futures: Sequence[Future[FetchedFile]]) -> list[FetchedFile]:
    """Return the results, or raise an error with the number of others: a wrong hash, a missing file, any."""
    errors = [error for future in futures if (error := future.exception()) is not None]
    if not errors:
        return [future.result() for future in futures]
    certain = [error for kind in (PromiseError, NotFoundError) for error in errors if isinstance(error, kind)]
    first = (certain or errors)[0]
    if isinstance(first, EnvcheckError) and len(errors) > 1:
        message = f"{first.message} (and {counted(len(errors) - 1, 'more file')})"
        raise type(first)(message, fix=first.fix) from first
    raise first

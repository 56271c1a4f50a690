"""What locks name, brought into the store: from this machine's directories first, else over the network."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from envcheck.errors import UnavailableError
from envcheck.images.known_wheels import indexes_by_family, local_wheels, named, wanted_packages
from envcheck.images.lockfile import Lock, Pin
from envcheck.mirrors.fetch.request import FetchedFile, TransferOptions, WantedFile
from envcheck.mirrors.index import LocatedFile, locate
from envcheck.mirrors.net.urls import host_of
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.store.objects import Store


@dataclasses.dataclass(frozen=True)
class StoredWheel:
    """A wheel of the store: its file name, hash and the index that its lock names."""

    name: str
    sha256: str
    index: str


def bring(
    store: Store, locks: Sequence[Lock], python: str, profile: Profile, means: Callable[[str], TransferOptions]
) -> None:
    """Have a wheel of every pin for this Python in the store; no network is used when all are there.

    `means` gives those for a file's name. Raise UnavailableError for what nobody has, PromiseError for wrong bytes.
    """
    lacking = _lacking(store, locks, python)
    for digest, path in local_wheels(lacking, [*profile.pypi, *profile.pytorch], python).items():
        store.adopt(path, digest)
    lacking = _lacking(store, locks, python)
    pins = {digest: pin for lock in lacking for pin in lock.pins for digest in pin.sha256}
    needs = wanted_packages(lacking, python)
    located = locate(needs, indexes_by_family(profile), means("asking the indexes").client) if needs else []
    for file in located:
        if named(file.name, pins[file.sha256], python):
            how = means(file.name)
            fetched = store.put(WantedFile(file.urls, file.sha256, None, Path(file.name), hint=file.size), how)
            if fetched.moved and not fetched.found:
                _tell(file, fetched, how)


def held(store: Store, locks: Iterable[Lock], python: str) -> list[StoredWheel]:
    """Return a wheel of every pin. Raise UnavailableError naming the first one that is not in the store."""
    files = []
    for lock in locks:
        for pin in lock.pins:
            wheel = _one(store, pin, python)
            if wheel is None:
                message = f"{store.root}: no {pin.name} {pin.version} for Python {python} with the locked hash"
                raise UnavailableError(message, fix="fetch it first: the same command without --dry-run")
            files.append(StoredWheel(*wheel, lock.index))
    return files


@contextlib.contextmanager
def viewed(store: Store, wheels: Iterable[StoredWheel], plan: str | None = None) -> Iterator[Path]:
    """Give a directory with these wheels, by further names of the store's own files.

    It goes with the block; that of a `plan` stays for who runs what was printed, until the store's next eviction
    after a day.
    """
    store.root.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if plan is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".view-", dir=store.root)))
        else:
            folder = store.root / f".view-{plan}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        # Who builds may be another user's daemon.
        folder.chmod(0o755)
        for wheel in wheels:
            store.view(wheel.sha256, folder / wheel.name)
        yield folder


def _tell(file: LocatedFile, fetched: FetchedFile, means: TransferOptions) -> None:
    """Say where a file came from when it was not the first of its sources."""
    first, *others = dict.fromkeys(map(host_of, file.urls))
    givers = [host for host in (first, *others) if host in fetched.sources]
    if givers != [first]:
        means.note(f"{file.name}: from {', '.join(givers) or 'several sources'}, and not from {first} alone")


def _lacking(store: Store, locks: Iterable[Lock], python: str) -> list[Lock]:
    parts = [(lock, [pin for pin in lock.pins if _one(store, pin, python) is None]) for lock in locks]
    return [msgspec.structs.replace(lock, pins=pins) for lock, pins in parts if pins]


def _one(store: Store, pin: Pin, python: str) -> tuple[str, str] | None:
    """Return the name and hash of a pin's wheel for this Python that the store has."""
    present = [(store.name(digest), digest) for digest in pin.sha256 if store.has(digest)]
    return next(((name, digest) for name, digest in present if name and named(name, pin, python)), None)

"""The files that locks name: which this machine and the mirrors have, and how they come into the store."""

import contextlib
import dataclasses
import hashlib
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from envcheck import safe_files
from envcheck.data import state_path
from envcheck.errors import UnavailableError, refuse
from envcheck.images.lockfile import Lock
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.index import LockedPackage, fits, local_files, locate
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.profiles.model import Index, Profile, host_of, network_indexes
from envcheck.mirrors.store.objects import Store

SHA256: Final = re.compile(r"[0-9a-f]{64}")


def locked_packages(locks: Iterable[Lock], python: str | None = None) -> list[LockedPackage]:
    """Return pins as indexes are asked for them; `python` is the one that their wheels are for."""
    return [
        LockedPackage(pin.name, tuple(pin.sha256), lock.index, pin.version, python)
        for lock in locks
        for pin in lock.pins
    ]


def _remote(profile: Profile) -> dict[str, list[Index]]:
    families = {"pypi": profile.pypi, "pytorch": profile.pytorch}
    return {family: [*network_indexes(indexes, closed=profile.closed)] for family, indexes in families.items()}


def bytes_to_fetch(locks: Sequence[Lock], python: str, profile: Profile, client: Client | None) -> int | None:
    """Return how many bytes of these locks are not on this machine yet; None where an index does not say a size.

    Raises UnavailableError naming what no source has; NotFoundError where all indexes answered. Without a client only
    this machine's directories are looked at.
    """
    there = local_wheels(locks, profile, python)
    absent = [package for package in locked_packages(locks, python) if not {*package.sha256} & there.keys()]
    if not absent:
        return 0
    located = locate(absent, _remote(profile) if client else {}, client or Client())
    sizes = [file.size for file in located if file.size is not None]
    return sum(sizes) if len(sizes) == len(located) else None


def local_wheels(locks: Iterable[Lock], profile: Profile, python: str) -> dict[str, Path]:
    """Return sha256 -> path of each file of the locks for this Python that the profile's directories hold."""
    wheels: dict[str, Path] = {}
    for package in locked_packages(locks, python):
        for path in _local(package, profile):
            if {*package.sha256} & wheels.keys():
                break
            digest = sha256(path)
            if digest in package.sha256:
                wheels.setdefault(digest, path)
    return wheels


def refused_wheels(lock: Lock, profile: Profile, python: str) -> list[str]:
    """Return the names of local files that a lock asks for by name but not by hash."""
    paths = (path for package in locked_packages([lock], python) for path in _local(package, profile))
    return sorted({path.name for path in paths if path.suffix == ".whl"})


def _local(package: LockedPackage, profile: Profile) -> list[Path]:
    """Return the files of a package in all directories of the profile, whichever index they stand for."""
    family = package.index.partition("/")[0]
    paths = local_files(package, {family: [*profile.pypi, *profile.pytorch]})
    return [path for path in paths if fits(package, path.name)]


def sha256(path: Path) -> str:
    """Return a file's sha256."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class StoredWheel:
    """A wheel of the store: its file name, hash and the index that its lock names."""

    name: str
    sha256: str
    index: str = "pypi"


def bring(
    store: Store, locks: Sequence[Lock], python: str, profile: Profile, means: Callable[[str], TransferOptions]
) -> None:
    """Have a wheel of every pin for this Python in the store; no network is used when all are there.

    `means` gives those for a file's name. Raise UnavailableError for what nobody has, PromiseError for wrong bytes.
    """
    for digest, path in local_wheels(_lacking(store, locks, python), profile, python).items():
        store.adopt(path, digest)
    needs = {digest: one for one in locked_packages(_lacking(store, locks, python), python) for digest in one.sha256}
    client = means("asking the indexes").client if needs else Client()
    for file in locate([*dict.fromkeys(needs.values())], _remote(profile), client):
        if fits(needs[file.sha256], file.name):
            wanted, how = WantedFile(file.urls, file.sha256, None, Path(file.name), hint=file.size), means(file.name)
            first, *others = dict.fromkeys(map(host_of, file.urls))
            sources = store.put(wanted, how).sources
            givers = [host for host in (first, *others) if host in sources]
            if givers not in ([], [first]):
                how.note(f"{file.name}: from {', '.join(givers)}, and not from {first} alone")


def held(store: Store, locks: Iterable[Lock], python: str) -> list[StoredWheel]:
    """Return a wheel of every pin. Raise UnavailableError naming the first one that is not in the store."""
    files = []
    for package in locked_packages(locks, python):
        wheel = _stored(store, package)
        if wheel is None:
            message = f"{store.root}: no {package.project} {package.version} for Python {python} with the locked hash"
            raise UnavailableError(message, fix="fetch it first: the same command without --dry-run")
        files.append(wheel)
    return files


def _lacking(store: Store, locks: Iterable[Lock], python: str) -> list[Lock]:
    parts = [msgspec.structs.replace(lock, pins=[pin]) for lock in locks for pin in lock.pins]
    return [part for part in parts if _stored(store, *locked_packages([part], python)) is None]


def _stored(store: Store, package: LockedPackage) -> StoredWheel | None:
    present = [(store.name(digest), digest) for digest in package.sha256 if store.has(digest)]
    return next(
        (StoredWheel(name, digest, package.index) for name, digest in present if name and fits(package, name)), None
    )


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


def kept_hash(wheel: str) -> str:
    """Return the hash that an earlier build kept of a project's wheel, "" if there was none. Raises ConfigError."""
    try:
        text = _record(wheel).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    if not SHA256.fullmatch(text):
        refuse(f"{_record(wheel)} holds no sha256", "delete it, or pass --sha256 NAME=HASH")
    return text


def fetch_new(store: Store, wheel: WantedFile, client: Client) -> tuple[str, Path]:
    """Fetch a wheel of unknown hash; return the hash and the file that keeps it. UnavailableError: there is none."""
    url, name = wheel.urls[0], wheel.path.name
    store.root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".first-use-", dir=store.root) as scratch:
        path = Path(scratch) / name
        try:
            with client.get(url) as answer, path.open("wb") as file:
                answer.demand_ok()
                for chunk in answer.chunks(1 << 20):
                    file.write(chunk)
        except NetworkError as error:
            message = f"{name}: {host_of(url)}: {error}"
            raise UnavailableError(message, fix="try again, or add its wheel to your own index") from error
        if not zipfile.is_zipfile(path):
            refuse(f"{name}: {host_of(url)} sends no wheel", "add its wheel to your own index", UnavailableError)
        digest = sha256(path)
        store.adopt(path, digest)
    _record(name).parent.mkdir(parents=True, exist_ok=True)
    safe_files.replace(_record(name), f"{digest}\n".encode())
    return digest, _record(name)


def _record(wheel: str) -> Path:
    return state_path("wheel-hashes", f"{wheel}.sha256")

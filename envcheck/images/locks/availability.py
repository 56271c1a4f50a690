"""Which locked files a mirror profile has, and how large they are, without fetching them."""

from __future__ import annotations

from collections.abc import Sequence

from envcheck.images.locks.local_wheels import local_wheels
from envcheck.images.locks.model import Lock
from envcheck.mirrors.index.locate import LockedPackage, locate
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.profiles.model import Index, Profile, network_indexes


def wanted_packages(locks: Sequence[Lock], python: str) -> list[LockedPackage]:
    """Return the packages of the locks, as indexes are asked for them."""
    return [
        LockedPackage(pin.name, tuple(pin.sha256), lock.index, pin.version, python)
        for lock in locks
        for pin in lock.pins
    ]


def indexes_by_family(profile: Profile) -> dict[str, list[Index]]:
    """Return the indexes to ask for "pypi" and "pytorch", in order; a closed profile has no defaults."""
    families = {"pypi": profile.pypi, "pytorch": profile.pytorch}
    return {family: [*network_indexes(indexes, closed=profile.closed)] for family, indexes in families.items()}


def bytes_to_fetch(locks: Sequence[Lock], python: str, profile: Profile, client: Client | None) -> int | None:
    """Return how many bytes of these locks are not on this machine yet; None where an index does not say a size.

    Raises UnavailableError naming what no source has; NotFoundError where all indexes answered. Without a client only
    this machine's directories are looked at.
    """
    local = local_wheels(locks, [*profile.pypi, *profile.pytorch], python)
    absent = [package for package in wanted_packages(locks, python) if not {*package.sha256} & local.keys()]
    if not absent:
        return 0
    indexes = indexes_by_family(profile) if client else {}
    located = locate(absent, indexes, client or Client())
    sizes = [file.size for file in located if file.size is not None]
    return sum(sizes) if len(sizes) == len(located) else None

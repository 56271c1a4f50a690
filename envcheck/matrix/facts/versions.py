"""Compare versions of drivers, CUDA and compute capabilities: per dotted field, as numbers."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=4096)
def key(version: str) -> tuple[int, ...]:
    """Return the sort key: 570.26 < 570.124, and 12.8 < 12.10. Raises ValueError unless it is dotted digits 0-9."""
    if not version.isascii():
        message = f"{version!r} is no version: only the digits 0 to 9 count"
        raise ValueError(message)
    return tuple(int(field) for field in version.split("."))


def python_key(version: str) -> tuple[int, ...]:
    """Return the sort key of a Python: 3.9 < 3.10 < 3.13 < 3.13t < 3.14."""
    return (*key(version.rstrip("t")), int(version.endswith("t")))


def branch(driver: str) -> str:
    """Return the branch of a driver: 570 of 570.124.06."""
    return driver.split(".", 1)[0]

"""The disk space for a site's cache of files, as df counts it: without the blocks reserved for root."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from pathlib import Path
from typing import Final

from envcheck.errors import ConfigError
from envcheck.mirrors.site.model import Site

# Shares of the available space. Above the first, nginx evicts; the second stays free for others.
_CACHE: Final = 0.7
_KEPT_FREE: Final = 0.15
# Bytes. A smaller cache cannot hold the wheels of two CUDA environments, so each evicts those of the other.
USEFUL: Final = 5 * 10**9


@dataclasses.dataclass(frozen=True)
class DiskSpace:
    """Bytes: `disk` is the size of the filesystem, `available` is free for any user, `used` belongs to the cache."""

    disk: int
    available: int
    used: int = 0

    @property
    def cache(self) -> int:
        """Return the largest possible size of the cache."""
        return self.available + self.used

    def sizes(self, cache_size: int | None, min_free: int | None) -> tuple[int, int]:
        """Return the size of the cache and the space to keep free, with defaults for None.

        Raise ConfigError for more than the whole disk.
        """
        for name, size in (("--cache-size", cache_size), ("--min-free", min_free)):
            if size is not None and size > self.disk:
                message = f"{name} {size} is more than the whole disk, {self.disk} bytes"
                raise ConfigError(message, fix="pass less, or remove the option for a share of the available space")
        size = int(self.cache * _CACHE) if cache_size is None else cache_size
        return size, int(self.cache * _KEPT_FREE) if min_free is None else min_free

    def holds(self, cache_size: int, min_free: int) -> int:
        """Return the bytes that nginx keeps at most before it evicts."""
        return min(cache_size, max(0, self.cache - min_free))

    def tight(self, cache_size: int, min_free: int) -> bool:
        """Tell whether the disk has too little space for the cache, or for any useful cache."""
        return self.holds(cache_size, min_free) < cache_size or self.cache < USEFUL


def disk_space(root: Path) -> DiskSpace:
    """Return the disk space for the cache of a site in a directory, which need not exist yet."""
    cache = root / "cache/files"
    at = next(path for path in (cache, *cache.parents) if path.exists())
    disk = shutil.disk_usage(at)
    return DiskSpace(disk.total, disk.free, _used(cache))


def cache_disk_space(site: Site) -> DiskSpace | None:
    """Return the disk space of a site's cache, or None if this user may not read it."""
    cache = Path(site.root, "cache/files")
    return disk_space(Path(site.root)) if os.access(cache, os.R_OK | os.X_OK) else None


def _used(cache: Path) -> int:
    """Return the bytes of a cache on the disk; ignore files that nginx removes meanwhile."""
    used = 0
    for folder, _, names in os.walk(cache):
        for name in names:
            with contextlib.suppress(OSError):
                used += os.lstat(Path(folder, name)).st_blocks * 512
    return used

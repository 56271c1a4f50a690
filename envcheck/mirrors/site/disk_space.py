"""What the disk really leaves a site's cache of files: as df counts, what is kept for root is no room."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from pathlib import Path
from typing import Final

from envcheck.errors import ConfigError
from envcheck.mirrors.site.model import Site

# Of what there is room for. Over that nginx evicts by itself, and others need some of the disk too.
_CACHE: Final = 0.7
_KEPT_FREE: Final = 0.15
# Bytes: less does not hold the wheels of more than one CUDA environment, so that each evicts another's.
USEFUL: Final = 5 * 10**9


@dataclasses.dataclass(frozen=True)
class Room:
    """Bytes: `disk` is the filesystem, `available` what of it anyone may still fill, `used` what the cache has now."""

    disk: int
    available: int
    used: int = 0

    @property
    def cache(self) -> int:
        """Return what the cache could have if it took everything."""
        return self.available + self.used

    def sizes(self, cache_size: int | None, min_free: int | None) -> tuple[int, int]:
        """Return what the cache may take and what is kept free, where they are not given.

        Raise ConfigError for more than the whole disk.
        """
        for name, size in (("--cache-size", cache_size), ("--min-free", min_free)):
            if size is not None and size > self.disk:
                message = f"{name} {size} is more than the whole disk, {self.disk} bytes"
                raise ConfigError(message, fix="give less, or leave it out: it is then told by what is available")
        size = int(self.cache * _CACHE) if cache_size is None else cache_size
        return size, int(self.cache * _KEPT_FREE) if min_free is None else min_free

    def holds(self, cache_size: int, min_free: int) -> int:
        """Return what nginx keeps at most before it evicts."""
        return min(cache_size, max(0, self.cache - min_free))

    def tight(self, cache_size: int, min_free: int) -> bool:
        """Tell whether the cache comes to less than it should, or the disk has no room for a useful one."""
        return self.holds(cache_size, min_free) < cache_size or self.cache < USEFUL


def room(root: Path) -> Room:
    """Return what the disk below a directory, which may not be there yet, has for the cache of a site in it."""
    cache = root / "cache/files"
    at = next(path for path in (cache, *cache.parents) if path.exists())
    disk = shutil.disk_usage(at)
    return Room(disk.total, disk.free, _used(cache))


def room_of(site: Site) -> Room | None:
    """Return the room of a site's cache, None for who may not look into it."""
    cache = Path(site.root, "cache/files")
    return room(Path(site.root)) if os.access(cache, os.R_OK | os.X_OK) else None


def _used(cache: Path) -> int:
    """Return what a cache has on the disk; nginx may take files away meanwhile."""
    used = 0
    for folder, _, names in os.walk(cache):
        for name in names:
            with contextlib.suppress(OSError):
                used += os.lstat(Path(folder, name)).st_blocks * 512
    return used

"""Fetch lost objects again for `envcheck store verify --mirror`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from envcheck.cli.interrupts import stopping

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.store.objects import Store
    from envcheck.mirrors.store.verify import Refetch


@contextlib.contextmanager
def refetching(settings: Settings, store: Store, mirror: str | None) -> Iterator[Refetch | None]:
    """Yield a function that fetches lost objects through a profile; None without a profile."""
    if mirror is None:
        yield None
        return
    from envcheck.cli.store.common import transfer_options
    from envcheck.mirrors.profiles.load import load
    from envcheck.mirrors.store import refetch

    profile = load(mirror)
    stop = threading.Event()
    with transfer_options(settings, profile, stop) as means, stopping(stop):
        yield lambda lacking, contents: refetch.refetch(store, lacking, contents, profile, means)

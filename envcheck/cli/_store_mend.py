"""What `envcheck store verify --mirror` brings back over the network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.heal import Bring
    from envcheck.mirrors.store import Store


@contextlib.contextmanager
def bringing(settings: Settings, store: Store, mirror: str | None) -> Iterator[Bring | None]:
    """Give what fetches lost objects through a profile; None where none is named."""
    if mirror is None:
        yield None
        return
    from envcheck.cli._store import fetching
    from envcheck.mirrors import refetch
    from envcheck.mirrors.load import load

    profile = load(mirror)
    with fetching(settings, profile) as means:
        yield lambda lacking, held: refetch.bring(store, lacking, held, profile, means)

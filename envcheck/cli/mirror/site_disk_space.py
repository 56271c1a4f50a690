"""What the disk leaves a site's cache, as `envcheck mirror site` says it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from envcheck.cli.store.options import format_bytes

if TYPE_CHECKING:
    from envcheck.mirrors.site.disk_space import Room
    from envcheck.mirrors.site.model import Site


def say_tight(site: Site) -> None:
    """Warn where the cache comes to less than it should, or to nothing of use."""
    from envcheck.mirrors.site.disk_space import room_of

    told = room_of(site)
    if told is not None and told.tight(site.cache_size, site.min_free):
        fix = "make room and render anew, or give --cache-size and --min-free that fit"
        click.echo(f"warning: {_tight(site, told)}; {fix}", err=True)


def line(site: Site) -> str:
    """Return the cache's line of the status."""
    from envcheck.mirrors.site.disk_space import room_of

    told = room_of(site)
    if told is None:
        return f"{'cache':<24} only the site's own user can look into it"
    tight = f"  {_tight(site, told)}" if told.tight(site.cache_size, site.min_free) else ""
    return f"{'cache':<24} {format_bytes(told.used)} of {format_bytes(site.cache_size)}{tight}"


def cache(site: Site) -> dict[str, Any] | None:
    """Return the cache's part of the status as JSON, bytes; None where it cannot be looked into."""
    from envcheck.mirrors.site.disk_space import room_of

    told = room_of(site)
    if told is None:
        return None
    holds = told.holds(site.cache_size, site.min_free)
    return {"used": told.used, "size": site.cache_size, "holds": holds, "available": told.available}


def _tight(site: Site, told: Room) -> str:
    holds = told.holds(site.cache_size, site.min_free)
    kept = f"{format_bytes(site.min_free)} are to stay free" if site.min_free else "nothing is to stay free"
    return (
        f"the cache can hold {format_bytes(holds)} of its {format_bytes(site.cache_size)}: "
        f"{format_bytes(told.available)} are available "
        f"below {site.root} and {kept}; what is over that is fetched again each time"
    )

"""The disk space of a site's cache in the output of `envcheck mirror site`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from envcheck.cli.store.options import format_bytes

if TYPE_CHECKING:
    from envcheck.mirrors.site.disk_space import DiskSpace
    from envcheck.mirrors.site.model import Site


def warn_if_tight(site: Site) -> None:
    """Warn if the disk has too little space for the cache, or for any useful cache."""
    from envcheck.mirrors.site.disk_space import cache_disk_space

    space = cache_disk_space(site)
    if space is not None and space.tight(site.cache_size, site.min_free):
        fix = "free space and render again, or pass a --cache-size and --min-free that fit"
        click.echo(f"warning: {_explanation(site, space)}; {fix}", err=True)


def status_line(site: Site) -> str:
    """Return the line of the cache for the status."""
    from envcheck.mirrors.site.disk_space import cache_disk_space

    space = cache_disk_space(site)
    if space is None:
        return f"{'cache':<24} only the site's owner can read it"
    tight = f"  {_explanation(site, space)}" if space.tight(site.cache_size, site.min_free) else ""
    return f"{'cache':<24} {format_bytes(space.used)} of {format_bytes(site.cache_size)}{tight}"


def cache_status(site: Site) -> dict[str, Any] | None:
    """Return the cache's part of the status for JSON, in bytes, or None if this user may not read it."""
    from envcheck.mirrors.site.disk_space import cache_disk_space

    space = cache_disk_space(site)
    if space is None:
        return None
    holds = space.holds(site.cache_size, site.min_free)
    return {"used": space.used, "size": site.cache_size, "holds": holds, "available": space.available}


def _explanation(site: Site, space: DiskSpace) -> str:
    holds = space.holds(site.cache_size, site.min_free)
    kept = f"{format_bytes(site.min_free)} must stay free" if site.min_free else "no space must stay free"
    return (
        f"the cache can hold {format_bytes(holds)} of its {format_bytes(site.cache_size)}: "
        f"{format_bytes(space.available)} are available "
        f"below {site.root} and {kept}; files beyond that are fetched again each time"
    )

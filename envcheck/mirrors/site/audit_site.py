"""Audit all that a site on this machine has: every cache, read off its disk. The site may be up, and need not be."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from envcheck.mirrors.hf import Revision
from envcheck.mirrors.http import Client
from envcheck.mirrors.locate import Need
from envcheck.mirrors.site import audit_cold, audit_images, audit_models, audit_packages, audit_trees
from envcheck.mirrors.site.audit import Cache, Finding, unreadable
from envcheck.mirrors.site.model import Site


@dataclasses.dataclass(frozen=True)
class Known:
    """What the locks hold: packages, and revisions of models and data sets."""

    needs: Sequence[Need]
    models: Sequence[Revision] = ()


def audit(site: Site, known: Known, client: Client, *, cold: bool) -> Iterator[Finding]:
    """Yield what every file of every cache is; what is wrong is removed as it is found. `cold` is the object store.

    No upstream is asked; the site is, for pages that its own cache has no more.
    """
    yield from _all("packages", audit_packages.audit(site, known.needs, client))
    yield from _all("models", audit_models.audit(site, known.models))
    yield from _all("images", audit_images.audit(site))
    yield from _all("trees", audit_trees.audit(site))
    yield from audit_cold.audit(site) if cold else audit_cold.unasked(site)


def _all(cache: Cache, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield the findings until something cannot be read that nobody looked at by itself, and that."""
    try:
        yield from findings
    except OSError as error:
        path = Path(error.filename or cache)
        yield unreadable(cache, str(path), path, error)

"""Audit all that a site on this machine has: every cache, read off its disk. The site may be up, and need not be."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from envcheck.mirrors.hf import Revision
from envcheck.mirrors.http import Client
from envcheck.mirrors.locate import Need
from envcheck.mirrors.site import audit_cold, audit_images, audit_models, audit_packages, audit_trees
from envcheck.mirrors.site.audit import Finding
from envcheck.mirrors.site.model import Site


@dataclasses.dataclass(frozen=True)
class Known:
    """What the locks hold: packages, and revisions of models and data sets."""

    needs: Sequence[Need]
    models: Sequence[Revision] = ()


def audit(site: Site, known: Known, client: Client, *, cold: bool) -> list[Finding]:
    """Judge every file of every cache, and remove what is wrong. No upstream is asked. `cold` is the object store."""
    return [
        *audit_packages.audit(site, known.needs, client),
        *audit_models.audit(site, known.models),
        *audit_images.audit(site),
        *audit_trees.audit(audit_trees.served(site)),
        *(audit_cold.audit(site) if cold else audit_cold.unasked(site)),
    ]

"""What the shell offers behind a word that was begun."""

from __future__ import annotations

import click

from envcheck.errors import EnvcheckError


def cells(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the published cells that begin so; none where the matrix cannot be read: a shell is no place to say it."""
    from envcheck.matrix.file.load import load

    try:
        published = load(ctx.find_root().params.get("matrix")).cells()
    except (EnvcheckError, OSError):
        return []
    return [str(cell) for cell in published if str(cell).startswith(incomplete)]


def checks(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the checks that begin so, a site's own with them; what is no check is left out."""
    from envcheck.runner.planning import discover

    try:
        modules = discover(ctx.params.get("checks"), lambda _error: None)
    except (EnvcheckError, OSError):
        return []
    return [f.id for f in modules if f.id.startswith(incomplete)]

"""`envcheck images audit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, get_args

import click

from envcheck.cli.shared import completion
from envcheck.cli.shared.typed_options import takes
from envcheck.counting import counted
from envcheck.errors import PromiseError, UnavailableError
from envcheck.matrix.facts.model import Target

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.images.audit.judge import ImageAudit
    from envcheck.images.audit.osv import OsvDatabase

_STATUS: Final = {"clean": 0, "found": PromiseError.exit_code, "undetermined": UnavailableError.exit_code}
_MOST_DAYS: Final = 36_500


class ImagesAuditOptions(NamedTuple):
    """The options of `envcheck images audit`."""

    selector: str
    target: Target
    osv: Path | None
    max_age: int
    partial: bool
    images_dir: Path | None
    as_json: bool


@click.command("audit", epilog="Example: envcheck images audit torch2.13.0-cpu-py311 --osv /srv/osv/PyPI")
@click.argument("selector", metavar="CELL", shell_complete=completion.cells)
@click.option("--target", default="runtime", show_default=True, type=click.Choice(get_args(Target)))
@click.option(
    "--osv", type=click.Path(path_type=Path), help="Your OSV database: a directory of records, of zip files, or a zip."
)
@click.option(
    "--max-age",
    default=30,
    show_default=True,
    type=click.IntRange(min=1, max=_MOST_DAYS),
    help="Days since its newest record.",
)
@click.option("--partial", is_flag=True, help="Your database is a selection of PyPI's records: it may be small.")
@click.option(
    "--images",
    "images_dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where the cells are. [images/]",
)
@click.option("--json", "as_json", is_flag=True, help="Print envcheck/images-audit/1.")
@click.pass_obj
@takes(ImagesAuditOptions)
def command(options: ImagesAuditOptions, settings: Settings) -> int:
    """Compare a cell's locked packages with the known vulnerabilities of an OSV database that you provide.

    It covers the packages of the target and those of envcheck's own environment in the image, and contacts nothing.
    Records of one vulnerability (GHSA, PYSEC, CVE) are one finding.

    Exit 0: no record affects a package; 1: one does; 2: wrong usage; 3: undetermined, because there is no database,
    it is older than --max-age, it has fewer than 1000 records without --partial, or a file or record in it cannot be
    read or compared.
    """
    import datetime as dt

    from envcheck.cli.images.selection import spec_of
    from envcheck.images.audit.judge import AuditTerms, audit, unaudited
    from envcheck.images.render.build_context import tool_lock
    from envcheck.images.sbom.components import components

    spec = spec_of(settings.matrix, options.selector, options.target, options.images_dir)
    named = (str(spec.cell), spec.target)
    listed = components(spec, tool_lock(), {})
    try:
        database = _database(options.osv)
    except UnavailableError as error:
        if options.as_json:
            _print(unaudited(named, listed, str(error), partial=options.partial))
        raise
    terms = AuditTerms(dt.datetime.now(dt.timezone.utc), dt.timedelta(options.max_age), options.partial)
    result = audit(named, listed, database, terms)
    if options.as_json:
        _print(result)
    else:
        _show(result, quiet=settings.quiet)
    return _STATUS[result.verdict]


def _database(osv: Path | None) -> OsvDatabase:
    from envcheck.images.audit.osv import load

    if osv is None:
        message = "no OSV database to compare with"
        raise UnavailableError(message, fix="give one with --osv DIR: osv.dev exports PyPI as all.zip")
    return load(osv)


def _print(result: ImageAudit) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(result)))


def _show(result: ImageAudit, *, quiet: bool) -> None:
    for one in result.findings:
        fixed = f"fixed in {', '.join(one.fixed)}" if one.fixed else "no fix is known"
        click.echo(f"found    {one.package} {one.version} ({one.environment}): {', '.join(one.ids)}; {fixed}")
        if one.summary and not quiet:
            click.echo(f"         {one.summary}")
    for line in result.undetermined:
        click.echo(f"unknown  {line}")
    if not quiet:
        newest = f", the newest of {result.newest}" if result.newest else ""
        ignored = f"; ignored {counted(result.ignored, 'file')}, neither .json nor .zip"
        click.echo(f"against  {counted(result.records, 'record')}{newest}{ignored}")
        click.echo(f"not seen {result.not_audited}")
    vulnerabilities = counted(len(result.findings), "vulnerability", "vulnerabilities")
    verdict = f"{result.verdict} by a partial database" if result.partial else result.verdict
    click.echo(f"{result.cell} {result.target}: {verdict}; {counted(result.packages, 'package')}, {vulnerabilities}")

"""`envcheck images sbom`."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

import click

from envcheck.cli import Settings
from envcheck.cli.images.selection import spec_of
from envcheck.cli.options import EXISTING_DIRECTORY, Argument, Option, command_with
from envcheck.cli.shared import messages
from envcheck.cli.shared.parameter_types import complete_cells
from envcheck.errors import ConfigError
from envcheck.images.build_context import tool_lock
from envcheck.images.sbom import components, cyclonedx, read
from envcheck.matrix.facts.model import Target


@dataclass(frozen=True, kw_only=True)
class ImagesSbomOptions:
    selector: Annotated[str, Argument(metavar="CELL", shell_complete=complete_cells)]
    target: Annotated[Target, Option(type=click.Choice(get_args(Target)))] = "runtime"
    metadata: Annotated[
        tuple[Path, ...],
        Option("Wheels, or an environment's site-packages: licences are read there.", type=EXISTING_DIRECTORY),
    ] = ()
    images_dir: Annotated[
        Path | None, Option("--images", "Where the cells are. [images/]", type=EXISTING_DIRECTORY)
    ] = None


@command_with(ImagesSbomOptions, epilog="Example: envcheck images sbom torch2.13.0-cpu-py311")
def command(options: ImagesSbomOptions, settings: Settings) -> None:
    """Print the CycloneDX bill of materials of a cell's image, from its locks: versions, hashes, purls, licences.

    It lists the packages of the target and those of envcheck's own environment in the image. The distribution's
    packages are not locked, and the document says so. A licence is what a package's own metadata states; where no
    directory of --metadata has that version, it is NOASSERTION. SOURCE_DATE_EPOCH sets the document's date.

    Exit 0: printed; 2: the cell has no lock, or wrong usage.
    """
    spec = spec_of(settings.matrix, options.selector, options.target, options.images_dir)
    listed = components(spec, tool_lock(), read(options.metadata))
    click.echo(cyclonedx(spec, listed, _created()), nl=False)
    unknown = sum(one.licence is None for one in listed)
    if unknown and not settings.quiet:
        messages.note(f"{unknown} of {len(listed)} licences are not known: give --metadata DIR with the wheels")


def _created() -> dt.datetime:
    """Return the date of the document: now, or what SOURCE_DATE_EPOCH says."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if not epoch:
        return dt.datetime.now(dt.timezone.utc)
    try:
        if epoch.isdecimal():
            return dt.datetime.fromtimestamp(int(epoch), dt.timezone.utc)
    except (ValueError, OverflowError, OSError):
        pass  # a year that no date has
    message = f"SOURCE_DATE_EPOCH is {epoch!r}, not seconds since 1970"
    raise ConfigError(message, fix="set it to a whole number, or unset it")

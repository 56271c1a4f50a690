"""`envcheck images size`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import click
import msgspec

from envcheck.cli import Settings
from envcheck.cli.options import Argument, Option, command_with
from envcheck.errors import UnavailableError
from envcheck.images import engines
from envcheck.images.engines.size import KINDS, SizeLedger, measure

_SHOWN = 12
_STEP = 58


@dataclass(frozen=True, kw_only=True)
class ImageSizeOptions:
    image: Annotated[str, Argument(metavar="IMAGE")]
    engine: Annotated[Literal["auto", "docker", "podman"], Option()] = "auto"
    as_json: Annotated[bool, Option("--json", "For programs: envcheck/image-size/1, every package.")] = False


@command_with(ImageSizeOptions, epilog="Example: envcheck images size envcheck/torch:2.13.0-cpu-py311-runtime")
def command(options: ImageSizeOptions, settings: Settings) -> None:
    """Print where the bytes of a local image are: layers, packages, duplicate libraries, files that are not needed.

    Sizes are those of the files, unpacked. The image is started once, without a network, to count its files.

    Exit 0: measured; 1: it has no Python; 2: wrong usage, or there is no such image; 3: no engine answers.
    """
    engine = engines.find(options.engine)
    if engine == "venv":
        message = "neither docker nor podman answers"
        raise UnavailableError(message, fix="start docker or podman")
    ledger = measure(engine, options.image)
    if options.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(ledger)))
    else:
        _show(ledger, quiet=settings.quiet)


def _show(ledger: SizeLedger, *, quiet: bool) -> None:
    overhead = f"{ledger.overhead:.1%} are added by envcheck: itself and bytecode"
    click.echo(f"total   {ledger.total / 1e6:.1f} MB in {len(ledger.layers)} layers; {overhead}")
    if quiet:
        return
    for kind, size in ledger.kinds.items():
        click.echo(f"  {size / 1e6:10.1f} MB  {KINDS.get(kind, kind)}")
    click.echo("layers")
    for layer in ledger.layers:
        step = " ".join(layer.step.split()).removeprefix("/bin/sh -c ").removeprefix("RUN ")
        click.echo(f"  {layer.bytes / 1e6:10.1f} MB  {step[-_STEP:]}")
    shown = list(ledger.packages.items())[:_SHOWN]
    click.echo(f"packages, the {len(shown)} largest of {len(ledger.packages)}")
    for name, size in shown:
        click.echo(f"  {size / 1e6:10.1f} MB  {name}")
    for each in ledger.duplicates:
        click.echo(f"twice   {each.library}: {each.bytes / 1e6:.1f} MB more than one copy: {', '.join(each.paths)}")
    for category, size in ledger.unneeded.items():
        click.echo(f"unused  {size / 1e6:.1f} MB of {category}")

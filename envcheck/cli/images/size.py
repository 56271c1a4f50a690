"""`envcheck images size`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from envcheck.cli.shared.typed_options import takes

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.images.engines.size import SizeLedger

_SHOWN = 12
_STEP = 58


class ImageSizeOptions(NamedTuple):
    """The options of `envcheck images size`."""

    image: str
    engine: Literal["auto", "docker", "podman"]
    as_json: bool


@click.command("size", epilog="Example: envcheck images size envcheck/torch:2.13.0-cpu-py311-runtime")
@click.argument("image", metavar="IMAGE")
@click.option("--engine", default="auto", show_default=True, type=click.Choice(["auto", "docker", "podman"]))
@click.option("--json", "as_json", is_flag=True, help="For programs: envcheck/image-size/1, every package.")
@click.pass_obj
@takes(ImageSizeOptions)
def command(options: ImageSizeOptions, settings: Settings) -> None:
    """Print where the bytes of a local image are: layers, packages, duplicate libraries, files that are not needed.

    Sizes are those of the files, unpacked. The image is started once, without a network, to count its files.

    Exit 0: measured; 1: it has no Python; 2: wrong usage, or there is no such image; 3: no engine answers.
    """
    import msgspec

    from envcheck.errors import UnavailableError
    from envcheck.images import engines
    from envcheck.images.engines.size import measure

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
    from envcheck.images.engines.size import KINDS

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

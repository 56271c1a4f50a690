"""`envcheck resolve`: what can run on this machine, or on the one described."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from envcheck.cli._archs import ARCHS

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.matrix.model import HostArch, Matrix
    from envcheck.matrix.resolve import Wanted


@click.command(no_args_is_help=False)
@click.option("--torch", metavar="REQ", help='A release or a requirement: 2.8, 2.8.0, ">=2.6,<2.9".')
@click.option("--variant", metavar="cuNNN|cpu", help="The wheel's CUDA as its name says it, e.g. cu128.")
@click.option("--cuda", metavar="X.Y", help="The same by CUDA version, e.g. 12.8.")
@click.option("--python", metavar="X.Y", help="Python version, e.g. 3.12 or 3.13t.")
@click.option("--driver", metavar="VERSION", help="NVIDIA driver, whole: 570.124.06.")
@click.option("--gpu", "gpus", multiple=True, metavar="NAME", help="GPU model; again for a node of several.")
@click.option("--cc", multiple=True, metavar="X.Y", help="Compute capability, for a GPU without a name.")
@click.option("--arch", type=click.Choice(list(ARCHS)), help="Host architecture.")
@click.option("--base-cuda", metavar="X.Y", help="Also say what an nvidia/cuda base image of that CUDA refuses.")
@click.option("--all", "everything", is_flag=True, help="List every cell with its verdict.")
@click.option("--here/--no-here", default=None, help="Read off this node what is not given, or leave it free.")
@click.option("--json", "as_json", is_flag=True, help="Print envcheck/resolution/1.")
@click.pass_obj
def command(  # noqa: PLR0913 (click passes every option by name)
    settings: Settings,
    *,
    torch: str | None,
    variant: str | None,
    cuda: str | None,
    python: str | None,
    driver: str | None,
    gpus: tuple[str, ...],
    cc: tuple[str, ...],
    arch: str | None,
    base_cuda: str | None,
    everything: bool,
    here: bool | None,
    as_json: bool,
) -> None:
    """Say which torch, CUDA variant and Python can run, why, and what else could.

    With no driver, GPU or --arch given, this node is asked about: its driver, GPUs, architecture and active Python are
    read. With one of them given another machine is meant, and nothing is read unless --here says so.

    Exit status: 0 when something can run, 1 when nothing can, 2 on bad input, 3 when this node cannot be read.

    \b
    envcheck resolve
    envcheck resolve --torch 2.8.0 --gpu H100 --driver 570.124.06
    envcheck resolve --variant cu130 --gpu "RTX 4090" --driver 550.54.14
    """
    from envcheck.matrix.load import load
    from envcheck.matrix.resolve import Wanted, resolve
    from envcheck.matrix.wanted import spoken

    host: HostArch | None = ARCHS[arch] if arch else None  # type: ignore[assignment]
    words = Wanted(
        torch=torch, variant=variant, cuda=cuda, python=python, driver=driver, gpus=[*gpus], cc=[*cc], arch=host
    )
    matrix = load(settings.matrix)
    wanted, read, notes = _from_here(matrix, spoken(words), here=here)
    answer = resolve(matrix, wanted, base_cuda=base_cuda, read_here=read, notes=notes)
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(answer)).decode())
    else:
        from envcheck.cli import _answer

        _answer.show(answer, everything=everything, quiet=settings.quiet)
    sys.exit(0 if answer.legal else 1)


def _from_here(matrix: Matrix, wanted: Wanted, *, here: bool | None) -> tuple[Wanted, dict[str, str], list[str]]:
    another = bool(wanted.driver or wanted.gpus or wanted.cc or wanted.arch)
    if here is False or (here is None and another):
        return wanted, {}, []
    from envcheck.cli._here import active_python, fill
    from envcheck.node.collect import identify

    return fill(matrix, wanted, identify(), active_python())

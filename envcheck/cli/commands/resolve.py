"""`envcheck resolve`: what can run on this machine, or on the one described."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click
import msgspec

from envcheck.cli.options import ARCHS, FILE, Option, command_with
from envcheck.cli.shared import resolution_text
from envcheck.errors import ConfigError
from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.query import normalized, requested_devices, with_whole_driver
from envcheck.matrix.resolver.resolve import Query, Resolution, resolve
from envcheck.mirrors.profiles import model

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.matrix.extensions.answer import ExtensionResolution
    from envcheck.matrix.facts.model import Matrix
    from envcheck.mirrors.profiles.model import Profile


@dataclass(frozen=True, kw_only=True)
class ResolveOptions:
    torch: Annotated[str | None, Option('A release or a requirement: 2.8, 2.8.0, ">=2.6,<2.9".', metavar="REQ")] = None
    variant: Annotated[str | None, Option("The wheel's CUDA as its name says it, e.g. cu128.", metavar="cuNNN|cpu")] = (
        None
    )
    cuda: Annotated[str | None, Option("The same by CUDA version, e.g. 12.8.", metavar="X.Y")] = None
    python: Annotated[str | None, Option("Python version, e.g. 3.12 or 3.13t.", metavar="X.Y")] = None
    driver: Annotated[str | None, Option("NVIDIA driver, 570.124.06, or its branch, 570.", metavar="VERSION")] = None
    gpus: Annotated[
        tuple[str, ...], Option("--gpu", "GPU model. Repeatable, for a node with several models.", metavar="NAME")
    ] = ()
    cc: Annotated[tuple[str, ...], Option("Compute capability, for a GPU without a name.", metavar="X.Y")] = ()
    arch: Annotated[Literal["x86_64", "amd64", "aarch64", "arm64"] | None, Option("Host architecture.")] = None
    base_cuda: Annotated[
        str | None, Option("Also say what an nvidia/cuda base image of that CUDA refuses.", metavar="X.Y")
    ] = None
    requirements: Annotated[
        tuple[str, ...],
        Option(
            "--with",
            'A native extension that must fit too: flash-attn, "vllm>=0.16". Repeatable.',
            metavar="NAME[SPEC]",
        ),
    ] = ()
    third_party: Annotated[bool, Option("Allow wheels that other authors built; the newest torch comes first.")] = False
    extensions: Annotated[
        Path | None,
        Option("Your own facts about extensions, in addition to the shipped ones.", type=FILE, metavar="FILE"),
    ] = None
    mirror: Annotated[str, Option("Mirror profile whose PyTorch index the pip command names.", metavar="PROFILE")] = (
        "user"
    )
    everything: Annotated[bool, Option("--all", "List every cell with its verdict.")] = False
    here: Annotated[
        bool | None, Option("--here/--no-here", "Read what is not given from this node, or leave it open.")
    ] = None
    as_json: Annotated[bool, Option("--json", "Print envcheck/resolution/1.")] = False

    def query(self) -> Query:
        """Return the combination that is asked for."""
        return Query(
            torch=self.torch,
            variant=self.variant,
            cuda=self.cuda,
            python=self.python,
            driver=self.driver,
            gpus=[*self.gpus],
            cc=[*self.cc],
            arch=ARCHS[self.arch] if self.arch else None,
        )


@command_with(ResolveOptions)
def command(options: ResolveOptions, settings: Settings) -> int:
    """Say which torch, CUDA variant and Python can run, why, and what the alternatives are.

    Without a driver, GPU or --arch, the answer is for this node: its driver, GPUs, architecture and active Python are
    read. With one of them, the answer is for another machine, and nothing is read without --here.

    Exit status: 0 when something can run, 1 when nothing can, 2 on bad input, 3 when this node cannot be read.

    \b
    envcheck resolve
    envcheck resolve --torch 2.8.0 --gpu H100 --driver 570.124.06
    envcheck resolve --variant cu130 --gpu "RTX 4090" --driver 550.54.14
    envcheck resolve --with flash-attn --with "vllm>=0.16" --gpu H100 --driver 550
    """
    _refuse_ignored(options)
    matrix = load(settings.matrix)
    query, read, notes = _from_here(matrix, normalized(options.query()), from_node=options.here)
    query, taken = with_whole_driver(Facts(matrix), query)
    notes += taken
    answer = resolve(matrix, query, base_cuda=options.base_cuda, read_here=read, notes=notes)
    extended = _with_extensions(options, matrix, answer, notes) if options.requirements else None
    answer = extended or answer
    pip = resolution_text.pip_command(answer, _profile(options.mirror))
    answer = msgspec.structs.replace(answer, pip=pip)
    if extended is not None:
        answer = extended = _with_commands(matrix, msgspec.structs.replace(extended, pip=pip))
    if options.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(extended or answer)).decode())
    else:
        resolution_text.show(answer, extended=extended, everything=options.everything, quiet=settings.quiet)
    return 0 if answer.legal else 1


def _refuse_ignored(options: ResolveOptions) -> None:
    ignored = "--extensions" if options.extensions else "--third-party" if options.third_party else None
    if ignored and not options.requirements:
        message = f"{ignored} is for the extensions of --with, and there are none"
        raise ConfigError(message, fix=f"add --with, or leave {ignored} out")


def _profile(name: str) -> Profile:
    """Return the mirror's profile; YAML is imported only where it must be read."""
    profile = model.plain_profile(name)
    if profile is None:
        from envcheck.mirrors.profiles.load import load

        profile = load(name)
    return profile


def _with_extensions(
    options: ResolveOptions, matrix: Matrix, plain: Resolution, notes: list[str]
) -> ExtensionResolution:
    from envcheck.matrix.extensions import file
    from envcheck.matrix.extensions.answer import resolve_with, wanted_extensions

    extensions = file.load()
    if options.extensions is not None:
        extensions = file.merged(extensions, file.load(options.extensions))
    required_extensions = wanted_extensions(extensions, [*options.requirements])
    return resolve_with(
        matrix,
        extensions,
        plain,
        required_extensions,
        third_party=options.third_party,
        every_cell=options.everything or options.as_json,
        base_cuda=options.base_cuda,
        notes=notes,
    )


def _with_commands(matrix: Matrix, answer: ExtensionResolution) -> ExtensionResolution:
    codes = sorted({device.cc for device in requested_devices(Facts(matrix), answer.query)})
    return msgspec.structs.replace(answer, commands=resolution_text.commands(answer, codes))


def _from_here(matrix: Matrix, query: Query, *, from_node: bool | None) -> tuple[Query, dict[str, str], list[str]]:
    another = bool(query.driver or query.gpus or query.cc or query.arch)
    if from_node is False or (from_node is None and another):
        return query, {}, []
    from envcheck.cli.sources.this_machine import active_python, fill
    from envcheck.node.collect import identify

    return fill(matrix, query, identify(), active_python())

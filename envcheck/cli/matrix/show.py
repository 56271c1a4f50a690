"""`envcheck matrix show`: the facts, one row for each torch and variant, judged if a GPU or driver is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import click
import msgspec
from rich.table import Table

from envcheck.cli import Settings
from envcheck.cli.options import Option, command_with
from envcheck.cli.shared.parameter_types import ARCHS
from envcheck.cli.shared.process import console
from envcheck.errors import NothingLegalError
from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.facts.model import HostArch, Matrix, key
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.candidates import candidates
from envcheck.matrix.resolver.query import Query, host_arch, normalized, requested_devices, validate


@dataclass(frozen=True, kw_only=True)
class MatrixShowOptions:
    torch: Annotated[str | None, Option('A release or a requirement: 2.8, 2.8.0, ">=2.6,<2.9".', metavar="REQ")] = None
    variant: Annotated[str | None, Option("One variant, e.g. cu128.", metavar="cuNNN|cpu")] = None
    python: Annotated[str | None, Option("Only wheels for this Python.", metavar="X.Y")] = None
    gpus: Annotated[tuple[str, ...], Option("--gpu", "Judge for this GPU. Repeatable.", metavar="NAME")] = ()
    driver: Annotated[str | None, Option("Judge for this driver.", metavar="VERSION")] = None
    cc: Annotated[tuple[str, ...], Option("Judge for this compute capability.", metavar="X.Y")] = ()
    arch: Annotated[Literal["x86_64", "amd64", "aarch64", "arm64"] | None, Option("Host architecture.")] = None
    only_gpus: Annotated[bool, Option("--list-gpus", "List the GPUs instead.")] = False
    only_drivers: Annotated[bool, Option("--list-drivers", "List the driver branches and CUDA minors instead.")] = False
    as_json: Annotated[bool, Option("--json", "Print the rows as JSON.")] = False

    def query(self) -> Query:
        """Return the combination that the rows must meet."""
        return Query(
            torch=self.torch,
            variant=self.variant,
            python=self.python,
            gpus=[*self.gpus],
            driver=self.driver,
            cc=[*self.cc],
            arch=ARCHS[self.arch] if self.arch else None,
        )


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One torch and variant on one host architecture. `verdict` is None when the query names no GPU or driver."""

    torch: str
    variant: str
    cuda: str | None
    arch: HostArch
    pypi: bool
    python: list[str]
    sass: list[str] | None
    ptx: list[str]
    cudnn: str | None
    nccl: str | None
    triton: str | None
    torchvision: str | None
    torchaudio: str | None
    verdict: str | None
    verified: bool
    source: list[str]


@command_with(MatrixShowOptions, short_help="Show the facts, filtered.")
def command(options: MatrixShowOptions, settings: Settings) -> None:
    """Show the facts, filtered. Exit status: 1 when no row is left, 2 on bad input.

    \b
    envcheck matrix show --torch 2.8
    envcheck matrix show --gpu V100 --driver 570.124.06
    envcheck matrix show --list-gpus
    """
    matrix = load(settings.matrix)
    as_json = options.as_json
    if options.only_gpus:
        _print(matrix.gpus, as_json=as_json, table=lambda: _gpu_table(matrix))
    elif options.only_drivers:
        _print({"drivers": matrix.drivers, "cuda": matrix.cuda}, as_json=as_json, table=lambda: _driver_table(matrix))
    else:
        matching = rows(matrix, normalized(options.query()))
        if as_json or matching:
            _print(matching, as_json=as_json, table=lambda: _row_table(matching))
        if not matching:
            raise _no_row(options)
        if not as_json and any(row.pypi for row in matching):
            click.echo("* what the default Python index has")


def _no_row(options: MatrixShowOptions) -> NothingLegalError:
    axes = dataclasses.asdict(dataclasses.replace(options, only_gpus=False, only_drivers=False, as_json=False))
    filters = {name: value for name, value in axes.items() if value}
    words = " ".join(
        f"--{name.removesuffix('s')} {item}"
        for name, value in filters.items()
        for item in (value if isinstance(value, tuple) else [value])
    )
    message = f"no row of the matrix meets {words}"
    return NothingLegalError(message, fix="ask for less; `envcheck matrix show` lists them all")


def rows(matrix: Matrix, query: Query) -> list[TableRow]:
    """Return the rows that match `query`, newest torch first. Raises ConfigError for an invalid query."""
    facts = Facts(matrix)
    validate(facts, query)
    devices = requested_devices(facts, query)
    arch = host_arch(query, devices)
    judged = bool(devices or query.driver)
    table = []
    for candidate in candidates(facts, query, devices, arch):
        release = matrix.release(candidate.torch)
        variant = release.variant(candidate.variant) if release else None
        build = next((build for build in variant.builds if build.arch == arch), None) if variant else None
        if release is None or variant is None or build is None or query.python not in (None, *build.python):
            continue
        table.append(
            TableRow(
                torch=release.torch,
                variant=variant.variant,
                cuda=variant.cuda,
                arch=arch,
                pypi=candidate.pypi,
                python=build.python,
                sass=build.sass,
                ptx=build.ptx,
                cudnn=variant.cudnn,
                nccl=variant.nccl,
                triton=variant.triton,
                torchvision=release.torchvision,
                torchaudio=release.torchaudio,
                verdict=candidate.verdict.name if judged else None,
                verified=candidate.verdict.verified,
                source=sorted({*build.source, *variant.source}),
            )
        )
    return sorted(table, key=lambda row: (key(row.torch), key(row.cuda or "0")), reverse=True)


def _print(value: object, *, as_json: bool, table: Callable[[], Table]) -> None:
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())
        return
    console(highlight=False).print(table())


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=column != columns[-1])
    return table


def _row_table(table_rows: list[TableRow]) -> Table:
    judged = any(row.verdict for row in table_rows)
    table = _table("torch", "variant", "Python", "verdict" if judged else "GPU code")
    for row in table_rows:
        code = " ".join(["unknown"] if row.sass is None else [*row.sass, *(f"{ptx}+PTX" for ptx in row.ptx)])
        weak = "" if row.verified else " (weak)"
        name = f"{row.variant}{' *' if row.pypi else ''}"
        table.add_row(row.torch, name, _span(row.python), f"{row.verdict if judged else code}{weak}")
    return table


def _span(pythons: list[str]) -> str:
    plain = [python for python in pythons if not python.endswith("t")]
    free = [python for python in pythons if python.endswith("t")]
    ends = plain[:1] + (plain[-1:] if len(plain) > 1 else [])
    return " ".join([" - ".join(ends), *free])


def _gpu_table(matrix: Matrix) -> Table:
    table = _table("GPU", "cc", "host", "centre", "drivers from")
    for gpu in matrix.gpus:
        low = gpu.min_driver or "unknown"
        weak = "" if gpu.verified and gpu.driver_verified else " (weak)"
        table.add_row(gpu.name, gpu.cc, gpu.host_arch, "yes" if gpu.datacenter else "no", f"{low}{weak}")
    return table


def _driver_table(matrix: Matrix) -> Table:
    native = {minor.cuda: minor for minor in matrix.cuda.minors}
    table = _table("branch", "CUDA", "first driver", "kind", "until", "drops")
    for row in matrix.drivers:
        minor = native.get(row.cuda)
        first = minor.native_driver if minor else ""
        drops = ", ".join(row.drops)
        table.add_row(f"R{row.branch}", row.cuda, first, row.kind or "", row.end_of_life or "", drops)
    return table

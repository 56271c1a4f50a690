"""`envcheck matrix`: show the facts, lint them, and read a wheel's."""

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import msgspec

from envcheck.binaries.elf import BinaryError
from envcheck.binaries.wheel_members import read_members
from envcheck.cli import Settings
from envcheck.cli.options import ARCHS, Argument, JsonOption, Option, command_with
from envcheck.cli.shared.process import print_json, print_table
from envcheck.counting import counted
from envcheck.errors import ConfigError, UnavailableError, refuse
from envcheck.matrix.extensions.opened_wheel import OpenedWheel, extensions_file, without_foreign
from envcheck.matrix.facts.lookup import all_gpus
from envcheck.matrix.facts.model import GpuModel, Matrix, key
from envcheck.matrix.file.lint import lint
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.query import Query, matching, normalized


@dataclass(frozen=True, kw_only=True)
class MatrixShowOptions:
    torch: Annotated[str | None, Option('A release or a requirement: 2.8, 2.8.0, ">=2.6,<2.9".', metavar="REQ")] = None
    cuda: Annotated[
        str | None, Option("--cuda", "--variant", "Wheels of one CUDA: 12.8, cu128 or cpu.", metavar="X.Y|cuNNN|cpu")
    ] = None
    python: Annotated[str | None, Option("Only wheels for this Python.", metavar="X.Y")] = None
    arch: Annotated[Literal["x86_64", "amd64", "aarch64", "arm64"], Option("Host architecture.")] = "x86_64"
    only_gpus: Annotated[bool, Option("--list-gpus", "List the GPUs instead.")] = False
    only_drivers: Annotated[bool, Option("--list-drivers", "List the driver branches and CUDA minors instead.")] = False
    as_json: Annotated[bool, Option("--json", "Print the rows as JSON.")] = False


@command_with(MatrixShowOptions, short_help="Show the facts, filtered.")
def show(options: MatrixShowOptions, settings: Settings) -> None:
    """Show the facts, filtered; `envcheck resolve --all` judges them for a machine.

    Exit status: 1 when no row is left, 2 on bad input.

    \b
    envcheck matrix show --torch 2.8
    envcheck matrix show --list-gpus
    """
    matrix = load(settings.matrix)
    if options.only_gpus:
        gpus = all_gpus(matrix)
        _print(gpus, ("drivers from", "cc", "host", "centre", "GPU"), map(_gpu, gpus), options)
    elif options.only_drivers:
        native = {minor.cuda: minor.native_driver for minor in matrix.cuda.minors}
        table = [
            (
                f"R{row.branch}",
                row.cuda,
                native.get(row.cuda, ""),
                row.kind or "",
                row.end_of_life or "",
                ", ".join(row.drops),
            )
            for row in matrix.drivers
        ]
        columns = ("branch", "CUDA", "first driver", "kind", "until", "drops")
        _print({"drivers": matrix.drivers, "cuda": matrix.cuda}, columns, table, options)
    else:
        matching_rows = rows(matrix, options)
        if options.as_json or matching_rows:
            _print(matching_rows, ("torch", "variant", "Python", "GPU code"), map(_release, matching_rows), options)
        if not matching_rows:
            given = {"torch": options.torch, "cuda": options.cuda, "python": options.python}
            words = " ".join(f"--{name} {value}" for name, value in given.items() if value)
            message = f"no row of the matrix meets {words}"
            raise ConfigError(message, fix="ask for less; `envcheck matrix show` lists them all")
        if not options.as_json and any(row["pypi"] for row in matching_rows):
            click.echo("* what the default Python index has")


def rows(matrix: Matrix, options: MatrixShowOptions) -> list[dict[str, Any]]:
    """Return one row for each torch and variant that the options leave, newest torch first. Raises ConfigError."""
    query = normalized(Query(torch=options.torch, cuda=options.cuda, python=options.python))
    arch = ARCHS[options.arch]
    table = [
        {
            "torch": release.torch,
            "variant": variant.variant,
            "cuda": variant.cuda,
            "arch": arch,
            "pypi": release.pypi.get(arch) == variant.variant,
            "python": build.python,
            "sass": build.sass,
            "ptx": build.ptx,
            "cudnn": variant.cudnn,
            "nccl": variant.nccl,
            "triton": variant.triton,
            "torchvision": release.torchvision,
            "torchaudio": release.torchaudio,
            "verified": release.verified and variant.verified and build.verified and build.sass_verified,
            "source": sorted({*build.source, *variant.source}),
        }
        for release in matching(matrix.torch, query.torch)
        for variant in release.variants
        for build in variant.builds
        if build.arch == arch and query.python in (None, *build.python)
        if query.variant in (None, variant.variant) and query.cuda in (None, variant.cuda)
    ]
    return sorted(table, key=lambda row: (key(row["torch"]), key(row["cuda"] or "0")), reverse=True)


def _print(value: Any, columns: Sequence[str], table: Iterable[Sequence[str]], options: MatrixShowOptions) -> None:
    if options.as_json:
        print_json(value)
    else:
        print_table(columns, table)


def _release(row: dict[str, Any]) -> tuple[str, ...]:
    code = ["unknown"] if row["sass"] is None else [*row["sass"], *(f"{ptx}+PTX" for ptx in row["ptx"])]
    weak = [] if row["verified"] else ["(1 source)"]
    return (
        row["torch"],
        f"{row['variant']}{' *' if row['pypi'] else ''}",
        _span(row["python"]),
        " ".join([*code, *weak]),
    )


def _span(pythons: list[str]) -> str:
    plain = [python for python in pythons if not python.endswith("t")]
    ends = plain[:1] + (plain[-1:] if len(plain) > 1 else [])
    return " ".join([" - ".join(ends), *(python for python in pythons if python.endswith("t"))])


def _gpu(gpu: GpuModel) -> tuple[str, ...]:
    weak = " (1 source)" if gpu.min_driver and not (gpu.verified and gpu.driver_verified) else ""
    driver = f"{gpu.min_driver or 'unknown'}{weak}"
    return driver, gpu.cc, gpu.host_arch, "yes" if gpu.datacenter else "no", gpu.name


@command_with(JsonOption, short_help="Lint the facts.")
def check(options: JsonOption, settings: Settings) -> int:
    """Lint the facts: sources, lowest drivers, orders, companions, bases and images.

    Exit status: 0 nothing found, 1 findings, 2 the file cannot be read.

    \b
    envcheck matrix check
    envcheck --matrix my.yaml matrix check
    """
    matrix = load(settings.matrix)
    findings = lint(matrix)
    sound = [counted(len(matrix.torch), "torch release"), counted(len(matrix.gpus), "GPU")]
    sound.append(f"{len(matrix.drivers)} driver branches")
    if options.as_json:
        print_json([row._asdict() for row in findings])
    else:
        for where, problem in findings:
            click.echo(f"{where}: {problem}")
        click.echo(counted(len(findings), "finding") if findings else f"nothing wrong with {', '.join(sound)}")
    return 1 if findings else 0


@dataclass(frozen=True, kw_only=True)
class MatrixWheelOptions:
    wheel: Annotated[str, Argument(metavar="FILE")]
    channel: Annotated[Literal["pypi", "pytorch", "project", "third-party"], Option("Who serves the wheel.")] = "pypi"
    as_json: Annotated[bool, Option("--json", "Print the row, and each library, as JSON: envcheck/wheel/1.")] = False


@command_with(
    MatrixWheelOptions,
    short_help="Open a wheel, and print its row for extensions.yaml.",
    epilog="Exit 0: printed; 2: not a wheel for Linux; 3: not all of its libraries can be read.",
)
def wheel(options: MatrixWheelOptions, _settings: Settings) -> None:
    """Read a wheel's name, METADATA and libraries, and print what it needs and for which GPUs it has code.

    Nothing is installed, loaded or run. The output is a whole file of facts: copy its row into extensions.yaml, or use
    the file as it is. `envcheck fetch URL --sha256 HASH` downloads a wheel first.

    \b
    envcheck matrix wheel torchcodec-0.13.0-cp312-cp312-manylinux_2_28_x86_64.whl
    """
    opened = _opened(options)
    facts = extensions_file(opened, dt.datetime.now(dt.timezone.utc).date())
    unread = opened.contents.unread
    if options.as_json:
        document = {
            "schema": "envcheck/wheel/1",
            "file": opened.name,
            "size": opened.size,
            "sha256": opened.sha256,
            "row": facts.extensions[0],
            "libraries": [library._asdict() for library in opened.contents.libraries],
            "unread": unread,
        }
        print_json(document)
    else:
        click.echo(msgspec.yaml.encode(facts), nl=False)
    if unread:
        path, why = next(iter(sorted(unread.items())))
        message = f"{opened.name}: {len(unread)} of its libraries not read, first {path}: {why}"
        raise UnavailableError(message, fix="the row leaves out what they need; download the wheel again")


def _opened(options: MatrixWheelOptions) -> OpenedWheel:
    from envcheck.images.wheels import sha256  # needs uv, which images lack; `matrix show` works there
    from envcheck.mirrors.index import parse_file_name

    path, name = Path(options.wheel), Path(options.wheel).name
    try:
        if not path.is_file():
            refuse(f"{path}: no such file", "give a wheel's file; `envcheck fetch URL` downloads one")
        project, version, tags = parse_file_name(name)
        if not tags:
            refuse(f"{name}: not a wheel", "give a .whl file; an sdist has no libraries yet")
        size, digest = path.stat().st_size, sha256(path)
        contents = without_foreign(read_members(path), name, tags)
    except BinaryError as error:
        what = f"{name}: {error}"
        raise ConfigError(what, fix="download it again, from its origin") from error
    except ValueError as error:
        what = f"{ascii(name)[1:-1][:200]}: not the name of a wheel"
        raise ConfigError(what, fix="rename it as it was published: NAME-VERSION-PYTHON-ABI-PLATFORM.whl") from error
    except OSError as error:
        what = f"{name}: {error.strerror or error}"
        raise ConfigError(what, fix="give a readable file") from error
    return OpenedWheel(name, size, digest, options.channel, None, project, version, tags, contents)

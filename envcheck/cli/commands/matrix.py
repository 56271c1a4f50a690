"""`envcheck matrix`: show the facts, lint them, and read a wheel's."""

import datetime as dt
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import msgspec

from envcheck.binaries.native_library import BinaryError
from envcheck.binaries.wheel_members import read_members
from envcheck.cli import Settings
from envcheck.cli.options import ARCHS, Argument, JsonOption, Option, ReleaseOptions, command_with
from envcheck.cli.shared.process import print_answer, print_json, print_table
from envcheck.counting import counted
from envcheck.errors import UnavailableError, refuse
from envcheck.matrix.extensions.opened_wheel import OpenedWheel, extensions_file, without_foreign
from envcheck.matrix.facts.lookup import all_gpus
from envcheck.matrix.facts.model import GpuModel, Matrix, key
from envcheck.matrix.file.lint import lint
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.query import Query, matching, normalized


class MatrixShowOptions(ReleaseOptions, JsonOption):
    arch: Annotated[Literal["x86_64", "amd64", "aarch64", "arm64"], Option("Host architecture.")] = "x86_64"
    only_gpus: Annotated[bool, Option("--list-gpus", "List the GPUs instead.")] = False


@command_with(MatrixShowOptions)
def show(options: MatrixShowOptions, settings: Settings) -> None:
    """Show the facts, filtered; `envcheck resolve --all` judges them for a machine."""
    matrix = load(settings.matrix)
    if options.only_gpus:
        gpus = all_gpus(matrix)
        _print(gpus, ("drivers from", "cc", "host", "centre", "GPU"), map(_gpu, gpus), options)
    else:
        found = _rows(matrix, options)
        if options.as_json or found:
            _print(found, ("torch", "variant", "Python", "GPU code"), map(_release, found), options)
        if not found:
            given = {"torch": options.torch, "cuda": options.cuda, "python": options.python}
            words = " ".join(f"--{name} {value}" for name, value in given.items() if value)
            refuse(f"no row of the matrix meets {words}", "ask for less; `envcheck matrix show` lists them all")
        if not options.as_json and any(row["pypi"] for row in found):
            click.echo("* what the default Python index has")


def _rows(matrix: Matrix, options: MatrixShowOptions) -> list[dict[str, Any]]:
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


@command_with(JsonOption)
def check(options: JsonOption, settings: Settings) -> int:
    """Lint the facts: sources, lowest drivers, orders, companions, bases and images."""
    matrix = load(settings.matrix)
    findings = lint(matrix)
    sound = [counted(len(matrix.torch), "torch release"), counted(len(matrix.gpus), "GPU")]
    sound.append(f"{len(matrix.drivers)} driver branches")
    lines = [f"{where}: {problem}" for where, problem in findings]
    lines.append(counted(len(findings), "finding") if findings else f"nothing wrong with {', '.join(sound)}")
    print_answer([row._asdict() for row in findings], lines, as_json=options.as_json)
    return 1 if findings else 0


class MatrixWheelOptions(JsonOption):
    wheel: Annotated[str, Argument(metavar="FILE")]
    channel: Annotated[Literal["pypi", "pytorch", "project", "third-party"], Option("Who serves the wheel.")] = "pypi"


@command_with(MatrixWheelOptions)
def wheel(options: MatrixWheelOptions, _settings: Settings) -> None:
    """Read a wheel's name, METADATA and libraries, and print what it needs and for which GPUs it has code."""
    opened = _opened(options)
    facts = extensions_file(opened, dt.datetime.now(dt.timezone.utc).date())
    unread = opened.contents.unread
    document = {
        "schema": "envcheck/wheel/1",
        "file": opened.name,
        "size": opened.size,
        "sha256": opened.sha256,
        "row": facts.extensions[0],
        "libraries": [library._asdict() for library in opened.contents.libraries],
        "unread": unread,
    }
    print_answer(document, [msgspec.yaml.encode(facts).decode().rstrip()], as_json=options.as_json)
    if unread:
        path, why = next(iter(sorted(unread.items())))
        refuse(
            f"{opened.name}: {len(unread)} of its libraries not read, first {path}: {why}",
            "the row leaves out what they need; download the wheel again",
            UnavailableError,
        )


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
        refuse(f"{name}: {error}", "download it again, from its origin")
    except ValueError:
        refuse(
            f"{ascii(name)[1:-1][:200]}: not the name of a wheel",
            "rename it as it was published: NAME-VERSION-PYTHON-ABI-PLATFORM.whl",
        )
    except OSError as error:
        refuse(f"{name}: {error.strerror or error}", "give a readable file")
    return OpenedWheel(name, size, digest, options.channel, None, project, version, tags, contents)

"""`envcheck matrix`: show the facts, lint them, and read a wheel's."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import click
import msgspec
from rich.table import Table

from envcheck.binaries.elf import BinaryError
from envcheck.binaries.wheel_members import read_members
from envcheck.cli import Settings
from envcheck.cli.options import ARCHS, Argument, Option, command_with
from envcheck.cli.shared.process import console
from envcheck.counting import counted
from envcheck.data import data_path
from envcheck.errors import ConfigError, NothingLegalError, PromiseError, UnavailableError
from envcheck.matrix.extensions import file as extension_file
from envcheck.matrix.extensions.model import Extensions
from envcheck.matrix.extensions.opened_wheel import OpenedWheel, extensions_file, without_foreign
from envcheck.matrix.facts.lookup import Facts, all_gpus
from envcheck.matrix.facts.model import HostArch, Matrix, key
from envcheck.matrix.file.canonical import dump
from envcheck.matrix.file.lint import Problem, lint
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.candidates import candidates
from envcheck.matrix.resolver.query import Query, host_arch, normalized, requested_devices, validate
from envcheck.mirrors.net.urls import host_of, is_web_url, split_sha256
from envcheck.mirrors.profiles.load import load as load_profile
from envcheck.mirrors.profiles.model import has_userinfo, redacted


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
def show(options: MatrixShowOptions, settings: Settings) -> None:
    """Show the facts, filtered. Exit status: 1 when no row is left, 2 on bad input.

    \b
    envcheck matrix show --torch 2.8
    envcheck matrix show --gpu V100 --driver 570.124.06
    envcheck matrix show --list-gpus
    """
    matrix = load(settings.matrix)
    as_json = options.as_json
    if options.only_gpus:
        _print(all_gpus(matrix), as_json=as_json, table=lambda: _gpu_table(matrix))
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
    table.columns[0].no_wrap, table.columns[-1].no_wrap = False, True
    for gpu in all_gpus(matrix):
        low = gpu.min_driver or "unknown"
        weak = "" if not gpu.min_driver or (gpu.verified and gpu.driver_verified) else " (weak)"
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


@dataclass(frozen=True, kw_only=True)
class MatrixCheckOptions:
    as_json: Annotated[bool, Option("--json", "Print the findings as JSON.")] = False


@command_with(MatrixCheckOptions, short_help="Lint the facts.")
def check(options: MatrixCheckOptions, settings: Settings) -> int:
    """Lint the facts: sources, floors, orders, companions, bases and images, and the file's form.

    Exit status: 0 nothing found, 1 findings, 2 the file cannot be read.

    \b
    envcheck matrix check
    envcheck --matrix my.yaml matrix check
    """
    matrix = load(settings.matrix)
    findings = [*lint(matrix), *_form(settings.matrix or data_path("matrix.yaml"), dump(matrix))]
    extensions = None
    if settings.matrix is None:
        extensions = extension_file.load()
        findings += extension_file.lint(extensions, matrix)
        findings += _form(extension_file.SHIPPED, extension_file.dump(extensions))
    if options.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode([row._asdict() for row in findings])).decode())
    else:
        for where, problem in findings:
            click.echo(f"{where}: {problem}")
        sound = f"nothing wrong with {_extent(matrix, extensions)}"
        click.echo(counted(len(findings), "finding") if findings else sound)
    return 1 if findings else 0


def _form(file: Path, canonical: str) -> list[Problem]:
    """Find the first line that another order, quotes or comment would have."""
    lines, expected = file.read_text().splitlines(), canonical.splitlines()
    if lines == expected:
        return []
    at = next((at for at, pair in enumerate(zip(lines, expected, strict=False)) if pair[0] != pair[1]), len(expected))
    line = expected[at].strip() if at < len(expected) else "nothing"
    return [Problem(f"{file.name}:{at + 1}", f"is not in its canonical form: write {line!r} there")]


def _extent(matrix: Matrix, extensions: Extensions | None) -> str:
    text = (
        f"{counted(len(matrix.torch), 'torch release')}, {counted(len(matrix.gpus), 'GPU')}, "
        f"{len(matrix.drivers)} driver branches"
    )
    if extensions is None:
        return text
    releases = sum(len(row.releases) for row in extensions.extensions)
    return f"{text}, {counted(releases, 'release')} of {counted(len(extensions.extensions), 'extension')}"


_BLOCK = 1 << 20
# Bytes. The largest wheel known, torch for CUDA, has 1 GB; indexes take no file of more than a few.
_LARGEST = 8 << 30
_NAME = "that it was published with: NAME-VERSION-PYTHON-ABI-PLATFORM.whl"
_PYTORCH = "download.pytorch.org"


@dataclass(frozen=True, kw_only=True)
class MatrixWheelOptions:
    wheel: Annotated[str, Argument(metavar="FILE|URL")]
    channel: Annotated[
        Literal["pypi", "pytorch", "project", "third-party"] | None,
        Option("Who serves the wheel. Default: pypi for a file, pytorch for the PyTorch index, else project."),
    ] = None
    mirror: Annotated[str, Option("The profile with the CA and credentials for a URL.", metavar="PROFILE")] = "user"
    as_json: Annotated[bool, Option("--json", "Print the row, and each library, as JSON: envcheck/wheel/1.")] = False


class _File(NamedTuple):
    """A wheel on this machine: its path, the name that it was published with, and where; None for the local disk."""

    path: Path
    name: str
    where: str | None
    sha256: str | None


@command_with(
    MatrixWheelOptions,
    short_help="Open a wheel, and print its row for extensions.yaml.",
    epilog="Exit 0: printed; 1: the file has another hash; 2: not a wheel for Linux; 3: unavailable, or not all of its "
    "libraries can be read.",
)
def wheel(options: MatrixWheelOptions, _settings: Settings) -> None:
    """Read a wheel's name, METADATA and libraries, and print what it needs and for which GPUs it has code.

    Nothing is installed, loaded or run. The output is a whole file of facts: copy its row into extensions.yaml, or use
    the file as it is. A URL may end in #sha256=HASH, which the file must then have.

    \b
    envcheck matrix wheel torchcodec-0.13.0-cp312-cp312-manylinux_2_28_x86_64.whl
    envcheck matrix wheel https://host.example/x-1.0-cp312-cp312-linux_x86_64.whl
    """
    with tempfile.TemporaryDirectory(prefix="envcheck-wheel-") as scratch:
        opened = _opened(_file(options, Path(scratch)), options)
    facts = extensions_file(opened, dt.datetime.now(dt.timezone.utc).date())
    if options.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_document(opened, facts.extensions[0]))).decode())
    else:
        click.echo(extension_file.dump(facts), nl=False)
    if opened.contents.unread:
        path, why = next(iter(sorted(opened.contents.unread.items())))
        message = f"{opened.name}: {len(opened.contents.unread)} of its libraries not read, first {path}: {why}"
        raise UnavailableError(message, fix="the row leaves out what they need; download the wheel again")


def _document(opened: OpenedWheel, row: Any) -> dict[str, Any]:
    libraries = [library._asdict() for library in opened.contents.libraries]
    return {
        "schema": "envcheck/wheel/1",
        "file": opened.name,
        "size": opened.size,
        "sha256": opened.sha256,
        "row": row,
        "libraries": libraries,
        "unread": opened.contents.unread,
    }


def _wrong(name: str, problem: str, fix: str) -> ConfigError:
    return ConfigError(f"{name}: {problem}", fix=fix)


def _file(options: MatrixWheelOptions, scratch: Path) -> _File:
    if options.wheel.startswith(("https://", "http://")):
        return _downloaded(options, scratch)
    path = Path(options.wheel)
    if not path.is_file():
        problems = {
            "a file URL": options.wheel.startswith("file:"),
            "a URL of another kind than https and http": "://" in options.wheel,
            "a directory": path.is_dir(),
            "not a regular file": path.exists(),
        }
        problem = next((problem for problem, applies in problems.items() if applies), "no such file")
        fix = "give its path" if problem == "a file URL" else "give a wheel's file or its URL"
        raise _wrong(options.wheel, problem, fix)
    if click.get_current_context().get_parameter_source("mirror") is click.core.ParameterSource.COMMANDLINE:
        message = f"--mirror is for a URL, and {options.wheel} is a file"
        raise ConfigError(message, fix="leave --mirror out")
    return _File(path, path.name, None, None)


def _downloaded(options: MatrixWheelOptions, scratch: Path) -> _File:
    from envcheck.mirrors.hub.api import hub_client  # needs urllib3, which images lack
    from envcheck.mirrors.net.network_errors import NetworkError

    url, sha256 = split_sha256(options.wheel)
    name = unquote(urlsplit(url).path.rpartition("/")[2]) if is_web_url(url) else ""
    if not name or "/" in name or has_userinfo(url):
        problem = "a URL with a user or password" if has_userinfo(url) else "not the URL of a file"
        raise _wrong(redacted(url), problem, "write https://HOST/PATH/FILE; logins belong into a netrc")
    _parse(name)
    path = scratch / "wheel"
    try:
        with hub_client(load_profile(options.mirror), connections=1).get(url) as answer, path.open("wb") as file:
            if answer.status != 200:  # noqa: PLR2004 (OK)
                message = f"{redacted(url)}: {host_of(url)} answers {answer.status}"
                raise UnavailableError(message, fix="check the URL")
            for block in answer.chunks(_BLOCK):
                file.write(block)
                if file.tell() > _LARGEST:
                    message = f"{redacted(url)} has more than {_LARGEST >> 30} GiB"
                    raise UnavailableError(message, fix="check the URL")
    except NetworkError as error:
        message = f"{redacted(url)}: {error}"
        raise UnavailableError(message, fix=error.fix or "check the URL") from error
    return _File(path, name, url.rpartition("/")[0], sha256)


def _parse(name: str) -> tuple[Any, Any, Any]:
    from envcheck.mirrors.index import parse_file_name  # needs uv, which images lack; `matrix show` works there

    try:
        project, version, tags = parse_file_name(name)
    except ValueError as error:
        raise _wrong(ascii(name)[1:-1][:200], "not the name of a wheel", f"give it the name {_NAME}") from error
    if not tags:
        raise _wrong(name, "not a wheel", "give a .whl file; an sdist has no libraries yet")
    return project, version, tags


def _opened(file: _File, options: MatrixWheelOptions) -> OpenedWheel:
    project, version, tags = _parse(file.name)
    try:
        size, sha256 = file.path.stat().st_size, _sha256(file.path)
        if file.sha256 not in {None, sha256}:
            message = f"{file.name} has the sha256 {sha256}, not {file.sha256}"
            raise PromiseError(message, fix="do not use this file; compare the hash with its origin")
        contents = without_foreign(read_members(file.path), file.name, tags)
    except BinaryError as error:
        raise _wrong(file.name, str(error), "download it again, from its origin") from error
    except OSError as error:
        raise _wrong(file.name, str(error.strerror or error), "give a readable file") from error
    channel = options.channel or _channel(file.where)
    where = file.where if channel != "pypi" else None
    return OpenedWheel(file.name, size, sha256, channel, where, project, version, tags, contents)


def _channel(where: str | None) -> Literal["pypi", "pytorch", "project"]:
    if where is None:
        return "pypi"
    return "pytorch" if where.startswith(f"https://{_PYTORCH}/") else "project"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()

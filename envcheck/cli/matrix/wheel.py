"""`envcheck matrix wheel`."""

from __future__ import annotations

import datetime as dt
import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import click
import msgspec

from envcheck.binaries.elf import BinaryError
from envcheck.binaries.wheel_members import read_members
from envcheck.cli import Settings
from envcheck.cli.options import Argument, Option, command_with
from envcheck.cli.sources.fetch_request import profile_client
from envcheck.errors import ConfigError, PromiseError, UnavailableError
from envcheck.matrix.extensions.file import dump
from envcheck.matrix.extensions.opened_wheel import OpenedWheel, extensions_file, without_foreign
from envcheck.mirrors.index.simple_api import parse_file_name
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.net.urls import host_of, is_web_url, split_sha256
from envcheck.mirrors.profiles.load import load
from envcheck.mirrors.profiles.model import has_userinfo, redacted

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
def command(options: MatrixWheelOptions, _settings: Settings) -> None:
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
        click.echo(dump(facts), nl=False)
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
    url, sha256 = split_sha256(options.wheel)
    name = unquote(urlsplit(url).path.rpartition("/")[2]) if is_web_url(url) else ""
    if not name or "/" in name or has_userinfo(url):
        problem = "a URL with a user or password" if has_userinfo(url) else "not the URL of a file"
        raise _wrong(redacted(url), problem, "write https://HOST/PATH/FILE; logins belong into a netrc")
    _parse(name)
    path = scratch / "wheel"
    try:
        with profile_client(load(options.mirror), 1).get(url) as answer, path.open("wb") as file:
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

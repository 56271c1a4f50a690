"""`envcheck fetch`: files of known hashes, whole or not at all."""

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import unquote, urlsplit

import click

from envcheck.cli import Settings
from envcheck.cli.options import DIRECTORY, EXISTING_FILE, Argument, Option, command_with, complete_cells
from envcheck.cli.shared.process import status_of, stopping
from envcheck.cli.sources import CellLocks, format_bytes, locked_cells, probed_profile, progress_bar, tell_choice
from envcheck.counting import counted
from envcheck.errors import ConfigError, EnvcheckError, refuse
from envcheck.images.lockfile import parse_requirements
from envcheck.images.wheels import locked_packages
from envcheck.mirrors.fetch.request import FetchedFile, TransferOptions, WantedFile
from envcheck.mirrors.fetch.transfer import fetch_all
from envcheck.mirrors.hub import (
    SCHEMA,
    Reference,
    Revision,
    default_endpoint,
    fetch_revision,
    parse_lock,
    parse_reference,
    read_revision,
    trusted_endpoint,
)
from envcheck.mirrors.index import NAME_MAX, locate
from envcheck.mirrors.net.client import Client, hub_client
from envcheck.mirrors.net.urls import is_web_url, split_sha256
from envcheck.mirrors.profiles.load import AUTO, load
from envcheck.mirrors.profiles.model import Profile, has_userinfo, network_indexes, redacted
from envcheck.safe_files import read_whole

_GO_ON: Final = "run the same command to resume"


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    cell_or_url: Annotated[str | None, Argument(metavar="[CELL|URL]", shell_complete=complete_cells)] = None
    sha256: Annotated[str | None, Option("Expected hash of the file at URL.", metavar="HASH")] = None
    lock: Annotated[Path | None, Option("Every file of a lock or of hashed requirements.", type=EXISTING_FILE)] = None
    model: Annotated[str | None, Option("A Hugging Face model, as HF_HUB_CACHE has it.", metavar="REPO@REV")] = None
    dataset: Annotated[str | None, Option("A Hugging Face dataset, in the same layout.", metavar="REPO@REV")] = None
    trust_mirror: Annotated[bool, Option("Trust the mirror for a model's hashes.")] = False
    mirror: Annotated[str, Option("Source: user, none, host, a preset, a YAML file, or auto (the best).")] = "user"
    output: Annotated[Path, Option("-o", "--output", "Output directory.", type=DIRECTORY, show_default=False)] = Path()
    connections: Annotated[int, Option("Connections at once.", type=click.IntRange(1, 64))] = 16
    as_json: Annotated[bool, Option("--json", "Print the result as JSON.")] = False

    def requested(self, settings: Settings) -> WantedFile | Revision | Reference | list[CellLocks]:
        """Return what is asked for, without the network. Raise ConfigError for what is wrong by itself."""
        text = self.cell_or_url
        is_url = text is not None and (":" in text or "/" in text)  # a cell's name has neither
        named = {"URL" if is_url else "CELL": text, "--lock": self.lock}
        named |= {"--model": self.model, "--dataset": self.dataset}
        names = [name for name, value in named.items() if value is not None]
        if len(names) != 1:
            message = f"{' and '.join(names)} exclude each other" if names else "nothing to fetch"
            fix = "give one of CELL, URL --sha256 HASH, --lock FILE, --model REPO@REV, --dataset REPO@REV"
            raise ConfigError(message, fix=fix)
        if not is_url and self.sha256 is not None:
            refuse(f"--sha256 is for a URL: the files of {names[0]} have their own hashes", "leave --sha256 out")
        if self.mirror == AUTO and names[0] not in {"CELL", "--lock"}:
            refuse(f"--mirror auto is for wheels, and does not apply to {names[0]}", "pass --mirror NAME, or none")
        if text is not None:
            one_cell = self.mirror == AUTO
            return self._file(text) if is_url else locked_cells(settings, text, one=one_cell)
        if self.lock is not None:
            return _read_lock(self.lock)
        return parse_reference(self.model or self.dataset or "", "model" if self.model else "dataset")

    def _file(self, url: str) -> WantedFile:
        if has_userinfo(url):
            fix = "move it to a netrc file, and name that in a mirror profile"
            refuse(f"{redacted(url)} contains a user or password", fix)
        name = unquote(urlsplit(url).path.rpartition("/")[2]) if is_web_url(url) else ""
        if name in {"", ".", ".."} or "/" in name or not name.isprintable() or len(name.encode()) > NAME_MAX:
            refuse(f"{redacted(url)!r} is not the URL of a file", "write https://HOST/PATH/FILE")
        url, in_url = split_sha256(url)
        fix = "pass --sha256 HASH; take the hash from the file's origin, not from the mirror"
        if self.sha256 is not None and not re.fullmatch(r"(?:sha256:)?[0-9a-fA-F]{64}", self.sha256):
            refuse(f"{name}: {self.sha256[:70]!r} is no sha256: it has not 64 hexadecimal digits", fix)
        given = self.sha256.removeprefix("sha256:").lower() if self.sha256 is not None else None
        hashes = {given, in_url} - {None}
        if len(hashes) != 1:
            refuse(f"{name}: {'--sha256 and the hash after # differ' if hashes else 'no expected hash'}", fix)
        return WantedFile((url,), str(hashes.pop()), None, self.output / name, other_fix="check the URL")


def _read_lock(path: Path) -> Revision | list[CellLocks]:
    content, where = read_whole(path), str(path)
    if SCHEMA.encode() in content[:200]:
        return parse_lock(content, where)
    return [CellLocks([parse_requirements(content, "base", where)], None)]


@command_with(
    FetchOptions,
    name="fetch",
    epilog="Exit 0: all files are complete; 1: no source has the right file; 2: wrong usage; 3: "
    "no source can be reached; 130 or 143: interrupted; run the same command to continue.",
)
def command(options: FetchOptions, settings: Settings) -> int:
    """Fetch files, verify their hashes, and continue an interrupted run.

    CELL is a published cell, or a glob for several: every wheel of its locks. URL is one file.

    Pieces come from the mirror's sources in order; a file with a wrong hash never gets its name. A model's hashes come
    from the lock, else from the profile's `hf.trusted` or huggingface_hub's own endpoint. A host gets only its own
    login, and HF_TOKEN only with `hf: {token: allow}`.

    \b
    envcheck fetch torch2.13.0-cpu-py311 --mirror site.yaml -o wheels
    envcheck fetch https://mirror.example/model.bin --sha256 0f3e...
    envcheck fetch --model org/name@COMMIT --mirror site.yaml -o hub
    """
    done: list[FetchedFile] = []
    try:
        with stopping(stop := threading.Event()):
            then = _fetched(settings, options, done, stop)
    except KeyboardInterrupt as interrupt:
        _print_json(done, {"message": "interrupted", "fix": _GO_ON}, options)
        click.echo(f"envcheck: interrupted; {_GO_ON}", err=True)
        return status_of(interrupt)
    except (EnvcheckError, OSError) as error:
        message = error.message if isinstance(error, EnvcheckError) else str(error)
        _print_json(done, {"message": message, "fix": getattr(error, "fix", None)}, options)
        raise
    _print_json(done, None, options)
    if not options.as_json:
        moved, size = sum(f.moved for f in done), format_bytes(sum(f.size for f in done))
        click.echo(f"{counted(len(done), 'file')} there, {size}, every hash matches; {format_bytes(moved)} moved")
        click.echo(then, nl=bool(then))
    return 0


def _print_json(fetched: list[FetchedFile], error: dict[str, str | None] | None, options: FetchOptions) -> None:
    if not options.as_json:
        return
    files = [
        {"path": str(f.path), "size": f.size, "moved": f.moved, "found": f.found, "sources": dict(f.sources)}
        for f in fetched
    ]
    click.echo(json.dumps({"schema": "envcheck/fetch/1", "files": files, "error": error}, indent=2))


def _fetched(settings: Settings, options: FetchOptions, done: list[FetchedFile], stop: threading.Event) -> str:
    """Fetch what is asked for into `done`, in its order; return what a person does with it."""
    requested, trusted = options.requested(settings), ""
    if isinstance(requested, Reference):  # the mirror is printed only when the request is known to be right
        trusted = trusted_endpoint(load(options.mirror), mirror=options.trust_mirror)
    if isinstance(requested, WantedFile):
        profile = load(options.mirror)  # a URL says itself where from
    else:
        locks = [lock for cell in requested for lock in cell.locks] if isinstance(requested, list) else []
        profile = probed_profile(settings, locks) if options.mirror == AUTO else load(options.mirror)
        tell_choice(settings, options.mirror)
    if isinstance(requested, (WantedFile, list)):
        client = hub_client(profile, connections=options.connections)
        files = [requested] if isinstance(requested, WantedFile) else _located(requested, profile, client, options)
        with _shown(settings, client, options, [want.expected for want in files], stop) as (means, say):
            done[:] = fetch_all(files, means, _collected(done, say, {}))
        return ""
    if isinstance(requested, Reference):
        requested = read_revision(hub_client(profile, trusted, connections=8), trusted, requested)
    default = default_endpoint() if profile.hf.trusted is None else profile.hf.trusted
    endpoints = profile.hf.endpoints or [endpoint for endpoint in (default,) if endpoint]
    if not endpoints:
        refuse(
            f"the mirror profile {profile.name} has no hf.endpoint",
            "pass one that has it, e.g. --mirror hf-mirror; see `envcheck mirror list`",
        )
    client = hub_client(profile, *endpoints, connections=options.connections)
    names = {file.blob: file.path for file in requested.files}
    with _shown(settings, client, options, [file.size for file in requested.files], stop) as (means, say):
        done[:] = fetch_revision(requested, endpoints, options.output, means, _collected(done, say, names))
    return f"use it with HF_HUB_OFFLINE=1 HF_HUB_CACHE={options.output.absolute()}"


def _located(cells: list[CellLocks], profile: Profile, client: Client, options: FetchOptions) -> list[WantedFile]:
    """Return every file of the locks, from directories of this machine first."""
    indexes = {
        family: [
            *(index for index in sources if index.local is not None),
            *network_indexes(sources, closed=profile.closed),
        ]
        for family, sources in (("pypi", profile.pypi), ("pytorch", profile.pytorch))
    }
    files = [file for cell in cells for file in locate(locked_packages(*cell), indexes, client)]
    paths = {options.output / file.name: file for file in files}
    return [WantedFile(f.urls, f.sha256, None, path, f.local, hint=f.size) for path, f in paths.items()]


def _collected(
    done: list[FetchedFile], say: Callable[[str], None], names: dict[str, str]
) -> Callable[[FetchedFile], None]:
    """Return what keeps and prints the result of each file; `names` has the names of blobs."""

    def report(file: FetchedFile) -> None:
        done.append(file)
        say(f"{names.get(file.path.name, file.path.name)}  {_result(file)}")

    return report


def _result(fetched: FetchedFile) -> str:
    size = format_bytes(fetched.size)
    if not fetched.moved:
        return f"{size}  was there{', linked or copied' if fetched.sources else ''}"
    went_on = f", {format_bytes(fetched.found)} of it from an earlier run" if fetched.found else ""
    rate = format_bytes(int(fetched.moved / max(fetched.seconds, 1e-9)))
    return f"{size}{went_on}  {', '.join(fetched.sources)}  {rate}/s"


@contextmanager
def _shown(
    settings: Settings, client: Client, options: FetchOptions, sizes: Sequence[int | None], stop: threading.Event
) -> Iterator[tuple[TransferOptions, Callable[[str], None]]]:
    slots = threading.Semaphore(options.connections)
    with progress_bar(settings, counted(len(sizes), "file")) as (say, progress):
        if len(sizes) > 1:
            known = sum(size for size in sizes if size is not None)
            say(f"{counted(len(sizes), 'file')}, {format_bytes(known)} or more, less what is present")
        yield (
            TransferOptions(client, options.connections, progress, lambda text: say(f"  {text}"), slots, stop),
            say,
        )

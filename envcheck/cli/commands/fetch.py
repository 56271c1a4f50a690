"""`envcheck fetch`: files of known hashes, whole or not at all; `envcheck mirror probe`: which mirror has them."""

import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import unquote, urlsplit

import click

from envcheck.cli import Settings
from envcheck.cli.options import (
    DIRECTORY,
    EXISTING_FILE,
    Argument,
    FiniteRange,
    JsonOption,
    Option,
    command_with,
    complete_cells,
)
from envcheck.cli.shared.process import print_answer, print_json, status_of, stopping, wrapped
from envcheck.cli.sources import CellLocks, format_bytes, locked_cells, probed_profile, progress_bar, tell_choice
from envcheck.counting import counted
from envcheck.errors import ConfigError, EnvcheckError, refuse
from envcheck.images.lockfile import parse_requirements
from envcheck.images.wheels import locked_packages
from envcheck.mirrors import probe
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
from envcheck.mirrors.probe import SECONDS, RankedMirror
from envcheck.mirrors.profiles.load import AUTO, load
from envcheck.mirrors.profiles.model import Profile, has_userinfo, network_indexes, redacted
from envcheck.safe_files import read_whole

# A function that fetches the files and reports each one as it ends.
_Fetch = Callable[[TransferOptions, Callable[[FetchedFile], None]], list[FetchedFile]]
_GO_ON: Final = "run the same command to resume"


class FetchOptions(JsonOption):
    cell_or_url: Annotated[str | None, Argument(metavar="[CELL|URL]", shell_complete=complete_cells)] = None
    sha256: Annotated[str | None, Option("Expected hash of the file at URL.", metavar="HASH")] = None
    lock: Annotated[Path | None, Option("Every file of a lock or of hashed requirements.", type=EXISTING_FILE)] = None
    model: Annotated[str | None, Option("A Hugging Face model, as HF_HUB_CACHE has it.", metavar="REPO@REV")] = None
    dataset: Annotated[str | None, Option("A Hugging Face dataset, in the same layout.", metavar="REPO@REV")] = None
    trust_mirror: Annotated[bool, Option("Trust the mirror for a model's hashes.")] = False
    mirror: Annotated[str, Option("Source: user, none, host, a preset, a YAML file, or auto (the best).")] = "user"
    output: Annotated[Path, Option("-o", "--output", "Output directory.", type=DIRECTORY, show_default=False)] = Path()
    connections: Annotated[int, Option("Connections at once.", type=click.IntRange(1, 64))] = 16

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


@command_with(FetchOptions, name="fetch")
def command(options: FetchOptions, settings: Settings) -> int:
    """Fetch files, verify their hashes, and continue an interrupted run."""
    done: list[FetchedFile] = []
    try:
        with stopping(stop := threading.Event()):
            then = _fetched(settings, options, done, stop)
    except KeyboardInterrupt as interrupt:
        _print_error(done, {"message": "interrupted", "fix": _GO_ON}, options)
        click.echo(f"envcheck: interrupted; {_GO_ON}", err=True)
        return status_of(interrupt)
    except (EnvcheckError, OSError) as error:
        message = error.message if isinstance(error, EnvcheckError) else str(error)
        _print_error(done, {"message": message, "fix": getattr(error, "fix", None)}, options)
        raise
    moved, size = sum(f.moved for f in done), format_bytes(sum(f.size for f in done))
    total = f"{counted(len(done), 'file')} there, {size}, every hash matches; {format_bytes(moved)} moved"
    print_answer(_document(done, None), [total, then] if then else [total], as_json=options.as_json)
    return 0


def _document(fetched: list[FetchedFile], error: dict[str, str | None] | None) -> dict[str, Any]:
    files = [
        {"path": str(f.path), "size": f.size, "moved": f.moved, "found": f.found, "sources": dict(f.sources)}
        for f in fetched
    ]
    return {"schema": "envcheck/fetch/1", "files": files, "error": error}


def _print_error(fetched: list[FetchedFile], error: dict[str, str | None], options: FetchOptions) -> None:
    if options.as_json:
        print_json(_document(fetched, error))


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
    if isinstance(requested, Reference):
        requested = read_revision(hub_client(profile, trusted, connections=8), trusted, requested)
    endpoints = _endpoints(profile) if isinstance(requested, Revision) else []
    client, then = hub_client(profile, *endpoints, connections=options.connections), ""
    if isinstance(requested, Revision):
        names = {file.blob: file.path for file in requested.files}
        sizes: list[int | None] = [file.size for file in requested.files]
        fetch: _Fetch = partial(fetch_revision, requested, endpoints, options.output)
        then = f"use it with HF_HUB_OFFLINE=1 HF_HUB_CACHE={options.output.absolute()}"
        # A client that names no revision looks for refs/main (huggingface_hub#4492).
        then += "" if requested.ref == "main" else f", and with revision={requested.ref or requested.revision!r}"
    else:
        files = [requested] if isinstance(requested, WantedFile) else _located(requested, profile, client, options)
        sizes, names = [want.expected for want in files], {}
        fetch = partial(fetch_all, files)
    with progress_bar(settings, counted(len(sizes), "file")) as (say, progress):

        def report(file: FetchedFile) -> None:
            done.append(file)
            say(f"{names.get(file.path.name, file.path.name)}  {_result(file)}")

        if len(sizes) > 1:
            known = format_bytes(sum(size for size in sizes if size is not None))
            say(f"{counted(len(sizes), 'file')}, {known} or more, less what is present")
        slots = threading.Semaphore(options.connections)
        means = TransferOptions(client, options.connections, progress, lambda text: say(f"  {text}"), slots, stop)
        done[:] = fetch(means, report)
    return then


def _endpoints(profile: Profile) -> list[str]:
    default = default_endpoint() if profile.hf.trusted is None else profile.hf.trusted
    endpoints = profile.hf.endpoints or [endpoint for endpoint in (default,) if endpoint]
    if not endpoints:
        refuse(f"the mirror profile {profile.name} has no hf.endpoint", "pass one that has it, as --mirror hf-mirror")
    return endpoints


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


def _result(fetched: FetchedFile) -> str:
    size = format_bytes(fetched.size)
    if not fetched.moved:
        return f"{size}  was there{', linked or copied' if fetched.sources else ''}"
    went_on = f", {format_bytes(fetched.found)} of it from an earlier run" if fetched.found else ""
    rate = format_bytes(int(fetched.moved / max(fetched.seconds, 1e-9)))
    return f"{size}{went_on}  {', '.join(fetched.sources)}  {rate}/s"


_NAME: Final = 22


class MirrorProbeOptions(JsonOption):
    cells: Annotated[tuple[str, ...], Argument(metavar="[CELL]", shell_complete=complete_cells)] = ()
    mirrors: Annotated[tuple[str, ...], Option("--mirror", "Probe this mirror. Repeatable.", metavar="PROFILE")] = ()
    lock: Annotated[Path | None, Option("Probe for every file of a lock.", type=EXISTING_FILE)] = None
    seconds: Annotated[float, Option("Time budget for each part.", type=FiniteRange(1, 86_400))] = SECONDS

    def targets(self, settings: Settings) -> list[probe.Target]:
        """Return what to probe for. Raise ConfigError unless one cell or a lock is named."""
        if len(self.cells) + (self.lock is not None) != 1:
            refuse(
                f"expected one cell or --lock, found {', '.join(self.cells) or 'none'}",
                "give CELL or --lock FILE, and each mirror as --mirror NAME",
            )
        if self.lock is None:
            cells = locked_cells(settings, self.cells[0], one=True)
            return probe.lock_targets(locked_packages(cells[0].locks))
        return probe.lock_targets(locked_packages([parse_requirements(read_whole(self.lock), "base", str(self.lock))]))


@command_with(MirrorProbeOptions, name="probe")
def probe_(options: MirrorProbeOptions, settings: Settings) -> int:
    """Measure which mirrors have the files that a lock needs, and rank them with reasons."""
    targets, names = options.targets(settings), dict.fromkeys(options.mirrors)
    mirrors = [probe.load_mirror(name) for name in names] if names else probe.default_mirrors()
    if not any(target.able(mirrors) for target in targets):
        refuse(
            f"not applicable: {', '.join(names)}: {targets[0].missing_reason()}",
            "name a mirror that has one; `envcheck mirror list` shows what each is for",
        )
    ranked = {
        target.part: probe.ranked_mirrors(target, mirrors if names else target.able(mirrors), options.seconds)
        for target in targets
    }
    lines = (line for part, of_part in ranked.items() for line in _ranking(part, of_part, quiet=settings.quiet))
    print_answer({"schema": "envcheck/ranking/2", "parts": ranked}, lines, as_json=options.as_json)
    if all(any(mirror.passed for mirror in of_part) for of_part in ranked.values()):
        return 0
    return 1 if any(mirror.measured.latency is not None for of_part in ranked.values() for mirror in of_part) else 3


def _ranking(part: str, ranked: list[RankedMirror], *, quiet: bool) -> Iterator[str]:
    needs = max((one.measured.needs for one in ranked), default=0)
    yield f"{part}, {counted(needs, 'file')} needed"
    for place, one in enumerate(ranked, 1):
        name = f"{one.mirror:<{_NAME}}" if len(one.mirror) <= _NAME else f"{one.mirror}\n{'':<{_NAME + 5}}"
        yield f"{place if one.passed else '-':>3}  {name} {_speed(one)}"
        yield from [] if quiet else [wrapped(text, " " * 6, " " * 8) for text in _reasons(one)]


def _speed(one: RankedMirror) -> str:
    if one.passed:
        return f"{probe.speed_of(one):>12}   {(one.measured.latency or 0) * 1e3:>7.1f} ms"
    silent = "not reached" if one.measured.missing is None else "not applicable"
    state = "not passed" if one.measured.latency is not None else silent
    return f"{state}: {', '.join(sorted(criterion.name for criterion in one.failed))}"


def _reasons(one: RankedMirror) -> list[str]:
    words = {None: "not verified", True: "passed"}
    lines = [
        f"{gate.name} {words.get(gate.passed, 'failed' if gate.hard else 'noted')}: {gate.why}"
        for gate in (one.criteria if one.passed else one.failed)
    ]
    rate = one.measured.rate
    if rate is not None:
        ended = f", then {rate.why}" if rate.why else ""
        lines.append(f"rate: {rate.bytes / 1e6:.2f} MB from the middle of a file in {rate.seconds:.2f} s{ended}")
    return lines

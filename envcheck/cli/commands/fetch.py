"""`envcheck fetch`: files of known hashes, whole or not at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import click

from envcheck.cli import Settings
from envcheck.cli.options import DIRECTORY, EXISTING_FILE, Argument, Option, Size, command_with, complete_cells
from envcheck.cli.shared.process import status_of, stopping
from envcheck.cli.sources.downloads import FetchRequest, model_endpoints, profile_to_fetch, wanted_files
from envcheck.cli.sources.store import format_bytes, progress_bar
from envcheck.counting import counted
from envcheck.errors import EnvcheckError
from envcheck.mirrors.fetch.request import BandwidthLimiter, FetchedFile, TransferOptions
from envcheck.mirrors.fetch.transfer import fetch_all
from envcheck.mirrors.hub import Revision, fetch_revision
from envcheck.mirrors.net.client import Client, hub_client

_GO_ON: Final = "run the same command to resume"


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    cell_or_url: Annotated[str | None, Argument(metavar="[CELL|URL]", shell_complete=complete_cells)] = None
    sha256: Annotated[str | None, Option("Expected hash of the file at URL.", metavar="HASH")] = None
    lock: Annotated[
        Path | None,
        Option(
            "Every file of one lock: a cell's, a model's, a dataset's, or requirements with hashes.", type=EXISTING_FILE
        ),
    ] = None
    model: Annotated[str | None, Option("A Hugging Face model, in the layout of HF_HUB_CACHE.", metavar="REPO@REV")] = (
        None
    )
    dataset: Annotated[str | None, Option("A Hugging Face dataset, in the same layout.", metavar="REPO@REV")] = None
    trust_mirror: Annotated[bool, Option("Trust the mirror for a model's hashes.")] = False
    mirror: Annotated[
        str,
        Option("Source: user (set by `mirror use`), none, host, a preset, a YAML file, or auto (the best by a probe)."),
    ] = "user"
    output: Annotated[
        Path,
        Option(
            "-o",
            "--output",
            "Output directory. A different file of the same name is replaced, with a note.",
            type=DIRECTORY,
            show_default=False,
        ),
    ] = Path()
    limit: Annotated[
        float | None, Option("Limit for all downloads together, bytes a second, e.g. 50M.", type=Size())
    ] = None
    connections: Annotated[int, Option("Connections at once.", type=click.IntRange(1, 64))] = 16
    as_json: Annotated[bool, Option("--json", "Print the result as JSON.")] = False

    def request(self) -> FetchRequest:
        """Return which files are asked for: a cell's name has no colon and no slash, and each URL has both."""
        text = self.cell_or_url
        url, cell = (text, None) if text is not None and (":" in text or "/" in text) else (None, text)
        return FetchRequest(url, cell, self.lock, self.model, self.dataset, self.sha256, self.trust_mirror)


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
    from the lock, else from the profile's `hf.trusted` or huggingface_hub's own endpoint; its bytes come from
    `hf.endpoint`, then from `hf.fallbacks`, without xet. A host gets only its own login from `netrc` or
    `credentials` of the profile, and HF_TOKEN only with `hf: {token: allow}`.

    \b
    envcheck fetch torch2.13.0-cpu-py311 --mirror site.yaml -o wheels
    envcheck fetch https://mirror.example/model.bin --sha256 0f3e... --limit 50M
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
    request = options.request()
    request.check()
    profile, requested = profile_to_fetch(settings, options.mirror, request)
    if isinstance(requested, list):
        client = hub_client(profile, connections=options.connections)
        files = wanted_files(request, requested, profile, client, options.output)
        with _shown(settings, client, options, [want.expected for want in files], stop) as (means, say):
            done[:] = fetch_all(files, means, _collected(done, say, {}))
        return ""
    endpoints = model_endpoints(request, profile)
    client = hub_client(profile, *endpoints, connections=options.connections)
    names = {file.blob: file.path for file in requested.files}
    with _shown(settings, client, options, [file.size for file in requested.files], stop) as (means, say):
        done[:] = fetch_revision(requested, endpoints, options.output, means, _collected(done, say, names))
    return f"use it with HF_HUB_OFFLINE=1 HF_HUB_CACHE={options.output.absolute()}: {_call(requested)}"


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
    if not fetched.size:
        return f"{size}  empty"
    if not fetched.moved:
        return f"{size}  was there{', linked or copied' if fetched.sources else ''}"
    went_on = f", {format_bytes(fetched.found)} of it from an earlier run" if fetched.found else ""
    rate = format_bytes(int(fetched.moved / max(fetched.seconds, 1e-9)))
    return f"{size}{went_on}  {', '.join(fetched.sources)}  {rate}/s"


def _call(revision: Revision) -> str:
    """Return what reads it in Python; `datasets` looks up no name without a network, but takes a directory."""
    pinned = "" if revision.ref else f", revision={revision.revision!r}"
    if revision.kind == "model":
        return f"from_pretrained({revision.repo!r}{pinned})"
    return f"load_dataset(snapshot_download({revision.repo!r}, repo_type='dataset'{pinned}))"


def format_total(sizes: Sequence[int | None]) -> str:
    """Return the total size of several files as text, with the number of files of unknown size."""
    known_sizes = [size for size in sizes if size is not None]
    if not known_sizes:
        return f"{counted(len(sizes), 'file')} of unknown size"
    least = "" if len(known_sizes) == len(sizes) else f"{len(sizes) - len(known_sizes)} of unknown size, the others "
    return f"{counted(len(sizes), 'file')}, {least}{format_bytes(sum(known_sizes))}, less what is present"


@contextmanager
def _shown(
    settings: Settings, client: Client, options: FetchOptions, sizes: Sequence[int | None], stop: threading.Event
) -> Iterator[tuple[TransferOptions, Callable[[str], None]]]:
    limiter, slots = BandwidthLimiter(options.limit), threading.Semaphore(options.connections)
    with progress_bar(settings, counted(len(sizes), "file")) as (say, progress):
        if len(sizes) > 1:
            say(format_total(sizes))
        yield (
            TransferOptions(client, options.connections, limiter, progress, lambda text: say(f"  {text}"), slots, stop),
            say,
        )

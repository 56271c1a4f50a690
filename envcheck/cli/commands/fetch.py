"""`envcheck fetch`: files of known hashes, whole or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from envcheck.cli.interrupts import stopping
from envcheck.cli.shared import completion
from envcheck.cli.shared.parameter_types import ByteRate
from envcheck.cli.shared.typed_options import takes
from envcheck.cli.sources.fetch_progress import (
    ProgressScreen,
    format_total,
    progress_screen,
    report_errors,
    report_file,
    report_interrupt,
    report_total,
)
from envcheck.cli.sources.fetch_request import FetchRequest, model_endpoints, profile_client, wanted_files

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.fetch.request import FetchedFile, TransferOptions
    from envcheck.mirrors.hub.revision import Revision
    from envcheck.mirrors.net.client import Client
    from envcheck.mirrors.profiles.model import Profile


class FetchOptions(NamedTuple):
    """The options of `envcheck fetch`."""

    cell_or_url: str | None
    sha256: str | None
    lock: Path | None
    model: str | None
    dataset: str | None
    trust_mirror: bool
    mirror: str
    output: Path
    limit: float | None
    connections: int
    as_json: bool

    def request(self) -> FetchRequest:
        """Return which files are asked for: a cell's name has no colon and no slash, and each URL has both."""
        text = self.cell_or_url
        url, cell = (text, None) if text is not None and (":" in text or "/" in text) else (None, text)
        return FetchRequest(url, cell, self.lock, self.model, self.dataset, self.sha256, self.trust_mirror)


@click.command(
    "fetch",
    epilog="Exit 0: all files are complete; 1: no source has the right file; 2: wrong usage; 3: "
    "no source can be reached; 130 or 143: interrupted; run the same command to continue.",
)
@click.argument("cell_or_url", metavar="[CELL|URL]", required=False, shell_complete=completion.cells)
@click.option("--sha256", metavar="HASH", help="Expected hash of the file at URL.")
@click.option(
    "--lock",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Every file of one lock: a cell's, a model's, a dataset's, or requirements with hashes.",
)
@click.option("--model", metavar="REPO@REV", help="A Hugging Face model, in the layout of HF_HUB_CACHE.")
@click.option("--dataset", metavar="REPO@REV", help="A Hugging Face dataset, in the same layout.")
@click.option("--trust-mirror", is_flag=True, help="Trust the mirror for a model's hashes.")
@click.option(
    "--mirror",
    default="user",
    show_default=True,
    help="Source: user (set by `mirror use`), none, host, a preset, a YAML file, or auto (the best by a probe).",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=".",
    help="Output directory. A different file of the same name is replaced, with a note.",
)
@click.option("--limit", type=ByteRate(), help="Limit for all downloads together, bytes a second, e.g. 50M.")
@click.option(
    "--connections", type=click.IntRange(1, 64), default=16, show_default=True, help="Connections to one host."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
@takes(FetchOptions)
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
    try:
        with report_errors(as_json=options.as_json) as done:
            stop = threading.Event()
            with stopping(stop):
                then = _fetched(settings, options, done, stop)
    except KeyboardInterrupt as interrupt:
        return report_interrupt(interrupt)
    report_total(done, as_json=options.as_json, then=then)
    return 0


def _fetched(settings: Settings, options: FetchOptions, done: list[FetchedFile], stop: threading.Event) -> str:
    """Fetch what is asked for into `done`, in its order; return what a person does with it."""
    from envcheck.cli.sources.mirror_selection import profile_to_fetch
    from envcheck.mirrors.fetch.batch import fetch_all
    from envcheck.mirrors.net.credentials import permission_warning

    request = options.request()
    request.check()
    profile, requested = profile_to_fetch(settings, options.mirror, request)
    if profile.netrc and not settings.quiet and (warning := permission_warning(Path(profile.netrc))):
        click.echo(warning, err=True)
    if not isinstance(requested, list):
        return _model(settings, requested, model_endpoints(request, profile), profile, options, done, stop)
    client = profile_client(profile, options.connections)
    files = wanted_files(request, requested, profile, client, options.output)

    with _shown(settings, client, options, [want.expected for want in files], stop) as (means, screen):

        def report_fetched(file: FetchedFile) -> None:
            done.append(file)
            report_file(screen, file, file.path.name)

        done[:] = fetch_all(files, means, report_fetched)
    return ""


def _model(
    settings: Settings,
    revision: Revision,
    endpoints: list[str],
    profile: Profile,
    options: FetchOptions,
    done: list[FetchedFile],
    stop: threading.Event,
) -> str:
    from envcheck.mirrors.hub.download import fetch_revision

    client = profile_client(profile, options.connections, *endpoints)
    names = {file.blob: file.path for file in revision.files}

    with _shown(settings, client, options, [file.size for file in revision.files], stop) as (means, screen):

        def report_fetched(file: FetchedFile) -> None:
            done.append(file)
            report_file(screen, file, names.get(file.path.name, file.path.name))

        done[:] = fetch_revision(revision, endpoints, options.output, means, report_fetched)
    return f"use it with HF_HUB_OFFLINE=1 HF_HUB_CACHE={options.output.absolute()}: {_call(revision)}"


def _call(revision: Revision) -> str:
    """Return what reads it in Python; `datasets` looks up no name without a network, but takes a directory."""
    pinned = "" if revision.ref else f", revision={revision.revision!r}"
    if revision.kind == "model":
        return f"from_pretrained({revision.repo!r}{pinned})"
    return f"load_dataset(snapshot_download({revision.repo!r}, repo_type='dataset'{pinned}))"


@contextmanager
def _shown(
    settings: Settings, client: Client, options: FetchOptions, sizes: Sequence[int | None], stop: threading.Event
) -> Iterator[tuple[TransferOptions, ProgressScreen]]:
    from envcheck.mirrors.fetch.limits import BandwidthLimiter, HostSlots
    from envcheck.mirrors.fetch.request import TransferOptions

    limiter, slots = BandwidthLimiter(options.limit), HostSlots(options.connections)
    with progress_screen(settings, len(sizes), limiter) as screen:
        if len(sizes) > 1:
            screen.say(format_total(sizes))
        progress, note = screen.progress, screen.note
        yield TransferOptions(client, options.connections, limiter, progress, note, slots, stop), screen

"""`envcheck fetch`: files of known hashes, whole or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from envcheck.cli.shared import completion
from envcheck.cli.shared.interruptible import run
from envcheck.cli.shared.parameter_types import Rate
from envcheck.cli.shared.typed_options import takes
from envcheck.cli.sources.fetch_progress import Screen, end, interrupted, shown, tell, told, total
from envcheck.cli.sources.fetch_request import Asked, client_of, endpoints_of, wanted_of

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.fetch.request import Fetched, Means
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

    def asked(self) -> Asked:
        """Return which files are asked for: a cell's name has no colon and no slash, and each URL has both."""
        text = self.cell_or_url
        url, cell = (text, None) if text is not None and (":" in text or "/" in text) else (None, text)
        return Asked(url, cell, self.lock, self.model, self.dataset, self.sha256, self.trust_mirror)


@click.command(
    "fetch",
    epilog="Exit 0: all are there; 1: no source has the right file; 2: wrong usage; 3: not to be had; 130 or 143: "
    "interrupted, and the same command goes on.",
)
@click.argument("cell_or_url", metavar="[CELL|URL]", required=False, shell_complete=completion.cells)
@click.option("--sha256", metavar="HASH", help="What the file at URL must be.")
@click.option(
    "--lock",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Every file of one lock: a cell's, a model's, a dataset's, or requirements with hashes.",
)
@click.option("--model", metavar="REPO@REV", help="A Hugging Face model, laid out as HF_HUB_CACHE wants it.")
@click.option("--dataset", metavar="REPO@REV", help="The same of a dataset.")
@click.option("--trust-mirror", is_flag=True, help="Believe the mirror itself about a model's hashes.")
@click.option(
    "--mirror",
    default="user",
    show_default=True,
    help="Where from: user (what `mirror use` chose), none, host, a preset, a YAML file, or auto: by a probe.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=".",
    help="The directory they go to. Another file of the same name is replaced, and that is said.",
)
@click.option("--limit", type=Rate(), help="Bytes a second for all together: 50M.")
@click.option("--connections", type=click.IntRange(1, 64), default=16, show_default=True, help="At once to one host.")
@click.option("--json", "as_json", is_flag=True, help="Print what it came to as JSON.")
@click.pass_obj
@takes(FetchOptions)
def command(options: FetchOptions, settings: Settings) -> int:
    """Fetch files of known hashes, whole or not at all, and go on where an earlier run stopped.

    CELL is a published cell, or a glob for several: every wheel of its locks. URL is one file.

    Pieces come from the mirror's sources in order; what has another hash never gets its name. A model's hashes are the
    lock's, or those of the profile's `hf.trusted` or huggingface_hub's own endpoint; its bytes come from `hf.endpoint`,
    then from `hf.fallbacks`, without xet. A host is told what `netrc` or `credentials` of the profile name for it, and
    HF_TOKEN only with `hf: {token: allow}`.

    \b
    envcheck fetch torch2.13.0-cpu-py311 --mirror site.yaml -o wheels
    envcheck fetch https://mirror.example/model.bin --sha256 0f3e... --limit 50M
    envcheck fetch --model org/name@COMMIT --mirror site.yaml -o hub
    """
    try:
        with told(as_json=options.as_json) as done:
            stop = threading.Event()
            then = run(lambda: _fetched(settings, options, done, stop), stop)
    except KeyboardInterrupt as interrupt:
        return interrupted(interrupt)
    end(done, as_json=options.as_json, then=then)
    return 0


def _fetched(settings: Settings, options: FetchOptions, done: list[Fetched], stop: threading.Event) -> str:
    """Fetch what is asked for into `done`, in its order; return what a person does with it."""
    from envcheck.cli.sources.mirror_selection import profile_to_fetch
    from envcheck.mirrors.fetch.batch import fetch_all
    from envcheck.mirrors.net.credentials import exposed

    what = options.asked()
    what.check()
    profile, revision = profile_to_fetch(settings, options.mirror, what)
    if profile.netrc and not settings.quiet and (said := exposed(Path(profile.netrc))):
        click.echo(said, err=True)
    if revision is not None:
        return _model(settings, revision, endpoints_of(what, profile), profile, options, done, stop)
    client = client_of(profile, options.connections)
    wanted = wanted_of(settings, what, profile, client, options.output)

    with _shown(settings, client, options, [want.expected for want in wanted], stop) as (means, screen):

        def there(file: Fetched) -> None:
            done.append(file)
            tell(screen, file, file.path.name)

        done[:] = fetch_all(wanted, means, there)
    return ""


def _model(
    settings: Settings,
    revision: Revision,
    endpoints: list[str],
    profile: Profile,
    options: FetchOptions,
    done: list[Fetched],
    stop: threading.Event,
) -> str:
    from envcheck.mirrors.hub.download import fetch_revision

    client = client_of(profile, options.connections, *endpoints)
    names = {file.blob: file.path for file in revision.files}

    with _shown(settings, client, options, [file.size for file in revision.files], stop) as (means, screen):

        def there(file: Fetched) -> None:
            done.append(file)
            tell(screen, file, names.get(file.path.name, file.path.name))

        done[:] = fetch_revision(revision, endpoints, options.output, means, there)
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
) -> Iterator[tuple[Means, Screen]]:
    from envcheck.mirrors.fetch.limits import Limiter, Slots
    from envcheck.mirrors.fetch.request import Means

    limiter, slots = Limiter(options.limit), Slots(options.connections)
    with shown(settings, len(sizes), limiter) as screen:
        if len(sizes) > 1:
            screen.say(total(sizes))
        progress, note = screen.progress, screen.note
        yield Means(client, options.connections, limiter, progress, note, slots, stop), screen

"""`envcheck fetch`: files of known hashes, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from envcheck.cli._asked import Asked, client_of, endpoints_of, wanted_of
from envcheck.cli._fetching import Rate, Screen, end, interrupted, shown, tell, told, total

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.fetch.wanted import Fetched, Means
    from envcheck.mirrors.hf import Revision
    from envcheck.mirrors.http import Client
    from envcheck.mirrors.profile import Profile


class How(NamedTuple):
    """Where files go, over how many connections, at how many bytes a second."""

    to: Path
    connections: int
    limit: float | None


@click.command(
    "fetch",
    epilog="Exit 0: all are there; 1: no source has the right file; 2: wrong usage; 3: not to be had; 130 or 143: "
    "interrupted, and the same command goes on.",
)
@click.argument("url", required=False)
@click.option("--sha256", metavar="HASH", help="What the file at URL must be.")
@click.option("--cell", metavar="CELL", help="Every wheel of a published cell's locks; a glob names several.")
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
    "--to",
    type=click.Path(path_type=Path, file_okay=False),
    default=".",
    help="The directory they go to. Another file of the same name is replaced, and that is said.",
)
@click.option("--limit", type=Rate(), help="Bytes a second for all together: 50M.")
@click.option("--connections", type=click.IntRange(1, 64), default=8, show_default=True, help="At once to one host.")
@click.option("--json", "as_json", is_flag=True, help="Print what it came to as JSON.")
@click.pass_obj
def command(
    settings: Settings,
    /,
    *,
    mirror: str,
    to: Path,
    limit: float | None,
    connections: int,
    as_json: bool,
    **asked: Any,
) -> int:
    """Fetch files of known hashes, whole or not at all, and go on where an earlier run stopped.

    Pieces come from the mirror's sources in order; what has another hash never gets its name. A model's hashes are the
    lock's, or those of the profile's `hf.trusted` or huggingface_hub's own endpoint; its bytes come from `hf.endpoint`,
    then from `hf.fallbacks`, without xet. A host is told what `netrc` or `credentials` of the profile name for it, and
    HF_TOKEN only with `hf: {token: allow}`.

    \b
    envcheck fetch --cell torch2.13.0-cpu-py311 --mirror site.yaml --to wheels
    envcheck fetch https://mirror.example/model.bin --sha256 0f3e... --limit 50M
    envcheck fetch --model org/name@COMMIT --mirror site.yaml --to hub
    """
    try:
        with told(as_json=as_json) as done:
            then = _fetched(settings, Asked(**asked), mirror, How(to, connections, limit), done)
    except KeyboardInterrupt as how:
        return interrupted(how)
    end(done, as_json=as_json, then=then)
    return 0


def _fetched(settings: Settings, what: Asked, mirror: str, how: How, done: list[Fetched]) -> str:
    """Fetch what is asked for into `done`, in its order; return what a person does with it."""
    from envcheck.cli._probing import profile_to_fetch
    from envcheck.mirrors.fetch.many import fetch_all

    what.check()
    profile, revision = profile_to_fetch(settings, mirror, what)
    if revision is not None:
        return _model(settings, revision, endpoints_of(what, profile), profile, how, done)
    client = client_of(profile, how.connections)
    wanted = wanted_of(settings, what, profile, client, how.to)

    with _shown(settings, client, how, [want.size for want in wanted]) as (means, screen):

        def there(file: Fetched) -> None:
            done.append(file)
            tell(screen, file, file.path.name)

        done[:] = fetch_all(wanted, means, there)
    return ""


def _model(
    settings: Settings, revision: Revision, endpoints: list[str], profile: Profile, how: How, done: list[Fetched]
) -> str:
    from envcheck.mirrors.models import fetch_revision

    client = client_of(profile, how.connections, *endpoints)
    names = {file.blob: file.path for file in revision.files}

    with _shown(settings, client, how, [file.size for file in revision.files]) as (means, screen):

        def there(file: Fetched) -> None:
            done.append(file)
            tell(screen, file, names.get(file.path.name, file.path.name))

        done[:] = fetch_revision(revision, endpoints, how.to, means, there)
    return f"use it with HF_HUB_OFFLINE=1 HF_HUB_CACHE={how.to.absolute()}: {_call(revision)}"


def _call(revision: Revision) -> str:
    """Return what reads it in Python; `datasets` looks up no name without a network, but takes a directory."""
    pinned = "" if revision.ref else f", revision={revision.revision!r}"
    if revision.kind == "model":
        return f"from_pretrained({revision.repo!r}{pinned})"
    return f"load_dataset(snapshot_download({revision.repo!r}, repo_type='dataset'{pinned}))"


@contextmanager
def _shown(settings: Settings, client: Client, how: How, sizes: Sequence[int | None]) -> Iterator[tuple[Means, Screen]]:
    from envcheck.mirrors.fetch.limiter import Limiter, Slots
    from envcheck.mirrors.fetch.wanted import Means

    limiter, slots = Limiter(how.limit), Slots(how.connections)
    with shown(settings, len(sizes), limiter) as screen:
        if len(sizes) > 1:
            screen.say(total(sizes))
        progress, note = screen.progress, screen.note
        yield Means(client, how.connections, limiter=limiter, progress=progress, note=note, slots=slots), screen

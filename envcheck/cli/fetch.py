"""`envcheck fetch`: files of known hashes, whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envcheck.cli._asked import Asked, client_of, endpoints_of, wanted_of
from envcheck.cli._fetching import Rate, end, shown, tell

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.mirrors.fetch.wanted import Fetched, Means
    from envcheck.mirrors.hf import Revision
    from envcheck.mirrors.profile import Profile


@click.command(
    "fetch", epilog="Exit 0: all are there; 1: no source has the right file; 2: wrong usage; 3: not to be had."
)
@click.argument("url", required=False)
@click.option("--sha256", metavar="HASH", help="What the file at URL must be.")
@click.option("--cell", metavar="CELL", help="Every wheel of a published cell's locks.")
@click.option(
    "--lock",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Every file of one lock: a cell's, a model's or a dataset's.",
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
@click.option("--to", type=click.Path(path_type=Path, file_okay=False), default=".", help="The directory they go to.")
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
    lock's, or those of the profile's `hf.trusted` or huggingface_hub's own endpoint; its bytes are the mirror's.

    \b
    envcheck fetch --cell torch2.13.0-cpu-py311 --mirror site.yaml --to wheels
    envcheck fetch https://mirror.example/model.bin --sha256 0f3e... --limit 50M
    envcheck fetch --model org/name@COMMIT --mirror site.yaml --to hub
    """
    from envcheck.cli._probing import profile_to_fetch

    what = Asked(**asked)
    what.check()
    profile, revision = profile_to_fetch(settings, mirror, what)
    if revision is not None:
        return _model(settings, revision, endpoints_of(what, profile), profile, to, connections, limit, as_json=as_json)
    client = client_of(profile, connections)
    from envcheck.mirrors.fetch.many import fetch_all

    wanted = wanted_of(settings, what, profile, client, to)
    with shown(settings, len(wanted)) as (progress, note):
        means = _means(client, connections, limit, progress, note)
        done = fetch_all(wanted, means, lambda file: tell(settings, file, file.path.name))
    end(done, as_json=as_json)
    return 0


def _model(
    settings: Settings,
    revision: Revision,
    endpoints: list[str],
    profile: Profile,
    to: Path,
    connections: int,
    limit: float | None,
    *,
    as_json: bool,
) -> int:
    from envcheck.mirrors.models import fetch_revision

    client = client_of(profile, connections, *endpoints)
    names = {file.blob: file.path for file in revision.files}

    def there(file: Fetched) -> None:
        tell(settings, file, names.get(file.path.name, file.path.name))

    with shown(settings, len(revision.files)) as (progress, note):
        done = fetch_revision(revision, endpoints, to, _means(client, connections, limit, progress, note), there)
    end(done, as_json=as_json, then=f"use it with HF_HUB_OFFLINE=1 HF_HUB_CACHE={to.absolute()}: {_call(revision)}")
    return 0


def _call(revision: Revision) -> str:
    """Return what reads it in Python; `datasets` looks up no name without a network, but takes a directory."""
    pinned = "" if revision.ref else f", revision={revision.revision!r}"
    if revision.kind == "model":
        return f"from_pretrained({revision.repo!r}{pinned})"
    return f"load_dataset(snapshot_download({revision.repo!r}, repo_type='dataset'{pinned}))"


def _means(client: Any, connections: int, limit: float | None, progress: Any, note: Any) -> Means:
    from envcheck.mirrors.fetch.limiter import Limiter, Slots
    from envcheck.mirrors.fetch.wanted import Means

    return Means(
        client,
        connections=connections,
        limiter=Limiter(limit),
        progress=progress,
        note=note,
        slots=Slots(connections),
    )

"""Measure Hugging Face endpoints for every file of one commit, and for where they have the branch it was asked by."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from envcheck.mirrors.fetch.retries import read_body
from envcheck.mirrors.hub import download as hub_download
from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.net.client import Client, NetworkError
from envcheck.mirrors.probe.budget import Budget, at_once
from envcheck.mirrors.probe.effective_indexes import HUB, sources
from envcheck.mirrors.probe.file_matches import Asked, Candidate
from envcheck.mirrors.probe.measurements import Branch, Measured, Sight
from envcheck.mirrors.probe.probe import Look, Mirror, latency_of, rated_all, reach_files

_HEAD = 16 << 20


@dataclasses.dataclass(frozen=True)
class Wish:
    """A revision that is wanted, and where who is trusted has the branch it was asked by; None for a commit."""

    revision: hub_revision.Revision
    head: hub_revision.Head | None = None


def wished(client: Client, endpoint: str, ref: hub_revision.Reference) -> Wish:
    """Return the revision as an endpoint tells it that is trusted."""
    if ref.pinned:
        return Wish(hub_download.read_revision(client, endpoint, ref))
    head = hub_download.read_head(client, endpoint, ref)
    found = hub_download.read_revision(client, endpoint, dataclasses.replace(ref, revision=head.commit))
    return Wish(msgspec.structs.replace(found, ref=ref.revision), head)


def asked_of(wish: Wish) -> list[Asked]:
    """Return what a revision needs, as what a stored measurement is found by."""
    revision = wish.revision
    at = f"{revision.revision} of {revision.ref}" if wish.head is not None else revision.revision
    return [
        Asked(f"{revision.kind} {revision.repo} {file.path}", at, (file.sha256 or str(file.sha1),), HUB)
        for file in revision.files
    ]


def probe_hub(mirrors: Sequence[Mirror], wish: Wish, budget: Budget) -> list[Measured]:
    """Return what was seen of every mirror's endpoints."""
    looks = [Look(mirror, HUB, len(wish.revision.files), commit=wish.revision.revision) for mirror in mirrors]
    files = budget.share(0.7)
    at_once(lambda look: _look(look, wish, files), looks, len(looks), files)
    return rated_all(looks, budget)


def _look(look: Look, wish: Wish, budget: Budget) -> None:
    endpoints = [index.url for index in sources(look.mirror.profile, HUB)]
    if not endpoints:
        return
    look.latency, look.latency_why = latency_of(look.mirror.client, endpoints[0], budget)
    look.branch = _branch(look.mirror.client, endpoints[0], wish)
    revision = wish.revision
    ref = hub_revision.Reference(revision.kind, revision.repo, revision.revision)
    places = [
        [_candidate(file, hub_revision.file_url(at, ref, file.path)) for at in endpoints] for file in revision.files
    ]
    reach_files(look, places, budget)


def _branch(client: Client, endpoint: str, wish: Wish) -> Branch | None:
    """Return where an endpoint has the branch: huggingface_hub would ask the first one alone."""
    if wish.head is None:
        return None
    ref = wish.revision.ref or ""
    known = Branch(ref=ref, trusted=wish.head.commit, trusted_changed=wish.head.changed)
    url = hub_revision.revision_url(endpoint, hub_revision.Reference(wish.revision.kind, wish.revision.repo, ref))
    try:
        found = hub_revision.parse_head(read_body(client, url, _HEAD)[0])
    except (NetworkError, ValueError) as error:
        return msgspec.structs.replace(known, why=str(error))
    return msgspec.structs.replace(known, commit=found.commit, changed=found.changed)


def _candidate(file: hub_revision.HubFile, url: str) -> Candidate:
    sight = Sight(need=file.path, listed="hash", sha256=file.sha256, name=file.path, size=file.size, url=url)
    return Candidate(sight, url)

"""Measure Hugging Face endpoints for every file of one commit."""

from __future__ import annotations

from collections.abc import Sequence

from envcheck.mirrors import hf
from envcheck.mirrors.budget import Budget, at_once
from envcheck.mirrors.measured import Measured, Sight
from envcheck.mirrors.origins import HUB, sources
from envcheck.mirrors.probe import Look, Mirror, latency_of, rated_all, reach_files
from envcheck.mirrors.sights import Asked, Candidate


def asked_of(revision: hf.Revision) -> list[Asked]:
    """Return what a revision needs, as what a stored measurement is found by."""
    return [
        Asked(f"{revision.kind} {revision.repo} {file.path}", revision.revision, (file.sha256 or str(file.sha1),), HUB)
        for file in revision.files
    ]


def probe_hub(mirrors: Sequence[Mirror], revision: hf.Revision, budget: Budget) -> list[Measured]:
    """Return what was seen of every mirror's endpoint."""
    looks = [Look(mirror, HUB, len(revision.files), commit=revision.revision) for mirror in mirrors]
    files = budget.share(0.7)
    at_once(lambda look: _look(look, revision, files), looks, len(looks), files)
    return rated_all(looks, budget)


def _look(look: Look, revision: hf.Revision, budget: Budget) -> None:
    named = sources(look.mirror.profile, HUB)
    if not named:
        return
    endpoint = named[0].url
    look.latency, look.latency_why = latency_of(look.mirror.client, endpoint, budget)
    ref = hf.Reference(revision.kind, revision.repo, revision.revision)
    reach_files(look, [[_candidate(file, hf.file_url(endpoint, ref, file.path))] for file in revision.files], budget)


def _candidate(file: hf.Entry, url: str) -> Candidate:
    sight = Sight(need=file.path, listed="hash", sha256=file.sha256, name=file.path, size=file.size, url=url)
    return Candidate(sight, url)

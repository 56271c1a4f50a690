"""Measure Hugging Face endpoints: every file of one commit, and the commit of the requested branch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from envcheck.mirrors.fetch.retries import read_body
from envcheck.mirrors.hub import download as hub_download
from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.probe.budget import Budget, run_parallel
from envcheck.mirrors.probe.effective_indexes import HUB, network_sources
from envcheck.mirrors.probe.file_matches import FileCandidate, WantedPackage
from envcheck.mirrors.probe.measurements import Branch, FileStatus, MirrorMeasurement
from envcheck.mirrors.probe.probe import Mirror, ProbeState, measure_latency, measure_rates, request_files

_HEAD_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True)
class HubProbeRequest:
    """A revision to probe for, and the trusted endpoint's commit of the requested branch; None for a commit."""

    revision: hub_revision.Revision
    head: hub_revision.Head | None = None


def resolve_request(client: Client, endpoint: str, ref: hub_revision.Reference) -> HubProbeRequest:
    """Return the request for a reference, resolved at a trusted endpoint."""
    if ref.pinned:
        return HubProbeRequest(hub_download.read_revision(client, endpoint, ref))
    head = hub_download.read_head(client, endpoint, ref)
    revision = hub_download.read_revision(client, endpoint, dataclasses.replace(ref, revision=head.commit))
    return HubProbeRequest(msgspec.structs.replace(revision, ref=ref.revision), head)


def wanted_packages(request: HubProbeRequest) -> list[WantedPackage]:
    """Return the files of a revision as packages, from which the key of a stored measurement is made."""
    revision = request.revision
    revision_name = f"{revision.revision} of {revision.ref}" if request.head is not None else revision.revision
    return [
        WantedPackage(
            f"{revision.kind} {revision.repo} {file.path}", revision_name, (file.sha256 or str(file.sha1),), HUB
        )
        for file in revision.files
    ]


def probe_hub(mirrors: Sequence[Mirror], request: HubProbeRequest, budget: Budget) -> list[MirrorMeasurement]:
    """Return the measurements of every mirror's endpoints."""
    states = [
        ProbeState(mirror, HUB, len(request.revision.files), commit=request.revision.revision) for mirror in mirrors
    ]
    files = budget.share(0.7)
    run_parallel(lambda state: _probe_one(state, request, files), states, len(states), files)
    return measure_rates(states, budget)


def _probe_one(state: ProbeState, request: HubProbeRequest, budget: Budget) -> None:
    endpoints = [index.url for index in network_sources(state.mirror.profile, HUB)]
    if not endpoints:
        return
    state.latency, state.latency_why = measure_latency(state.mirror.client, endpoints[0], budget)
    state.branch = _branch_at(state.mirror.client, endpoints[0], request)
    revision = request.revision
    ref = hub_revision.Reference(revision.kind, revision.repo, revision.revision)
    candidates = [
        [_candidate(file, hub_revision.file_url(endpoint, ref, file.path)) for endpoint in endpoints]
        for file in revision.files
    ]
    request_files(state, candidates, budget)


def _branch_at(client: Client, endpoint: str, request: HubProbeRequest) -> Branch | None:
    """Return the commit of the branch at an endpoint; huggingface_hub asks the first endpoint only."""
    if request.head is None:
        return None
    ref = request.revision.ref or ""
    branch = Branch(ref=ref, trusted=request.head.commit, trusted_changed=request.head.changed)
    url = hub_revision.revision_url(endpoint, hub_revision.Reference(request.revision.kind, request.revision.repo, ref))
    try:
        head = hub_revision.parse_head(read_body(client, url, _HEAD_BYTES)[0])
    except (NetworkError, ValueError) as error:
        return msgspec.structs.replace(branch, why=str(error))
    return msgspec.structs.replace(branch, commit=head.commit, changed=head.changed)


def _candidate(file: hub_revision.HubFile, url: str) -> FileCandidate:
    status = FileStatus(need=file.path, listed="hash", sha256=file.sha256, name=file.path, size=file.size, url=url)
    return FileCandidate(status, url)

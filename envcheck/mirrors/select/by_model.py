"""Choose the endpoints for a model: probe them for its files, rank them, and combine them to one profile."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from envcheck.errors import ConfigError, UnavailableError
from envcheck.mirrors.hub import api as hub_api
from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.probe import cache as probe_cache
from envcheck.mirrors.probe.budget import Budget
from envcheck.mirrors.probe.effective_indexes import HUB, network_sources
from envcheck.mirrors.probe.hub import HubProbeRequest, probe_hub, resolve_request, wanted_packages
from envcheck.mirrors.probe.probe import Mirror
from envcheck.mirrors.probe.ranking import RankedMirror, rank
from envcheck.mirrors.profiles.model import Credential, HuggingFace, Profile, host_of
from envcheck.mirrors.select.by_lock import (
    BYTES,
    SECONDS,
    MirrorChoice,
    compatible,
    configured_region,
    merged_credentials,
    reason,
)


def hub_request(ref: hub_revision.Reference, mirrors: Sequence[Mirror]) -> HubProbeRequest:
    """Return the request for a reference, resolved at the trusted endpoint of the first mirror that names one."""
    trusting = next((mirror.profile for mirror in mirrors if mirror.profile.hf.trusted), Profile(name="none"))
    try:
        endpoint = hub_api.trusted_endpoint(trusting, mirror=False)
    except ConfigError as error:
        # The original fix names --trust-mirror, which makes no sense before a mirror is chosen.
        fix = "name a profile with `hf: {trusted: URL}`, or install huggingface_hub beside envcheck"
        raise ConfigError(error.message, fix=fix) from error
    return resolve_request(hub_api.hub_client(trusting, endpoint), endpoint, ref)


def choose(request: HubProbeRequest, mirrors: Sequence[Mirror]) -> MirrorChoice:
    """Probe the endpoints for the revision's files and return a profile of those that have all, the best first."""
    with_endpoint = [mirror for mirror in mirrors if network_sources(mirror.profile, HUB)]
    measured = probe_cache.cached_or_measured(
        with_endpoint,
        wanted_packages(request),
        Budget(BYTES, SECONDS),
        measure=lambda chosen, _, budget: probe_hub(chosen, request, budget),
    )
    return combine(
        rank(measured, own_region=configured_region()), {mirror.name: mirror.profile for mirror in with_endpoint}
    )


def combine(
    ranked: Sequence[RankedMirror], profiles: Mapping[str, Profile], environ: Mapping[str, str] | None = None
) -> MirrorChoice:
    """Return one profile of the ranked mirrors; each host gets only the credentials of its own profile."""
    used, first = compatible(ranked, profiles)
    if not used:
        failed = [
            f"{candidate.mirror}: {criterion.why}"
            for candidate in ranked
            for criterion in candidate.criteria
            if criterion.hard and not criterion.passed
        ]
        message = f"no mirror has all files: {'; '.join(failed[:3]) or 'no profile names a Hugging Face endpoint'}"
        raise UnavailableError(message, fix="run `envcheck mirror probe`, or pass your own profile with --mirror")
    profiles_used = [profiles[candidate.mirror] for candidate in used]
    urls = list(dict.fromkeys(index.url for profile in profiles_used for index in network_sources(profile, HUB)))
    environ = os.environ if environ is None else environ
    profile = Profile(
        name="auto",
        hf=HuggingFace(endpoint=urls[0], fallbacks=urls[1:]),
        ca=first.ca if first is not None else None,
        netrc=first.netrc if first is not None else None,
        credentials=merged_credentials(_with_own_token(profile, environ) for profile in profiles_used),
    )
    return MirrorChoice(
        profile,
        tuple(reason(candidate, used) for candidate in sorted(ranked, key=lambda candidate: candidate not in used)),
    )


def _with_own_token(profile: Profile, environ: Mapping[str, str]) -> Profile:
    """Return the profile with huggingface_hub's token as credential of its endpoints, if the profile allows it."""
    file = hub_api.token_path(environ)
    if profile.hf.token != "allow" or not (environ.get("HF_TOKEN") or file.is_file()):  # noqa: S105 (a policy)
        return profile
    token = Credential(token_env="HF_TOKEN") if environ.get("HF_TOKEN") else Credential(token_file=str(file))  # noqa: S106
    hosts = {host_of(url): token for url in profile.hf.endpoints}
    return msgspec.structs.replace(profile, credentials={**hosts, **profile.credentials})

"""Which endpoints a model is best had from: probed for its very files, ranked, and joined to one profile."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from envcheck.errors import ConfigError, UnavailableError
from envcheck.mirrors.hub import api as hub_api
from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.probe import cache as probe_cache
from envcheck.mirrors.probe.budget import Budget
from envcheck.mirrors.probe.effective_indexes import HUB, sources
from envcheck.mirrors.probe.hub import Wish, asked_of, probe_hub, wished
from envcheck.mirrors.probe.probe import Mirror
from envcheck.mirrors.probe.ranking import Ranked, rank
from envcheck.mirrors.profiles.model import Credential, HuggingFace, Profile, host_of
from envcheck.mirrors.select.by_lock import BYTES, SECONDS, Choice, credentials, fitting, region, said


def wish(ref: hub_revision.Reference, mirrors: Sequence[Mirror]) -> Wish:
    """Return what a reference names, as who is trusted tells it: the first of the mirrors that says who that is."""
    sure = next((mirror.profile for mirror in mirrors if mirror.profile.hf.trusted), Profile(name="none"))
    try:
        endpoint = hub_api.trusted_endpoint(sure, mirror=False)
    except ConfigError as error:
        # What is said elsewhere names --trust-mirror, which makes no sense where the mirror is yet to be found.
        fix = "name a profile with `hf: {trusted: URL}`, or install huggingface_hub beside envcheck"
        raise ConfigError(error.message, fix=fix) from error
    return wished(hub_api.hub_client(sure, endpoint), endpoint, ref)


def choose(wanted: Wish, mirrors: Sequence[Mirror]) -> Choice:
    """Probe the endpoints for the revision's files and return a profile of those that have them, the best first."""
    able = [mirror for mirror in mirrors if sources(mirror.profile, HUB)]
    measured = probe_cache.measured(
        able, asked_of(wanted), Budget(BYTES, SECONDS), measure=lambda some, _, budget: probe_hub(some, wanted, budget)
    )
    return join(rank(measured, here=region()), {mirror.name: mirror.profile for mirror in able})


def join(ranked: Sequence[Ranked], profiles: Mapping[str, Profile], environ: Mapping[str, str] | None = None) -> Choice:
    """Return the profile that the ranks make; each host is told what its own profile allows, and no more."""
    taken, first = fitting(ranked, profiles)
    if not taken:
        failed = [f"{one.mirror}: {gate.why}" for one in ranked for gate in one.gates if gate.hard and not gate.passed]
        message = f"no mirror has the whole of it: {'; '.join(failed[:3]) or 'none names a Hugging Face endpoint'}"
        raise UnavailableError(message, fix="see `envcheck mirror probe`, or name a profile of your own with --mirror")
    ours = [profiles[one.mirror] for one in taken]
    urls = list(dict.fromkeys(index.url for profile in ours for index in sources(profile, HUB)))
    environ = os.environ if environ is None else environ
    profile = Profile(
        name="auto",
        hf=HuggingFace(endpoint=urls[0], fallbacks=urls[1:]),
        ca=first.ca if first is not None else None,
        netrc=first.netrc if first is not None else None,
        credentials=credentials(_spelled(profile, environ) for profile in ours),
    )
    return Choice(profile, tuple(said(one, taken) for one in sorted(ranked, key=lambda one: one not in taken)))


def _spelled(profile: Profile, environ: Mapping[str, str]) -> Profile:
    """Return the profile with huggingface_hub's own token as a credential of its endpoints, where it allows that."""
    file = hub_api.token_path(environ)
    if profile.hf.token != "allow" or not (environ.get("HF_TOKEN") or file.is_file()):  # noqa: S105 (a policy)
        return profile
    own = Credential(token_env="HF_TOKEN") if environ.get("HF_TOKEN") else Credential(token_file=str(file))  # noqa: S106
    hosts = {host_of(url): own for url in profile.hf.endpoints}
    return msgspec.structs.replace(profile, credentials={**hosts, **profile.credentials})

"""Choose mirrors: what to probe for, its stored or new measurements, and one profile of the mirrors that pass."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from envcheck.errors import ConfigError, UnavailableError
from envcheck.mirrors.hub import api as hub_api
from envcheck.mirrors.hub import download as hub_download
from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.index import PYPI, LockedPackage, network_sources
from envcheck.mirrors.probe.measure import HUB, Budget, Mirror, endpoints, probe_hub, probe_packages
from envcheck.mirrors.probe.ranking import MirrorMeasurement, RankedMirror, rank
from envcheck.mirrors.profiles import model
from envcheck.mirrors.profiles.load import load, presets
from envcheck.mirrors.profiles.model import Credential, HuggingFace, Index, Profile, host_of

BYTES: Final = 128 << 20
SECONDS: Final = 45.0


@dataclasses.dataclass(frozen=True)
class Target:
    """What to probe for in one kind of source: a lock's index, or a model's endpoint."""

    part: str
    measure: Callable[[Sequence[Mirror], Budget], list[MirrorMeasurement]]

    def able(self, mirrors: Sequence[Mirror]) -> list[Mirror]:
        """Return the mirrors that have this kind of source."""
        if self.part == HUB:
            return [mirror for mirror in mirrors if endpoints(mirror.profile)]
        return [mirror for mirror in mirrors if network_sources(mirror.profile, self.part)]

    def ranked(self, mirrors: Sequence[Mirror], budget: Budget, *, no_redirects: bool = False) -> list[RankedMirror]:
        """Measure the mirrors and return them ranked."""
        return rank(self.measure(mirrors, budget), no_redirects=no_redirects)


def lock_targets(packages: Iterable[LockedPackage], *, verify: bool = False) -> list[Target]:
    """Return the targets for the packages of locks, one for each index. `verify`: download and hash every file."""
    by_part: dict[str, list[LockedPackage]] = {}
    for package in packages:
        by_part.setdefault(package.index, []).append(package)
    return [_lock_target(part, verify=verify) for part in by_part.values()]


def _lock_target(packages: list[LockedPackage], *, verify: bool) -> Target:
    return Target(packages[0].index, lambda mirrors, left: probe_packages(mirrors, packages, left, verify=verify))


def hub_target(revision: hub_revision.Revision, *, verify: bool = False) -> Target:
    """Return the target for every file of a revision."""
    return Target(HUB, lambda mirrors, budget: probe_hub(mirrors, revision, budget, verify=verify))


def default_mirrors() -> list[Mirror]:
    """Return this machine's configuration, what `envcheck mirror use` chose, and every preset."""
    names = ["host", *([str(model.read_choice())] if model.read_choice() else []), *presets()]
    return [load_mirror(name) for name in dict.fromkeys(names)]


def load_mirror(name: str) -> Mirror:
    """Return the mirror of a profile's name or path, with a client that uses the profile's CA and credentials."""
    profile = load(name)
    shown = name if name in {"host", "none"} else profile.name
    return Mirror(shown, profile, hub_api.hub_client(profile, probes=True, connect=4.0, read=8.0))


@dataclasses.dataclass(frozen=True)
class MirrorChoice:
    """A profile with its sources in the order of their rank, and a reason for each mirror."""

    profile: Profile
    reasons: tuple[str, ...]


def choose_for_locks(packages: Sequence[LockedPackage], mirrors: Sequence[Mirror] | None = None) -> MirrorChoice:
    """Probe this machine's configuration, the user's choice and the presets, and return the mirrors to use.

    Mirrors that fail only `ranges` come last, because pip and uv need no ranges. A profile has one CA and one netrc
    file: mirrors that need others than the first are left out. What was not probed (apt, the registry, Hugging Face)
    comes from the first mirror's profile. Raise UnavailableError if no mirror has a part of the lock.
    """
    mirrors = default_mirrors() if mirrors is None else mirrors
    targets = lock_targets(packages)
    ranked = [one for target in targets for one in target.ranked(target.able(mirrors), Budget(BYTES, SECONDS))]
    profiles = {mirror.name: mirror.profile for mirror in mirrors}
    used, trusted = _compatible(ranked, profiles)
    reasons = []
    for target in targets:
        if not any(one.part == target.part for one in used):
            if not _local_indexes(profiles.values(), target.part.partition("/")[0]):
                raise _no_mirror_error([one for one in ranked if one.part == target.part], f" of {target.part}")
            reasons.append(f"{target.part}: no mirror, only this machine's directories of wheels")
    base = next(iter(profiles.values()))
    profile = msgspec.structs.replace(
        base,
        pypi=_indexes(used, profiles, PYPI),
        pytorch=_indexes(used, profiles, "pytorch"),
        ca=(trusted or base).ca,
        netrc=(trusted or base).netrc,
        credentials=_merged_credentials(profiles[one.mirror] for one in used),
    )
    return MirrorChoice(profile, (*reasons, *_reasons(ranked, used)))


def resolved(ref: hub_revision.Reference, mirrors: Sequence[Mirror]) -> hub_revision.Revision:
    """Return the revision of a reference, resolved at the trusted endpoint of the first mirror that names one."""
    trusting = next((mirror.profile for mirror in mirrors if mirror.profile.hf.trusted), Profile(name="none"))
    try:
        endpoint = hub_api.trusted_endpoint(trusting, mirror=False)
    except ConfigError as error:
        # The original fix names --trust-mirror, which makes no sense before a mirror is chosen.
        fix = "name a profile with `hf: {trusted: URL}`, or install huggingface_hub beside envcheck"
        raise ConfigError(error.message, fix=fix) from error
    return hub_download.read_revision(hub_api.hub_client(trusting, endpoint), endpoint, ref)


def choose_for_model(
    revision: hub_revision.Revision, mirrors: Sequence[Mirror], environ: Mapping[str, str] | None = None
) -> MirrorChoice:
    """Probe the endpoints for the revision's files and return a profile of those that have all, the best first.

    Each host gets only the credentials of its own profile.
    """
    target = hub_target(revision)
    able, environ = target.able(mirrors), os.environ if environ is None else environ
    ranked = target.ranked(able, Budget(BYTES, SECONDS)) if able else []
    profiles = {mirror.name: mirror.profile for mirror in able}
    used, trusted = _compatible(ranked, profiles)
    if not used:
        raise _no_mirror_error(ranked)
    profiles_used = [profiles[one.mirror] for one in used]
    urls = list(dict.fromkeys(url for profile in profiles_used for url in endpoints(profile)))
    profile = Profile(
        name="auto",
        hf=HuggingFace(endpoint=urls[0], fallbacks=urls[1:]),
        ca=trusted.ca if trusted is not None else None,
        netrc=trusted.netrc if trusted is not None else None,
        credentials=_merged_credentials(_with_own_token(profile, environ) for profile in profiles_used),
    )
    return MirrorChoice(profile, tuple(_reasons(ranked, used)))


def _compatible(
    ranked: Sequence[RankedMirror], profiles: Mapping[str, Profile]
) -> tuple[list[RankedMirror], Profile | None]:
    """Return the mirrors that can be used together, and the profile whose CA and netrc file they use, if any."""
    usable = [one for one in ranked if one.passed] + [one for one in ranked if one.failed_criteria == {"ranges"}]
    needy = [profiles[one.mirror] for one in usable if _trust_of(profiles[one.mirror]) != (None, None)]
    first = next(iter(needy), None)
    fitting = {(None, None), _trust_of(first) if first is not None else (None, None)}
    return [one for one in usable if _trust_of(profiles[one.mirror]) in fitting], first


def _trust_of(profile: Profile) -> tuple[str | None, str | None]:
    return profile.ca, profile.netrc


def _merged_credentials(profiles: Iterable[Profile]) -> dict[str, Credential]:
    credentials: dict[str, Credential] = {}
    for profile in profiles:
        credentials = {**profile.credentials, **credentials}
    return credentials


def _with_own_token(profile: Profile, environ: Mapping[str, str]) -> Profile:
    file = hub_api.token_path(environ)
    if profile.hf.token != "allow" or not (environ.get("HF_TOKEN") or file.is_file()):  # noqa: S105 (a policy)
        return profile
    token = Credential(token_env="HF_TOKEN") if environ.get("HF_TOKEN") else Credential(token_file=str(file))  # noqa: S106
    hosts = {host_of(url): token for url in profile.hf.endpoints}
    return msgspec.structs.replace(profile, credentials={**hosts, **profile.credentials})


def _indexes(used: Sequence[RankedMirror], profiles: Mapping[str, Profile], family: str) -> list[Index]:
    part = PYPI if family == PYPI else "pytorch/{variant}"
    ranked = [profiles[one.mirror] for one in used if one.part.partition("/")[0] == family]
    remote = [index for profile in ranked for index in _named(profile, family) or network_sources(profile, part)]
    return list(dict.fromkeys([*_local_indexes(profiles.values(), family), *remote]))


def _named(profile: Profile, family: str) -> list[Index]:
    return [index for index in (profile.pypi if family == PYPI else profile.pytorch) if index.local is None]


def _local_indexes(profiles: Iterable[Profile], family: str) -> list[Index]:
    indexes = [index for profile in profiles for index in (profile.pypi if family == PYPI else profile.pytorch)]
    return [index for index in indexes if index.local is not None]


def _reasons(ranked: Sequence[RankedMirror], used: Sequence[RankedMirror]) -> list[str]:
    return [reason(one, used) for one in sorted(ranked, key=lambda one: one not in used)]


def reason(mirror: RankedMirror, used: Sequence[RankedMirror]) -> str:
    """Return why a mirror is used, or why not."""
    rate = mirror.measured.rate
    if mirror not in used:
        failed = next((one for one in mirror.criteria if one.hard and not one.passed), None)
        return f"{mirror.part}: not {mirror.mirror}: {failed.why if failed else 'it needs another CA or netrc file'}"
    speed = f"{rate.speed / 1e6:.1f} MB/s" if rate is not None else "no rate"
    return f"{mirror.part}: {mirror.mirror} ({speed if mirror.passed else 'no ranges'})"


def _no_mirror_error(ranked: Sequence[RankedMirror], what: str = "") -> UnavailableError:
    failed = [
        f"{one.mirror}: {criterion.why}"
        for one in ranked
        for criterion in one.criteria
        if criterion.hard and not criterion.passed
    ]
    message = f"no mirror has all files{what}: {'; '.join(failed[:3]) or 'no mirror is known'}"
    return UnavailableError(message, fix="run `envcheck mirror probe`, or pass your own profile with --mirror")

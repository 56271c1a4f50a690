"""Choose the mirrors for a lock: probe and rank them, and combine them to one profile with sources in that order."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from envcheck.errors import UnavailableError
from envcheck.mirrors.hub.api import hub_client
from envcheck.mirrors.probe import cache as probe_cache
from envcheck.mirrors.probe.budget import Budget
from envcheck.mirrors.probe.effective_indexes import has_source, network_sources
from envcheck.mirrors.probe.file_matches import PYPI, WantedPackage
from envcheck.mirrors.probe.probe import Mirror
from envcheck.mirrors.probe.ranking import RankedMirror, rank
from envcheck.mirrors.profiles import user_choice
from envcheck.mirrors.profiles.load import load, presets
from envcheck.mirrors.profiles.model import Credential, Index, Profile

BYTES = 128 << 20
SECONDS = 45.0


@dataclasses.dataclass(frozen=True)
class MirrorChoice:
    """A profile with its sources in the order of their rank, and a reason for each mirror."""

    profile: Profile
    reasons: tuple[str, ...]


def choose(
    packages: Sequence[WantedPackage], *, own_region: str | None = None, mirrors: Sequence[Mirror] | None = None
) -> MirrorChoice:
    """Probe this machine's configuration, the user's choice and the presets, and return the mirrors to use.

    Mirrors that fail only `ranges` come last, because pip and uv need no ranges. Raise UnavailableError if no mirror
    has a part of the lock.
    """
    mirrors = default_mirrors() if mirrors is None else mirrors
    parts = split_by_part(packages)
    ranked = [candidate for part in parts for candidate in rank_mirrors(part, mirrors, own_region=own_region)]
    return combine(ranked, {mirror.name: mirror.profile for mirror in mirrors}, [part[0].part for part in parts])


def rank_mirrors(
    packages: Sequence[WantedPackage], mirrors: Sequence[Mirror], *, own_region: str | None = None
) -> list[RankedMirror]:
    """Return the mirrors with an index or directory for one part, ranked by stored or new measurements."""
    with_source = [mirror for mirror in mirrors if has_source(mirror.profile, packages[0].part)]
    return rank(
        probe_cache.cached_or_measured(with_source, packages, Budget(BYTES, SECONDS)),
        own_region=own_region or configured_region(),
    )


def configured_region() -> str | None:
    """Return this machine's region from the variable of `mirror probe --region`, or None."""
    return os.environ.get("ENVCHECK_MIRROR_PROBE_REGION") or None


def split_by_part(packages: Iterable[WantedPackage]) -> list[list[WantedPackage]]:
    """Return the packages in groups, one for each index."""
    by_part: dict[str, list[WantedPackage]] = {}
    for package in packages:
        by_part.setdefault(package.part, []).append(package)
    return list(by_part.values())


def default_mirrors() -> list[Mirror]:
    """Return this machine's configuration, what `envcheck mirror use` chose, and every preset."""
    names = ["host", *([str(user_choice.read())] if user_choice.read() else []), *presets()]
    return [load_mirror(name) for name in dict.fromkeys(names)]


def load_mirror(name: str) -> Mirror:
    """Return the mirror of a profile's name or path, with a client that uses the profile's CA and credentials."""
    profile = load(name)
    preset = presets().get(name)
    shown = name if name in {"host", "none"} else profile.name
    return Mirror(
        shown, profile, hub_client(profile, probes=True, connect=4.0, read=8.0), preset.region if preset else None
    )


def combine(ranked: Sequence[RankedMirror], profiles: dict[str, Profile], parts: Sequence[str]) -> MirrorChoice:
    """Return one profile of the ranked mirrors.

    A profile has one CA and one netrc file: mirrors that need others than the first are left out, with a reason.
    What was not probed (apt, the registry, Hugging Face) comes from the first profile.
    """
    used, first = compatible(ranked, profiles)
    for part in parts:
        family = part.partition("/")[0]
        if not any(candidate.part == part for candidate in used) and not _local_indexes(profiles, family):
            raise _no_mirror_error(part, [candidate for candidate in ranked if candidate.part == part])
    base = next(iter(profiles.values()))
    profile = msgspec.structs.replace(
        base,
        pypi=_indexes(used, profiles, PYPI),
        pytorch=_indexes(used, profiles, "pytorch"),
        ca=first.ca if first is not None else base.ca,
        netrc=first.netrc if first is not None else base.netrc,
        credentials=merged_credentials(profiles[candidate.mirror] for candidate in used),
    )
    reasons = [reason(candidate, used) for candidate in sorted(ranked, key=lambda candidate: candidate not in used)]
    local_only = [part for part in parts if not any(candidate.part == part for candidate in used)]
    return MirrorChoice(
        profile, (*(f"{part}: no mirror, only this machine's directories of wheels" for part in local_only), *reasons)
    )


def compatible(
    ranked: Sequence[RankedMirror], profiles: Mapping[str, Profile]
) -> tuple[list[RankedMirror], Profile | None]:
    """Return the mirrors that can be used together, and the profile whose CA and netrc file they use, if any."""
    usable = [candidate for candidate in ranked if candidate.passed] + [
        candidate for candidate in ranked if candidate.failed_criteria == {"ranges"}
    ]
    first = next(
        (profiles[candidate.mirror] for candidate in usable if _has_ca_or_netrc(profiles[candidate.mirror])), None
    )
    return [candidate for candidate in usable if _is_compatible(profiles[candidate.mirror], first)], first


def merged_credentials(profiles: Iterable[Profile]) -> dict[str, Credential]:
    """Return the credentials of each host; the first profile that has some wins."""
    credentials: dict[str, Credential] = {}
    for profile in profiles:
        credentials = {**profile.credentials, **credentials}
    return credentials


def _has_ca_or_netrc(profile: Profile) -> bool:
    return profile.ca is not None or profile.netrc is not None


def _is_compatible(profile: Profile, first: Profile | None) -> bool:
    return first is None or not _has_ca_or_netrc(profile) or (profile.ca, profile.netrc) == (first.ca, first.netrc)


def _indexes(used: Sequence[RankedMirror], profiles: dict[str, Profile], family: str) -> list[Index]:
    """Return the indexes of one family in the order of rank, local directories first."""
    family_profiles = [profiles[candidate.mirror] for candidate in used if candidate.part.partition("/")[0] == family]
    indexes_by_profile = [list(profile.pypi if family == PYPI else profile.pytorch) for profile in family_profiles]
    remote = [
        index
        for profile, indexes in zip(family_profiles, indexes_by_profile, strict=True)
        for index in ([i for i in indexes if i.local is None] or _network_indexes(profile, family))
    ]
    return list(dict.fromkeys([*_local_indexes(profiles, family), *remote]))


def _local_indexes(profiles: dict[str, Profile], family: str) -> list[Index]:
    """Return the directories of wheels on this machine."""
    indexes = [
        index for profile in profiles.values() for index in (profile.pypi if family == PYPI else profile.pytorch)
    ]
    return [index for index in indexes if index.local is not None]


def _network_indexes(profile: Profile, family: str) -> list[Index]:
    return network_sources(profile, family) if family == PYPI else network_sources(profile, "pytorch/{variant}")


def reason(mirror: RankedMirror, used: Sequence[RankedMirror]) -> str:
    """Return why a mirror is used, or why not."""
    if mirror in used:
        rate = mirror.measured.rate
        speed = f", {rate.speed / 1e6:.1f} MB/s" if rate is not None else ""
        age = ", as stored" if mirror.measured.stored else ""
        if mirror.passed and not mirror.measured.answered:
            return f"{mirror.part}: {mirror.mirror} (all files are in this machine's directories)"
        return f"{mirror.part}: {mirror.mirror}" + (
            f" ({mirror.score:.0f} of 100{speed}{age})" if mirror.passed else " (no ranges)"
        )
    failed = next((criterion for criterion in mirror.criteria if criterion.hard and not criterion.passed), None)
    return f"{mirror.part}: not {mirror.mirror}: {failed.why if failed else 'it needs another CA or netrc file'}"


def _no_mirror_error(part: str, ranked: Sequence[RankedMirror]) -> UnavailableError:
    failed = [
        f"{candidate.mirror}: {criterion.why}"
        for candidate in ranked
        for criterion in candidate.criteria
        if criterion.hard and not criterion.passed
    ]
    message = f"no mirror has all files of {part}: {'; '.join(failed[:3]) or 'no mirror is known'}"
    return UnavailableError(message, fix="run `envcheck mirror probe`, or pass your own profile with --mirror")

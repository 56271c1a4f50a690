"""Which mirrors a lock is best had from: probed, ranked, and joined to one profile whose sources are in that order."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from envcheck.errors import UnavailableError
from envcheck.mirrors.hub.api import hub_client
from envcheck.mirrors.probe import cache as probe_cache
from envcheck.mirrors.probe.budget import Budget
from envcheck.mirrors.probe.effective_indexes import able, sources
from envcheck.mirrors.probe.file_matches import PYPI, Asked
from envcheck.mirrors.probe.probe import Mirror
from envcheck.mirrors.probe.ranking import Ranked, rank
from envcheck.mirrors.profiles import user_choice
from envcheck.mirrors.profiles.load import load, presets
from envcheck.mirrors.profiles.model import Credential, Index, Profile

BYTES = 128 << 20
SECONDS = 45.0


@dataclasses.dataclass(frozen=True)
class Choice:
    """A profile whose sources are in the order of their rank, and a sentence for each mirror that says why."""

    profile: Profile
    why: tuple[str, ...]


def choose(asked: Sequence[Asked], *, here: str | None = None, mirrors: Sequence[Mirror] | None = None) -> Choice:
    """Probe this machine's configuration, the user's choice and the presets, and return what to use and why.

    Mirrors that fail nothing but `ranges` come last: pip and uv need none. Raise UnavailableError when a part of the
    lock can be had from none.
    """
    mirrors = default_mirrors() if mirrors is None else mirrors
    divided = parts(asked)
    ranked = [one for part in divided for one in ranking(part, mirrors, here=here)]
    return join(ranked, {mirror.name: mirror.profile for mirror in mirrors}, [part[0].part for part in divided])


def ranking(asked: Sequence[Asked], mirrors: Sequence[Mirror], *, here: str | None = None) -> list[Ranked]:
    """Return the mirrors that have an index or directory for one part, ranked by what is stored or measured of them."""
    some = [mirror for mirror in mirrors if able(mirror.profile, asked[0].part)]
    return rank(probe_cache.measured(some, asked, Budget(BYTES, SECONDS)), here=here or region())


def region() -> str | None:
    """Return where this machine is, as the variable of `mirror probe --region` says it."""
    return os.environ.get("ENVCHECK_MIRROR_PROBE_REGION") or None


def parts(asked: Iterable[Asked]) -> list[list[Asked]]:
    """Divide what is asked for by the index it comes from."""
    found: dict[str, list[Asked]] = {}
    for one in asked:
        found.setdefault(one.part, []).append(one)
    return list(found.values())


def default_mirrors() -> list[Mirror]:
    """Return this machine's configuration, what `envcheck mirror use` chose, and every preset."""
    named = ["host", *([str(user_choice.read())] if user_choice.read() else []), *presets()]
    return [mirror_of(name) for name in dict.fromkeys(named)]


def mirror_of(name: str) -> Mirror:
    """Return the mirror of a name or of a profile's path, with the client that trusts what its profile says."""
    profile = load(name)
    preset = presets().get(name)
    shown = name if name in {"host", "none"} else profile.name
    return Mirror(
        shown, profile, hub_client(profile, probes=True, connect=4.0, read=8.0), preset.region if preset else None
    )


def join(ranked: Sequence[Ranked], profiles: dict[str, Profile], names: Sequence[str]) -> Choice:
    """Return the profile that the ranks make.

    A profile has one CA and one netrc file: sources that need others than the first one's are left out, and said.
    What was not probed (apt, the registry, Hugging Face) stays as the first of the profiles has it.
    """
    taken, first = fitting(ranked, profiles)
    for part in names:
        family = part.partition("/")[0]
        if not any(one.part == part for one in taken) and not _local(profiles, family):
            raise _none(part, [one for one in ranked if one.part == part])
    base = next(iter(profiles.values()))
    profile = msgspec.structs.replace(
        base,
        pypi=_indexes(taken, profiles, PYPI),
        pytorch=_indexes(taken, profiles, "pytorch"),
        ca=first.ca if first is not None else base.ca,
        netrc=first.netrc if first is not None else base.netrc,
        credentials=credentials(profiles[one.mirror] for one in taken),
    )
    why = [said(one, taken) for one in sorted(ranked, key=lambda one: one not in taken)]
    alone = [part for part in names if not any(one.part == part for one in taken)]
    return Choice(profile, (*(f"{part}: no mirror, only this machine's directories of wheels" for part in alone), *why))


def fitting(ranked: Sequence[Ranked], profiles: Mapping[str, Profile]) -> tuple[list[Ranked], Profile | None]:
    """Return who can be used together, and the profile among them whose CA and netrc file they all take."""
    usable = [one for one in ranked if one.passed] + [one for one in ranked if one.only == {"ranges"}]
    first = next((profiles[one.mirror] for one in usable if _private(profiles[one.mirror])), None)
    return [one for one in usable if _fits(profiles[one.mirror], first)], first


def credentials(profiles: Iterable[Profile]) -> dict[str, Credential]:
    """Return what each host is told, of several profiles the first's."""
    found: dict[str, Credential] = {}
    for profile in profiles:
        found = {**profile.credentials, **found}
    return found


def _private(profile: Profile) -> bool:
    return profile.ca is not None or profile.netrc is not None


def _fits(profile: Profile, first: Profile | None) -> bool:
    return first is None or not _private(profile) or (profile.ca, profile.netrc) == (first.ca, first.netrc)


def _indexes(taken: Sequence[Ranked], profiles: dict[str, Profile], family: str) -> list[Index]:
    """Return the indexes of one family in the order of their mirrors' ranks, those of this machine's disk first."""
    ours = [profiles[one.mirror] for one in taken if one.part.partition("/")[0] == family]
    listed = [list(profile.pypi if family == PYPI else profile.pytorch) for profile in ours]
    remote = [
        index
        for profile, indexes in zip(ours, listed, strict=True)
        for index in ([i for i in indexes if i.local is None] or _defaults(profile, family))
    ]
    return list(dict.fromkeys([*_local(profiles, family), *remote]))


def _local(profiles: dict[str, Profile], family: str) -> list[Index]:
    """Return the directories of wheels on this machine: no network is asked for what they hold."""
    known = [index for one in profiles.values() for index in (one.pypi if family == PYPI else one.pytorch)]
    return [index for index in known if index.local is not None]


def _defaults(profile: Profile, family: str) -> list[Index]:
    return sources(profile, family) if family == PYPI else sources(profile, "pytorch/{variant}")


def said(one: Ranked, taken: Sequence[Ranked]) -> str:
    """Return why a mirror was taken, or not."""
    if one in taken:
        rate = one.measured.rate
        speed = f", {rate.speed / 1e6:.1f} MB/s" if rate is not None else ""
        age = ", as stored" if one.measured.stored else ""
        if one.passed and not one.measured.answered:
            return f"{one.part}: {one.mirror} (all of it in this machine's directories)"
        return f"{one.part}: {one.mirror}" + (
            f" ({one.score:.0f} of 100{speed}{age})" if one.passed else " (no ranges)"
        )
    failed = next((gate for gate in one.gates if gate.hard and not gate.passed), None)
    return f"{one.part}: not {one.mirror}: {failed.why if failed else 'it needs another CA or netrc file'}"


def _none(part: str, ranked: Sequence[Ranked]) -> UnavailableError:
    failed = [f"{one.mirror}: {gate.why}" for one in ranked for gate in one.gates if gate.hard and not gate.passed]
    message = f"no mirror has what {part} needs: {'; '.join(failed[:3]) or 'none is known'}"
    return UnavailableError(message, fix="see `envcheck mirror probe`, or name a profile of your own with --mirror")

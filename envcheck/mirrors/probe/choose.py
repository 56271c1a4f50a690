"""Choose mirrors: what to probe for, its stored or new measurements, and one profile of the mirrors that pass."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from envcheck import safe_files
from envcheck.data import xdg
from envcheck.errors import ConfigError, UnavailableError
from envcheck.mirrors.hub import api as hub_api
from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.index.locate import PYPI, LockedPackage, has_source, network_sources
from envcheck.mirrors.net.urls import is_web_url, split_sha256
from envcheck.mirrors.probe.measure import (
    HUB,
    URL,
    Budget,
    HubRequest,
    Mirror,
    endpoints,
    probe_hub,
    probe_packages,
    probe_urls,
    resolve_request,
)
from envcheck.mirrors.probe.ranking import MirrorMeasurement, RankedMirror, rank
from envcheck.mirrors.profiles import model
from envcheck.mirrors.profiles.load import load, presets
from envcheck.mirrors.profiles.model import Credential, HuggingFace, Index, Profile, has_userinfo, host_of, redacted

HOUR: Final = 3600.0
BYTES: Final = 128 << 20
SECONDS: Final = 45.0
_LARGEST: Final = 64 << 20


@dataclasses.dataclass(frozen=True)
class Target:
    """What to probe for in one kind of source: a lock's index, a model's endpoint, or URLs of one file.

    `key` names it in the cache of measurements. `only`: the mirrors to measure, where these are the URLs themselves.
    """

    part: str
    key: str
    measure: Callable[[Sequence[Mirror], Budget], list[MirrorMeasurement]]
    only: tuple[Mirror, ...] = ()

    def able(self, mirrors: Sequence[Mirror]) -> list[Mirror]:
        """Return the mirrors that have this kind of source."""
        if self.part == URL:
            return list(self.only)
        if self.part == HUB:
            return [mirror for mirror in mirrors if endpoints(mirror.profile)]
        return [mirror for mirror in mirrors if has_source(mirror.profile, self.part)]

    def ranked(
        self,
        mirrors: Sequence[Mirror],
        budget: Budget,
        *,
        age: float = HOUR,
        offline: bool = False,
        no_redirects: bool = False,
    ) -> list[RankedMirror]:
        """Return the ranked mirrors, from stored measurements of at most this age in seconds, or new ones.

        `offline` takes what is stored, of any age.
        """
        mirrors = self.only or mirrors
        paths = [_stored_path(mirror, self.key) for mirror in mirrors]
        stored = [None if _has_directory(mirror) else _read(path) for mirror, path in zip(mirrors, paths, strict=True)]
        if offline:
            return rank([one for one in stored if one is not None], no_redirects=no_redirects)
        recent = [one for one in stored if one is not None and 0 <= time.time() - one.at <= age]
        if not recent or len(recent) < len(mirrors):
            recent = self.measure(mirrors, budget)
            for path, one in zip(paths, recent, strict=True):
                # The network of a silent mirror may be back soon, and a larger budget hashes what this one did not.
                if one.answered and not any(file.hash_why for file in one.files):
                    _write(path, one)
        return rank(recent, no_redirects=no_redirects)


def _stored_path(mirror: Mirror, key: str) -> Path:
    """Return where a measurement is stored. What it contains has no query of a URL."""
    content = msgspec.json.encode([msgspec.to_builtins(mirror.profile), mirror.name, key], order="sorted")
    return xdg("XDG_CACHE_HOME", ".cache") / "envcheck" / "probe" / f"{hashlib.sha256(content).hexdigest()}.json"


def _read(path: Path) -> MirrorMeasurement | None:
    """Return a stored measurement, or None if it is missing, damaged, or of another version."""
    try:
        stored = msgspec.json.decode(safe_files.read(path, _LARGEST), type=MirrorMeasurement)
    except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return msgspec.structs.replace(stored, stored=True)


def _has_directory(mirror: Mirror) -> bool:
    """Tell whether a mirror has directories of wheels, whose content changes without a request."""
    return any(index.local is not None for index in (*mirror.profile.pypi, *mirror.profile.pytorch))


def _write(path: Path, measurement: MirrorMeasurement) -> None:
    """Store a measurement. Ignore a cache that cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        safe_files.put(path, msgspec.json.encode(measurement), durable=False)
    except (OSError, ConfigError):
        return


def lock_targets(packages: Iterable[LockedPackage], *, verify: bool = False) -> list[Target]:
    """Return the targets for the packages of locks, one for each index. `verify`: download and hash every file."""
    by_part: dict[str, list[LockedPackage]] = {}
    for package in packages:
        by_part.setdefault(package.index, []).append(package)
    return [_lock_target(part, verify=verify) for part in by_part.values()]


def _lock_target(packages: list[LockedPackage], *, verify: bool) -> Target:
    key = repr((verify, sorted((package.index, package.label, *package.sha256) for package in packages)))
    return Target(packages[0].index, key, lambda mirrors, left: probe_packages(mirrors, packages, left, verify=verify))


def hub_target(request: HubRequest, *, verify: bool = False) -> Target:
    """Return the target for every file of a revision."""
    files = sorted((file.path, file.sha256 or str(file.sha1)) for file in request.revision.files)
    revision = request.revision
    key = repr((verify, revision.kind, revision.repo, revision.revision, revision.ref, request.head, files))
    return Target(HUB, key, lambda mirrors, budget: probe_hub(mirrors, request, budget, verify=verify))


def url_target(urls: Sequence[str], trust: Mirror) -> Target:
    """Return the target for the file at these URLs, with the CA and the netrc file of `trust`.

    Each URL is a mirror, named by its host, and by its path too if hosts repeat. Any URL may give the file's hash after
    `#`. Raise ConfigError for an unusable URL, and for different hashes.
    """
    for url in urls:
        if has_userinfo(url) or not is_web_url(url):
            message = f"{redacted(url)!r} is not a usable URL"
            raise ConfigError(message, fix="write https://HOST/PATH/FILE; put a password into a netrc file")
    bare, given = zip(*map(split_sha256, urls), strict=True)
    name = unquote(urlsplit(bare[0]).path.rpartition("/")[2]) or urlsplit(bare[0]).netloc
    hashes = sorted(set(given) - {None})
    if len(hashes) > 1:
        message = f"{name}: {len(hashes)} different hashes ({', '.join(digest[:12] + '...' for digest in hashes)})"
        raise ConfigError(message, fix="the URLs of one probe are places of one file; probe for each file on its own")
    hosts = [urlsplit(url).netloc for url in bare]
    names = [
        host if hosts.count(host) == 1 else f"{host}{urlsplit(url).path}" for host, url in zip(hosts, bare, strict=True)
    ]
    only = tuple(
        Mirror(shown, Profile(name=shown, pypi=[Index(url=url)]), trust.client)
        for shown, url in zip(names, bare, strict=True)
    )
    sha256 = next(iter(hashes), None)
    key = repr((name, sha256))
    return Target(URL, key, lambda mirrors, budget: probe_urls(mirrors, name, sha256, budget), only)


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


def model_request(ref: hub_revision.Reference, mirrors: Sequence[Mirror]) -> HubRequest:
    """Return the request for a reference, resolved at the trusted endpoint of the first mirror that names one."""
    trusting = next((mirror.profile for mirror in mirrors if mirror.profile.hf.trusted), Profile(name="none"))
    try:
        endpoint = hub_api.trusted_endpoint(trusting, mirror=False)
    except ConfigError as error:
        # The original fix names --trust-mirror, which makes no sense before a mirror is chosen.
        fix = "name a profile with `hf: {trusted: URL}`, or install huggingface_hub beside envcheck"
        raise ConfigError(error.message, fix=fix) from error
    return resolve_request(hub_api.hub_client(trusting, endpoint), endpoint, ref)


def choose_for_model(
    request: HubRequest, mirrors: Sequence[Mirror], environ: Mapping[str, str] | None = None
) -> MirrorChoice:
    """Probe the endpoints for the revision's files and return a profile of those that have all, the best first.

    Each host gets only the credentials of its own profile.
    """
    target = hub_target(request)
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
    """Return the credentials of each host; the first profile that has some wins."""
    credentials: dict[str, Credential] = {}
    for profile in profiles:
        credentials = {**profile.credentials, **credentials}
    return credentials


def _with_own_token(profile: Profile, environ: Mapping[str, str]) -> Profile:
    """Return the profile with huggingface_hub's token as credential of its endpoints, if the profile allows it."""
    file = hub_api.token_path(environ)
    if profile.hf.token != "allow" or not (environ.get("HF_TOKEN") or file.is_file()):  # noqa: S105 (a policy)
        return profile
    token = Credential(token_env="HF_TOKEN") if environ.get("HF_TOKEN") else Credential(token_file=str(file))  # noqa: S106
    hosts = {host_of(url): token for url in profile.hf.endpoints}
    return msgspec.structs.replace(profile, credentials={**hosts, **profile.credentials})


def _indexes(used: Sequence[RankedMirror], profiles: Mapping[str, Profile], family: str) -> list[Index]:
    """Return the indexes of one family in the order of rank, local directories first."""
    part = PYPI if family == PYPI else "pytorch/{variant}"
    ranked = [profiles[one.mirror] for one in used if one.part.partition("/")[0] == family]
    remote = [index for profile in ranked for index in _named(profile, family) or network_sources(profile, part)]
    return list(dict.fromkeys([*_local_indexes(profiles.values(), family), *remote]))


def _named(profile: Profile, family: str) -> list[Index]:
    return [index for index in (profile.pypi if family == PYPI else profile.pytorch) if index.local is None]


def _local_indexes(profiles: Iterable[Profile], family: str) -> list[Index]:
    """Return the directories of wheels on this machine."""
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
    if mirror.passed and not mirror.measured.answered:
        return f"{mirror.part}: {mirror.mirror} (all files are in this machine's directories)"
    speed = f"{rate.speed / 1e6:.1f} MB/s" if rate is not None else "no rate"
    age = ", as stored" if mirror.measured.stored else ""
    return f"{mirror.part}: {mirror.mirror} ({speed if mirror.passed else 'no ranges'}{age})"


def _no_mirror_error(ranked: Sequence[RankedMirror], what: str = "") -> UnavailableError:
    failed = [
        f"{one.mirror}: {criterion.why}"
        for one in ranked
        for criterion in one.criteria
        if criterion.hard and not criterion.passed
    ]
    message = f"no mirror has all files{what}: {'; '.join(failed[:3]) or 'no mirror is known'}"
    return UnavailableError(message, fix="run `envcheck mirror probe`, or pass your own profile with --mirror")

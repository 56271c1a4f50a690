"""The indexes of a profile on the network, with the URLs of the clients' defaults."""

from __future__ import annotations

import functools
from typing import Final
from urllib.parse import urlsplit

from envcheck.mirrors.hub.api import default_endpoint
from envcheck.mirrors.net.client_defaults import python_index, pytorch_index
from envcheck.mirrors.probe.file_matches import PYPI
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Index, Profile

# Profiles that mean the clients' defaults. Any other profile without an index has none.
_CLIENT_PROFILES: Final = ("none", "host")
HUB: Final = "hf"
URL: Final = "url"


def network_sources(profile: Profile, part: str) -> list[Index]:
    """Return the indexes on the network that a profile has for a part, with the URL of the client's default."""
    if part == HUB:
        return _endpoints(profile)
    family, _, variant = part.partition("/")
    indexes = [index for index in (profile.pypi if family in {PYPI, URL} else profile.pytorch) if index.local is None]
    if not indexes and profile.name in _CLIENT_PROFILES:
        indexes = [Index(url=CLIENT_DEFAULT)]
    return [_with_url(index, family, variant) for index in indexes]


def has_source(profile: Profile, part: str) -> bool:
    """Tell whether a profile has a source for a part: an index on the network, or a directory."""
    family = part.partition("/")[0]
    indexes = {PYPI: profile.pypi, "pytorch": profile.pytorch}.get(family, [])
    return any(index.local is not None for index in indexes) or bool(network_sources(profile, part))


def is_origin(profile: Profile, part: str) -> bool:
    """Tell whether a part comes from the client's default only."""
    if part == HUB:
        return profile.name in _CLIENT_PROFILES and not profile.hf.endpoints
    indexes = [index for index in (profile.pypi if part in {PYPI, URL} else profile.pytorch) if index.local is None]
    return all(index.url == CLIENT_DEFAULT for index in indexes) and (bool(indexes) or profile.name in _CLIENT_PROFILES)


def _endpoints(profile: Profile) -> list[Index]:
    """Return the endpoints of a profile, or the default of huggingface_hub if the profile means that."""
    own = default_endpoint() if profile.name in _CLIENT_PROFILES and not profile.hf.endpoints else None
    return [Index(url=url) for url in (*profile.hf.endpoints, own) if url]


def own_hosts(profile: Profile, part: str) -> list[str]:
    """Return the mirror's own hosts: all that its profile names, for any part."""
    urls = [index.url for index in [*network_sources(profile, part), *profile.pypi, *profile.pytorch]]
    return sorted({urlsplit(url).netloc for url in [*urls, *profile.hf.endpoints] if "://" in url} - {""})


def missing_index_reason(part: str) -> str:
    """Return why a profile without an own index is not a mirror for a part."""
    if part == HUB:
        return "the profile names no Hugging Face endpoint"
    if part == URL:
        return "the profile names no index or endpoint that may have it"
    kind = "Python" if part == PYPI else "PyTorch"
    return f"the profile names no {kind} index: packages would come from the client's own default"


@functools.cache
def _default_index(family: str) -> str:
    return python_index() if family == PYPI else f"{pytorch_index()}/{{variant}}"


def _with_url(index: Index, family: str, variant: str) -> Index:
    url = _default_index(family) if index.url == CLIENT_DEFAULT else index.url
    return Index(url=url.replace("{variant}", variant), kind=index.kind)

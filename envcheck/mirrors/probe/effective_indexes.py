"""The indexes of a profile that are reached over a network, the clients' own defaults spelled out."""

from __future__ import annotations

import functools
from typing import Final
from urllib.parse import urlsplit

from envcheck.mirrors.hub.api import default_endpoint
from envcheck.mirrors.net.client_defaults import python_index, pytorch_index
from envcheck.mirrors.probe.file_matches import PYPI
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Index, Profile

# The profiles that stand for the clients' own defaults; any other that names no index is no mirror of it.
_OWN: Final = ("none", "host")
HUB: Final = "hf"
URL: Final = "url"


def sources(profile: Profile, part: str) -> list[Index]:
    """Return the indexes a profile has for a part over the network, the client's own default spelled out."""
    if part == HUB:
        return _endpoint(profile)
    family, _, variant = part.partition("/")
    named = [index for index in (profile.pypi if family in {PYPI, URL} else profile.pytorch) if index.local is None]
    if not named and profile.name in _OWN:
        named = [Index(url=CLIENT_DEFAULT)]
    return [_spelled(index, family, variant) for index in named]


def able(profile: Profile, part: str) -> bool:
    """Tell whether a profile has anything to look for a part in: a source over the network, or a directory."""
    family = part.partition("/")[0]
    known = {PYPI: profile.pypi, "pytorch": profile.pytorch}.get(family, [])
    return any(index.local is not None for index in known) or bool(sources(profile, part))


def is_origin(profile: Profile, part: str) -> bool:
    """Tell whether a part comes from the client's own default, and from nowhere else that could be left."""
    if part == HUB:
        return profile.name in _OWN and not profile.hf.endpoints
    named = [index for index in (profile.pypi if part in {PYPI, URL} else profile.pytorch) if index.local is None]
    return all(index.url == CLIENT_DEFAULT for index in named) and (bool(named) or profile.name in _OWN)


def _endpoint(profile: Profile) -> list[Index]:
    """Return the endpoints of a profile, or huggingface_hub's own where that is what the profile stands for."""
    own = default_endpoint() if profile.name in _OWN and not profile.hf.endpoints else None
    return [Index(url=url) for url in (*profile.hf.endpoints, own) if url]


def own_hosts(profile: Profile, part: str) -> list[str]:
    """Return the hosts that count as the mirror itself: those its profile names, for whatever part."""
    urls = [index.url for index in [*sources(profile, part), *profile.pypi, *profile.pytorch]]
    return sorted({urlsplit(url).netloc for url in [*urls, *profile.hf.endpoints] if "://" in url} - {""})


def no_index(part: str) -> str:
    """Return why a profile without an index of its own is no mirror for a part."""
    if part == HUB:
        return "the profile names no Hugging Face endpoint"
    if part == URL:
        return "the profile names no index or endpoint that could have it"
    kind = "Python" if part == PYPI else "PyTorch"
    return f"the profile names no {kind} index: packages would come from the client's own default"


@functools.cache
def _default(family: str) -> str:
    return python_index() if family == PYPI else f"{pytorch_index()}/{{variant}}"


def _spelled(index: Index, family: str, variant: str) -> Index:
    url = _default(family) if index.url == CLIENT_DEFAULT else index.url
    return Index(url=url.replace("{variant}", variant), kind=index.kind)

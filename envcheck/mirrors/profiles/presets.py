"""Mirrors of other people that can be named: what is known of each, and the profile it makes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from envcheck.mirrors.profiles.model import Conda, HuggingFace, Index, Profile

Kind = Literal["pypi", "pytorch", "hf", "apt", "conda", "npm", "registry", "modelscope"]
Layout = Literal["simple", "find-links", "endpoint", "archive", "anaconda", "npm", "registry"]
# What a kind's URL leads to where nothing else is said.
LAYOUTS: Final[Mapping[Kind, Layout]] = {
    "pypi": "simple",
    "pytorch": "simple",
    "hf": "endpoint",
    "modelscope": "endpoint",
    "apt": "archive",
    "conda": "anaconda",
    "npm": "npm",
    "registry": "registry",
}
_DEFAULTS: Final = ("main", "r", "msys2")


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One address of a mirror. `source` says who tells so; `last_verified` is the day on which it was seen to work.

    `upstream` is the registry a registry mirror is of, `channels` the cloud channels a conda mirror is known to have.
    """

    kind: Kind
    url: str
    source: str
    last_verified: dt.date | None
    layout: Layout | None = None
    lacks: list[str] = []
    upstream: str | None = None
    channels: list[str] = []


class Preset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mirror site. `lacks` is what it does not do, whatever the entry."""

    title: str
    region: str
    entries: list[Entry]
    lacks: list[str] = []


def profile_of(name: str, preset: Preset) -> Profile:
    """Return the profile a preset makes."""
    of = {kind: [entry for entry in preset.entries if entry.kind == kind] for kind in LAYOUTS}
    return Profile(
        name=name,
        pypi=_indexes(of["pypi"]),
        pytorch=_indexes(of["pytorch"]),
        hf=HuggingFace(endpoint=_first(of["hf"])),
        apt=[entry.url for entry in of["apt"]],
        conda=_conda(of["conda"]),
        npm=_first(of["npm"]),
        registries=_registries(of["registry"]),
        modelscope=_first(of["modelscope"]),
    )


def _indexes(entries: Iterable[Entry]) -> list[Index]:
    return [Index(url=e.url, kind="find-links" if e.layout == "find-links" else "simple") for e in entries]


def _first(entries: Iterable[Entry]) -> str | None:
    return next((entry.url for entry in entries), None)


def _conda(entries: list[Entry]) -> Conda:
    if not entries:
        return Conda()
    first = entries[0]
    return Conda(
        default_channels=[f"{first.url}/pkgs/{channel}" for channel in _DEFAULTS],
        custom_channels=dict.fromkeys(first.channels, f"{first.url}/cloud"),
    )


def _registries(entries: Iterable[Entry]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in entries:
        found.setdefault(entry.upstream or "docker.io", []).append(entry.url)
    return found

"""Presets: public mirrors, the facts about each, and the profile of each."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from envcheck.mirrors.profiles.model import Conda, HuggingFace, Index, Profile

Kind = Literal["pypi", "pytorch", "hf", "apt", "conda", "npm", "registry", "modelscope"]
Layout = Literal["simple", "find-links", "endpoint", "archive", "anaconda", "npm", "registry"]
# The layout at the URL of a kind, unless the preset names another one.
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
_CONDA_DEFAULTS: Final = ("main", "r", "msys2")


class PresetEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One URL of a mirror. `source` documents it; `last_verified` is the last day on which it was seen to work.

    `upstream` is the registry that is mirrored; `channels` are the cloud channels that a conda mirror has.
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
    """A mirror site. `lacks` lists what none of its entries offers."""

    title: str
    region: str
    entries: list[PresetEntry]
    lacks: list[str] = []


def preset_profile(name: str, preset: Preset) -> Profile:
    """Return the profile of a preset."""
    by_kind = {kind: [entry for entry in preset.entries if entry.kind == kind] for kind in LAYOUTS}
    return Profile(
        name=name,
        pypi=_indexes(by_kind["pypi"]),
        pytorch=_indexes(by_kind["pytorch"]),
        hf=HuggingFace(endpoint=_first(by_kind["hf"])),
        apt=[entry.url for entry in by_kind["apt"]],
        conda=_conda(by_kind["conda"]),
        npm=_first(by_kind["npm"]),
        registries=_registries(by_kind["registry"]),
        modelscope=_first(by_kind["modelscope"]),
    )


def _indexes(entries: Iterable[PresetEntry]) -> list[Index]:
    return [Index(url=e.url, kind="find-links" if e.layout == "find-links" else "simple") for e in entries]


def _first(entries: Iterable[PresetEntry]) -> str | None:
    return next((entry.url for entry in entries), None)


def _conda(entries: list[PresetEntry]) -> Conda:
    if not entries:
        return Conda()
    first = entries[0]
    return Conda(
        default_channels=[f"{first.url}/pkgs/{channel}" for channel in _CONDA_DEFAULTS],
        custom_channels=dict.fromkeys(first.channels, f"{first.url}/cloud"),
    )


def _registries(entries: Iterable[PresetEntry]) -> dict[str, list[str]]:
    mirrors: dict[str, list[str]] = {}
    for entry in entries:
        mirrors.setdefault(entry.upstream or "docker.io", []).append(entry.url)
    return mirrors

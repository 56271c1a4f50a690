"""Presets: public mirrors, the facts about each, and the profile of each."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from envcheck.errors import ConfigError
from envcheck.mirrors.profiles.model import Conda, HuggingFace, Index, Profile
from envcheck.mirrors.profiles.validate import LocateKey

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
# The kinds of which a client takes several URLs; a profile has one URL of the others.
_REPEATABLE: Final = ("pypi", "pytorch", "apt", "registry")
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


def check_preset(preset: Preset, key_path: str, locate: LocateKey) -> None:
    """Raise ConfigError for a field that the profile of the preset would ignore, and for a missing one."""
    for number, entry in enumerate(preset.entries):
        where = f"{key_path}.entries[{number}]"
        layouts = ["simple", "find-links"] if entry.kind in {"pypi", "pytorch"} else [LAYOUTS[entry.kind]]
        if entry.layout is not None and entry.layout not in layouts:
            message = f"{locate(f'{where}.layout')}: {entry.kind} has no layout {entry.layout}"
            raise ConfigError(message, fix=f"write {' or '.join(layouts)}")
        if entry.kind not in _REPEATABLE and any(other.kind == entry.kind for other in preset.entries[:number]):
            message = f"{locate(where)}: a second entry of the kind {entry.kind}"
            raise ConfigError(message, fix="keep one; only pypi, pytorch, apt and registry can have several")
        if entry.channels and entry.kind != "conda":
            message = f"{locate(f'{where}.channels')}: {entry.kind} has no channels"
            raise ConfigError(message, fix="remove the key; channels belong to the kind conda")
        if (entry.upstream is not None) != (entry.kind == "registry"):
            message = f"{locate(where)}: {entry.kind} {'needs an' if entry.upstream is None else 'has no'} upstream"
            raise ConfigError(
                message, fix="name the mirrored registry (docker.io) for the kind registry, and only there"
            )


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

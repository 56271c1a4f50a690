"""Licences as the packages' own metadata states them, from wheels or an environment at hand; nothing is guessed."""

from __future__ import annotations

import email.message
import email.parser
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envcheck.errors import ConfigError

NVIDIA: Final = "LicenseRef-NVIDIA-Proprietary"
_NVIDIA_NAMES: Final = {"nvidia proprietary software", "nvidia proprietary", NVIDIA.lower()}
# A licence's own text, pasted into the field of its name, is longer.
_LONGEST: Final = 100
_NO_NAME: Final = {"", "unknown", "none", "other/proprietary license"}


class Licence(NamedTuple):
    """A licence: an SPDX expression, or else the name that the package gives it."""

    expression: str | None = None
    name: str | None = None


class PackageKey(NamedTuple):
    """A package by its normalised name and version."""

    name: str
    version: str


def stated(metadata: email.message.Message) -> Licence | None:
    """Return the licence that a METADATA file states: its expression, its one-line name, or its classifiers."""
    expression = str(metadata.get("License-Expression") or "").strip()
    if expression:
        return _named(expression)
    name = str(metadata.get("License") or "").strip()
    if len(name) <= _LONGEST and "\n" not in name and name.lower() not in _NO_NAME:
        return _named(name)
    classified = [c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier", []) if c.startswith("License :: ")]
    names = sorted({name for name in classified if name.lower() not in _NO_NAME | {"osi approved"}})
    return _named(" and ".join(names)) if names else None


def _named(text: str) -> Licence:
    """Return an expression where SPDX knows the text as one, NVIDIA's under one name, else the text."""
    if text.lower() in _NVIDIA_NAMES:
        return Licence(expression=NVIDIA)
    try:
        return Licence(expression=canonicalize_license_expression(text))
    except InvalidLicenseExpression:
        return Licence(name=text)


def read(directories: Iterable[Path]) -> dict[PackageKey, Licence]:
    """Return the licences of all wheels and installed packages in these directories (not below them)."""
    licences: dict[PackageKey, Licence] = {}
    for directory in directories:
        for package, metadata in _metadata(directory).items():
            licence = stated(metadata)
            if licence is not None:
                licences.setdefault(package, licence)
    return licences


def _metadata(directory: Path) -> Mapping[PackageKey, email.message.Message]:
    """Return the METADATA of each package; a directory without any, or a wheel that is none, is a ConfigError."""
    parse = email.parser.Parser().parsestr
    texts = {path: path.read_text("utf-8", "replace") for path in sorted(directory.glob("*.dist-info/METADATA"))}
    texts |= {path: _of_wheel(path) for path in sorted(directory.glob("*.whl"))}
    if not texts:
        message = f"{directory}: no wheel and no installed package lies there"
        raise ConfigError(message, fix="give a directory of *.whl files, or an environment's site-packages")
    parsed = [(path, parse(text, headersonly=True)) for path, text in texts.items()]
    return {_key(path, metadata): metadata for path, metadata in parsed}


def _of_wheel(path: Path) -> str:
    try:
        parse_wheel_filename(path.name)
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.count("/") == 1 and n.endswith(".dist-info/METADATA"))
            return archive.read(name).decode("utf-8", "replace")
    except (InvalidWheelFilename, zipfile.BadZipFile, StopIteration, RuntimeError) as error:
        message = f"{path}: not a wheel"
        raise ConfigError(message, fix="fetch it again, or take it out of the directory") from error


def _key(path: Path, metadata: email.message.Message) -> PackageKey:
    name, version = str(metadata.get("Name") or ""), str(metadata.get("Version") or "")
    try:
        return PackageKey(canonicalize_name(name), str(Version(version)))
    except InvalidVersion as error:
        message = f"{path}: {version!r} is not a version"
        raise ConfigError(message, fix="take it out of the directory") from error

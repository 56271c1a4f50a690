"""What to do about an extension that does not fit: the release that does, as far as extensions.yaml knows one."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

from packaging.version import InvalidVersion, Version

from envcheck.checks import View
from envcheck.checks.readings import matrix_facts
from envcheck.errors import ConfigError
from envcheck.matrix.extensions.file import load
from envcheck.matrix.extensions.fit import JIT, OK, CellOnHost, fit
from envcheck.matrix.extensions.model import ExtensionRelease, Extensions
from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.facts.model import Cell

_ARCHS: Final = ("x86_64", "aarch64")


@functools.cache
def facts() -> Extensions:
    """Return the shipped facts about extensions."""
    return load()


def has_libraries(name: str, version: str) -> bool:
    """Return whether every wheel of a release that was read has libraries for torch or CUDA; not known is no."""
    extension = facts().find(name)
    public = version.partition("+")[0]
    releases = [one for one in extension.releases if one.version == public] if extension else []
    read = [wheel for release in releases for wheel in release.wheels if wheel.abi is not None]
    return bool(read) and all(wheel.abi != "none" or wheel.cuda for wheel in read)


def variant_of(torch: str, cuda: str | None) -> str:
    """Return the variant of an installed torch: its local version, else the one of its CUDA."""
    _, _, local = torch.partition("+")
    return local or ("cpu" if not cuda else f"cu{cuda.replace('.', '')}")


def fitting_release(view: View, measured: Mapping[str, Any], name: str, installed: str = "") -> str:
    """Return how to install the newest release of an extension that fits this environment, else where to look.

    `installed` is the version that is there: if it is the one that fits, its files are not what they should be.
    """
    torch = str(measured.get("torch") or "")
    look = f"see `envcheck resolve --with {name} --torch {torch.partition('+')[0]}`" if torch else "install torch first"
    extension, place = facts().find(name), _place(view, measured, torch)
    if extension is None or place is None:
        return f"install a {name} that was built for this torch, or build it from source"
    lookups = Facts(matrix_facts.matrix(view))
    for release in sorted(extension.releases, key=_newest_first, reverse=True):
        judged = fit(lookups, extension.name, release, place, third_party=False)
        if judged.word in (OK, JIT):
            if release.version == installed.partition("+")[0]:
                return f"{extension.name} {installed} fits by its facts: install it again, from the index of this torch"
            where = judged.wheel.where if judged.wheel is not None and judged.wheel.where else ""
            return f"install {extension.name}=={release.version}{f' from {where}' if where else ''}, with --no-deps"
    return f"no release of {name} on record fits torch {torch}: {look}"


def _newest_first(release: ExtensionRelease) -> Version:
    return Version(release.version)


def _place(view: View, measured: Mapping[str, Any], torch: str) -> CellOnHost | None:
    interpreter = measured.get("interpreter") or {}
    version, machine = interpreter.get("version") or [], interpreter.get("machine")
    try:
        release = Version(torch).base_version
    except InvalidVersion:
        return None
    if len(version) != 2 or machine not in _ARCHS:  # noqa: PLR2004 (major and minor)
        return None
    cuda = view.environment.get("cuda")
    python = f"{version[0]}.{version[1]}{'t' if interpreter.get('free_threaded') else ''}"
    try:
        cell = Cell(torch=release, variant=variant_of(torch, cuda), python=python)
    except (ConfigError, ValueError):
        return None
    return CellOnHost(cell, machine, str(cuda) if cuda else None, True, measured.get("glibc"), None, ())  # noqa: FBT003 (a field)

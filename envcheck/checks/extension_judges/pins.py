"""Compare an installed extension's METADATA and wheel tags with what is installed beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envcheck.checks import Limit, Outcome, failed, undecided, warned

LIMIT: Final = Limit(0, "requirements", "METADATA: Requires-Dist", "equal")
# What an extension was compiled against, or compiles with: another version breaks it.
_COMPILED_AGAINST: Final = ("torch", "triton")


def conflicts(measured: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Outcome]:
    """Yield a finding for each requirement that what is installed does not meet; what is absent is `requirements`'."""
    installed = measured.get("installed") or {}
    for line in row.get("requires") or []:
        try:
            requirement = _applicable(Requirement(str(line)), measured.get("interpreter") or {})
        except InvalidRequirement:
            yield _unread(row, str(line))
            continue
        version = installed.get(canonicalize_name(requirement.name)) if requirement else None
        if requirement is None or not version or requirement.specifier.contains(version, prereleases=True):
            continue
        name = requirement.name
        problem = (
            f"{row['name']} {row.get('version')} requires {name}{requirement.specifier}, and {version} is installed"
        )
        judged = failed if canonicalize_name(name) in _COMPILED_AGAINST else warned
        yield judged(
            problem,
            fix=_fix(str(row["name"]), name, str(requirement.specifier), version),
            code="extensions.pins",
            culprit=str(row["name"]),
            value=version,
            unit=LIMIT.unit,
            limit=LIMIT,
        )


def _unread(row: Mapping[str, Any], line: str) -> Outcome:
    text = f"{row['name']} {row.get('version')}: its METADATA requires {line!r}, which is no requirement"
    fix = f"install {row['name']} again"
    return undecided(text, fix=fix, code="extensions.not-looked-at", culprit=str(row["name"]))


def _fix(extension: str, name: str, specifier: str, version: str) -> str:
    if name in _COMPILED_AGAINST:
        return (
            f"a later install moved {name}, or {extension} fits another one: install a {extension} for "
            f"{name} {version} with --no-deps, or {name}{specifier} again, with torch==X+cuNNN as a constraint"
        )
    return f"install {name}{specifier}, or another {extension}; where two packages exclude each other, two environments"


def _applicable(requirement: Requirement, interpreter: Mapping[str, Any]) -> Requirement | None:
    version = ".".join(map(str, interpreter.get("version") or [3, 12]))
    environment = {"python_version": version, "python_full_version": f"{version}.0", "extra": ""}
    environment |= {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    environment |= {"platform_machine": str(interpreter.get("machine") or "x86_64")}
    return requirement if requirement.marker is None or requirement.marker.evaluate(environment) else None


def takes(tag: str, interpreter: Mapping[str, Any]) -> bool:
    """Return whether this Python takes a wheel's tag; an abi3 tag counts upwards, never for a free-threaded Python."""
    python, _, remainder = tag.partition("-")
    abi = remainder.partition("-")[0]
    major, minor = interpreter["version"]
    free = bool(interpreter.get("free_threaded"))
    for one in python.split("."):
        digits = one[2:]
        if not digits.isdigit() or digits[0] != str(major):
            continue
        number = int(digits[1:] or 0)
        if abi == "none" and (one.startswith("py") or number == minor) and number <= minor:
            return True
        if abi == "abi3" and not free and number <= minor:
            return True
        if number == minor and abi.split(".")[0] == f"cp{major}{minor}{'t' if free else ''}":
            return True
    return False

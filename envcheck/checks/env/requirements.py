"""An environment can be installed and still be wrong: a package that another one needs, in a version it refuses.

Seen in the wild: numpy 2 under a torch built for 1, a transformers that wants a newer huggingface_hub, a triton from
another torch; pip says so once, at the end of a long log, and installs all the same.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from typing import Any

from envcheck.checks import (
    Check,
    Limit,
    Measured,
    Outcome,
    Rank,
    Ranks,
    View,
    failed,
    passed,
    skipped,
    undecided,
    warned,
)
from envcheck.checks.env import _group

CHECK = Check(promise="every installed package finds the packages it needs", level="static", seconds=0.5)

LIMIT = Limit(0, "requirements", "the packages' own metadata, as `pip check` reads it", "equal")
# Whoever reads requirements in this interpreter; uv and pip make environments without any of the first three.
READERS = ("packaging", "pip._vendor.packaging", "setuptools._vendor.packaging", "wheel.vendored.packaging")
FAMILY = re.compile(r"(torch|torchvision|torchaudio|triton) ")
_NAME = re.compile(r"[-_.]+")
_SHOWN = 3


def measure(rank: Rank) -> Measured:
    """Return what is required and is not there, or is there in a version that is refused."""
    reader = _reader()
    installed = {_key(d.metadata["Name"]): d for d in importlib.metadata.distributions() if d.metadata["Name"]}
    if reader is None:
        return {"rank": rank.rank, "packages": len(installed), "reader": None}
    broken = [
        f"{dist.metadata['Name']} {dist.version} {problem}"
        for dist in installed.values()
        for text in dist.requires or []
        for problem in [_problem(reader, text, installed)]
        if problem
    ]
    return {"rank": rank.rank, "packages": len(installed), "reader": reader.__name__, "broken": sorted(broken)}


def _reader() -> Any:
    return next((module for module in map(_imported, READERS) if module is not None), None)


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(f"{name}.requirements")
    except ImportError:
        return None


def _key(name: str) -> str:
    return _NAME.sub("-", name).lower()


def _problem(reader: Any, text: str, installed: dict[str, importlib.metadata.Distribution]) -> str | None:
    """Return what is wrong with one requirement; those of extras nobody asked for do not count."""
    try:
        requirement = reader.Requirement(text)
    except reader.InvalidRequirement:
        return None
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return None
    found = installed.get(_key(requirement.name))
    if found is None:
        return f"needs {requirement.name}, which is not installed"
    if not requirement.specifier.contains(found.version, prereleases=True):
        return f"needs {requirement.name}{requirement.specifier}, and has {found.version}"
    return None


def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Fail where torch's own family is affected, warn elsewhere; where nothing reads requirements, skip."""
    entry = ranks[0] if ranks else {}
    if not _group.counts(entry.get("packages")) or not entry["packages"]:
        return undecided("no installed package was found", fix="see the check's log")
    if not isinstance(entry.get("reader"), str):
        return skipped("nothing in this environment reads requirements (packaging, pip, setuptools)")
    broken = entry.get("broken")
    if not isinstance(broken, list):
        return undecided("the requirements were not read", fix="see the check's log")
    if broken:
        told = "; ".join(broken[:_SHOWN]) + (f"; {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else "")
        fix = "install what is named, or build the environment again from its lock"
        verdict = failed if any(FAMILY.match(line) for line in broken) else warned
        return verdict(told, fix=fix, value=len(broken), unit=LIMIT.unit, limit=LIMIT, broken=broken)
    return passed(f"{entry['packages']} packages agree", value=0, unit=LIMIT.unit, limit=LIMIT)

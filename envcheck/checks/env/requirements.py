"""An environment can be installed and still be wrong: a package that another one needs, in a version it refuses.

Seen in the wild: numpy 2 under a torch built for 1, a transformers that wants a newer huggingface_hub, a triton from
another torch; pip says so once, at the end of a long log, and installs all the same.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import sys
from pathlib import Path
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
from envcheck.checks.support import process_group
from envcheck.counting import counted

CHECK = Check(promise="every installed package finds the packages it needs", level="static", seconds=1.2)

LIMIT = Limit(0, "requirements", "the packages' own metadata, as `pip check` reads it", "equal")
# Whoever brings the module `packaging`: a package, and where below it. The packages themselves are not imported, for
# importing setuptools replaces distutils. uv and pip make environments without any but the first.
READERS = (
    ("packaging", ""),
    ("pip", "_vendor/packaging"),
    ("setuptools", "_vendor/packaging"),
    ("wheel", "vendored/packaging"),
)
_COPY = "envcheck_reader_"  # the name under which one is loaded
FAMILY = re.compile(r"(torch|torchvision|torchaudio|triton) ")
_NAME = re.compile(r"[-_.]+")
_SHOWN = 3


def measure(rank: Rank) -> Measured:
    """Return what is required and is not there, or is there in a version that is refused."""
    reader = _reader()
    installed, shadowed = _installed()
    if reader is None:
        return {"rank": rank.rank, "packages": len(installed), "reader": None, "shadowed": shadowed}
    broken = [
        f"{dist.metadata['Name']} {dist.version} {problem}"
        for dist in installed.values()
        for text in dist.requires or []
        for problem in [_problem(reader, text, installed)]
        if problem
    ]
    return {
        "rank": rank.rank,
        "packages": len(installed),
        "reader": reader.__name__.split(".")[0].replace(_COPY, ""),
        "broken": sorted(broken),
        "shadowed": shadowed,
    }


def _installed() -> tuple[dict[str, importlib.metadata.Distribution], list[str]]:
    """Return the distribution of each name that Python imports, the first on sys.path, and the later ones as text."""
    installed: dict[str, importlib.metadata.Distribution] = {}
    shadowed = set()
    for dist in importlib.metadata.distributions():
        name = dist.metadata["Name"]
        first = installed.setdefault(_key(name), dist) if name else dist
        if first.version != dist.version:
            shadowed.add(f"{name} {dist.version}, hidden by {first.version}")
    return installed, sorted(shadowed)


def _reader() -> Any:
    return next((module for package, below in READERS if (module := _loaded(package, below)) is not None), None)


def _loaded(package: str, below: str) -> Any:
    """Return the module packaging.requirements of a copy of `packaging`, or None where there is none that works."""
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec else None
    init = Path(next(iter(places), ""), below, "__init__.py") if places else None
    if init is None or not init.is_file():
        return None
    name = f"{_COPY}{package}"
    own = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(init.parent)])
    if own is None or own.loader is None:
        return None
    sys.modules[name] = module = importlib.util.module_from_spec(own)
    try:
        own.loader.exec_module(module)
        return importlib.import_module(f"{name}.requirements")
    except (ImportError, SyntaxError):
        return None  # a copy that is damaged: the next one may do


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
    version = installed.get(_key(requirement.name))
    if version is None:
        return f"needs {requirement.name}, which is not installed"
    if not version.version:
        return f"needs {requirement.name}, whose metadata has no version"
    if not requirement.specifier.contains(version.version, prereleases=True):
        return f"needs {requirement.name}{requirement.specifier}, and has {version.version}"
    return None


def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Fail where torch's own family is affected, warn elsewhere; where nothing reads requirements, skip."""
    entry = ranks[0] if ranks else {}
    if not process_group.counts(entry.get("packages")) or not entry["packages"]:
        return undecided("no installed package was found", fix="see the check's log", code="requirements.no-packages")
    if not isinstance(entry.get("reader"), str):
        return skipped(
            "nothing in this environment reads requirements (packaging, pip, setuptools)", code="requirements.no-reader"
        )
    broken = entry.get("broken")
    if not isinstance(broken, list):
        return undecided("the requirements were not read", fix="see the check's log", code="requirements.unmeasured")
    if broken:
        text = "; ".join(broken[:_SHOWN]) + (f"; {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else "")
        fix = "install what is named, or build the environment again from its lock"
        verdict = failed if any(FAMILY.match(line) for line in broken) else warned
        return verdict(
            text, fix=fix, value=len(broken), unit=LIMIT.unit, limit=LIMIT, broken=broken, code="requirements.conflict"
        )
    shadowed = entry.get("shadowed") or []
    hidden = (
        f"; hidden by another version: {counted(len(shadowed), 'more', 'more')}, first {shadowed[0]}"
        if shadowed
        else ""
    )
    summary = f"{counted(entry['packages'], 'package')} without a conflict{hidden}"
    return passed(summary, value=0, unit=LIMIT.unit, limit=LIMIT, shadowed=shadowed)

"""A tag is a string: nothing keeps `2.8.0-cu128` from holding something else.

What the environment says of itself is compared with its labels, and what is installed with its lock.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, get_args

from packaging.version import InvalidVersion, Version

from envcheck.checks import FAIL, Check, Limit, Outcome, View, failed, passed, skipped, undecided, worst
from envcheck.checks.matrix_facts import matrix
from envcheck.counting import counted
from envcheck.matrix.facts.lookup import driver_floor
from envcheck.matrix.facts.model import Target

CHECK = Check(
    promise="torch, CUDA, cuDNN, NCCL, triton, companions, Python, arch list and packages are as labels and lock say",
    level="static",
)

SOURCE = "the environment's own labels, or its envcheck-promises.json; the lock whose digest they hold"
_FIX = "rebuild it from its lock (`envcheck build CELL`), or correct the label; do not deploy it"


def _minor(version: Any) -> str:
    return ".".join(str(version).split(".")[:2])


def _word(value: Any) -> str:
    return "none" if value in (None, "", []) else str(value)


def _codes(value: Any) -> str:
    codes = value.replace(",", " ").split() if isinstance(value, str) else value or []
    return " ".join(sorted(code for code in codes if code != "none")) or "none"


# Of these torch says nothing: their packages do.
_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "triton": ("triton", "pytorch-triton"),
    **{name: (name,) for name in ("torchvision", "torchaudio")},
}
_WORDS = ("torch", "cuda", "cudnn", "nccl", *_PACKAGES)
COMPARED: Mapping[str, Callable[[Any], str]] = {"python": _minor, "arch_list": _codes, **dict.fromkeys(_WORDS, _word)}


def judge(view: View) -> Outcome:
    """Fail naming every promise that is not kept; an environment that cannot be asked keeps none."""
    # A companion that the lock leaves out may be added by whoever wants it.
    promised = {
        key: value
        for key in COMPARED
        if (value := view.promises.get(key, "unknown")) != "unknown" and not (value == "none" and key in _PACKAGES)
    }
    if not promised:
        return skipped("this environment promises nothing (no labels of ours)", code="image-promises.none")
    if not view.environment.get("torch"):
        why = view.environment.get("error") or view.environment.get("build_facts_error") or "it was not asked"
        if "error" in view.environment:
            text = f"it promises torch, which cannot be imported: {why}"
            return failed(text, fix=_FIX, limit=_limit(promised), code="image-promises.no-torch")
        text = f"what torch says of itself is unread: {why}"
        return undecided(text, fix="see the worker's log", code="image-promises.unmeasured")
    if not isinstance(view.environment.get("packages"), Mapping):
        # A report of before packages were listed is judged by what it has.
        promised = {key: value for key, value in promised.items() if key not in _PACKAGES}
    measured = {key: _seen(key, view.environment) for key in promised}
    off, compared = _lock(view)
    pairs = ((key, COMPARED[key](value), COMPARED[key](measured[key])) for key, value in promised.items())
    lies = [_broken(key.replace("_", "-"), "promised", said, real) for key, said, real in pairs if said != real]
    lies += [*_misnamed(view), *_not_of_target(view), *off]
    text = f"{len(promised)} of {counted(len(promised), 'promise')} kept{compared}"
    broken = [lie.summary for lie in lies if lie.status == FAIL]
    outcome = worst(lies, passed(text, value=measured, limit=_limit(promised)))
    return dataclasses.replace(outcome, details={"lies": broken}) if broken else outcome


def _limit(promised: Mapping[str, str]) -> Limit:
    return Limit(dict(promised), "", SOURCE, "equal")


def _seen(key: str, environment: Mapping[str, Any]) -> Any:
    if key not in _PACKAGES:
        return environment.get(key)
    return next((environment["packages"][name] for name in _PACKAGES[key] if name in environment["packages"]), None)


def _misnamed(view: View) -> list[Outcome]:
    """Return where cell, variant or driver floor is not that of the torch, CUDA and Python promised or installed."""
    stated = {key: view.promises.get(key, "unknown") for key in ("torch", "cuda", "python")}
    torch, cuda, python = (_word(view.environment.get(k)) if v == "unknown" else v for k, v in stated.items())
    version, _, label = torch.partition("+")
    variant = label or ("cpu" if cuda == "none" else f"cu{cuda.replace('.', '')}")
    implied = {
        "cell": f"torch{version}-{variant}-py{_minor(python).replace('.', '')}",
        "variant": variant,
        "driver_floor": driver_floor(matrix(view), None if cuda == "none" else cuda),
    }
    pairs = ((key, view.promises.get(key, "unknown"), real) for key, real in implied.items() if real != "unknown")
    return [
        _broken(key.replace("_", "-"), "promised", promise, real)
        for key, promise, real in pairs
        if promise not in {"unknown", real}
    ]


def _not_of_target(view: View) -> list[Outcome]:
    """Return the packages that the promised target adds and that are not there; a target that there is not is a lie."""
    target, installed = view.promises.get("target"), view.environment.get("packages")
    if target is not None and target not in get_args(Target):
        return [_broken("target", "promised", target, "no target of envcheck")]
    if not isinstance(installed, Mapping):
        return []
    lacking = [name for name in view.promises.get("target_packages", "").split() if name not in installed]
    return [_broken("target", "promised", str(target), f"without {name}") for name in lacking[:1]]


def _broken(name: str, how: str, promised: str, real: str) -> Outcome:
    text, limit = f"{name}: {how} {promised}, is {real}", Limit(promised, "", SOURCE, "equal")
    code = "image-promises.locked" if how == "locked" else "image-promises.promised"
    return failed(text, fix=_FIX, value=real, limit=limit, code=code, culprit=name)


def _lock(view: View) -> tuple[list[Outcome], str]:
    """Return what is not installed as it is locked, or why that is not known; and how many packages were compared."""
    installed, locked = view.environment.get("packages"), view.promises.get("packages", "").split()
    if not locked or not isinstance(installed, Mapping):
        digest = view.promises.get("lock", "none")
        return [] if digest == "none" else [_not_compared(digest, listed=isinstance(installed, Mapping))], ""
    pins = dict(pin.split("==", 1) for pin in locked)
    off = [
        _broken(name, "locked", version, _word(installed.get(name)))
        for name, version in pins.items()
        if not _same(version, installed.get(name))
    ]
    return off, f", and {counted(len(pins), 'package')} as locked"


def _not_compared(digest: str, *, listed: bool) -> Outcome:
    text = f"its packages are not compared: no lock here has its digest {digest[:12]}, and it names no packages itself"
    fix = "validate it with the envcheck that built it, e.g. the one inside: `docker run IMAGE envcheck run`"
    if not listed:
        text = "its packages were not listed, so they are not compared with its lock"
        fix = "run the check again: the report is of an envcheck that did not list them"
    return undecided(text, fix=fix, code="image-promises.lock-unread")


def _same(locked: str, installed: Any) -> bool:
    try:
        return Version(locked) == Version(str(installed))
    except InvalidVersion:
        return bool(locked == installed)

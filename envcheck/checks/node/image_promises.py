"""A tag is a string: nothing keeps `2.8.0-cu128` from holding something else.

Seen in the wild: a requirements file that quietly pulled torch up or down, a rebuilt base with another CUDA, a CPU
wheel in a CUDA image because the index had nothing else. What the environment says of itself is compared with
its labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, undecided

CHECK = Check(promise="torch, CUDA, cuDNN, NCCL, Python and arch list are what the image's labels say", level="static")

SOURCE = "the environment's own labels, or its envcheck-promises.json"
_FIX = "rebuild it from its lock (`envcheck build CELL`), or correct the label; do not deploy it"


def _minor(version: Any) -> str:
    return ".".join(str(version).split(".")[:2])


def _word(value: Any) -> str:
    return "none" if value in (None, "", []) else str(value)


def _codes(value: Any) -> str:
    codes = value.replace(",", " ").split() if isinstance(value, str) else value or []
    return " ".join(sorted(code for code in codes if code != "none")) or "none"


COMPARED: Mapping[str, Callable[[Any], str]] = {
    "torch": _word,
    "cuda": _word,
    "cudnn": _word,
    "nccl": _word,
    "python": _minor,
    "arch_list": _codes,
}


def judge(view: View) -> Outcome:
    """Fail naming every promise that is not kept; an environment that cannot be asked keeps none."""
    promised = {key: view.promises[key] for key in COMPARED if view.promises.get(key, "unknown") != "unknown"}
    if not promised:
        return skipped("this environment promises nothing (no labels of ours)")
    if not view.environment.get("torch"):
        why = view.environment.get("error") or view.environment.get("build_facts_error") or "it was not asked"
        if "error" in view.environment:
            return failed(
                f"it promises torch, which cannot be imported: {why}", fix=_FIX, value=None, limit=_limit(promised)
            )
        return undecided(f"what torch says of itself is unread: {why}", fix="see the worker's log")
    lies = [_lie(key, value, view.environment) for key, value in promised.items()]
    told = [lie for lie in lies if lie]
    seen = {key: view.environment.get(key) for key in promised}
    if told:
        return failed("; ".join(told), fix=_FIX, value=seen, limit=_limit(promised), lies=told)
    return passed(f"{len(promised)} of {len(promised)} promises kept", value=seen, limit=_limit(promised))


def _limit(promised: Mapping[str, str]) -> Limit:
    return Limit(dict(promised), "", SOURCE, "equal")


def _lie(key: str, promise: str, environment: Mapping[str, Any]) -> str | None:
    normal = COMPARED[key]
    real, said = normal(environment.get(key)), normal(promise)
    return None if real == said else f"{key.replace('_', '-')}: promised {said}, is {real}"

"""Python runs a module's bytecode, not its source: one that was left behind or edited hides a source that is right.

Python takes bytecode whose header names the source's time and size (PEP 552), whatever it holds.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, worst
from envcheck.checks.support import package_files, process_group

CHECK = Check(
    promise="the bytecode that Python runs for torch is what its sources compile to",
    level="full",
    seconds=4.0,
    timeout=600.0,
)

_FIX = "delete the __pycache__ directories of the package; Python makes them anew"
SHOWN = 50


def measure(rank: Rank) -> Measured:
    """Compile again the sources of torch's family that `import torch` runs, and compare."""
    import torch  # noqa: F401 (its modules are what is looked at)

    begun, used = time.monotonic(), {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    listed = [f.path for package in package_files.packages() for f in package.files if f.path.suffix == ".py"]
    sources = [path for path in listed if str(path) in used]
    wrong = stale(sources)
    seconds = round(time.monotonic() - begun, 1)
    return {"rank": rank.rank, "sources": len(sources), "wrong": wrong[:SHOWN], "count": len(wrong), "seconds": seconds}


def stale(sources: Iterable[Path]) -> list[str]:
    """Return bytecode that Python would run in place of a source it was not made from."""
    return [importlib.util.cache_from_source(str(source)) for source in sources if _differs(source)]


def _differs(source: Path) -> bool:
    """Return whether what Python runs for a source (its own rules say which .pyc that is) is what it compiles to."""
    sys.dont_write_bytecode = True
    loader = SourceFileLoader("looked_at", str(source))
    try:
        compiled = loader.source_to_code(source.read_bytes(), str(source))
    except (OSError, SyntaxError, ValueError):
        return False  # installed-files tells what became of the source
    try:
        return _shape(loader.get_code("looked_at")) != _shape(compiled)
    except (ImportError, EOFError, ValueError, TypeError):
        return True  # bytecode that is cut or damaged


def _shape(code: Any) -> tuple[Any, ...]:
    """Return what of a code object does not depend on where its source lay."""
    constants = tuple(map(_constant, code.co_consts))
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, constants


def _constant(value: Any) -> Any:
    if hasattr(value, "co_code"):
        return _shape(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else (type(value).__name__, repr(value))


def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Fail naming each bytecode that differs from its source."""
    measured = ranks[0] if ranks else {}
    if not process_group.counts(measured.get("sources")) or not process_group.counts(measured.get("count")):
        return undecided("no bytecode was compared", code="bytecode.unmeasured")
    if not measured["sources"]:
        return undecided("no package of torch lists its sources", fix="see installed-files", code="bytecode.none")
    about: dict[str, Any] = {"fix": _FIX, "code": "bytecode.differs", "value": measured["count"], "unit": "files"}
    wrong = [(path, f"{path} is not what its source compiles to") for path in measured.get("wrong") or []]
    findings = [failed(text, culprit=path, **about) for path, text in wrong]
    done = f"the bytecode of {measured['sources']} sources is theirs ({measured.get('seconds')} s)"
    return worst(findings, otherwise=passed(done, value=measured["count"], unit="files"))

"""Which checks there are: the files of checks/node and checks/env, and of a site's own directory of the same shape."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

from envcheck.checks import LEVELS, Check
from envcheck.errors import ConfigError

Kind = Literal["node", "env"]
_KINDS: tuple[Kind, ...] = ("node", "env")


class CheckModule(NamedTuple):
    """A check as it was found. `source` is where the worker loads it from."""

    id: str
    kind: Kind
    check: Check
    judge: Callable[..., Any]
    doc: str
    source: str
    path: Path


def discover(
    site: Path | None = None,
    hear: Callable[[ConfigError], None] | None = None,
    only: Collection[str] | None = None,
) -> list[CheckModule]:
    """Return every check, ordered as it would run: by level, node before env, probes first, then by id.

    `site` is a user's own. A file of it that is no check raises ConfigError; with `hear` it is left out, and `hear`
    gets the error. Of envcheck's own checks those of `only` are imported (None: all).
    """
    wrong: list[ConfigError] = []
    modules = [f for kind in _KINDS for f in _shipped(kind, only)]
    if site is not None:
        site = site.absolute()
        modules += [f for kind in _KINDS for f in _own(site, kind, wrong)]
        for error in wrong:
            if hear is None:
                raise error
            hear(error)
        if not wrong and not any(f.path.is_relative_to(site) for f in modules):
            message = f"{site} contains no check"
            raise ConfigError(message, fix="put files into its node/ and env/, as `envcheck checks ID` shows them")
    twice = {f.id for f in modules if sum(g.id == f.id for g in modules) > 1}
    if twice:
        message = f"two checks are named {', '.join(sorted(twice))}"
        raise ConfigError(message, fix="rename one file")
    return sorted(modules, key=lambda f: (LEVELS.index(f.check.level), _KINDS.index(f.kind), not f.check.probe, f.id))


def _shipped(kind: Kind, only: Collection[str] | None) -> list[CheckModule]:
    package = importlib.import_module(f"envcheck.checks.{kind}")
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg)
    wanted = names if only is None else [name for name in names if _id(name) in only]
    return [_shipped_module(f"{package.__name__}.{name}", kind) for name in wanted]


@functools.cache
def _shipped_module(name: str, kind: Kind) -> CheckModule:
    return checked_module(importlib.import_module(name), kind, f"module:{name}")


def _id(stem: str) -> str:
    return stem.replace("_", "-")


def _own(site: Path, kind: Kind, wrong: list[ConfigError]) -> list[CheckModule]:
    """Return the checks of a site's directory; `wrong` gets the error of each file that is none."""
    modules = []
    for path in sorted(p for p in (site / kind).glob("*.py") if not p.name.startswith("_")):
        try:
            modules.append(checked_module(_load(path), kind, f"file:site/{path.name}"))
        except ConfigError as error:  # noqa: PERF203 (files are few)
            wrong.append(error)
    return modules


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"envcheck_site_{path.stem}", path)
    if spec is None or spec.loader is None:
        message = f"{path} cannot be imported"
        raise ConfigError(message, fix="name it like a Python module")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # what a user's file does when it is imported is not known
        message = f"{path} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError(message, fix="a check imports torch inside functions only") from error
    return module


def checked_module(module: ModuleType, kind: Kind, source: str) -> CheckModule:
    """Return a module as a check. Raise ConfigError for one that is none."""
    path = Path(module.__file__ or "")
    check = getattr(module, "CHECK", None)
    if not isinstance(check, Check):
        raise _wrong(path, "has no CHECK", "add CHECK = Check(promise=…, level=…)")
    if check.level not in LEVELS:
        raise _wrong(path, f"has the level {check.level!r}", f"use one of {', '.join(LEVELS)}")
    for name in ("judge", "measure") if kind == "env" else ("judge",):
        if not callable(getattr(module, name, None)):
            raise _wrong(path, f"has no {name}", f"add `def {name}(…)`, see envcheck/checks/__init__.py")
    doc = _docstring(module, path)
    if not doc or not check.promise.strip():
        raise _wrong(
            path, "has no docstring or no promise", "write a docstring (what goes wrong in practice) and a promise"
        )
    return CheckModule(_id(path.stem), kind, check, module.judge, doc, source, path)


def _docstring(module: ModuleType, path: Path) -> str:
    """Return a module's docstring, read from its source where Python dropped it (PYTHONOPTIMIZE=2)."""
    if module.__doc__ or not sys.flags.optimize:
        return (module.__doc__ or "").strip()
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False) or "").strip()


def _wrong(path: Path, problem: str, fix: str) -> ConfigError:
    return ConfigError(f"check {path} {problem}", fix=fix)

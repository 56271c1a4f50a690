"""Decide whether version requirements can hold together, from the requirements alone (PEP 440).

Plain versions and specifiers are compared here, because a question is answered faster than `packaging` is imported;
whatever is not plain is left to `packaging`. A test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

# The plain form: release, pre-release, post-release, development release. No epoch, no local version.
_VERSION: Final = re.compile(
    r"(?P<release>\d+(?:\.\d+)*)(?:(?P<pre>a|b|rc)(?P<number>\d+))?(?:\.post(?P<post>\d+))?(?:\.dev(?P<dev>\d+))?"
)
_CLAUSE: Final = re.compile(r"\s*(?P<operator>==|!=|<=|>=|~=|<|>)\s*(?P<version>[^\s,;=<>!~]+)\s*")
_PRE: Final = {"a": 0, "b": 1, "rc": 2}
_FINAL: Final = (3, 0)
_BEFORE_PRE: Final = (-1, 0)
_NO_DEV: Final = float("inf")

Predicate = Callable[["_Version"], bool]


class _Version(NamedTuple):
    """A version that compares as PEP 440 orders it: pre-releases before, post-releases after their release."""

    release: tuple[int, ...]
    pre: tuple[int, int] = _FINAL
    post: int = -1
    dev: float = _NO_DEV

    @property
    def is_prerelease(self) -> bool:
        return self.pre != _FINAL or self.dev != _NO_DEV

    @property
    def first_development(self) -> _Version:
        return _Version(self.release, _BEFORE_PRE if self.post < 0 else self.pre, self.post, 0)

    @property
    def base(self) -> _Version:
        return _Version(self.release)


@lru_cache(maxsize=8192)
def meets(version: str, specifier: str) -> bool:
    """Return whether a version, pre-releases too, meets a specifier; "" is met by all."""
    parsed, clauses = _parse(version), _clauses(specifier)
    if parsed is None or clauses is None:
        from packaging.specifiers import SpecifierSet  # noqa: PLC0415 (slow to import, and rarely needed)

        return SpecifierSet(specifier).contains(version, prereleases=True)
    return all(clause(parsed) for clause in clauses)


@lru_cache(maxsize=4096)
def satisfiable(specifiers: frozenset[str]) -> bool:
    """Return whether some version meets all of the specifiers.

    Only the versions that specifiers name, and their neighbours, need a trial: what is met changes nowhere else.
    """
    named = [specifier for specifier in specifiers if specifier]
    return not named or any(all(meets(version, each) for each in named) for version in _trials(named))


def newest_first(versions: Iterable[str]) -> list[str]:
    """Return versions, newest first. Raises ValueError (InvalidVersion) for what is no version."""
    listed = [*versions]
    parsed = {version: _parse(version) for version in listed}
    if all(parsed.values()):
        return sorted(listed, key=lambda version: parsed[version] or _Version(()), reverse=True)
    from packaging.version import Version  # noqa: PLC0415 (slow to import, and rarely needed)

    return sorted(listed, key=Version, reverse=True)


def is_prerelease(version: str) -> bool:
    """Return whether a version is a pre-release; what is not one version is none."""
    parsed = _parse(version)
    return parsed is not None and parsed.is_prerelease


@lru_cache(maxsize=4096)
def _parse(version: str) -> _Version | None:
    parts = _VERSION.fullmatch(version)
    if parts is None:
        return None
    release = tuple(int(field) for field in parts["release"].split("."))
    while len(release) > 1 and release[-1] == 0:
        release = release[:-1]
    post = int(parts["post"]) if parts["post"] else -1
    dev = int(parts["dev"]) if parts["dev"] else _NO_DEV
    pre = _FINAL if post >= 0 or dev == _NO_DEV else _BEFORE_PRE
    if parts["pre"]:
        pre = (_PRE[parts["pre"]], int(parts["number"]))
    return _Version(release, pre, post, dev)


@lru_cache(maxsize=4096)
def _clauses(specifier: str) -> list[Predicate] | None:
    """Return the clauses of a specifier, or None where one of them is not plain."""
    if not specifier.strip():
        return []
    clauses = [_clause(text) for text in specifier.split(",")]
    plain = [clause for clause in clauses if clause is not None]
    return plain if len(plain) == len(clauses) else None


def _clause(text: str) -> Predicate | None:
    parts = _CLAUSE.fullmatch(text)
    if parts is None:
        return None
    operator, named = parts["operator"], parts["version"]
    if named.endswith(".*"):
        fields = named.removesuffix(".*")
        return _prefix(fields, same=operator == "==") if operator in ("==", "!=") and _parse(fields) else None
    version = _parse(named)
    return None if version is None else _compared(operator, version, named)


def _prefix(fields: str, *, same: bool) -> Predicate:
    prefix = tuple(int(field) for field in fields.split("."))

    def predicate(version: _Version) -> bool:
        padded = (*version.release, *(0 for _ in prefix))[: len(prefix)]
        return (padded == prefix) is same

    return predicate


def _compared(operator: str, limit: _Version, named: str) -> Predicate | None:
    if operator == "~=":
        fields = named.split(".")
        if len(fields) < 2 or not all(field.isdigit() for field in fields):  # noqa: PLR2004 (~=2 is not allowed)
            return None
        same_series = _prefix(".".join(fields[:-1]), same=True)
        return lambda version: version >= limit and same_series(version)
    # PEP 440: "<2.0" takes no pre-release of 2.0, ">2.0" no post-release of 2.0.
    plain: dict[str, Predicate] = {
        "==": lambda version: version == limit,
        "!=": lambda version: version != limit,
        "<=": lambda version: version <= limit,
        ">=": lambda version: version >= limit,
        "<": lambda version: version < (limit if limit.is_prerelease else limit.first_development),
        ">": lambda version: version > limit and not (version.base == limit.base and limit.post < 0 <= version.post),
    }
    return plain[operator]


def _trials(specifiers: list[str]) -> Iterator[str]:
    """Yield every version that a specifier names, the next one after it in each field, and its last post-release."""
    yield "0"
    for text in ",".join(specifiers).split(","):
        named = text.strip().lstrip("=<>!~").strip().removesuffix(".*")
        parts = _VERSION.match(named)
        if parts is None:
            continue
        yield named
        fields = [*map(int, parts["release"].split(".")), 0]
        for at in range(len(fields)):
            yield ".".join(map(str, [*fields[:at], fields[at] + 1]))
        yield f"{parts['release']}.post99999"
        yield f"{parts['release']}a0"

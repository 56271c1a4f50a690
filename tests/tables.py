"""A table of cases as one test: every case is tried, and all that fail are told together."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml


def beside(test: str, name: str = "") -> Any:
    """Return what the YAML file holds that lies beside a test's file, by its name or that of the test."""
    path = Path(test).with_name(name) if name else Path(test).with_suffix(".yaml")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def one_line(words: str) -> str:
    """Return a pattern that is met by one line with these words in it."""
    return rf"\A.*{re.escape(words)}.*\Z"


def each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test for each case, whose values are the parameters of these names; the others are pytest's fixtures."""
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = list(cases)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failures = []
            for case in table:
                try:
                    test(**dict(zip(keys, case if len(keys) > 1 else [case], strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001, PERF203 (all of the table is tried)
                    failures.append(f"{str(case)[:300]}: {type(error).__name__}: {error}")
            assert table
            assert not failures, "\n\n".join(failures)

        signature = inspect.signature(test)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]  # pytest reads it
        return run

    return decorate

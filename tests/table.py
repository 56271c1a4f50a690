"""One test for a table of rows that say the same of many values: it runs every row, then names all that failed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def table(names: str, rows: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test once for each row, whose values are the arguments `names`. All rows share its fixtures."""
    columns = [name.strip() for name in names.split(",")]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failed = [why for row in rows if (why := _failure(test, _values(columns, row), fixtures))]
            assert not failed, "\n".join(failed)

        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in columns]
        run.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]  # what pytest reads
        return run

    return decorate


def _values(columns: list[str], row: Any) -> dict[str, Any]:
    return dict(zip(columns, row if len(columns) > 1 else (row,), strict=True))


def _failure(test: Callable[..., None], values: dict[str, Any], fixtures: dict[str, Any]) -> str:
    """Return which row failed and why, "" where it holds."""
    try:
        test(**fixtures, **values)
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 (a row that fails hides no other)
        return f"{values}: {type(error).__name__}: {error}"
    return ""

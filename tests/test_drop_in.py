"""Packages to which a file is added."""

from __future__ import annotations

import pytest

from envcheck import data
from envcheck.reports import formats
from envcheck.reports.formats.registry import Format


def test_a_module_is_found_by_its_name_and_the_registry_is_none() -> None:
    assert "registry" not in data.names(formats)
    assert list(data.names(formats)) == sorted(data.names(formats))
    assert data.named(formats, "html", "FORMAT", Format)


def test_a_module_that_holds_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match=r"envcheck\.reports\.formats\.html\.FORMAT is no str"):
        data.named(formats, "html", "FORMAT", str)

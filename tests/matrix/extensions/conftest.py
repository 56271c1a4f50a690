"""The shipped extensions, and a way to ask for some."""

from collections.abc import Callable
from typing import Any

import pytest

from envcheck.matrix.extensions import file
from envcheck.matrix.extensions.answer import ExtensionResolution, resolve_with, wanted_extensions
from envcheck.matrix.extensions.file import Extensions
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.resolver.resolve import Query, resolve

AskWith = Callable[..., ExtensionResolution]


@pytest.fixture(scope="session")
def extensions() -> Extensions:
    return file.loads(file.SHIPPED.read_bytes())


@pytest.fixture(scope="session")
def ask_with(matrix: Matrix, extensions: Extensions) -> AskWith:
    def ask(*names: str, third_party: bool = False, every_cell: bool = False, **axes: Any) -> ExtensionResolution:
        plain = resolve(matrix, Query(**axes))
        expected = wanted_extensions(extensions, [*names])
        return resolve_with(matrix, extensions, plain, expected, third_party=third_party, every_cell=every_cell)

    return ask

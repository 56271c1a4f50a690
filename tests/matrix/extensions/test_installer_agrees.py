"""The installer agrees with answers about extensions: uv, with the package index that is configured here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from envcheck.errors import UnavailableError
from envcheck.images.lock_with_uv import DisagreementError, dry_resolution
from envcheck.matrix.extensions.answer import ExtensionResolution
from envcheck.matrix.facts.model import Cell, Matrix
from envcheck.mirrors.profiles.load import load
from tests.matrix.extensions.sixty_questions import FITS, AskedExtensions

AskWith = Callable[..., ExtensionResolution]
# Small ones of different kinds: a stable ABI, C++ symbols without a pin, no torch at all. docs/tested-where.md has all.
SOME = [question for question in FITS if question.answer in ("xformers 0.0.35", "torchao 0.15.0", "torchcodec 0.17.0")]


@pytest.mark.parametrize("question", SOME, ids=lambda question: question.answer)
def test_what_fits_can_be_installed_together(matrix: Matrix, ask_with: AskWith, question: AskedExtensions) -> None:
    answer = ask_with(*question.requirements.split(), **question.axes)
    cell = Cell.parse(answer.cell or "")
    assert cell is not None
    pins = [f"{each.name}=={each.version}" for each in answer.extensions]
    try:
        packages = dry_resolution(matrix, cell, pins, load("host"), answer.arch)
    except DisagreementError:
        raise
    except UnavailableError as error:
        pytest.skip(f"no package index: {error}")
    assert packages > len(pins)

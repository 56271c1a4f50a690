"""Sixty questions with answers derived by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from envcheck.matrix.extensions.answer import ExtensionResolution
from tests.tables import beside

CASES = beside(__file__)


@pytest.mark.parametrize("question", [*CASES["fits"], *CASES["nothing_fits"]], ids=lambda row: " ".join(row[:2]))
def test_the_answer_is_what_the_facts_say(ask_with: Callable[..., ExtensionResolution], question: list[Any]) -> None:
    requirements, where, expected, *more = question
    torch, variant, python, *gpu = where.split(maxsplit=3)
    axes = {name: value for name, value in (("torch", torch), ("variant", variant), ("python", python)) if value != "-"}
    answer = ask_with(*requirements.split(), gpus=gpu, **axes, **(more[0] if more else {}))
    if question in CASES["fits"]:
        assert ", ".join(f"{each.name} {each.version}" for each in answer.extensions) == expected
        assert answer.legal
    else:
        assert (answer.cell, answer.verdict, answer.extensions) == (None, expected, [])
        assert not answer.legal

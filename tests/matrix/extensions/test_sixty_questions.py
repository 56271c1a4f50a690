"""Sixty questions with answers derived by hand, and a slow check of its own of whatever is answered as fitting."""

from collections.abc import Callable

import pytest

from envcheck.matrix.extensions.answer import ExtensionResolution
from tests.matrix.extensions.sixty_questions import FITS, NOTHING_FITS, QUESTIONS, AskedExtensions

AskWith = Callable[..., ExtensionResolution]


def test_half_of_the_sixty_have_no_answer() -> None:
    assert (len(FITS), len(NOTHING_FITS)) == (30, 30)
    assert all(question.fits for question in FITS)
    assert not any(question.fits for question in NOTHING_FITS)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: f"{q.requirements} {' '.join(map(str, q.axes.values()))}")
def test_the_answer_is_what_the_facts_say(ask_with: AskWith, question: AskedExtensions) -> None:
    answer = ask_with(*question.requirements.split(), **question.axes)
    if question.fits:
        assert ", ".join(f"{each.name} {each.version}" for each in answer.extensions) == question.answer
        assert answer.legal
    else:
        assert (answer.cell, answer.verdict, answer.extensions) == (None, question.answer, [])
        assert not answer.legal

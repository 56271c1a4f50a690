"""What the makers of an outcome hold to, whatever a check's author forgets."""

import pytest

from envcheck.checks import ERROR, PASS, failed, passed, warned, worst
from tests.tables import each


@each("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_no_number_never_passes(value: float) -> None:
    assert passed("fine", value=1.0).status == PASS
    assert passed("fine", value=value).status == ERROR


@each("make", [failed, warned])
def test_a_finding_without_a_remedy_cannot_be_made(make: object) -> None:
    assert callable(make)
    with pytest.raises(TypeError, match="fix"):
        make("broken")


@each(
    "texts, summary",
    [
        ([f"ECC is off on GPU {number}" for number in range(5)], "ECC is off on GPUs 0, 1, 2, 3 and 4"),
        (["links up: GPU 1 12; the others have 18"] * 2, "links up: GPU 1 12; the others have 18"),
        (["lanes: GPU 1 8 of 16", "lanes: GPU 3 8 of 16", "x: GPU 4 4"], "lanes: GPUs 1 and 3: 8 of 16; x: GPU 4 4"),
        (["GPU 0 to GPU 1 is slow", "GPU 1 to GPU 0 is slow"], "GPU 0 to GPU 1 is slow; GPU 1 to GPU 0 is slow"),
        (["GPU 0 is lost", "GPU 1 is lost"], "GPU 0 is lost; GPU 1 is lost"),
        (["GPU 0 (an A2) has none", "GPU 1 (an A2) has none"], "GPU 0 (an A2) has none; GPU 1 (an A2) has none"),
        (["the log is full", "GPU 2 is hot"], "the log is full; GPU 2 is hot"),
    ],
)
def test_gpus_of_which_the_same_is_said_are_told_together(texts: list[str], summary: str) -> None:
    outcome = worst([warned(text, fix="mend it") for text in texts], passed("fine"))
    assert outcome.summary == summary
    assert len(outcome.findings) == len(texts)

"""What the makers of an outcome hold to, whatever a check's author forgets."""

import pytest

from envcheck.checks import ERROR, PASS, failed, passed, warned
from tests.tables import each


@each("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_no_number_never_passes(value: float) -> None:
    assert passed("fine", value=value).status == ERROR


def test_a_number_passes() -> None:
    assert passed("fine", value=1.0).status == PASS


@each("make", [failed, warned])
def test_a_finding_without_a_remedy_cannot_be_made(make: object) -> None:
    assert callable(make)
    with pytest.raises(TypeError, match="fix"):
        make("broken")

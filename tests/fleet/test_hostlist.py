"""Host lists as Slurm reads and writes them."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcheck.errors import ConfigError
from envcheck.fleet.hostlist import MOST, fold, is_name, natural, unfold
from tests.tables import each

WORD = st.text(string.ascii_lowercase + "-._", min_size=0, max_size=4)
NUMBER = st.one_of(st.integers(0, 130).map(str), st.integers(0, 130).map(lambda n: str(n).zfill(3)))
NAME = st.tuples(st.sampled_from("abz09"), WORD, NUMBER, WORD).map("".join)


@given(st.lists(NAME, min_size=1, max_size=60))
def test_a_folded_list_unfolds_to_the_same_names(names: list[str]) -> None:
    folded = fold(names)
    assert sorted(unfold(folded)) == sorted(set(names))
    assert fold(reversed(names)) == folded


def test_what_scontrol_reads_and_writes() -> None:
    read = {
        "n[1-3,5]": ["n1", "n2", "n3", "n5"],
        "n[08-11]": ["n08", "n09", "n10", "n11"],
        "r[1-2]n[01-02]-ib": ["r1n01-ib", "r1n02-ib", "r2n01-ib", "r2n02-ib"],
        "a, b\nc,,a": ["a", "b", "c"],
    }
    assert {text: unfold(text) for text in read} == read
    assert fold(["n10", "n2", "n1", "n3", "login"]) == "login,n[1-3,10]"
    assert fold(["n098", "n099", "n100", "n7"]) == "n[7,098-100]"
    assert sorted(["n10", "n2", "n1", "m"], key=natural) == ["m", "n1", "n2", "n10"], "as people count"


@each("text", ["n[1-3", "n]1", "n[3-1]", "n[]", "n[a-b]", "n[1-2-3]", "$(reboot)", "n[[1]]", "a;b", "-x", "", ", "])
def test_what_is_not_a_host_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        unfold(text)


def test_a_list_of_more_names_than_any_fleet_is_refused_at_once() -> None:
    assert len(unfold(f"n[1-{MOST}]")) == MOST
    for text in (f"n[1-{MOST + 1}]", "n[1-999999999999]", "a[1-999]b[1-999]"):
        with pytest.raises(ConfigError, match="more than"):
            unfold(text)


@each("name", ["<b>", "a,b", "a b", "n[1]", "", "x" * 254, "n\n1", "ñ1", "\u0661"])
def test_a_name_that_a_host_list_cannot_hold_is_refused(name: str) -> None:
    assert not is_name(name)
    with pytest.raises(ConfigError):
        fold([name])

"""Requirements that exclude each other are found."""

import hypothesis.strategies as st
from hypothesis import given, settings
from packaging.specifiers import SpecifierSet

from envcheck.matrix.extensions.fit import satisfiable
from tests.tables import beside, each

CASES = beside(__file__)

FIELDS = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(lambda fields: ".".join(map(str, fields)))
TAILS = st.sampled_from(["", "", "", "a1", "rc2", ".post1", ".post3", "b1.post2", ".dev1", "a1.dev2", ".post1.dev3"])
VERSIONS = st.tuples(FIELDS, TAILS).map("".join)
CLAUSES = st.one_of(
    st.tuples(st.sampled_from(["==", "!=", "<=", ">=", "<", ">"]), VERSIONS).map("".join),
    st.tuples(st.sampled_from(["==", "!="]), FIELDS.map(lambda fields: f"{fields}.*")).map("".join),
    st.tuples(st.just("~="), FIELDS.filter(lambda fields: "." in fields)).map("".join),
)
SPECIFIERS = st.lists(CLAUSES, max_size=3).map(",".join)


GRID = [
    f"{a}.{b}{tail}"
    for a in range(5)
    for b in range(5)
    for tail in ("", "a1", "rc2", "rc3", ".post1", ".post2", ".1", ".3.1")
]


@settings(max_examples=300, deadline=None)
@given(st.lists(SPECIFIERS, max_size=3))
def test_requirements_that_a_version_meets_are_never_called_a_conflict(specifiers: list[str]) -> None:
    whole = SpecifierSet(",".join(filter(None, specifiers)))
    if any(whole.contains(version, prereleases=True) for version in GRID):
        assert satisfiable(frozenset(specifiers))


@each(("specifiers", "possible"), CASES["specifiers"])
def test_what_excludes_each_other_is_found(specifiers: list[str], possible: bool) -> None:  # noqa: FBT001 (an expectation)
    assert satisfiable(frozenset(specifiers)) is possible

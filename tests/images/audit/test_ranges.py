"""Which versions an OSV record affects, held to the order of PEP 440 and to packaging's own specifiers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envcheck.images.audit.ranges import OsvEvent, OsvRange, UncomparableError, affects, in_order

NUMBERS = st.integers(0, 12)
FINAL = st.lists(NUMBERS, min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))
ANY = st.tuples(FINAL, st.sampled_from(["", "a1", "rc2", ".post1", ".dev3", "rc1.dev2"])).map("".join)


def span(*events: OsvEvent, kind: str = "ECOSYSTEM") -> OsvRange:
    return OsvRange(type=kind, events=list(events))


def since(introduced: str, *, fixed: str | None = None, last: str | None = None) -> OsvRange:
    end = [OsvEvent(fixed=fixed)] if fixed else [OsvEvent(last_affected=last)] if last else []
    return span(OsvEvent(introduced=introduced), *end)


@given(version=FINAL, introduced=FINAL, fixed=FINAL)
def test_a_fixed_range_is_that_of_specifiers(version: str, introduced: str, fixed: str) -> None:
    """Final versions only: `<2` leaves out 2rc1, which OSV counts as before 2."""
    if Version(introduced) < Version(fixed):
        expected = SpecifierSet(f">={introduced},<{fixed}").contains(version)
        assert affects(version, [], [since(introduced, fixed=fixed)]) == expected


@given(version=FINAL, introduced=FINAL, last=FINAL)
def test_a_range_with_a_last_version_includes_it(version: str, introduced: str, last: str) -> None:
    if Version(introduced) <= Version(last):
        expected = SpecifierSet(f">={introduced},<={last}").contains(version)
        assert affects(version, [], [since(introduced, last=last)]) == expected


@given(version=ANY, introduced=ANY, fixed=ANY)
def test_pre_and_post_releases_stand_where_pep_440_puts_them(version: str, introduced: str, fixed: str) -> None:
    if Version(introduced) < Version(fixed):
        expected = Version(introduced) <= Version(version) < Version(fixed)
        assert affects(version, [], [since(introduced, fixed=fixed)]) == expected


# "0" has a test of its own: it introduces before every version, where PEP 440 puts 0a1 before 0.
@given(
    version=ANY,
    bounds=st.lists(ANY.filter(lambda at: at != "0"), min_size=1, max_size=6, unique_by=Version),
    order=st.randoms(),
)
def test_the_order_of_the_events_does_not_matter(version: str, bounds: list[str], order: random.Random) -> None:
    """Introduced and fixed by turns, in any order: affected is whose last event at or below is an introduction."""
    bounds = sorted(bounds, key=Version)
    events = [OsvEvent(fixed=at) if index % 2 else OsvEvent(introduced=at) for index, at in enumerate(bounds)]
    expected = sum(Version(at) <= Version(version) for at in bounds) % 2 == 1
    order.shuffle(events)
    assert affects(version, [], [span(*events)]) == expected


@given(version=ANY, fixed=ANY)
def test_zero_is_before_every_version(version: str, fixed: str) -> None:
    assert affects(version, [], [since("0", fixed=fixed)]) == (Version(version) < Version(fixed))
    assert affects(version, [], [since("0")])


@given(version=ANY, listed=st.lists(ANY, max_size=5), local=st.sampled_from(["", "+cpu", "+cu124", "+cu128.1"]))
def test_a_listed_version_is_affected_in_any_spelling(version: str, listed: list[str], local: str) -> None:
    nothing_else = since("999")
    expected = any(Version(version) == Version(one) for one in listed)
    assert affects(f"{version}{local}", listed, [nothing_else]) == expected
    assert affects(f"{version}{local}", ["no version", f"v{version}"], [])


@pytest.mark.parametrize("local", ["", "+cpu", "+cu124"])
def test_a_local_label_is_no_later_version(local: str) -> None:
    """PEP 440 puts 2.5.1+cu124 after 2.5.1: left in, it would pass the last affected version."""
    assert affects(f"2.5.1{local}", [], [since("0", last="2.5.1")])
    assert not affects(f"2.6.0{local}", [], [since("0", last="2.5.1")])
    assert not affects(f"2.6.0{local}", [], [since("0", fixed="2.6.0")])


def test_events_of_one_version_keep_the_records_order() -> None:
    repeated = span(OsvEvent(introduced="0"), OsvEvent(fixed="1.0"), OsvEvent(introduced="1.0"), OsvEvent(fixed="2.0"))
    assert [affects(v, [], [repeated]) for v in ("0.9", "1.0", "1.5", "2.0")] == [True, True, True, False]
    empty = span(OsvEvent(introduced="1.0"), OsvEvent(fixed="1.0"))
    assert not any(affects(v, [], [empty]) for v in ("0.9", "1.0", "2.0"))


def test_a_limit_ends_a_range_and_a_star_does_not() -> None:
    limited = span(OsvEvent(introduced="1"), OsvEvent(limit="2"))
    assert [affects(v, [], [limited]) for v in ("0.9", "1.5", "2.0", "3")] == [False, True, False, False]
    assert affects("3", [], [span(OsvEvent(introduced="1"), OsvEvent(limit="*"))])


def test_one_range_of_several_suffices() -> None:
    both = [since("1", fixed="2"), since("3", fixed="4")]
    assert [affects(v, [], both) for v in ("1.5", "2.5", "3.5", "4")] == [True, False, True, False]


@pytest.mark.parametrize(
    ("versions", "ranges", "message"),
    [
        ([], [], "it names no versions"),
        ([], [span(OsvEvent(introduced="0"), kind="GIT")], "only commits"),
        ([], [since("0", fixed="2-final-build")], "'2-final-build' in its ranges is not a version"),
        (["0.1"], [since("0", fixed="not one")], "'not one'"),
        ([], [span(OsvEvent())], "says nothing that is known"),
        ([], [span(OsvEvent(introduced="0", limit="99"))], "says several things at once"),
        ([], [span(OsvEvent(introduced="0"), OsvEvent(fixed="2", last_affected="3"))], "says several things at once"),
        (["0.1"], [span()], "does not say where it begins"),
        ([], [span(OsvEvent(fixed="99"))], "does not say where it begins"),
        ([], [span(OsvEvent(limit="0.5"))], "does not say where it begins"),
        ([], [span(OsvEvent(introduced="banana"), OsvEvent(limit="0.5"))], "'banana' in its ranges"),
        (["0.1"], [span(OsvEvent(introduced="0"), kind="ecosystem")], "'ecosystem' is no known type"),
        (["all", ">= 0"], [], "'all' of its versions"),
        (["0.1", ">= 0"], [span(OsvEvent(introduced="0"), kind="GIT")], "'>= 0' of its versions"),
        (["1" * 5000], [], "of its versions"),
    ],
)
def test_what_cannot_be_compared_is_never_clean(versions: list[str], ranges: list[OsvRange], message: str) -> None:
    with pytest.raises(UncomparableError, match=message):
        affects("1.0", versions, ranges)


def test_what_can_be_compared_is_found_beside_what_cannot() -> None:
    wrong = since("0", fixed="not one")
    assert affects("1.0", ["1.0"], [wrong])
    assert affects("1.0", [], [wrong, since("0", fixed="2")])
    assert affects("1.0", [], [span(OsvEvent(introduced="0"), kind="other"), since("0", fixed="2")])
    assert not affects("1.0", ["2004d"], [since("0", fixed="1.0")])
    assert not affects("1.0", ["0.9"], [span(OsvEvent(introduced="0"), kind="GIT")])


def test_versions_are_put_in_the_order_of_pep_440_those_not_of_it_last() -> None:
    assert in_order(["9.10", "late", "9.9", "9.10rc1", "all", "9.9"]) == ["9.9", "9.10rc1", "9.10", "all", "late"]

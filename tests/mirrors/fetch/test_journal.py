"""A journal says what a later process may believe: all of it after a kill, what was on the disk after a power cut."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envcheck.mirrors.fetch.disk import partial_file
from envcheck.mirrors.fetch.disk.journal import Header, Journal, read, source_id

HEADER = Header("0" * 64, 10, 1, "this-boot")


@pytest.fixture
def written(tmp_path: Path) -> bytes:
    journal = Journal(tmp_path / "j", HEADER, {7: "old"})
    journal.piece(0, "a")
    journal.piece(1, "a")
    journal.synced(2)
    journal.piece(2, "b")
    journal.forget([0])
    journal.close()
    return (tmp_path / "j").read_bytes()


@pytest.mark.parametrize(
    ("change", "pieces"),
    [({}, {1: "a"}), ({"sha256": "1" * 64}, {}), ({"piece": 2}, {}), ({"size": 11}, {}), ({"boot": "next"}, {})],
)
def test_only_the_same_file_in_the_same_pieces_is_gone_on_with(
    tmp_path: Path, change: dict[str, Any], pieces: dict[int, str]
) -> None:
    part = tmp_path / "part"
    part.write_bytes(bytes(10))
    begun = Journal(partial_file.journal_path(part), HEADER, {})
    begun.piece(1, "a")
    begun.close()
    assert partial_file.valid_pieces(part, dataclasses.replace(HEADER, **change)) == pieces


def test_after_a_kill_every_line_holds(written: bytes) -> None:
    assert read(written, "this-boot") == (HEADER, {7: "old", 1: "a", 2: "b"})


@pytest.mark.parametrize("boot", ["another-boot", ""])
def test_after_a_power_cut_only_what_was_synced_holds(written: bytes, boot: str) -> None:
    """Piece 1 was never synced, and piece 0 was to come again: its bytes may be half of the one file and of another."""
    assert read(written.replace(b'{"synced": 2}', b'{"synced": 1}\n{"piece": 3, "source": "a"}'), boot)[1] == {7: "old"}
    assert read(written, boot) == (HEADER, {7: "old"})
    assert read(written[: written.index(b'{"forget')], boot) == (HEADER, {7: "old", 0: "a"})


def test_a_torn_line_ends_it(written: bytes) -> None:
    assert read(written[:-5], "this-boot") == (HEADER, {7: "old", 0: "a", 1: "a", 2: "b"})
    torn = written + b'{"piece": 9, "sou\x00\x00\x00\n{"piece": 3, "source": "a"}\n'
    assert read(torn, "this-boot") == read(written, "this-boot")


def test_a_lie_about_what_is_synced_is_no_more_than_there_is(written: bytes) -> None:
    assert read(written + b'{"synced": 99}\n', "another-boot")[1] == {7: "old", 1: "a", 2: "b"}


def test_a_source_is_not_told() -> None:
    assert "token" not in source_id("https://host/file?token=secret")
    assert source_id("https://host/a") != source_id("https://host/b")


@given(st.binary(max_size=300))
def test_what_is_no_journal_says_nothing(text: bytes) -> None:
    assert read(text, "this-boot") == (None, {})


ROWS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["piece", "source", "forget", "synced", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.lists(ROWS, max_size=8), st.sampled_from(["this-boot", "another-boot"]))
def test_whatever_follows_a_header_no_line_breaks_the_reader(rows: list[object], boot: str) -> None:
    head = {"envcheck-fetch": 1, "sha256": "0" * 64, "size": 10, "piece": 1, "boot": "this-boot"}
    text = b"".join(json.dumps(row).encode() + b"\n" for row in [head, *rows])
    header, pieces = read(text, boot)
    assert header == HEADER
    assert all(isinstance(piece, int) and isinstance(source, str) for piece, source in pieces.items())


STEP = st.one_of(
    st.tuples(st.just("piece"), st.integers(0, 3), st.sampled_from(["a", "b", ""])),
    st.tuples(st.just("forget"), st.lists(st.integers(0, 3), min_size=1, max_size=3), st.just("")),
    st.tuples(st.just("synced"), st.integers(0, 9), st.just("")),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=12), st.sampled_from([0, 0, 0, 1, 7, 40, 90]))
def test_however_much_of_it_was_written_it_says_what_held_then(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any, str]], cut: int
) -> None:
    """Against the simplest reader there can be, after a kill in the middle of any line, and after a power cut."""
    path = tmp_path_factory.mktemp("journal") / "j"
    journal = Journal(path, HEADER, {7: "old"})
    states, sure = [(path.stat().st_size, {7: "old"}, {7: "old"})], {7: "old"}
    notes: list[dict[int, str]] = [{7: "old"}]
    for what, value, source in steps:
        now, lasting = dict(states[-1][1]), dict(states[-1][2])
        if what == "piece":
            journal.piece(value, source)
            now[value] = source
        elif what == "forget":
            journal.forget(value)
            now = {piece: result for piece, result in now.items() if piece not in value}
            lasting = {piece: result for piece, result in lasting.items() if piece not in value}
        else:
            journal.synced(1 + min(value, len(notes) - 1))
            lasting = {**notes[min(value, len(notes) - 1)]}
        if what != "synced":
            notes.append(now)
            notes = [{p: s for p, s in n.items() if what != "forget" or p not in value} for n in notes]
        states.append((path.stat().st_size, now, lasting))
    journal.close()
    text = path.read_bytes()
    text = text[: max(states[0][0], len(text) - cut)]
    _, now, sure = next(state for state in reversed(states) if state[0] <= len(text))
    assert read(text, "this-boot")[1] == now
    assert read(text, "another-boot")[1] == sure


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=40))
def test_a_damaged_journal_breaks_nothing_that_reads_it(
    tmp_path_factory: pytest.TempPathFactory, at: int, damage: bytes
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    part = folder / "part"
    part.write_bytes(bytes(10))
    journal = Journal(partial_file.journal_path(part), HEADER, {7: "old", 1: "a"})
    for piece in range(6):
        journal.piece(piece, "a")
        journal.synced(piece)
    journal.close()
    text = bytearray(partial_file.journal_path(part).read_bytes())
    at %= len(text)
    text[at : at + len(damage)] = damage
    partial_file.journal_path(part).write_bytes(text)
    known = partial_file.valid_pieces(part, HEADER)
    assert all(0 <= piece < 10 and isinstance(source, str) for piece, source in known.items())

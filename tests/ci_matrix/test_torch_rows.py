"""What the indexes list and the matrix lacks becomes unverified rows; nothing is removed, and nothing is guessed."""

from canonical import dump
from torch_rows import (
    Proposal,
    RefreshSource,
    SeenIndexes,
    SeenWheel,
    propose,
)

from envcheck.matrix.facts.model import Build, Matrix, TorchVariant

SOURCE = RefreshSource("refresh-2027-01-02", "the pages of a test", "2027-01-02")
NEW = "9.9.0"


def seen(torch: str, variant: str | None, python: str = "3.12", arch: str = "x86_64", **more: str) -> SeenWheel:
    local = f"+{variant}" if variant else ""
    name = f"torch-{torch}{local}-cp{python.replace('.', '')}-{arch}.whl"
    return SeenWheel(torch, variant, arch, python, name, "a" * 64, more.get("uploaded"))


def proposed(matrix: Matrix, *wheels: SeenWheel, **pypi: str | None) -> Proposal:
    variants = {(NEW, arch): name for arch, name in pypi.items()}
    return propose(matrix, SeenIndexes([*wheels], variants, {NEW: "9.0.0"}), SOURCE)


def variant(matrix: Matrix, torch: str, name: str) -> TorchVariant:
    release = matrix.release(torch)
    row = release.variant(name) if release else None
    assert row is not None
    return row


def build(matrix: Matrix, torch: str, name: str, arch: str = "x86_64") -> Build:
    return next(row for row in variant(matrix, torch, name).builds if row.arch == arch)


def test_what_the_matrix_has_is_proposed_by_nobody(matrix: Matrix) -> None:
    known = [
        seen(release.torch, row.variant, python, made.arch)
        for release in matrix.torch
        for row in release.variants
        for made in row.builds
        for python in made.python
    ]
    proposal = proposed(matrix, *known)
    assert (proposal.rows, proposal.left_out) == ([], [])
    assert dump(proposal.matrix) == dump(matrix)


def test_a_new_variant_and_a_new_architecture_of_a_known_release(matrix: Matrix) -> None:
    assert "aarch64" in variant(matrix, "2.14.1", "cu126").unseen
    proposal = proposed(matrix, seen("2.14.1", "cu126", arch="aarch64"), seen("2.8.0", "cu130"))
    assert build(proposal.matrix, "2.14.1", "cu126", "aarch64").verified is False
    assert variant(proposal.matrix, "2.14.1", "cu126").unseen == []
    assert build(proposal.matrix, "2.14.1", "cu126") == build(matrix, "2.14.1", "cu126")
    assert build(proposal.matrix, "2.8.0", "cu130").python == ["3.12"]


def test_a_new_python_makes_its_whole_row_unverified_and_says_which_is_new(matrix: Matrix) -> None:
    before = build(matrix, "2.15.0", "cu132")
    assert before.verified
    after = build(proposed(matrix, seen("2.15.0", None, "3.16")).matrix, "2.15.0", "cu132")
    assert after.python == [*before.python, "3.16"]
    assert (after.verified, after.sass) == (False, before.sass)
    assert after.note == f"Python 3.16: proposed by {SOURCE.key}, the others were there before"
    assert after.source == sorted([*before.source, SOURCE.key])


def test_what_cannot_be_placed_is_named_and_not_guessed(matrix: Matrix) -> None:
    proposal = proposed(matrix, seen(NEW, None), seen(NEW, None, arch="aarch64"), x86_64="cu199", aarch64=None)
    assert proposal.rows == []
    assert proposal.matrix.release(NEW) is None
    unknown, strange = proposal.left_out
    assert unknown == (
        "torch 9.9.0 for aarch64 on the Python index: its requirements do not say which CUDA it is built with"
    )
    assert "cu199 is of a CUDA that is not among cuda.minors" in strange

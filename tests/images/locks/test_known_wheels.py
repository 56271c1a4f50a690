"""What is known of wheels without their index: consistent with itself, the matrix, and the locks made from it."""

from __future__ import annotations

import re

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from envcheck.data import data_path
from envcheck.images.known_wheels import known_cell, known_wheels
from envcheck.images.lockfile import Lock, read_locks, version_of
from envcheck.matrix.facts.model import Cell, TorchRelease
from envcheck.matrix.file.load import load
from tests.tables import each

MATRIX = load()
TABLE = known_wheels()
KNOWN = [cell for cell in MATRIX.cells() if TABLE.variant(cell.torch, cell.variant)]


def _release(torch: str) -> TorchRelease:
    release = MATRIX.release(torch)
    assert release is not None
    return release


def _locks(cell: Cell) -> list[Lock]:
    return read_locks(data_path("images") / str(cell))


def test_every_row_names_its_sources_and_every_source_is_named() -> None:
    named = {name for row in TABLE.variants for name in row.source} | {*TABLE.wheels.source}
    assert named == {*TABLE.sources}
    assert all(row.note for row in TABLE.variants if not row.verified)


def test_every_wheel_is_of_a_release_and_variant_that_has_a_row() -> None:
    rows = {(row.torch, row.variant) for row in TABLE.variants}
    torches = {release.torchvision: release.torch for release in MATRIX.torch}
    for path, digest in TABLE.wheels.sha256.items():
        actual = re.match(r"whl/(?P<variant>\w+)/(?P<name>torch|torchvision)-(?P<version>[0-9.]+)", path)
        assert actual, path
        torch = actual["version"] if actual["name"] == "torch" else torches[actual["version"]]
        assert (torch, actual["variant"]) in rows, path
        assert re.fullmatch("[0-9a-f]{64}", digest), path


@each("row", TABLE.variants)
def test_a_row_agrees_with_the_matrix(row: object) -> None:
    assert isinstance(row, type(TABLE.variants[0]))
    variant = _release(row.torch).variant(row.variant)
    assert variant is not None
    pinned = {actual.name: actual.specifier for actual in map(Requirement, row.requires)}
    for library, fact in (("cudnn", variant.cudnn), ("nccl", variant.nccl)):
        names = [name for name in pinned if re.fullmatch(rf"nvidia-{library}(-cu\d+)?", name)]
        assert len(names) == (variant.cuda is not None)
        assert not fact or pinned[names[0]] == SpecifierSet(f"=={fact}")
    assert (row.requires == []) == (variant.cuda is None)


@each("cell", KNOWN)
def test_the_locks_of_other_variants_hold_the_known_hashes(cell: Cell) -> None:
    release = _release(cell.torch)
    known = known_cell(release, cell, {"torchvision": release.torchvision or ""}, "x86_64")
    if cell.variant == release.pypi["x86_64"]:
        assert known is None
        return
    assert known is not None
    torch = next(lock for lock in _locks(cell) if lock.group == "torch")
    assert torch.index == f"pytorch/{cell.variant}"
    by_name = {pin.name: pin for pin in known.pins}
    assert version_of([torch], "torch") == f"{cell.torch}+{cell.variant}"
    assert all(pin == by_name[pin.name] for pin in torch.pins)

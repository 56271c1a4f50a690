"""`envcheck build` of a cell that is legal and not published: its lock is made first, said to be new, and kept."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from envcheck.cli import cli
from envcheck.cli.building.cell_to_build import spec_to_build
from envcheck.data import data_path
from envcheck.errors import ConfigError, PromiseError, UnavailableError
from envcheck.images import lock_on_top, lock_with_uv
from envcheck.images.engines import venv
from envcheck.images.lockfile import Lock, Pin, read_locks
from envcheck.images.spec import ImageSpec
from envcheck.matrix.facts.model import Cell, HostArch
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.resolve import Query, resolve

MATRIX = load()
CELL = "torch2.14.1-cpu-py312"
PUBLISHED = "torch2.8.0-cpu-py312"
LOCKS = [
    Lock(group="torch", index="pytorch/cpu", pins=[Pin(name="torch", version="2.14.1+cpu", sha256=["a" * 64])]),
    Lock(group="base", index="pypi", pins=[Pin(name="numpy", version="2.5.5", sha256=["b" * 64])]),
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def specs(monkeypatch: pytest.MonkeyPatch) -> list[ImageSpec]:
    """Take what would be built instead of building it."""
    built: list[ImageSpec] = []

    def build(spec: ImageSpec, *_args: object, **_options: object) -> None:
        built.append(spec)
        message = "nothing is built"
        raise PromiseError(message, fix="")

    monkeypatch.setattr(venv, "build", build)
    return built


@pytest.fixture
def requested_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Answer for the index, and note which cells it was asked for."""
    cells: list[str] = []

    def make(_matrix: object, cell: Cell, *_: object) -> list[Lock]:
        cells.append(str(cell))
        return LOCKS

    monkeypatch.setattr(lock_with_uv, "lock_cell", make)
    return cells


def build(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["build", "--engine", "venv", "--mirror", "none", *arguments], standalone_mode=False)


def test_the_lock_is_made_kept_and_used_again(home: Path, specs: list[ImageSpec], requested_names: list[str]) -> None:
    first = build(CELL)
    assert isinstance(first.exception, PromiseError), first.output
    assert f"{CELL} has no lock: made through mirror profile none" in first.stderr
    assert "trust on first use" in first.stderr
    assert sorted(path.name for path in (home / "images" / CELL).iterdir()) == ["base.lock", "torch.lock"]
    repeated = build(CELL)
    assert f"lock    of an earlier build: {home / 'images' / CELL}" in repeated.stderr
    assert (requested_names, [spec.locks for spec in specs]) == ([CELL], [LOCKS, LOCKS])


def test_the_lock_of_a_target_is_made_on_top_of_the_shipped_locks(
    home: Path, specs: list[ImageSpec], requested_names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = Lock(group="train", index="pypi", pins=[Pin(name="peft", version="1", sha256=["c" * 64])])
    held: list[list[Lock]] = []

    def add(_matrix: object, _cell: object, _target: object, locks: list[Lock], *_: object, **__: object) -> list[Lock]:
        held.append(locks)
        return [train]

    monkeypatch.setattr(lock_on_top, "lock_target", add)
    shipped = read_locks(data_path("images") / PUBLISHED)
    for result in (f"{PUBLISHED} has no lock of its target train", "of an earlier build"):
        assert result in build(PUBLISHED, "--target", "train").stderr
    assert (requested_names, held, [spec.locks for spec in specs]) == ([], [shipped], [[*shipped, train]] * 2)
    older = home / "images" / PUBLISHED / "base.lock"
    older.write_text(older.read_text().replace("numpy==", "numpy==0."))
    assert "has no lock of its target train" in build(PUBLISHED, "--target", "train").stderr


def test_an_index_that_does_not_answer_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> list[Lock]:
        message = "the index is away"
        raise UnavailableError(message, fix="")

    monkeypatch.setattr(lock_with_uv, "lock_cell", silent)
    assert isinstance(build(CELL).exception, UnavailableError)
    assert not (home / "images").exists()


def test_a_plan_asks_no_index_and_writes_nothing(
    home: Path, requested_names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(venv, "find_python", lambda _version: sys.executable)
    plan = build(CELL, "--dry-run")
    assert (plan.exception, requested_names, [*home.iterdir()]) == (None, [], [])
    assert plan.stdout.splitlines() == [
        "engine  venv",
        f"cell    {CELL}",
        f"lock    made first, through mirror profile none; kept in {home / 'images' / CELL}",
        "key     known once the lock is made",
    ]
    shown = json.loads(build(CELL, "--dry-run", "--json").stdout)
    assert (shown["cell"], shown["key"], shown["lock"]) == (CELL, None, "made first")


def _takes(cell: str, arch: HostArch) -> bool:
    """Return whether `envcheck build --dry-run` gets a spec, published or to be locked first."""
    try:
        spec_to_build(MATRIX, cell, "runtime", None, arch)
    except ConfigError:
        return False
    return True


NATIVE = [row.native_driver for row in MATRIX.cuda.minors if "." in row.native_driver]
DRIVERS = [None, *NATIVE, *(f"{row.branch}.99" for row in MATRIX.drivers)]


@settings(max_examples=60, deadline=None)
@given(
    torch=st.sampled_from([None, *(release.torch for release in MATRIX.torch)]),
    gpus=st.lists(st.sampled_from([gpu.name for gpu in MATRIX.gpus]), max_size=1),
    driver=st.sampled_from(DRIVERS),
    python=st.sampled_from([None, "3.9", "3.11", "3.13", "3.14"]),
    data=st.data(),
)
def test_resolve_and_build_agree(
    torch: str | None, gpus: list[str], driver: str | None, python: str | None, data: st.DataObject
) -> None:
    """Build takes what resolve calls legal where a base has its Python, and all that resolve names for it."""
    answer = resolve(MATRIX, Query(torch=torch, gpus=gpus, driver=driver, python=python))
    named = {cell for cell in (answer.published, answer.buildable) if cell}
    assert all(_takes(cell, answer.arch) for cell in named)
    legal = [cell for row in answer.ranked if (cell := Cell.parse(row.cell))]
    can = [cell for cell in legal if MATRIX.base(cell.python) is not None]
    assert answer.buildable == (str(can[0]) if can else None)
    if legal:
        cell = data.draw(st.sampled_from(legal))
        assert _takes(str(cell), answer.arch) == (MATRIX.base(cell.python) is not None)

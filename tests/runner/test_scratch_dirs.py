"""What a run that was killed leaves behind is removed by the next one, and nothing else ever is."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from envcheck.runner import worker_session

HOLDER = """
import pathlib, sys, time
sys.path.insert(0, sys.argv[1])
from envcheck.runner import worker_session
with worker_session.scratch_directory() as made:
    (made / "big").touch()
    print(made, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where this process, and those it starts, make their temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def another(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Return another process that holds a directory, and which."""
    root = str(Path(worker_session.__file__).parents[2])
    command = [sys.executable, "-c", HOLDER, root]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        made = Path(process.stdout.readline().strip())
        assert made.parent.parent == place
        yield process, made
        process.kill()


Another = tuple[subprocess.Popen[str], Path]


def test_what_a_killed_run_left_is_removed_by_the_next(another: Another, place: Path) -> None:
    process, left = another
    process.kill()
    process.wait()
    assert (left / "big").exists()
    with worker_session.scratch_directory() as mine:
        assert [*place.iterdir()] == [mine.parent]
        assert mine.stat().st_mode & 0o777 == 0o777
        assert mine.parent.stat().st_mode & 0o777 == 0o700
    assert [*place.iterdir()] == []


def test_a_run_that_goes_on_keeps_its_directory(another: Another, place: Path) -> None:
    process, held = another
    with worker_session.scratch_directory() as mine:
        assert sorted(place.iterdir()) == sorted([held.parent, mine.parent])
    assert [*held.iterdir()] != []
    process.communicate("")
    assert [*place.iterdir()] == []


def left_behind(place: Path, name: str) -> Path:
    """Make a directory that looks as one of a killed run does."""
    made = place / name
    (made / "plan").mkdir(parents=True)
    (made / "plan/owner").write_text("1\n")
    return made


def test_what_is_not_of_a_killed_run_stays(tmp_path: Path) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    (place / "envcheck-run-unmarked").mkdir()
    (place / "envcheck-run-file").touch()
    left_behind(place, "envcheck-other")
    left_behind(tmp_path, "elsewhere")
    (place / "envcheck-run-link").symlink_to(tmp_path / "elsewhere")
    (place / "envcheck-run-lies/plan").mkdir(parents=True)
    (place / "envcheck-run-lies/plan/owner").symlink_to(tmp_path / "elsewhere/plan/owner")
    before = sorted(place.iterdir())
    path = left_behind(place, "envcheck-run-gone")
    worker_session.remove_abandoned(place)
    assert sorted(place.iterdir()) == before
    assert not path.exists()
    assert (tmp_path / "elsewhere/plan/owner").exists()


def test_where_there_are_no_locks_a_run_has_its_directory_and_no_other_takes_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with worker_session.scratch_directory() as mine:
        monkeypatch.undo()
        worker_session.remove_abandoned(place)
        assert mine.is_dir()
    assert [*place.iterdir()] == []

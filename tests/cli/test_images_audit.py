"""`envcheck images audit`: what it prints, and how it ends."""

from __future__ import annotations

import datetime as dt
import json
import zipfile
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from envcheck.cli import cli
from envcheck.errors import UnavailableError
from envcheck.images.audit.judge import FLOOR

CELL = "torch2.13.0-cpu-py311"


def audit(
    tmp_path: Path, *arguments: str, name: str = "torch", fixed: str = "2.14.0", age: int = 1, others: int = FLOOR
) -> Result:
    """Audit the cell with a database of one record, and old ones of another package."""
    modified = dt.datetime.now(dt.timezone.utc) - dt.timedelta(age)
    events: list[dict[str, Any]] = [{"introduced": "0"}, {"fixed": fixed}]
    affected = {"package": {"ecosystem": "PyPI", "name": name}, "ranges": [{"type": "ECOSYSTEM", "events": events}]}
    record = {"id": "PYSEC-1", "modified": modified.isoformat(), "affected": [affected], "details": "It is bad."}
    (tmp_path / "PYSEC-1.json").write_text(json.dumps(record))
    elsewhere = {"package": {"ecosystem": "PyPI", "name": "something-else"}, "versions": ["1"]}
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for number in range(others):
            other = {"id": f"OTHER-{number}", "modified": "2020-01-01T00:00:00Z", "affected": [elsewhere]}
            archive.writestr(f"{number}.json", json.dumps(other))
    command = ["images", "audit", CELL, "--osv", str(tmp_path), *arguments]
    return CliRunner().invoke(cli, command, standalone_mode=False)


def test_a_vulnerability_is_named_with_its_fix(tmp_path: Path) -> None:
    done = audit(tmp_path)
    assert done.return_value == 1
    assert done.stdout.splitlines()[:2] == [
        "found    torch 2.13.0+cpu (/opt/venv): PYSEC-1; fixed in 2.14.0",
        "         It is bad.",
    ]
    assert done.stdout.splitlines()[-1].startswith(f"{CELL} runtime: found; ")


def test_a_clean_cell_says_what_was_not_seen(tmp_path: Path) -> None:
    done = audit(tmp_path, fixed="2.13.0")
    assert done.return_value == 0
    assert "not seen the distribution's packages" in done.stdout
    assert f"{CELL} runtime: clean; " in done.stdout


def test_what_envcheck_itself_brings_into_the_image_is_audited(tmp_path: Path) -> None:
    done = audit(tmp_path, name="msgspec", fixed="99")
    assert done.return_value == 1
    assert "(/opt/envcheck): PYSEC-1" in done.stdout


def test_an_old_database_is_undetermined(tmp_path: Path) -> None:
    done = audit(tmp_path, fixed="2.13.0", age=45)
    assert done.return_value == 3
    assert "unknown  the newest record is 45 days old, and at most 30 are allowed" in done.stdout
    assert audit(tmp_path, "--max-age", "60", fixed="2.13.0", age=45).return_value == 0


def test_a_small_database_is_undetermined_unless_it_is_said_to_be_partial(tmp_path: Path) -> None:
    done = audit(tmp_path, fixed="2.13.0", others=3)
    assert done.return_value == 3
    assert "unknown  4 records of PyPI, and a whole database has at least 1000: " in done.stdout
    stated = audit(tmp_path, "--partial", fixed="2.13.0", others=3)
    assert stated.return_value == 0
    assert f"{CELL} runtime: clean by a partial database; " in stated.stdout
    shown = json.loads(audit(tmp_path, "--partial", "--json", fixed="2.13.0", others=3).stdout)
    assert (shown["verdict"], shown["partial"]) == ("clean", True)


def test_files_that_are_no_records_are_counted(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("no record")
    assert "; ignored 1 file, neither .json nor .zip" in audit(tmp_path).stdout


def test_more_days_than_a_century_are_refused(tmp_path: Path) -> None:
    assert audit(tmp_path, "--max-age", "36500").return_value == 1
    assert isinstance(audit(tmp_path, "--max-age", "36501").exception, click.BadParameter)


def test_the_result_is_also_for_programs(tmp_path: Path) -> None:
    shown = json.loads(audit(tmp_path, "--json").stdout)
    assert (shown["schema"], shown["verdict"], shown["target"]) == ("envcheck/images-audit/1", "found", "runtime")
    assert shown["findings"][0]["fixed"] == ["2.14.0"]


@pytest.mark.parametrize("arguments", [[], ["--osv", "nowhere"]])
def test_without_a_database_it_is_undetermined(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(cli, ["images", "audit", CELL, *arguments]).exception
    assert isinstance(error, UnavailableError)
    assert error.exit_code == 3
    assert "--osv" in str(error)
    result = CliRunner().invoke(cli, ["images", "audit", CELL, "--json", *arguments])
    assert isinstance(result.exception, UnavailableError)
    shown = json.loads(result.stdout)
    assert (shown["schema"], shown["verdict"]) == ("envcheck/images-audit/1", "undetermined")
    assert shown["undetermined"] == [str(error)]

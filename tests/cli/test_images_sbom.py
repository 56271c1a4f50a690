"""`envcheck images sbom`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.errors import ConfigError
from tests.wheels import wheel

CELL = "torch2.13.0-cpu-py311"
RUNTIME = "torch2.4.1-cu121-py310"  # published as this one target


def test_it_is_printed_and_unknown_licences_are_counted(tmp_path: Path) -> None:
    wheel(tmp_path, "mpmath", "1.3.0", metadata="License: BSD\n")
    command = ["images", "sbom", CELL, "--metadata", str(tmp_path)]
    shown = CliRunner().invoke(cli, command, env={"SOURCE_DATE_EPOCH": "0"})
    assert shown.exit_code == 0, shown.output
    document = json.loads(shown.stdout)
    assert (document["bomFormat"], document["metadata"]["timestamp"]) == ("CycloneDX", "1970-01-01T00:00:00Z")
    total = len(document["components"])
    assert f"{total - 1} of {total} licences are not known: give --metadata DIR" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([RUNTIME, "--target", "jupyter"], f"{RUNTIME} is not published as jupyter; choose --target runtime"),
        (["torch2.13*"], "'torch2.13*' names 5 cells; name one at a time, e.g. torch2.13.0-cpu-py311"),
        (["torch1.0"], "no published cell is named 'torch1.0'"),
    ],
)
def test_what_is_no_image_is_one_line(arguments: list[str], message: str) -> None:
    error = CliRunner().invoke(cli, ["images", "sbom", *arguments]).exception
    assert isinstance(error, ConfigError)
    assert str(error).startswith(message)


def test_a_date_that_is_none_and_a_cell_without_a_lock_are_one_line(tmp_path: Path) -> None:
    for date in ("today", "9" * 20):
        error = CliRunner().invoke(cli, ["images", "sbom", CELL], env={"SOURCE_DATE_EPOCH": date}).exception
        assert f"SOURCE_DATE_EPOCH is {date!r}, not seconds since 1970" in str(error)
    (tmp_path / "images").mkdir()
    error = CliRunner().invoke(cli, ["images", "sbom", CELL, "--images", str(tmp_path / "images")]).exception
    assert f"{CELL} has no lock; run `envcheck lock {CELL}`" in str(error)

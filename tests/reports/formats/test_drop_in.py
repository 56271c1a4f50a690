"""A report format is one module of envcheck/reports/formats: the command line takes it as soon as it is there."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from envcheck.cli import cli
from envcheck.reports import formats

REPORT = Path(__file__).parents[2] / "data" / "reports" / "h200x1.json"
CSV = """
from envcheck.reports.formats import Format
FORMAT = Format(lambda report: "".join(f"{one.id},{one.status}\\n" for one in report.outcomes), suffix=".csv")
"""
Convert = Callable[..., Result]


@pytest.fixture
def convert(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Convert:
    """Return what runs `envcheck report convert` as a fresh process would, with tmp_path as part of the formats."""
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])

    def invoke(*words: str) -> Result:
        monkeypatch.delitem(sys.modules, "envcheck.cli.commands.report", raising=False)
        return CliRunner().invoke(cli, ["report", "convert", str(REPORT), *words])

    return invoke


def test_a_new_module_is_a_format_that_the_command_line_takes(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "'table_of_outcomes' is not one of" in convert("--format", "table_of_outcomes").output
    (tmp_path / "table_of_outcomes.py").write_text(CSV)
    done = convert("--format", "table_of_outcomes")
    assert (done.exit_code, done.output.splitlines()[0].count(",")) == (0, 1)
    assert "table_of_outcomes" in convert("--help").output
    (tmp_path / "table_of_outcomes.py").write_text("FORMAT = 'csv'")
    monkeypatch.delitem(sys.modules, "envcheck.reports.formats.table_of_outcomes")
    with pytest.raises(TypeError, match=r"table_of_outcomes\.FORMAT is no Format"):
        formats.named("table_of_outcomes")

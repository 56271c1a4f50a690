"""The files a run leaves behind: where they go, and how they are written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from envcheck.reports.model import RunReport

DEFAULT: Final = Path("envcheck-report.json")


def written(output: Path | None, forms: dict[str, Path]) -> list[str]:
    """Return where the report is, in each of its forms."""
    report = f"report: {output}" if output else "no report written: this directory is read-only; give --output"
    return [report, *(f"page: {path}" for form, path in forms.items() if form == "html")]


def write(report: RunReport, forms: dict[str, Path]) -> None:
    """Write the page whole or not at all; the steps of a CI job append to one summary."""
    from envcheck.reports.forms import FORMS
    from envcheck.reports.model import put

    for form, path in forms.items():
        text = FORMS[form](report)
        if form != "markdown":
            put(text.encode(), path)
            continue
        with path.open("a", encoding="utf-8") as stream:
            stream.write(text)


def apart(**paths: Path | None) -> None:
    """Refuse one file for two things: the second would be all that is left."""
    named: dict[Path, str] = {}
    for option, path in paths.items():
        if path is None:
            continue
        other = named.setdefault(path.resolve(), option)
        if other != option and not (path.exists() and not path.is_file()):
            message = f"--{other} and --{option} are both {path}"
            raise ConfigError(message, fix="give each a file of its own")


def destination(output: Path | None, option: str = "output") -> Path | None:
    """Return where the report goes; None where the default place cannot be written to."""
    import tempfile

    path = output or DEFAULT
    try:
        # To try is the one way to know: root may write to everything but a read-only filesystem.
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        if output is None:
            return None
        message = f"cannot write to {path.parent}: {error.strerror}"
        raise ConfigError(message, fix=f"give --{option} a file in a directory that exists and is yours") from error
    return path

"""The files a run leaves behind: where they go, and how they are written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from envcheck.cli.report_output import node_files
from envcheck.cli.report_output.node_files import Node, Output
from envcheck.errors import ConfigError
from envcheck.reports.formats import registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from envcheck.reports.model import RunReport

DEFAULT: Final = Path("envcheck-report.json")
_JSON: Final = ".json"
# The option that has a run write its report in another format too.
OPTIONS: Final = {"html": "--html", "junit": "--junit", "markdown": "--summary"}
_WRITTEN: Final = {"html": "page", "junit": "JUnit"}
_REPLACED: Final = ("output", "html", "junit")  # options whose file gets another inode


class Destinations(NamedTuple):
    """Where a run's report goes, in which other formats, and what takes names out of it and of each printed line."""

    report: Path | None
    formats: dict[str, Path]
    redacted: Callable[[RunReport], RunReport]
    redacted_line: Callable[[str], str]


def written(files: Destinations) -> list[str]:
    """Return a line for the report and for each other file that was written of it, a shared summary left out."""
    report = files.report
    first = f"report: {report}" if report else "no report written: this directory is read-only; give --output"
    return [first, *(f"{_WRITTEN[name]}: {path}" for name, path in files.formats.items() if name in _WRITTEN)]


def write(report: RunReport, formats: dict[str, Path]) -> None:
    """Write each format whole or not at all; one that appends goes to the end of its file."""
    from envcheck import safe_files

    for name, path in formats.items():
        written_as = registry.named(name)
        text = written_as.render(report)
        if not written_as.appends:
            safe_files.replace(path, text.encode())
            continue
        try:
            with path.open("a", encoding="utf-8") as stream:
                stream.write(text)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error


def apart(**paths: Path | None) -> None:
    """Refuse one file for two things, standard output among them: the second would be all that is left.

    An argument has its name in capitals, an option without dashes.
    """
    named: dict[Path, str] = {}
    printed = os.fstat(1)
    for option, path in paths.items():
        if path is None:
            continue
        # Path.resolve raises on links that lead in a circle.
        other = named.setdefault(Path(os.path.realpath(path)), option)
        if option in _REPLACED and path.is_file() and os.path.samestat(path.stat(), printed):
            message = f"--{option} and standard output are both {path}"
            raise ConfigError(message, fix="give each a file of its own")
        if other != option and not (path.exists() and not path.is_file()):
            # Without names the path of `report redact` would be a pseudonym; the argument is in the command line.
            same = "the same file" if other.isupper() else f"both {path}"
            message = f"{_typed(other)} and {_typed(option)} are {same}"
            raise ConfigError(message, fix="give each a file of its own")


def _typed(name: str) -> str:
    return name if name.isupper() else f"--{name}"


def require_working_directory() -> None:
    """Raise ConfigError where the directory this command was started in is gone: the report could go nowhere."""
    try:
        Path.cwd()
    except OSError as error:
        message = f"the working directory cannot be used: {error.strerror}"
        raise ConfigError(message, fix="change to a directory that exists") from error


def destination(
    output: Output | None, default: Path, node: Node, option: str = "output", *, name: str | None = None, dry: bool
) -> Path | None:
    """Return where this node's report goes, in the format of that `name`, else as JSON; None if the default cannot.

    A directory that was asked for is made, unless the run is only planned (`dry`).
    """
    import tempfile

    path = (output or Output(default)).of(node, registry.named(name).suffix if name else _JSON)
    if dry and output and output.directory:
        return path
    try:
        if output and output.directory:
            output.path.mkdir(parents=True, exist_ok=True)
        if node_files.is_no_file(path):
            return path
        # To try is the one way to know: root may write to everything but a read-only filesystem.
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        if output is None:
            return None
        message = f"cannot write to {path.parent}: {error.strerror}"
        raise ConfigError(message, fix=f"give --{option} a file in a directory that exists and is yours") from error
    return path

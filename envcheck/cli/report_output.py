"""The files a run leaves behind: where they go, and how they are written."""

import os
import platform
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import click

from envcheck import safe_files
from envcheck.cli import FULL, line_and_code
from envcheck.cli.options import Option
from envcheck.cli.shared.process import say
from envcheck.errors import refuse
from envcheck.reports.formats import named
from envcheck.reports.model import RunReport
from envcheck.runner import launcher
from envcheck.runner.launcher import Place

DEFAULT: Final = Path("envcheck-report.json")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST: Final = 120
_TASK_BOUND: Final = ("SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU")  # where Slurm lists no GPUs
# The option that has a run write its report in another format too.
OPTIONS: Final = {"html": "--html", "junit": "--junit", "markdown": "--summary"}
_WRITTEN: Final = {"html": "page", "junit": "JUnit"}


class Node(NamedTuple):
    """This node, as file names call it, and whether other nodes write beside it."""

    name: str
    several: bool


class Output(NamedTuple):
    """An option's value: a file, a directory in which each node has one file, or - (and not ./-): standard output."""

    path: Path
    directory: bool = False
    printed: bool = False

    def of(self, node: Node, suffix: str) -> Path:
        """Return this node's file: DIR/<node>.json; FILE, which takes the node's name where several nodes write."""
        if self.directory:
            return self.path / f"{node.name}{suffix}"
        if not node.several or str(self.path).startswith(("/dev/", "/proc/")) or is_no_file(self.path):
            return self.path
        return self.path.with_name(f"{self.path.stem}-{node.name}{self.path.suffix}")


class Destinations(NamedTuple):
    """Where a run's report goes, in which other formats, and what takes names out of it."""

    report: Path | None
    formats: dict[str, Path]
    redacted: Callable[[RunReport], RunReport]


def written(files: Destinations) -> list[str]:
    """Return a line for the report and for each other file that was written of it, a shared summary left out."""
    report = files.report
    first = f"report: {report}" if report else "no report written: this directory is read-only; give --output"
    return [first, *(f"{_WRITTEN[name]}: {path}" for name, path in files.formats.items() if name in _WRITTEN)]


def unwritten(report: RunReport, formats: dict[str, Path]) -> tuple[OSError | None, str]:
    """Write each format whole or not at all, one that appends at its file's end; return why not, and its option."""
    for name, path in formats.items():
        made = named(name)
        try:
            if made.appends:
                with path.open("a", encoding="utf-8") as stream:
                    stream.write(made.render(report))
            else:
                safe_files.replace(path, made.render(report).encode())
        except OSError as error:
            return OSError(error.errno, error.strerror, error.filename or str(path)), OPTIONS[name]
    return None, ""


def deliver(path: Path, content: bytes, code: int) -> None:
    """Write a file after its verdict, of this exit code, was said: a full disk takes no failure back."""
    try:
        safe_files.replace(path, content)
    except OSError as error:
        if code == 0 or error.errno not in FULL:
            raise
        say(line_and_code(error)[0])


def kept(path: Path, content: bytes, then: str) -> bool:
    """Write a file, or say why it cannot be written, and what then; tell whether it is there."""
    try:
        safe_files.replace(path, content)
    except OSError as error:
        say(f"{path}: {error.strerror}; {then}")
        return False
    return True


def apart(**paths: Path | None) -> None:
    """Refuse one file for two things. An argument has its name in capitals, an option without dashes."""
    named: dict[Path, str] = {}
    for option, path in paths.items():
        if path is None or is_no_file(path):
            continue
        # Path.resolve raises on links that lead in a circle.
        other = named.setdefault(Path(os.path.realpath(path)), option)
        if other != option:
            first, second = (name if name.isupper() else f"--{name}" for name in (other, option))
            # Without names the path of `report redact` would be a pseudonym; the argument is in the command line.
            what = "the same file" if other.isupper() else f"both {path}"
            refuse(f"{first} and {second} are {what}", "give each a file of its own")


def destination(
    output: Output | None, default: Path, node: Node, option: str = "output", *, name: str | None = None, dry: bool
) -> Path | None:
    """Return where this node's report goes, in the format of that `name`, else as JSON; None if the default cannot."""
    path = (output or Output(default)).of(node, named(name).suffix if name else ".json")
    if dry and output and output.directory:
        return path
    try:
        if output and output.directory:
            output.path.mkdir(parents=True, exist_ok=True)
        if is_no_file(path):
            return path
        # To try is the one way to know: root may write to everything but a read-only filesystem.
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        if output is None:
            return None
        refuse(
            f"cannot write to {path.parent}: {error.strerror}",
            f"give --{option} a file in a directory that exists and is yours",
        )
    return path


class OutputType(click.ParamType[Output]):
    """FILE, or DIR/: a directory that exists, or a path that ends in a slash; `printed`: - for standard output, too."""

    name = "FILE|DIR/"

    def __init__(self, *, printed: bool = False) -> None:
        self.printed = printed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Output:  # noqa: ARG002
        """Return the output; a directory is made only when a run begins."""
        if isinstance(value, Output):
            return value
        if value == "-" and not self.printed:
            message = "'-' is not a file name; use --json to print the report, or ./- for a file of that name"
            self.fail(message)
        path = Path(value)
        printed = str(value) == "-"
        return Output(path, not printed and (str(value).endswith("/") or path.is_dir()), printed)

    @staticmethod
    def written(output: Output | None) -> str | None:
        """Return an output as people type it."""
        if output is None:
            return None
        path = "./-" if str(output.path) == "-" and not output.printed else str(output.path)
        return f"{path}{'/' * output.directory}"


ReportOutput = Annotated[
    Output | None, Option("-o", "--output", f"The report; in DIR/ one a node. [{DEFAULT}]", type=OutputType())
]


def node_of(place: Place, *, nameless: bool, host: str | None = None) -> Node:
    """Return this node under the launcher's name for it, else the host's and its number; `nameless`: its number alone.

    Two nodes never share a name: hosts of a launcher may all be called "localhost".
    """
    if nameless:
        return Node(f"node-{place.node_rank}", place.several_nodes)
    name = place.node or (platform.node() if host is None else host) or "node"
    safe = _UNSAFE.sub("_", name)[:_LONGEST].lstrip(".") or "node"
    # Slurm's names are unique; pods of one node share its name, and MPI and torchrun name no node.
    unique = place.node and safe == name and place.nodes != 0 and place.launcher in ("slurm", "none")
    numbered = place.several_nodes and not unique and not safe.endswith(f"-{place.node_rank}")
    return Node(f"{safe}-{place.node_rank}" if numbered else safe, place.several_nodes)


def leave_to_the_first(*, quiet: bool) -> Place:
    """Return this process's place in its launcher's group; end it where another one of this node does the run."""
    launched = launcher.place(os.environ)
    for complaint in launcher.complaints(os.environ):
        say(f"warning: {complaint}; it is not used: correct or unset it")
    if why := left_to_the_first(launched, os.environ):
        if not quiet:
            say(why)
        click.get_current_context().exit(0)
    return launched


def left_to_the_first(place: Place, environ: Mapping[str, str]) -> str | None:
    """Return what to say where another process of this node does its run; None for the one that does it.

    Refuse tasks that each see GPUs of their own: the first would pass for all of the node's.
    """
    # This task sees fewer GPUs than its job has on the node (srun --gpus-per-task, --gpu-bind).
    on_node, listed = environ.get("SLURM_GPUS_ON_NODE", ""), environ.get("SLURM_STEP_GPUS", "")
    known = on_node.isdigit() and listed
    bound = len(listed.split(",")) < int(on_node) if known else any(environ.get(name) for name in _TASK_BOUND)
    if place.local_world > 1 and bound:
        refuse(
            f"{place.local_world} tasks run on this node, and each sees only its own GPUs",
            "start one task per node that sees all GPUs: srun --ntasks-per-node=1",
        )
    if place.local_rank == 0:
        return None
    return f"rank {place.rank} checks nothing: rank 0 of the {place.local_world} on this node checks it and reports"


def is_no_file(path: Path) -> bool:
    """Return whether a path is a pipe, a device or a directory."""
    return path.exists() and not path.is_file()

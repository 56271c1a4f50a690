"""`envcheck watch`: run a command and say what its GPUs and processes did."""

from pathlib import Path
from typing import Annotated, Final

import click
import msgspec

from envcheck.cli import Settings
from envcheck.cli.options import FILE, Argument, Duration, Option, Options, command_with
from envcheck.cli.report_output import apart, kept
from envcheck.cli.shared.process import say
from envcheck.counting import printable
from envcheck.errors import refuse
from envcheck.node.collect import find_library
from envcheck.watch.run_command import WatchRecord, document, page, summarize, watch

# Seconds. Reading /proc and NVML takes milliseconds.
_SHORTEST: Final = 0.01
_LONGEST: Final = 3600.0


class WatchOptions(Options):
    interval: Annotated[float, Option("Time between two samples, 0.01s to 1h.", type=Duration())] = 1.0
    html: Annotated[Path | None, Option("Write a page with the series.", type=FILE)] = None
    output: Annotated[Path | None, Option("-o", "--output", "Write envcheck/watch/1.", type=FILE)] = None
    as_json: Annotated[bool, Option("--json", "Print envcheck/watch/1 on standard error, after the command.")] = False
    words: Annotated[tuple[str, ...], Argument(metavar="COMMAND...")]


@command_with(WatchOptions, context_settings={"allow_interspersed_args": False})
def command(options: WatchOptions, settings: Settings) -> int:
    """Run COMMAND, sample GPUs and processes while it runs, and report what slowed it down."""
    if not _SHORTEST <= options.interval <= _LONGEST:
        refuse(
            f"--interval of {options.interval:g} s is not between {_SHORTEST:g} s and {_LONGEST:g} s",
            "give a time between them; the command was not started",
        )
    apart(output=options.output, html=options.html)
    for path in (options.html, options.output):
        if path is not None and not path.parent.is_dir():
            refuse(f"{path}: there is no directory {path.parent}", "create it; the command was not started")
    seen = watch(options.words, options.interval, gpus=find_library("libnvidia-ml.so.1") is not None)
    _report(seen, options, quiet=settings.quiet)
    return seen.exit_code


def _report(seen: WatchRecord, options: WatchOptions, *, quiet: bool) -> None:
    """Print the summary and write the files; what cannot be written is said and changes no exit code."""
    content = msgspec.json.format(msgspec.json.encode(document(seen)), indent=2) + b"\n"
    if options.as_json:
        click.echo(content, nl=False, err=True)
    elif not quiet:
        lines = [f"{one.what}: {one.text}{' [low]' if one.status == 'low' else ''}" for one in summarize(seen)]
        for line in lines or ["nothing was measured: the command ended before the first sample"]:
            say(printable(line))
    files: dict[Path | None, bytes] = {options.output: content}
    files |= {options.html: page(seen).encode()} if options.html else {}
    for path, text in files.items():
        if path is not None:
            kept(path, text, "the command's exit code stands")

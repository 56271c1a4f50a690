"""The line that says why a command ended: without names where --redact is given, and with long words cut."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from envcheck.reports.model import RunReport
    from envcheck.reports.redact import Pseudonyms

# A word, and a whole line: what is quoted of a file may be all of it.
LONGEST: Final = 100
_HEAD: Final = 60
LONGEST_LINE: Final = 2000
_LINE_HEAD: Final = 1500
_LONG: Final = re.compile(rf"[^\s;,:'\"()/]{{{LONGEST + 1},}}")
_NUMBER: Final = re.compile(r"[\d.,]*[a-zA-Z]?")
# Commands that know --redact.
_COMMANDS: Final = ("run", "report", "redact")
_names: list[Pseudonyms] = []


def hide_names(_ctx: click.Context, _option: click.Parameter, value: str | bool) -> str | bool:  # noqa: FBT001 (click's signature)
    """Have every later line say pseudonyms for names: the callback of --redact, which is read before other options."""
    if isinstance(value, str) and value:
        forget_names()
        names(value)
    elif value:
        names()
    return value


def names(key: str = "") -> Pseudonyms:
    """Return the pseudonyms of this process: one name has the same one in its report and in every line."""
    from envcheck.reports.redact import Pseudonyms, know_this_machine

    if not _names:
        _names.append(Pseudonyms(key))
        know_this_machine(_names[0])
    return _names[0]


def forget_names() -> None:
    """Have lines say names again, for the next command in this process."""
    _names.clear()


def learn(report: RunReport) -> None:
    """Have the names of an earlier report replaced in what is printed."""
    from envcheck.reports import redact

    redact.learn(report, names())


def last_line(text: str) -> str:
    """Return the line as it is printed: what a server or file calls itself cannot steer the terminal."""
    text = "".join(sign if sign.isprintable() or sign in "\n\t" else "?" for sign in text)
    if _names:
        text = without_names(sys.argv[1:])(text)
    text = _LONG.sub(lambda match: shortened(match[0]), text)
    return text if len(text) <= LONGEST_LINE else f"{text[:_LINE_HEAD]}…{text[_LINE_HEAD + 1 - LONGEST_LINE :]}"


def say(text: str) -> None:
    """Print an error's line on standard error; the command goes on."""
    click.echo(f"envcheck: {last_line(text)}", err=True)


def note(text: str) -> None:
    """Print a line on standard error about what goes on, above a progress bar if there is one."""
    sys.stderr.write(f"  {last_line(text)}\n")
    sys.stderr.flush()


def without_names(arguments: Sequence[str]) -> Callable[[str], str]:
    """Return what replaces names in a line: the machine's, and those of which the given values are made."""
    from envcheck.reports.redact import line

    typed = words(_values(arguments))
    return lambda text: line(text, names(), typed)


def words(values: Iterable[str]) -> set[str]:
    """Return what values are made of, as far as it may name something: parts of paths, and files without suffix."""
    return {word for value in values for word in _words(value)}


def shortened(word: str) -> str:
    """Return a word of at most LONGEST characters, its middle left out."""
    return word if len(word) <= LONGEST else f"{word[:_HEAD]}…{word[_HEAD + 1 - LONGEST :]}"


def _values(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the values given, in arguments and variables, the longest first; an option's name is none."""
    values = [word.partition("=")[2] if word.startswith("--") else word for word in arguments]
    values += [value for name, value in os.environ.items() if name.startswith("ENVCHECK_")]
    yield from sorted(filter(None, values), key=len, reverse=True)


def _words(value: str) -> Iterator[str]:
    """Yield the parts of a path, and the stem of its file; not what is a number or names a command or level."""
    from envcheck.checks import LEVELS

    for part in PurePath(value).parts:
        for word in {part, PurePath(part).stem}:
            if len(word) > 1 and not _NUMBER.fullmatch(word) and word not in (*_COMMANDS, *LEVELS):
                yield word


def hidden_module() -> tuple[str, str] | None:
    """Return the name of a module of Python's library that a file elsewhere hides, and that file; None if none is.

    A random.py in the working directory or on PYTHONPATH is imported in place of Python's own.
    """
    own = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    for name in sorted(sys.stdlib_module_names & set(sys.modules)):
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and not any(Path(file).resolve().is_relative_to(directory) for directory in own):
            return name, str(file)
    return None

"""A file as the doctor's rules see it: comments blanked, continued lines joined, every position still the file's."""

from __future__ import annotations

import ast
import bisect
import re
import warnings
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final, Literal, NamedTuple

Kind = Literal["python", "json", "dockerfile", "requirements", "environment", "settings"]
_CONTINUED: Final = re.compile(r"\\[ \t]*\r?\n")
_SEPARATOR: Final = re.compile(r"&&|\|\|?|;|\n")
# A sign for a comment begins a line or stands after a blank, and outside of quotes.
_COMMENT: Final = re.compile(r"(?m)(?:^|(?<=\s))#[^\n]*")
_STRING: Final = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'")


class Text(NamedTuple):
    """A file's content and what it is called. In an environment, a line is `NAME=value`."""

    name: str
    content: str
    kind: Kind


class Source:
    """A text with its comments blanked (`code`), its commands, and the line of each position."""

    def __init__(self, text: Text, code: str) -> None:
        self.kind = text.kind
        self.text = text.content
        self.code = code
        self._starts = [0, *(found.end() for found in re.finditer("\n", text.content))]
        self.commands = list(_commands(code))

    def line(self, at: int) -> int:
        """Return the line of a position, counted from 1."""
        return bisect.bisect_right(self._starts, at)


def kind_of(name: str) -> Kind:
    """Return what a file is, by its name."""
    path = PurePath(name.lower())
    if path.suffix == ".py":
        return "python"
    if path.suffix == ".json":
        return "json"
    if path.name.startswith(("dockerfile", "containerfile")) or path.suffix == ".dockerfile":
        return "dockerfile"
    if path.suffix in {".txt", ".in"} and ("requirements" in path.name or "constraints" in path.name):
        return "requirements"
    return "settings"


def read(text: Text) -> Source:
    """Return a text as the rules see it."""
    if text.kind in {"json", "environment"}:
        return Source(text, text.content)
    code = _without_docstrings(text.content) if text.kind == "python" else text.content
    code = _without_comments(code)
    return Source(text, _CONTINUED.sub(lambda found: " " * len(found[0]), code))


def _without_comments(code: str) -> str:
    """Blank comments, leaving quoted `#` alone; strings are looked for line by line, as quotes of prose never close."""
    quoted = [found.span() for found in _STRING.finditer(code)]
    starts = [start for start, _ in quoted]

    def blank(found: re.Match[str]) -> str:
        before = bisect.bisect_right(starts, found.start()) - 1
        inside = before >= 0 and quoted[before][1] > found.start()
        return found[0] if inside else " " * len(found[0])

    return _COMMENT.sub(blank, code)


def _without_docstrings(code: str) -> str:
    """Blank the lines of strings that stand alone. What is no Python is left as it is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    lines = code.splitlines(keepends=True)
    if code.count("\n") != sum(line.endswith("\n") for line in lines) or len(lines) - 1 > code.count("\n"):
        return code  # other ends of lines than Python's parser knows
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for number in range(node.lineno - 1, min(node.end_lineno or node.lineno, len(lines))):
                ending = "\n" if lines[number].endswith("\n") else ""
                lines[number] = " " * (len(lines[number]) - len(ending)) + ending
    return "".join(lines)


def _commands(code: str) -> Iterator[tuple[int, str]]:
    at = 0
    # A separator between quotes is none.
    for found in _SEPARATOR.finditer(_STRING.sub(lambda quoted: "x" * len(quoted[0]), code)):
        if code[at : found.start()].strip():
            yield at, code[at : found.start()]
        at = found.end()
    if code[at:].strip():
        yield at, code[at:]

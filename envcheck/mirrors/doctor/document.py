"""Prepare a file for the doctor's rules: blank comments and join continued lines, without moving any position."""

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
# A # starts a comment at the start of a line or after a blank, outside of quotes.
_COMMENT: Final = re.compile(r"(?m)(?:^|(?<=\s))#[^\n]*")
_STRING: Final = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'")


class Document(NamedTuple):
    """A file's name and content. A line of an environment is `NAME=value`."""

    name: str
    content: str
    kind: Kind


class PreparedDocument:
    """A document with its comments blanked (`code`), its commands, and the line of each position."""

    def __init__(self, text: Document, code: str) -> None:
        self.kind = text.kind
        self.text = text.content
        self.code = code
        self._starts = [0, *(match.end() for match in re.finditer("\n", text.content))]
        self.commands = list(_commands(code))

    def line(self, at: int) -> int:
        """Return the line of a position, counted from 1."""
        return bisect.bisect_right(self._starts, at)


def kind_of(name: str) -> Kind:
    """Return the kind of a file by its name."""
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


def prepare(text: Document) -> PreparedDocument:
    """Return a document with comments blanked and continued lines joined."""
    if text.kind in {"json", "environment"}:
        return PreparedDocument(text, text.content)
    code = _without_docstrings(text.content) if text.kind == "python" else text.content
    code = _without_comments(code)
    return PreparedDocument(text, _CONTINUED.sub(lambda match: " " * len(match[0]), code))


def _without_comments(code: str) -> str:
    """Blank comments, except a quoted `#`. A string ends with its line, because quotes in prose may never close."""
    strings = [match.span() for match in _STRING.finditer(code)]
    starts = [start for start, _ in strings]

    def blank(match: re.Match[str]) -> str:
        before = bisect.bisect_right(starts, match.start()) - 1
        inside = before >= 0 and strings[before][1] > match.start()
        return match[0] if inside else " " * len(match[0])

    return _COMMENT.sub(blank, code)


def _without_docstrings(code: str) -> str:
    """Blank the lines of strings that are statements. Return code that is not valid Python unchanged."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    lines = code.splitlines(keepends=True)
    if code.count("\n") != sum(line.endswith("\n") for line in lines) or len(lines) - 1 > code.count("\n"):
        return code  # line endings that Python's parser does not know
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for number in range(node.lineno - 1, min(node.end_lineno or node.lineno, len(lines))):
                ending = "\n" if lines[number].endswith("\n") else ""
                lines[number] = " " * (len(lines[number]) - len(ending)) + ending
    return "".join(lines)


def _commands(code: str) -> Iterator[tuple[int, str]]:
    at = 0
    # Ignore separators between quotes.
    for match in _SEPARATOR.finditer(_STRING.sub(lambda quoted: "x" * len(quoted[0]), code)):
        if code[at : match.start()].strip():
            yield at, code[at : match.start()]
        at = match.end()
    if code[at:].strip():
        yield at, code[at:]

"""A number before a noun: one helper writes it."""

import ast
import re
from pathlib import Path

from envcheck.counting import counted

ROOT = Path(__file__).parents[1]


def test_one_is_singular() -> None:
    assert (counted(0, "file"), counted(1, "file"), counted(2, "file")) == ("0 files", "1 file", "2 files")
    assert (counted(1, "batch", "batches"), counted(3, "batch", "batches")) == ("1 batch", "3 batches")


def test_no_message_leaves_the_plural_to_the_reader() -> None:
    """Nothing writes "2 file(s)" or adds an s by a condition: `counted` does it."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "envcheck").rglob("*.py")
        if path.name != "counting.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.JoinedStr) and re.search(r"\} [a-zA-Z ]+\(s\)|\{'s' (\*|if) ", ast.unparse(node))
    ]
    assert wrong == []

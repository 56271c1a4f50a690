"""Write matrix.yaml and extensions.yaml in their canonical form: .venv/bin/python .ci/matrix/format.py."""

from __future__ import annotations

import sys
from pathlib import Path

from envcheck import safe_files
from envcheck.matrix.extensions import file as extension_file
from envcheck.matrix.file.lint import dump
from envcheck.matrix.file.load import load

MATRIX = Path(__file__).parents[2] / "matrix.yaml"


def main() -> None:
    """Rewrite each file that is not in its form."""
    for file, text in (
        (MATRIX, dump(load(MATRIX))),
        (extension_file.SHIPPED, extension_file.dump(extension_file.load())),
    ):
        if file.read_text() != text:
            safe_files.replace(file, text.encode())
            sys.stdout.write(f"{file.name}: rewritten\n")


if __name__ == "__main__":
    main()

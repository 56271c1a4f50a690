"""Write matrix.yaml and extensions.yaml in their canonical form: .venv/bin/python .ci/matrix/format.py [--check].

With --check nothing is written; exit 1 where a file has another form, or the facts about extensions a contradiction.
"""

from __future__ import annotations

import sys
from pathlib import Path

from canonical import dump, dump_extensions
from extension_lint import lint

from envcheck import safe_files
from envcheck.matrix.extensions import file as extension_file
from envcheck.matrix.file.load import load

MATRIX = Path(__file__).parents[2] / "matrix.yaml"


def main(*, check: bool) -> int:
    """Rewrite, or name, each file that is not in its form; return the exit code."""
    matrix, extensions = load(MATRIX), extension_file.load()
    texts = {MATRIX: dump(matrix), extension_file.SHIPPED: dump_extensions(extensions)}
    others = [file for file, text in texts.items() if file.read_text() != text]
    for file in others:
        if not check:
            safe_files.replace(file, texts[file].encode())
        sys.stdout.write(f"{file.name}: {'run .ci/matrix/format.py' if check else 'rewritten'}\n")
    problems = lint(extensions, matrix)
    sys.stdout.writelines(f"{where}: {problem}\n" for where, problem in problems)
    return int(bool(problems) or (check and bool(others)))


if __name__ == "__main__":
    raise SystemExit(main(check="--check" in sys.argv))

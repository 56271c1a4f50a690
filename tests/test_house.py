"""What holds for the repo as a whole: layout, size, what it never names, what runs in foreign interpreters."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP = {
    "images",
    "templates",
    "matrix.yaml",
    "envcheck",
    "benchmarks",
    "tests",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
}
TOP |= {"LICENSE", "CONTRIBUTING.md", "Makefile", ".github", ".ci", ".gitignore", ".pre-commit-config.yaml"}
# Written apart so that this file does not name them either.
INDEX_HOSTS = re.compile(
    "|".join(
        re.escape(a + b)
        for a, b in (
            ("py", "pi.org"),
            ("python", "hosted.org"),
            ("download.py", "torch.org"),
            ("deb.deb", "ian.org"),
            ("security.deb", "ian.org"),
            ("archive.ub", "untu.com"),
            ("registry.npm", "js.org"),
        )
    )
)
FOREIGN = [
    "envcheck/__init__.py",
    "envcheck/checks/__init__.py",
    "envcheck/node/__init__.py",
    "envcheck/node/snapshot.py",
]


def tracked() -> list[Path]:
    """Return the files git knows, or every file of an unpacked source tree."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.fail("the house is checked in a git checkout")
    names = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def foreign() -> list[Path]:
    """Return the files that foreign interpreters import."""
    found = [ROOT / name for name in FOREIGN]
    found += sorted((ROOT / "envcheck/checks/env").glob("*.py"))
    return [*found, ROOT / "envcheck/runner/__init__.py", *sorted((ROOT / "envcheck/runner").glob("worker*.py"))]


def test_the_top_level_is_what_users_fixed() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in tracked()} <= TOP


def test_no_file_is_over_a_megabyte() -> None:
    assert [path for path in tracked() if path.stat().st_size > 1_000_000] == []


def test_no_host_of_a_public_package_index_is_written_down() -> None:
    named = [path for path in tracked() if INDEX_HOSTS.search(path.read_text(encoding="utf-8", errors="replace"))]
    assert named == []


def test_foreign_interpreters_down_to_3_9_can_parse_what_they_import() -> None:
    files = foreign()
    assert len(files) > len(FOREIGN)
    for path in files:
        ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 9))


def test_foreign_interpreters_import_the_standard_library_only() -> None:
    allowed = set(sys.stdlib_module_names) | {"envcheck", "torch", "__future__"}
    for path in foreign():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= allowed, path


def test_foreign_files_import_torch_inside_functions_only() -> None:
    for path in foreign():
        top = [
            node
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        assert not any("torch" in ast.unparse(node) for node in top), path


def old_python() -> str | None:
    """Return a Python 3.9 that starts, from PATH or from pyenv."""
    found = [
        shutil.which("python3.9"),
        *map(str, Path(os.environ.get("PYENV_ROOT", "/nowhere")).glob("versions/3.9.*/bin/python")),
    ]
    for python in filter(None, found):
        if subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0:
            return python
    return None


def test_an_old_interpreter_imports_what_it_must() -> None:
    python = old_python()
    if python is None:
        pytest.skip("no Python 3.9 on this machine; the files are parsed as 3.9 all the same")
    modules = [
        str(path.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__") for path in foreign()
    ]
    code = "; ".join(f"import {name}" for name in modules)
    done = subprocess.run([python, "-B", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""What a machine can hold and a reader cannot see; the rest is review, and the size is held by `make weight`."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interpreters import interpreters
from tests.processes import ran

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
TOP = {
    *("envcheck", "tests", "docs", "images", "templates", "benchmarks", "matrix.yaml", "pyproject.toml", "Makefile"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"),
    *(".github", ".ci", ".dockerignore", ".gitignore", ".pre-commit-config.yaml"),
}
# Written apart so that this file does not name them either.
HOSTS = [
    *(("py", "pi.org"), ("python", "hosted.org"), ("registry.npm", "js.org")),
    *(("deb.deb", "ian.org"), ("security.deb", "ian.org"), ("archive.ub", "untu.com")),
]
INDEX_HOSTS = re.compile("|".join(re.escape(a + b) for a, b in HOSTS))


def tracked() -> list[Path]:
    """Return the files git knows, or every file of an unpacked source tree."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.fail("the house is checked in a git checkout")
    names = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def foreign() -> list[Path]:
    """Return the files that foreign interpreters import: those of the import contract, and the packages they are in."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    [modules] = [one["source_modules"] for one in contracts if "foreign interpreters" in one["name"]]
    files: set[Path] = set()
    for module in modules:
        place = ROOT / module.replace(".", "/")
        files |= {*place.rglob("*.py")} if place.is_dir() else {place.with_suffix(".py")}
        files |= {parent / "__init__.py" for parent in place.parents if parent.is_relative_to(ROOT / "envcheck")}
    return sorted(files)


def test_the_top_level_is_what_users_fixed_and_no_file_is_over_a_megabyte() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in tracked()} <= TOP
    assert [path for path in tracked() if path.stat().st_size > 1_000_000] == []


def test_no_host_of_a_public_package_index_is_written_down() -> None:
    named = [path for path in tracked() if INDEX_HOSTS.search(path.read_text(encoding="utf-8", errors="replace"))]
    assert named == []


def test_foreign_interpreters_parse_what_they_import_and_find_all_of_it() -> None:
    """Python 3.9, the standard library and torch are all there is; torch is imported inside functions only."""
    allowed = set(sys.stdlib_module_names) | {"envcheck", "torch", "__future__"}
    wrong = []
    for path in foreign():
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 9))
        top = {name for node in tree.body for name in imported(node)}
        # An extension's operation imports that extension, when it runs.
        operation = path.stem.startswith(("operations", "gpu_operations"))
        names = top if operation else {name for node in ast.walk(tree) for name in imported(node)}
        if "torch" in top or not names <= allowed:
            wrong.append(f"{path.relative_to(ROOT)}: {sorted(names - allowed) or 'torch at the top'}")
    assert wrong == []


def imported(node: ast.AST) -> list[str]:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return [name.split(".")[0] for name in names]


def test_old_interpreters_import_what_they_must() -> None:
    modules = [
        str(path.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__") for path in foreign()
    ]
    code = "; ".join(f"import {name}" for name in modules)
    for python in interpreters():
        completed = ran([python, "-B", "-c", code], cwd=ROOT)
        assert completed.returncode == 0, (python, completed.stderr)

"""What holds for the repo as a whole: layout, size, what it never names, what runs in foreign interpreters."""

from __future__ import annotations

import ast
import collections
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from envcheck.node.why_unread import Why

ROOT = Path(__file__).parents[1]
TOP = {
    "images",
    "templates",
    "matrix.yaml",
    "envcheck",
    "benchmarks",
    "tests",
    "docs",
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
            ("deb.deb", "ian.org"),
            ("security.deb", "ian.org"),
            ("archive.ub", "untu.com"),
            ("registry.npm", "js.org"),
        )
    )
)
# Phrases of a private dialect: write subject, active verb, one idea.
BANNED = (
    r"(?:to|can) be had",
    r"not to be (?:read|found)",
    r"told of",
    r"asked of",
    r"\b(?:is|are) told\b",
    r"could not be told",
    r"who is none",
    r"\bnone is what\b",
    r"nothing says",
    r"no such thing",
    r"comes to the same",
    r"nobody to",
    r"\basks? nobody",
    r"what is no such",
    r"(?<!\.)\bnonsense\b",  # not the old ends of codes, which CHANGELOG names
    r"\bvouch",
    r"is of another",
    r"demands nothing",
    r"\bgo(?:es)? on where",
    r"cannot be told",
    r"\bnot told\b",
    r"told (?:no|nothing)\b",
    r"held against",
    r"\bturn about",
    r"\bsoak",
    r"was better\.",
    r"for want of",
    r"\w\(s\)(?=[ :])",  # say "rank 1" or "ranks 1 and 2": numbered() of envcheck/counting.py
)
ANY_BANNED = re.compile("|".join(BANNED), re.IGNORECASE)
# A line of a script that imports from envcheck.
IMPORT = re.compile(r"\s*(from envcheck[\w.]* import [\w, ]+)$")
FOREIGN = [
    "envcheck/__init__.py",
    "envcheck/checks/__init__.py",
    "envcheck/counting.py",
    "envcheck/node/__init__.py",
    "envcheck/node/clock_reasons.py",
    "envcheck/node/snapshot.py",
    "envcheck/node/why_unread.py",
]


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the tree of a file; each file is parsed once."""
    return ast.parse(path.read_text(encoding="utf-8"))


def tracked() -> list[Path]:
    """Return the files git knows, or every file of an unpacked source tree."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.fail("the house is checked in a git checkout")
    names = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def foreign() -> list[Path]:
    """Return the files that foreign interpreters import."""
    actual = [ROOT / name for name in FOREIGN]
    actual += sorted((ROOT / "envcheck/checks/env").rglob("*.py"))
    return [*actual, ROOT / "envcheck/runner/__init__.py", *sorted((ROOT / "envcheck/runner/worker").glob("*.py"))]


def test_the_top_level_is_what_users_fixed() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in tracked()} <= TOP


def test_no_file_is_over_a_megabyte() -> None:
    assert [path for path in tracked() if path.stat().st_size > 1_000_000] == []


def test_no_host_of_a_public_package_index_is_written_down() -> None:
    named = [path for path in tracked() if INDEX_HOSTS.search(path.read_text(encoding="utf-8", errors="replace"))]
    assert named == []


def banned_in(text: str) -> list[str]:
    """Return the banned phrases in a text, whatever its line breaks."""
    return ANY_BANNED.findall(" ".join(text.split()))


def test_documents_avoid_the_private_dialect() -> None:
    documents = [path for path in tracked() if path.suffix == ".md" and not path.is_relative_to(ROOT / "tests")]
    assert len(documents) > 10
    assert banned_in("It can be\nhad.") == ["can be had"]
    used = [(path.name, phrase) for path in documents for phrase in banned_in(path.read_text(encoding="utf-8"))]
    assert used == []


def test_messages_docstrings_and_help_avoid_the_private_dialect() -> None:
    modules = sorted((ROOT / "envcheck").rglob("*.py"))
    used = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {phrase}"
        for path in modules
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for phrase in banned_in(node.value)
    ]
    templates = [path for path in tracked() if path.is_relative_to(ROOT / "templates")]
    used += [f"{path.name}: {phrase}" for path in templates for phrase in banned_in(path.read_text(encoding="utf-8"))]
    assert len(modules) > 400
    assert used == []


def test_no_folder_holds_more_than_twelve_modules() -> None:
    drop_in = {"envcheck/checks/env", "envcheck/checks/node"}
    modules = [path.relative_to(ROOT) for path in tracked() if path.suffix == ".py" and path.name != "__init__.py"]
    rooms = collections.Counter(str(path.parent) for path in modules if path.parts[0] == "envcheck")
    assert {room: count for room, count in rooms.items() if count > 12 and room not in drop_in} == {}


def test_no_two_classes_have_one_name() -> None:
    """A name means one thing: two classes of one name are two words."""
    homes = collections.defaultdict(list)
    for path in sorted((ROOT / "envcheck").rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


# Words that say nothing of what they hold, as names: write `outcome`, `requests`, `message`.
NAMELESS = {"asked", "had", "said", "told"}
# Participles and prepositions that a class may not be called alone: `CopyResult`, not `Copied`.
NO_NOUN = re.compile(
    r"_?(?:[A-Z][a-z]*(?<!Fe)(?<!Ne)(?<!Se)(?<!Spe)ed|Above|After|Before|Begun|Below|Beside|Between|Beyond|Bought|Chosen|Done|Found|Given|Gone|Held|InForce"
    r"|Kept|Known|Left|Lost|Made|More|Seen|Sent|Shown|Taken|Then|Told|Under|Written)"
)


def nameless(tree: ast.Module) -> list[tuple[int, str]]:
    """Return the lines of a file that give such a word to a value, a parameter or a function, or call a class so."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and NO_NOUN.fullmatch(node.name):
            names.append((node.lineno, node.name))
        name = getattr(node, "name", None) if isinstance(node, ast.FunctionDef) else getattr(node, "arg", None)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.id if isinstance(node, ast.Name) else node.attr
        if isinstance(name, str) and not isinstance(node, ast.keyword) and name.strip("_") in NAMELESS:
            names.append((getattr(node, "lineno", 0), name))
    return names


def test_names_say_what_they_hold() -> None:
    for line in ("told = 1", "def f(asked): pass", "def _said(): pass", "for had in x: pass", "x.told = 1"):
        assert nameless(ast.parse(line)), line
    assert len(nameless(ast.parse("class Copied: pass\nclass _Kept: pass"))) == 2
    assert nameless(ast.parse("class CopyResult: pass\nprint(told=1)\nTOLD = 1")) == []
    files = [path for path in tracked() if path.suffix == ".py" or path.parent.name == ".ci"]
    python = [path for path in files if path.suffix == ".py" or b"python" in path.read_bytes()[:40]]
    assert len(python) > 1000
    used = [f"{path.relative_to(ROOT)}:{line}: {name}" for path in python for line, name in nameless(parsed(path))]
    assert used == []


def test_tests_stand_in_the_rooms_of_what_they_test() -> None:
    packages = {"checks", "images", "matrix", "node", "reports", "runner"}
    tests = [path.relative_to(ROOT / "tests") for path in tracked() if path.is_relative_to(ROOT / "tests")]
    rooms = {path.parent for path in tests if path.match("test_*.py") and path.parts[0] in packages}
    assert len(rooms) > len(packages)
    assert [str(room) for room in rooms if not (ROOT / "envcheck" / room).is_dir()] == []


def reasons_decided_on(tree: ast.Module) -> set[int]:
    """Return the lines that compare or search the text of a signal's reason; `is None` is no look at the text."""
    scopes: list[ast.AST] = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {line for scope in scopes or [tree] for line in decisions_in(scope)}


def decisions_in(scope: ast.AST) -> Iterator[int]:
    """Yield the lines of one function that look into a reason, or into a name that it gave to one."""
    bound = {"reason"}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign | ast.NamedExpr) and names_a_reason(node.value, set()):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound |= {name.id for name in targets if isinstance(name, ast.Name)}
    for node in ast.walk(scope):
        looked_at: list[ast.expr] = []
        if isinstance(node, ast.Compare) and not all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            looked_at = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            searches = node.func.attr in ("search", "match", "fullmatch", "findall")
            looked_at = [node.func.value, *(node.args if searches else [])]
        yield from (part.lineno for part in looked_at if names_a_reason(part, bound))


def names_a_reason(node: ast.expr, names: set[str]) -> bool:
    """Tell whether the expression is a reason's text, or that text made over: `(x.reason or "").lower()`."""
    if isinstance(node, ast.Attribute):
        return node.attr == "reason"
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.BoolOp):
        return any(names_a_reason(value, names) for value in node.values)
    if isinstance(node, ast.Call):
        return any(names_a_reason(part, names) for part in [node.func, *node.args])
    return isinstance(node, ast.NamedExpr) and names_a_reason(node.value, names)


def test_no_status_is_decided_on_the_text_of_a_reason() -> None:
    """`Signal.why` decides; `Signal.reason` is for people. The rule sees each form that checks once used."""
    for line in (
        'x.reason == "not collected"',
        '"lost" in (x.reason or "")',
        'str(x.reason).startswith("timed out")',
        'any(word in x.reason for word in ("a", "b"))',
        'reason = x.reason or ""\n"mismatch" in reason',
        'refused = x.reason or ""\n"mismatch" in refused.lower()',
        're.search("lost", x.reason)',
    ):
        assert reasons_decided_on(ast.parse(line)), line
    rooms = [ROOT / "envcheck" / room for room in ("checks", "node", "runner", "reports", "cli")]
    files = [path for room in rooms for path in room.rglob("*.py") if path.name != "why_unread.py"]
    assert {str(path.relative_to(ROOT)): lines for path in files if (lines := reasons_decided_on(parsed(path)))} == {}


def test_the_page_of_json_schemas_lists_every_why() -> None:
    page = (ROOT / "docs/json-schemas.md").read_text(encoding="utf-8")
    table = page.partition("| why | meaning |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)
    assert rows == [*get_args(Why)]


def test_every_signal_without_a_value_says_why() -> None:
    silent = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "envcheck").rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Signal"
        if {"reason"} <= {keyword.arg for keyword in node.keywords} and "why" not in {k.arg for k in node.keywords}
    ]
    assert silent == []


def scripts_in(path: Path) -> list[ast.ImportFrom]:
    """Return the imports from envcheck in the strings of a file: scripts that it gives to another process."""
    strings = (node.value for node in ast.walk(parsed(path)) if isinstance(node, ast.Constant))
    lines = (line for text in strings if isinstance(text, str) for line in text.splitlines())
    actual = [match[1] for line in lines if (match := IMPORT.match(line))]
    return [node for line in actual for node in ast.parse(line).body if isinstance(node, ast.ImportFrom)]


def test_what_a_script_in_a_string_imports_is_there() -> None:
    """No linter reads a script in a string, and a test that only kills such a process passes when it never began."""
    imports = {path: import_froms for path in tracked() if path.suffix == ".py" and (import_froms := scripts_in(path))}
    assert len(imports) > 10
    missing = [
        f"{path.relative_to(ROOT)}: from {node.module} import {alias.name}"
        for path, import_froms in imports.items()
        for node in import_froms
        for alias in node.names
        if not importable(str(node.module), alias.name)
    ]
    assert missing == []


def importable(module: str, name: str) -> bool:
    """Tell whether `from module import name` works."""
    try:
        return hasattr(importlib.import_module(module), name) or (
            importlib.util.find_spec(f"{module}.{name}") is not None
        )
    except ModuleNotFoundError:
        return False


def test_foreign_interpreters_down_to_3_9_can_parse_what_they_import() -> None:
    files = foreign()
    assert len(files) > len(FOREIGN)
    for path in files:
        ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 9))


def test_foreign_interpreters_import_the_standard_library_only() -> None:
    allowed = set(sys.stdlib_module_names) | {"envcheck", "torch", "__future__"}
    for path in foreign():
        tree = parsed(path)
        # An extension's operation imports that extension, when it runs.
        for node in tree.body if path.stem.startswith(("operations", "gpu_operations")) else ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= allowed, path


def test_foreign_files_import_torch_inside_functions_only() -> None:
    for path in foreign():
        top = [node for node in parsed(path).body if isinstance(node, ast.Import | ast.ImportFrom)]
        modules = [
            node.module if isinstance(node, ast.ImportFrom) else alias.name for node in top for alias in node.names
        ]
        assert not any(str(module).partition(".")[0] == "torch" for module in modules), path


def old_python() -> str | None:
    """Return a Python 3.9 that starts, from PATH or from pyenv."""
    actual = [
        shutil.which("python3.9"),
        *map(str, Path(os.environ.get("PYENV_ROOT", "/nowhere")).glob("versions/3.9.*/bin/python")),
    ]
    for python in filter(None, actual):
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
    completed = subprocess.run([python, "-B", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr


# `envcheck` on the public package index is a project of somebody else.
INSTALLS = re.compile(
    r"\b(?:pip|pipx|uvx?)\b[^\n#|;&]*?\s(?:install|add|run|--from)\b[^\n#|;&`]*?[ \"']envcheck(?![-\w./:])"
)
WARNING = "Do not run `pip install envcheck`"


def test_nothing_of_ours_installs_the_package_of_somebody_else() -> None:
    assert INSTALLS.search("RUN pip install --no-cache-dir envcheck==1.0")
    assert not INSTALLS.search("pip install torch-envcheck")
    installing = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in tracked()
        if path.suffix != ".py" or "tests" not in path.parts
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        if INSTALLS.search(line) and WARNING not in line
    ]
    assert installing == []
    locked = [path for path in tracked() if path.suffix == ".lock" and "\nenvcheck==" in path.read_text()]
    assert locked == []


def test_the_built_wheel_is_named_torch_envcheck(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(build, check=True, capture_output=True)
    [wheel] = tmp_path.iterdir()
    assert wheel.name.startswith("torch_envcheck-")
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt"))
        assert "envcheck = envcheck.cli:program" in archive.read(metadata).decode()

"""A torch that somebody edited, half upgraded, or that another directory on the path replaces.

Each Python file of torch, triton and NVIDIA's packages is compared with what its installer wrote down (RECORD, or the
ledger of conda), and torch/version.py with the package's version. Libraries are the check `installed-binaries`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, warned, worst
from envcheck.checks.support import package_files, process_group
from envcheck.counting import counted

CHECK = Check(
    promise="every Python file of torch, triton and NVIDIA's packages is the one that was installed",
    level="static",
    seconds=6.0,
    cpu_seconds=0.6,
    timeout=120.0,
)

FIX = "install the package again (pip install --force-reinstall --no-deps NAME==VERSION), or build the image again"
KINDS = {"changed": "was changed", "missing": "is missing", "unreadable": "cannot be read"}
VERSION = re.compile(r"^__version__\s*(?::[^=]+)?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
# Made by virtualenv, uv and setuptools themselves, listed by no package, and what they hold.
KNOWN_PTH = {
    "_virtualenv.pth": re.compile(r"import _virtualenv"),
    "distutils-precedence.pth": re.compile(
        r"import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os\.environ\.get\(var, '(local|stdlib)'\) == 'local'; "
        r"enabled and __import__\('_distutils_hack'\)(\.add_shim\(\))?;?"
    ),
}
SHOWN = 50


def measure(rank: Rank) -> Measured:
    """Digest the Python files, and look for what was added, replaced or is there twice."""
    packages = package_files.packages()
    compared = package_files.compare(f for package in packages for f in package.files if f.path.suffix == ".py")
    torch = next((package for package in packages if package.name == "torch"), None)
    return {
        **entry(rank, packages, compared),
        "imported": _imported(),
        "listed": bool(torch) and _imported() in {str(item.path) for package in packages for item in package.files},
        "says": _says(torch),
        "added": _added(packages),
        "leftovers": sorted({str(p) for entry in sys.path if entry for p in Path(entry).glob("~*") if p.is_dir()}),
        **_hooks(_startup()),
    }


def entry(rank: Rank, packages: list[package_files.Package], compared: dict[str, Any]) -> Measured:
    """Return the result that both checks of installed files have, its lists cut to a bearable length."""
    lists = {kind: compared[kind][:SHOWN] for kind in (*KINDS, "without")}
    counts = {f"{kind}_count": len(compared[kind]) for kind in lists}
    rows = [{"name": p.name, "version": p.version, "ledger": p.ledger, "where": p.where} for p in packages]
    figures = {name: compared[name] for name in ("files", "bytes", "seconds")}
    return {"rank": rank.rank, "packages": rows, **figures, **lists, **counts}


def _imported() -> str:
    spec = importlib.util.find_spec("torch")
    return os.path.normpath(spec.origin) if spec and spec.origin else ""


def _says(torch: package_files.Package | None) -> str:
    path = Path(torch.where).parent / "torch" / "version.py" if torch else None
    version = VERSION.search(path.read_text(encoding="utf-8")) if path and path.exists() else None
    return version[1] if version else ""


def _added(packages: list[package_files.Package]) -> list[str]:
    recorded = [package for package in packages if package.ledger == "RECORD"]
    added = sorted({path for package in recorded for path in package_files.strangers(package, packages)})
    if not added:
        return []
    brought = _brought()
    return [path for path in added if path not in brought][:SHOWN]


def _brought() -> set[str]:
    every = importlib.metadata.distributions()
    return {os.path.normpath(str(dist.locate_file(file))) for dist in every for file in dist.files or []}


def _startup() -> list[str]:
    own = (sys.base_prefix + "/lib/python", "/usr/lib/python", "/etc/python")
    sites = [Path(entry) for entry in sys.path if entry and Path(entry).is_dir() and not entry.endswith(".zip")]
    modules = [path for site in sites for name in package_files.STARTUP for path in _modules(site, name)]
    lines = [path for site in sites for path in site.glob("*.pth") if _runs(path)]
    listed = _brought() if lines else set()
    outside = [path for path in modules if not str(path).startswith(own) or "site-packages" in str(path)]
    return sorted({*map(str, outside), *(str(path) for path in lines if str(path) not in listed)})


def _hooks(paths: list[str]) -> Measured:
    texts = {path: _source(Path(path)) for path in paths}
    touching = [path for path, text in texts.items() if text and re.search(r"\btorch\b", text)]
    return {"startup": paths, "touching": touching, "harmless": [p for p in paths if texts[p] and p not in touching]}


def _source(path: Path) -> str:
    """Return the text of a module, or of a .pth file with the modules that it imports; "" if it cannot be read."""
    file = path / "__init__.py" if path.is_dir() else path
    if file.suffix not in (".py", ".pth"):
        return ""
    try:
        text = file.read_text(encoding="utf-8")
        names = re.findall(r"(?m)^import[ \t]+(\w+)", text) if file.suffix == ".pth" else []
        specs = [importlib.util.find_spec(name) for name in names if name not in sys.builtin_module_names]
        origins = [Path(spec.origin) for spec in specs if spec and spec.origin and spec.origin.endswith(".py")]
        return "\n".join([text, *(origin.read_text(encoding="utf-8") for origin in origins)])
    except (OSError, ValueError, ImportError):
        return ""


def _modules(site: Path, name: str) -> list[Path]:
    files = (path for path in site.glob(f"{name}.*") if path.suffix in (".py", ".pyc", ".so"))
    return [*files, *([site / name] if (site / name).is_dir() else [])]


def _runs(path: Path) -> bool:
    text = path.read_text(encoding="utf-8", errors="replace")
    known = KNOWN_PTH.get(path.name)
    if known is not None and known.fullmatch(text.strip()):
        return False
    return any(line.startswith(("import ", "import\t")) for line in text.splitlines())


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on each changed or missing file, on a shadowed torch and on mixed versions; warn of what nobody recorded."""
    measured = ranks[0] if ranks else {}
    if view.environment.get("error") and not measured.get("packages"):
        return undecided(f"no torch to compare: {view.environment['error']}", code="installed.none")
    findings = [*problems(measured), *_shadowed(measured), *_versions(measured), *_extra(measured)]
    return worst(findings, otherwise=summary(measured, "Python files"))


def summary(measured: Measured, extent: str) -> Outcome:
    """Return the pass, with what it cost."""
    packages = counted(len(measured.get("packages") or []), "package")
    return passed(
        f"{measured.get('files')} {extent} of {packages} are as installed "
        f"({(measured.get('bytes') or 0) / 1e6:,.0f} MB in {measured.get('seconds')} s)",
        value=0,
        unit="files",
        seconds=measured.get("seconds"),
        bytes=measured.get("bytes"),
        startup=measured.get("harmless"),
    )


def problems(measured: Measured) -> Iterator[Outcome]:
    """Yield what is wrong with the files that are listed, and the packages that list none."""
    packages: Any = measured.get("packages")
    rows = packages if isinstance(packages, list) and all(isinstance(package, dict) for package in packages) else None
    texts = [package.get(name) for package in rows or [] for name in ("name", "version", "ledger", "where")]
    if (
        rows is None
        or not all(isinstance(text, str) for text in texts)
        or not process_group.counts(measured.get("files"))
    ):
        yield undecided("no installed file was looked at", code="installed.unmeasured")
        return
    for kind, words in KINDS.items():
        count = measured.get(f"{kind}_count")
        if not process_group.counts(count) or (count and not measured.get(kind)):
            yield undecided(f"not said how many files {words}", code="installed.unmeasured")
        for path in measured.get(kind) or []:
            yield failed(f"{path} {words}", fix=FIX, code=f"installed.{kind}", culprit=path, value=count, unit="files")
    bare = [package["name"] for package in packages if not package.get("ledger")]
    if bare or not packages:
        named = ", ".join(sorted(bare)) or "torch"
        summary = f"{named} has no list of installed files (no RECORD, no conda ledger)"
        yield warned(summary, fix="install it from a wheel to have its files compared", code="installed.unrecorded")
    elif not measured["files"]:
        yield undecided("the packages list no file", fix=FIX, code="installed.empty")
    if measured.get("without"):
        first = measured["without"][0]
        summary = f"{counted(measured.get('without_count') or 0, 'file')} without a digest, the first {first}"
        yield warned(summary, fix=FIX, code="installed.without-digest", culprit=first)


def _shadowed(measured: Measured) -> Iterator[Outcome]:
    torch = [package for package in measured.get("packages") or [] if package["name"] == "torch"]
    if torch and torch[0]["ledger"] and measured.get("listed") is not True:
        where = measured.get("imported") or "nowhere"
        summary = f"torch is imported from {where}, which its package did not bring ({torch[0]['where']})"
        fix = "take the directory out of PYTHONPATH, .pth files and the working directory, or install torch again"
        yield failed(summary, fix=fix, code="installed.shadowed", culprit=where)


def _versions(measured: Measured) -> Iterator[Outcome]:
    packages = measured.get("packages") or []
    for name in sorted({package["name"] for package in packages}):
        same = [package for package in packages if package["name"] == name]
        if len(same) > len({str(Path(package["where"]).parent) for package in same}):
            versions = " and ".join(sorted(package["version"] for package in same))
            summary = f"{name} is installed twice in one directory: {versions}"
            yield failed(summary, fix=FIX, code="installed.twice", culprit=name)
    torch = next((package for package in packages if package["name"] == "torch"), None)
    if torch is None or torch["ledger"] != "RECORD":
        return
    says, version = str(measured.get("says")), str(torch["version"])
    # The wheel of the public index is called 2.6.0, and says 2.6.0+cu124 of itself.
    if says != version and says.partition("+")[0] != version:
        summary = f"torch/version.py says {says or 'nothing'}, the package is {version}"
        yield failed(summary, fix=FIX, code="installed.version", culprit="torch/version.py")


def _extra(measured: Measured) -> Iterator[Outcome]:
    for path in measured.get("added") or []:
        if _hides(Path(path)):
            summary = f"{path} was added and is imported in place of a file of its package"
            yield failed(summary, fix=f"remove it; {FIX}", code="installed.hides", culprit=path)
        else:
            summary = f"{path} was added to a package that did not bring it"
            yield warned(summary, fix=f"remove it, or {FIX}", code="installed.added", culprit=path)
    for path in measured.get("leftovers") or []:
        text = f"{path} was left by an interrupted pip, which ignores it"
        yield warned(text, fix="remove it, and install its package again", code="installed.leftover", culprit=path)
    touching = measured.get("touching") or []
    for path in measured.get("startup") or []:
        if path not in (measured.get("harmless") or []):
            does = "imports or changes torch" if path in touching else "may change what torch does"
            text, fix = f"{path} runs whenever Python starts, and {does}", "remove it, or start with `python -I`"
            yield (failed if path in touching else warned)(text, fix=fix, code="installed.startup", culprit=path)


def _hides(path: Path) -> bool:
    """Return whether Python takes this file before the module of the same name beside it."""
    if path.name == "__init__.py":
        return path.parent.with_suffix(".py").exists()
    return path.suffix == ".so" and (path.parent / f"{path.name.partition('.')[0]}.py").exists()

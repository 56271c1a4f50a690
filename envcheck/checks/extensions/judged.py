"""Judge installed extensions: each finding has the word of `resolve --with` in its code, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from envcheck.binaries.native_library import dotted
from envcheck.checks import Limit, Outcome, Ranks, View, failed, passed, skipped, undecided, worst
from envcheck.checks.extensions import compiles_later, gpu_code, pins
from envcheck.checks.extensions.measured_libraries import why_not_measured
from envcheck.checks.extensions.remedies import fitting_release, has_libraries
from envcheck.counting import counted

LIMIT: Final = Limit(0, "misfits", "ELF: DT_NEEDED, undefined symbols, symbol versions; METADATA", "equal")
# They run without their native part on a torch without CUDA, by their own documentation: pytorch/ao#2919 ("Skipping
# import of cpp extensions"), ONNX Runtime (execution providers), bitsandbytes (CPU library), xformers (WARNING).
LAZY: Final = {"torchao", "onnxruntime-gpu", "bitsandbytes", "xformers"}
# One library for each CUDA, of which one is loaded: libbitsandbytes_cuda128.so.
_CHOICE: Final = re.compile(r"(?<![a-z])(cuda?)_?\d{2,3}(?!\d)")
_OLD_STRING: Final = re.compile(r"Ss(?![a-z])")


def judge(view: View, ranks: Ranks) -> Outcome:
    """Return the outcome of the check `extensions`."""
    measured = ranks[0] if ranks else {}
    why = why_not_measured(measured)
    if why:
        text = f"the installed packages were not looked at: {why}"
        return undecided(text, fix="see the check's log", code="extensions.unmeasured")
    rows = measured["extensions"]
    if not rows:
        return skipped("no extension with native code for torch or CUDA is installed", code="extensions.none")
    findings = [finding for row in rows for finding in _one(view, measured, row)]
    names = ", ".join(_shown(row) for row in rows)
    return worst(findings, passed(f"{names}: every library fits", value=0, unit=LIMIT.unit, limit=LIMIT))


def _shown(row: Mapping[str, Any]) -> str:
    return f"{row['name']} {row.get('version')}"


def _one(view: View, measured: Mapping[str, Any], row: Mapping[str, Any]) -> list[Outcome]:
    """Return what is wrong with one extension. GPU code is looked at only where the rest fits."""
    findings = [*_unread(row), *_foreign(view, measured, row), *_python(view, measured, row)]
    findings += [*_glibc(measured, row), *pins.conflicts(measured, row)]
    findings += [*_symbols(view, measured, row), *_libraries(view, measured, row)]
    return findings or [*gpu_code.findings(view, row), *compiles_later.findings(view, measured, row)]


def _fail(row: Mapping[str, Any], statement: str, fix: str, code: str, **details: Any) -> Outcome:
    text = f"{_shown(row)}: {statement}"
    return failed(text, fix=fix, code=code, culprit=str(row["name"]), value=1, unit=LIMIT.unit, limit=LIMIT, **details)


def _unread(row: Mapping[str, Any]) -> Iterator[Outcome]:
    unread, name = row.get("unread") or {}, str(row["name"])
    if unread:
        path, why = next(iter(unread.items()))
        text = f"{_shown(row)}: {counted(len(unread), 'library', 'libraries')} not read, first {path}: {why}"
        yield undecided(text, fix=f"install {name} again", code="extensions.not-looked-at", culprit=name)
    if row.get("listed") is False and not row.get("libraries"):
        text = f"{_shown(row)}: its installer listed no files, and none were found"
        yield undecided(text, fix=f"install {name} from a wheel", code="extensions.not-looked-at", culprit=name)
    elif not unread and _is_hollow(row) and has_libraries(name, str(row.get("version"))):
        text = f"{_shown(row)}: no library of it was found, and its wheels have some"
        yield undecided(text, fix=f"install {name} again", code="extensions.not-looked-at", culprit=name)
    versions = row.get("versions") or []
    if len(versions) > 1:
        text = f"{name}: METADATA of {' and '.join(versions)} lie in one directory, so which is installed is not known"
        yield undecided(
            text, fix=f"remove all of {name}, then install it", code="extensions.not-looked-at", culprit=name
        )


def _is_hollow(row: Mapping[str, Any]) -> bool:
    """Return whether a package has no library of its own: auditwheel puts what it bundles into NAME.libs/."""
    return all(".libs/" in str(library.get("path")) for library in row.get("libraries") or [])


def _foreign(view: View, measured: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Outcome]:
    foreign = [library for library in row.get("libraries") or [] if library.get("foreign")]
    if foreign:
        machine = (measured.get("interpreter") or {}).get("machine")
        statement = f"{foreign[0]['path']} is for {foreign[0]['foreign']}, and this machine is {machine}"
        fix = fitting_release(view, measured, str(row["name"]), str(row.get("version")))
        yield _fail(row, statement, fix, "extensions.no-host")


def _python(view: View, measured: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Outcome]:
    interpreter, tags = measured.get("interpreter") or {}, row.get("tags") or []
    version = interpreter.get("version") or []
    python = ".".join(map(str, version))
    if tags and version and not any(pins.takes(tag, interpreter) for tag in tags):
        why = f"its wheel is for {', '.join(dict.fromkeys('-'.join(tag.split('-')[:2]) for tag in tags))}"
    elif row.get("other_python"):
        why = f"{row['other_python'][0]} is for another Python"
    else:
        return
    fix = fitting_release(view, measured, str(row["name"]))
    yield _fail(row, f"{why}, and this is Python {python}", fix, "extensions.no-python")


def _glibc(measured: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Outcome]:
    system_glibc = measured.get("glibc")
    needs = [library for library in row.get("libraries") or [] if library.get("glibc")]
    newer = [library for library in needs if system_glibc and dotted(library["glibc"]) > dotted(system_glibc)]
    if newer:
        library = max(newer, key=lambda each: dotted(each["glibc"]))
        statement = f"{library['path']} needs GLIBC_{library['glibc']}, and this system has {system_glibc}"
        fix = f"use a base with glibc {library['glibc']} or newer, or a wheel with an older manylinux tag"
        yield _fail(row, statement, fix, "extensions.glibc")


def _symbols(view: View, measured: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Outcome]:
    undefined = row.get("undefined") or {}
    if not undefined.get("count") or not measured.get("torch"):
        return
    symbol, readable = next(iter(undefined["symbols"].items()))
    library = next((one for one in row["libraries"] if symbol in (one.get("undefined") or ())), {"path": "a library"})
    more = undefined["count"] - 1
    statement = (
        f"{library['path']} needs {readable}{f' and {more} more' if more else ''}, "
        f"which torch {measured['torch']} does not define"
    )
    strings = bool(_OLD_STRING.search(symbol)) and "__cxx11" not in symbol
    cause = "it was built with the old C++ string ABI (cxx11abi=0)" if strings else "it was built for another torch"
    fix = f"{cause}: {fitting_release(view, measured, str(row['name']))}"
    yield _fail(row, statement, fix, "extensions.torch-abi", symbols=dict(undefined["symbols"]))


def _libraries(view: View, measured: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Outcome]:
    libraries = row.get("libraries") or []
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for library in libraries:
        groups.setdefault(_CHOICE.sub(r"\1N", library["path"]), []).append(library)
    lacking = [group[0] for group in groups.values() if all(library.get("missing") for library in group)]
    if not lacking:
        return
    library, cuda = lacking[0], view.environment.get("cuda")
    missing, torch = library["missing"][0], measured.get("torch")
    brings = f"torch {torch} is for {f'CUDA {cuda}' if cuda else 'the CPU'}" if torch else "there is no torch"
    statement = f"{library['path']} needs {missing}, which nothing here brings: {brings}"
    details = {"missing": {one["path"]: one["missing"] for one in lacking}}
    if torch and not cuda and row["name"] in LAZY:
        text = f"{_shown(row)}: {statement}; it runs without its native part"
        yield skipped(text, code="extensions.cpu-torch", culprit=str(row["name"]), missing=details["missing"])
        return
    fix = f"the wheel was built for another CUDA than torch: {fitting_release(view, measured, str(row['name']))}"
    yield _fail(row, statement, fix, "extensions.cuda-major", **details)

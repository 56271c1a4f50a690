"""Judge installed extensions: each finding has the word of `resolve --with` in its code, and what to do."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envcheck.binaries.native_library import dotted
from envcheck.checks import (
    Limit,
    Outcome,
    Ranks,
    View,
    failed,
    gpu_readings,
    matrix_facts,
    passed,
    skipped,
    undecided,
    warned,
    worst,
)
from envcheck.checks.extensions.installed import PRECOMPILED
from envcheck.counting import counted
from envcheck.errors import ConfigError
from envcheck.matrix.extensions.file import load
from envcheck.matrix.extensions.fit import JIT, CellOnHost, fit
from envcheck.matrix.extensions.fit import OK as FITS
from envcheck.matrix.extensions.model import ExtensionRelease, Extensions
from envcheck.matrix.facts.lookup import Facts, nvcc_in_wheels
from envcheck.matrix.facts.model import Cell
from envcheck.matrix.resolver.verdict import OK, driver_verdict, runs_on
from envcheck.node.snapshot import Gpu

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
    findings += [*_glibc(measured, row), *conflicts(measured, row)]
    findings += [*_symbols(view, measured, row), *_libraries(view, measured, row)]
    return findings or [*gpu_code_findings(view, row), *compiler_findings(view, measured, row)]


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
    if tags and version and not any(takes(tag, interpreter) for tag in tags):
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


CODE_SOURCE: Final = "CUDA C++ Programming Guide: binary compatibility within a major, PTX compatibility upwards"


def gpu_code_findings(view: View, row: Mapping[str, Any]) -> list[Outcome]:
    """Return what is wrong with an extension's GPU code; a skip where there is no GPU to compare it with."""
    libraries = row.get("libraries") or []
    sass = sorted({code for library in libraries for code in library.get("sass") or ()}, key=_number)
    ptx = sorted({code for library in libraries for code in library.get("ptx") or ()}, key=_number)
    if not sass and not ptx:
        return []
    name = str(row["name"])
    if not view.snapshot.gpus:
        text = f"{name} {row.get('version')}: every library fits; no GPU to compare its code with"
        return [skipped(text, code="extensions.cpu-only", culprit=name)]
    return [finding for gpu in view.snapshot.gpus for finding in _on(view, row, gpu, sass, ptx)]


def _number(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))


def _on(view: View, row: Mapping[str, Any], gpu: Gpu, sass: list[str], ptx: list[str]) -> list[Outcome]:
    capability, name = gpu.signal("compute_capability"), str(row["name"])
    culprit = gpu_readings.culprit(view, gpu_readings.label(gpu))
    if capability.value is None:
        text = f"{name}: the compute capability of GPU {gpu.uuid} is unread: {capability.reason}"
        return [undecided(text, fix="look at NVML", code="extensions.gpu-unread", culprit=culprit)]
    cc, cuda = str(capability.value), str(view.environment.get("cuda") or "")
    try:
        matrix = matrix_facts.matrix(view)
        if runs_on(matrix, sass, [], cc, cuda):
            return []
        driver = view.snapshot.signal("driver.version").value
        by_ptx = runs_on(matrix, [], ptx, cc, cuda)
        native = bool(driver) and driver_verdict(matrix, cuda, str(driver), matrix_facts.datacenter(view)).name == OK
    except ConfigError as error:
        text = f"{name}: its code cannot be compared with GPU {gpu.uuid}: {error.message}"
        return [undecided(text, fix="update envcheck's facts", code="extensions.gpu-unread", culprit=culprit)]
    if by_ptx and native:
        return []
    has = " ".join([*sass, *(f"{code}+PTX" for code in ptx)])
    why = f"only PTX fits, and driver {driver} compiles none of CUDA {cuda}" if by_ptx else f"it has code for {has}"
    code = "extensions.ptx" if by_ptx else "extensions.no-gpu-code"
    fix = f"install a {name} with code for {cc} (`envcheck resolve --with {name} --cc {cc}`), or use another GPU"
    text = f"{name} {row.get('version')}: no code runs on compute capability {cc}: {why}"
    limit = Limit(f"code for {cc}", "", CODE_SOURCE, "equal")
    return [failed(text, fix=fix, code=code, culprit=culprit, value=has, limit=limit, gpus=[gpu.uuid])]


COMPILER_SOURCE: Final = "torch.utils.cpp_extension: nvcc must be of the CUDA major that torch was built with"


def compiler_findings(view: View, measured: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Outcome]:
    """Give a warning for an extension without compiled code of its own that the facts say compiles at first use."""
    name, installed, compiler = str(row["name"]), measured.get("installed") or {}, measured.get("nvcc")
    what = _compiles(name, str(row.get("version")))
    if (
        not what
        or compiler is None
        or row.get("libraries")
        or any(one in installed for one in PRECOMPILED.get(name, ()))
    ):
        return
    cuda, text = str(view.environment.get("cuda") or ""), f"{name} {row.get('version')}: {what}"
    if not cuda:
        yield skipped(f"{text}; torch is for the CPU", code="extensions.cpu-torch", culprit=name)
        return
    major = cuda.partition(".")[0]
    if compiler.get("cuda", "").partition(".")[0] == major:
        return
    why = compiler.get("why") or f"{compiler['path']} is of CUDA {compiler['cuda']}, and torch is for CUDA {cuda}"
    fix = f"use the target `devel`, or install nvcc {cuda}" if nvcc_in_wheels(cuda) else f"install nvcc {cuda}"
    limit, value = Limit(f"CUDA {major}", "", COMPILER_SOURCE, "equal"), compiler.get("cuda") or "none"
    yield warned(f"{text}; {why}", fix=fix, code="extensions.jit", culprit=name, value=value, limit=limit)


def _compiles(name: str, version: str) -> str:
    """Return what a release compiles at first use, "" where the facts name nothing.

    A release that is not on record does as the newest older one on record does, or as the oldest one.
    """
    extension = facts().find(name)
    try:
        releases = sorted((Version(one.version), one.jit or "") for one in extension.releases) if extension else []
        older = [jit for release, jit in releases if release <= Version(version)]
    except InvalidVersion:
        return ""
    return older[-1] if older else releases[0][1] if releases else ""


class MeasuredLibrary(msgspec.Struct, frozen=True):
    """One library: what it lacks, the newest glibc that it needs ("" for none), and its GPU code ("9.0").

    `foreign` is the machine that it is for, where that is another one than this.
    """

    path: str
    missing: list[str]
    undefined: list[str]
    glibc: str
    sass: list[str]
    ptx: list[str]
    foreign: str = ""


class UndefinedSymbols(msgspec.Struct, frozen=True):
    """How many torch symbols are undefined, and some of them with their names in the source."""

    count: int
    symbols: dict[str, str]


class MeasuredExtension(msgspec.Struct, frozen=True):
    """An installed package, as checks/extensions/installed.py describes it."""

    name: str
    version: str
    listed: bool
    tags: list[str]
    requires: list[str]
    other_python: list[str]
    unread: dict[str, str]
    undefined: UndefinedSymbols
    libraries: list[MeasuredLibrary]
    versions: list[str] = []


class Interpreter(msgspec.Struct, frozen=True):
    """The Python that a wheel's tags are compared with. `version` is major and minor."""

    version: tuple[int, int]
    free_threaded: bool
    machine: str


class MeasuredCompiler(msgspec.Struct, frozen=True):
    """The nvcc of an environment: its CUDA ("13.0"), "" if there is none, and why then."""

    path: str
    cuda: str
    why: str


class MeasuredLibraries(msgspec.Struct, frozen=True):
    """All extensions of one environment. `glibc` is None for another C library, `torch` where there is none.

    `nvcc` is None where every extension has libraries of its own, so that none compiles later.
    """

    interpreter: Interpreter
    glibc: str | None
    torch: str | None
    installed: dict[str, str]
    extensions: list[MeasuredExtension]
    nvcc: MeasuredCompiler | None = None


def why_not_measured(measured: Mapping[str, Any]) -> str:
    """Return what is wrong with what was measured, "" if it is whole."""
    try:
        msgspec.convert(measured, MeasuredLibraries)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


_REQUIREMENTS: Final = Limit(0, "requirements", "METADATA: Requires-Dist", "equal")
# What an extension was compiled against, or compiles with: another version breaks it.
_COMPILED_AGAINST: Final = ("torch", "triton")


def conflicts(measured: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Outcome]:
    """Yield a finding for each requirement that what is installed does not meet; what is absent is `requirements`'."""
    installed = measured.get("installed") or {}
    for line in row.get("requires") or []:
        try:
            requirement = _applicable(Requirement(str(line)), measured.get("interpreter") or {})
        except InvalidRequirement:
            yield _no_requirement(row, str(line))
            continue
        version = installed.get(canonicalize_name(requirement.name)) if requirement else None
        if requirement is None or not version or requirement.specifier.contains(version, prereleases=True):
            continue
        name = requirement.name
        problem = (
            f"{row['name']} {row.get('version')} requires {name}{requirement.specifier}, and {version} is installed"
        )
        judged = failed if canonicalize_name(name) in _COMPILED_AGAINST else warned
        yield judged(
            problem,
            fix=_fix_requirement(str(row["name"]), name, str(requirement.specifier), version),
            code="extensions.pins",
            culprit=str(row["name"]),
            value=version,
            unit=_REQUIREMENTS.unit,
            limit=_REQUIREMENTS,
        )


def _no_requirement(row: Mapping[str, Any], line: str) -> Outcome:
    text = f"{row['name']} {row.get('version')}: its METADATA requires {line!r}, which is no requirement"
    fix = f"install {row['name']} again"
    return undecided(text, fix=fix, code="extensions.not-looked-at", culprit=str(row["name"]))


def _fix_requirement(extension: str, name: str, specifier: str, version: str) -> str:
    if name in _COMPILED_AGAINST:
        return (
            f"a later install moved {name}, or {extension} fits another one: install a {extension} for "
            f"{name} {version} with --no-deps, or {name}{specifier} again, with torch==X+cuNNN as a constraint"
        )
    return f"install {name}{specifier}, or another {extension}; where two packages exclude each other, two environments"


def _applicable(requirement: Requirement, interpreter: Mapping[str, Any]) -> Requirement | None:
    version = ".".join(map(str, interpreter.get("version") or [3, 12]))
    environment = {"python_version": version, "python_full_version": f"{version}.0", "extra": ""}
    environment |= {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    environment |= {"platform_machine": str(interpreter.get("machine") or "x86_64")}
    return requirement if requirement.marker is None or requirement.marker.evaluate(environment) else None


def takes(tag: str, interpreter: Mapping[str, Any]) -> bool:
    """Return whether this Python takes a wheel's tag; an abi3 tag counts upwards, never for a free-threaded Python."""
    python, _, remainder = tag.partition("-")
    abi = remainder.partition("-")[0]
    major, minor = interpreter["version"]
    free = bool(interpreter.get("free_threaded"))
    for one in python.split("."):
        digits = one[2:]
        if not digits.isdigit() or digits[0] != str(major):
            continue
        number = int(digits[1:] or 0)
        if abi == "none" and (one.startswith("py") or number == minor) and number <= minor:
            return True
        if abi == "abi3" and not free and number <= minor:
            return True
        if number == minor and abi.split(".")[0] == f"cp{major}{minor}{'t' if free else ''}":
            return True
    return False


_ARCHS: Final = ("x86_64", "aarch64")


@functools.cache
def facts() -> Extensions:
    """Return the shipped facts about extensions."""
    return load()


def has_libraries(name: str, version: str) -> bool:
    """Return whether every wheel of a release that was read has libraries for torch or CUDA; not known is no."""
    extension = facts().find(name)
    public = version.partition("+")[0]
    releases = [one for one in extension.releases if one.version == public] if extension else []
    read = [wheel for release in releases for wheel in release.wheels if wheel.abi is not None]
    return bool(read) and all(wheel.abi != "none" or wheel.cuda for wheel in read)


def variant_of(torch: str, cuda: str | None) -> str:
    """Return the variant of an installed torch: its local version, else the one of its CUDA."""
    _, _, local = torch.partition("+")
    return local or ("cpu" if not cuda else f"cu{cuda.replace('.', '')}")


def fitting_release(view: View, measured: Mapping[str, Any], name: str, installed: str = "") -> str:
    """Return how to install the newest release of an extension that fits this environment, else where to look.

    `installed` is the version that is there: if it is the one that fits, its files are not what they should be.
    """
    torch = str(measured.get("torch") or "")
    look = f"see `envcheck resolve --with {name} --torch {torch.partition('+')[0]}`" if torch else "install torch first"
    extension, place = facts().find(name), _place(view, measured, torch)
    if extension is None or place is None:
        return f"install a {name} that was built for this torch, or build it from source"
    lookups = Facts(matrix_facts.matrix(view))
    for release in sorted(extension.releases, key=_newest_first, reverse=True):
        judged = fit(lookups, extension.name, release, place, third_party=False)
        if judged.word in (FITS, JIT):
            if release.version == installed.partition("+")[0]:
                return f"{extension.name} {installed} fits by its facts: install it again, from the index of this torch"
            where = judged.wheel.where if judged.wheel is not None and judged.wheel.where else ""
            return f"install {extension.name}=={release.version}{f' from {where}' if where else ''}, with --no-deps"
    return f"no release of {name} on record fits torch {torch}: {look}"


def _newest_first(release: ExtensionRelease) -> Version:
    return Version(release.version)


def _place(view: View, measured: Mapping[str, Any], torch: str) -> CellOnHost | None:
    interpreter = measured.get("interpreter") or {}
    version, machine = interpreter.get("version") or [], interpreter.get("machine")
    try:
        release = Version(torch).base_version
    except InvalidVersion:
        return None
    if len(version) != 2 or machine not in _ARCHS:  # noqa: PLR2004 (major and minor)
        return None
    cuda = view.environment.get("cuda")
    python = f"{version[0]}.{version[1]}{'t' if interpreter.get('free_threaded') else ''}"
    try:
        cell = Cell(torch=release, variant=variant_of(torch, cuda), python=python)
    except (ConfigError, ValueError):
        return None
    return CellOnHost(cell, machine, str(cuda) if cuda else None, True, measured.get("glibc"), None, ())  # noqa: FBT003 (a field)

"""Judge installed extensions: each finding has the word of `resolve --with` in its code, and what to do."""

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from packaging import tags
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

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
from envcheck.errors import ConfigError
from envcheck.matrix.extensions.file import Extensions, load
from envcheck.matrix.extensions.fit import JIT, CellOnHost, fit
from envcheck.matrix.extensions.fit import OK as FITS
from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.facts.model import Cell
from envcheck.matrix.resolver.verdict import OK, driver_verdict, runs_on
from envcheck.node.snapshot import Gpu

LIMIT = Limit(0, "misfits", "ELF: DT_NEEDED, undefined symbols, symbol versions; METADATA", "equal")
# They run without their native part on a torch without CUDA, by their own documentation: pytorch/ao#2919 ("Skipping
# import of cpp extensions"), ONNX Runtime (execution providers), bitsandbytes (CPU library), xformers (WARNING).
LAZY = {"torchao", "onnxruntime-gpu", "bitsandbytes", "xformers"}
# One library for each CUDA, of which one is loaded: libbitsandbytes_cuda128.so.
_CHOICE = re.compile(r"(?<![a-z])(cuda?)_?\d{2,3}(?!\d)")
_OLD_STRING = re.compile(r"Ss(?![a-z])")


def judge(view: View, ranks: Ranks) -> Outcome:
    """Return the outcome of the check `extensions`."""
    measured = ranks[0] if ranks else {}
    try:
        rows = measured["extensions"]
        findings = [finding for row in rows for finding in _one(view, measured, row)]
        names = ", ".join(_shown(row) for row in rows)
    except (KeyError, TypeError, ValueError) as error:
        return undecided(f"the installed packages were not looked at: {error}", code="extensions.unmeasured")
    if not rows:
        return skipped("no extension with native code for torch or CUDA is installed", code="extensions.none")
    return worst(findings, passed(f"{names}: every library fits", value=0, limit=LIMIT))


def _shown(row: Mapping[str, Any]) -> str:
    return f"{row['name']} {row['version']}"


def _one(view: View, measured: Mapping[str, Any], row: Mapping[str, Any]) -> list[Outcome]:
    findings = [*_unread(row), *_foreign(view, measured, row), *_python(view, measured, row)]
    findings += [*_glibc(measured, row), *conflicts(measured, row)]
    findings += [*_symbols(view, measured, row), *_libraries(view, measured, row)]
    return findings or gpu_code_findings(view, row)


def _fail(row: Mapping[str, Any], statement: str, fix: str, code: str, **details: Any) -> Outcome:
    text = f"{_shown(row)}: {statement}"
    return failed(text, fix=fix, code=code, culprit=str(row["name"]), value=1, limit=LIMIT, **details)


def _unread(row: Mapping[str, Any]) -> Iterator[Outcome]:
    name, versions, again = str(row["name"]), row.get("versions") or [], f"install {row['name']} again"
    # auditwheel puts what a package bundles into NAME.libs/: that is no library of its own.
    hollow = all(".libs/" in str(library["path"]) for library in row["libraries"])
    problems = [(f"{path} is not read: {why}", again) for path, why in row["unread"].items()][:1]
    if not row["listed"] and not row["libraries"]:
        problems.append(("its installer listed no files, and none were found", f"install {name} from a wheel"))
    elif not problems and hollow and has_libraries(name, str(row["version"])):
        problems.append(("no library of it was found, and its wheels have some", again))
    if len(versions) > 1:
        text = f"METADATA of {' and '.join(versions)} lie in one directory, so which is installed is not known"
        problems.append((text, f"remove all of {name}, then install it"))
    for text, fix in problems:
        yield undecided(f"{_shown(row)}: {text}", fix=fix, code="extensions.not-looked-at", culprit=name)


def _foreign(view: View, measured: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Outcome]:
    foreign = [library for library in row["libraries"] if library.get("foreign")]
    if foreign:
        machine = measured["interpreter"]["machine"]
        statement = f"{foreign[0]['path']} is for {foreign[0]['foreign']}, and this machine is {machine}"
        fix = fitting_release(view, measured, str(row["name"]), str(row["version"]))
        yield _fail(row, statement, fix, "extensions.no-host")


def _python(view: View, measured: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Outcome]:
    interpreter, of_wheel = measured["interpreter"], row["tags"]
    python = ".".join(map(str, interpreter["version"]))
    if of_wheel and not any(takes(tag, interpreter) for tag in of_wheel):
        why = f"its wheel is for {', '.join(dict.fromkeys('-'.join(tag.split('-')[:2]) for tag in of_wheel))}"
    elif row["other_python"]:
        why = f"{row['other_python'][0]} is for another Python"
    else:
        return
    fix = fitting_release(view, measured, str(row["name"]))
    yield _fail(row, f"{why}, and this is Python {python}", fix, "extensions.no-python")


def _glibc(measured: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Outcome]:
    system_glibc = measured["glibc"]
    needs = [library for library in row["libraries"] if library["glibc"]]
    newer = [library for library in needs if system_glibc and dotted(library["glibc"]) > dotted(system_glibc)]
    if newer:
        library = max(newer, key=lambda each: dotted(each["glibc"]))
        statement = f"{library['path']} needs GLIBC_{library['glibc']}, and this system has {system_glibc}"
        fix = f"use a base with glibc {library['glibc']} or newer, or a wheel with an older manylinux tag"
        yield _fail(row, statement, fix, "extensions.glibc")


def _symbols(view: View, measured: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Outcome]:
    undefined, torch = row["undefined"], measured["torch"]
    if not undefined["count"] or not torch:
        return
    symbol = next(iter(undefined["symbols"]))
    library = next((one for one in row["libraries"] if symbol in (one.get("undefined") or ())), {"path": "a library"})
    more = undefined["count"] - 1
    statement = (
        f"{library['path']} needs {symbol}{f' and {more} more' if more else ''}, which torch {torch} does not define"
    )
    strings = bool(_OLD_STRING.search(symbol)) and "__cxx11" not in symbol
    cause = "it was built with the old C++ string ABI (cxx11abi=0)" if strings else "it was built for another torch"
    fix = f"{cause}: {fitting_release(view, measured, str(row['name']))}"
    yield _fail(row, statement, fix, "extensions.torch-abi", symbols=list(undefined["symbols"]))


def _libraries(view: View, measured: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Outcome]:
    libraries = row["libraries"]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for library in libraries:
        groups.setdefault(_CHOICE.sub(r"\1N", library["path"]), []).append(library)
    lacking = [group[0] for group in groups.values() if all(library["missing"] for library in group)]
    if not lacking:
        return
    library, cuda = lacking[0], view.environment.get("cuda")
    missing, torch = library["missing"][0], measured["torch"]
    brings = f"torch {torch} is for {f'CUDA {cuda}' if cuda else 'the CPU'}" if torch else "there is no torch"
    statement = f"{library['path']} needs {missing}, which nothing here brings: {brings}"
    details = {one["path"]: one["missing"] for one in lacking}
    if torch and not cuda and row["name"] in LAZY:
        text = f"{_shown(row)}: {statement}; it runs without its native part"
        yield skipped(text, code="extensions.cpu-torch", culprit=str(row["name"]), missing=details)
        return
    fix = f"the wheel was built for another CUDA than torch: {fitting_release(view, measured, str(row['name']))}"
    yield _fail(row, statement, fix, "extensions.cuda-major", missing=details)


CODE_SOURCE = "CUDA C++ Programming Guide: binary compatibility within a major, PTX compatibility upwards"


def gpu_code_findings(view: View, row: Mapping[str, Any]) -> list[Outcome]:
    """Return what is wrong with an extension's GPU code; a skip where there is no GPU to compare it with."""
    libraries = row["libraries"]
    sass = sorted({code for library in libraries for code in library["sass"]}, key=_number)
    ptx = sorted({code for library in libraries for code in library["ptx"]}, key=_number)
    if not sass and not ptx:
        return []
    name = str(row["name"])
    if not view.snapshot.gpus:
        text = f"{name} {row['version']}: every library fits; no GPU to compare its code with"
        return [skipped(text, code="extensions.cpu-only", culprit=name)]
    return [finding for gpu in view.snapshot.gpus for finding in _on(view, row, gpu, sass, ptx)]


def _number(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))


def _on(view: View, row: Mapping[str, Any], gpu: Gpu, sass: list[str], ptx: list[str]) -> list[Outcome]:
    capability, name = gpu.signal("compute_capability"), str(row["name"])
    culprit = gpu_readings.culprit(gpu)
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
    text = f"{name} {row['version']}: no code runs on compute capability {cc}: {why}"
    limit = Limit(f"code for {cc}", "", CODE_SOURCE, "equal")
    return [failed(text, fix=fix, code=code, culprit=culprit, value=has, limit=limit, gpus=[gpu.uuid])]


# What an extension was compiled against, or compiles with: another version breaks it.
_COMPILED_AGAINST = ("torch", "triton")


def conflicts(measured: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Outcome]:
    """Yield a finding for each requirement that what is installed does not meet; what is absent is `requirements`'."""
    installed = measured["installed"]
    for line in row["requires"]:
        try:
            requirement = _applicable(Requirement(str(line)), measured["interpreter"])
        except InvalidRequirement:
            text, fix = f"{_shown(row)}: METADATA requires {line!r}, no requirement", f"install {row['name']} again"
            yield undecided(text, fix=fix, code="extensions.not-looked-at", culprit=str(row["name"]))
            continue
        version = installed.get(canonicalize_name(requirement.name)) if requirement else None
        if requirement is None or not version or requirement.specifier.contains(version, prereleases=True):
            continue
        name, about = requirement.name, {"code": "extensions.pins", "culprit": str(row["name"]), "value": version}
        problem = f"{_shown(row)} requires {name}{requirement.specifier}, and {version} is installed"
        extension, wants = str(row["name"]), f"{name}{requirement.specifier}"
        fix = f"install {wants}, or another {extension}; where two packages exclude each other, two environments"
        if name in _COMPILED_AGAINST:
            fix = (
                f"a later install moved {name}, or {extension} fits another one: install a {extension} for "
                f"{name} {version} with --no-deps, or {wants} again, with torch==X+cuNNN as a constraint"
            )
        judged = failed if canonicalize_name(name) in _COMPILED_AGAINST else warned
        yield judged(problem, fix=fix, limit=Limit(0, "requirements", "METADATA: Requires-Dist", "equal"), **about)


def _applicable(requirement: Requirement, interpreter: Mapping[str, Any]) -> Requirement | None:
    version = ".".join(map(str, interpreter["version"]))
    environment = {"python_version": version, "python_full_version": f"{version}.0", "extra": ""}
    environment |= {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    environment |= {"platform_machine": str(interpreter["machine"])}
    return requirement if requirement.marker is None or requirement.marker.evaluate(environment) else None


def takes(tag: str, interpreter: Mapping[str, Any]) -> bool:
    """Return whether this Python takes a wheel's tag, whatever its platform."""
    version, abi = list(interpreter["version"]), "cp{}{}".format(*interpreter["version"])
    own = tags.cpython_tags(version, [abi + ("t" if interpreter["free_threaded"] else "")], ["any"])
    taken = {(one.interpreter, one.abi) for one in (*own, *tags.compatible_tags(version, abi, ["any"]))}
    return any((one.interpreter, one.abi) in taken for one in tags.parse_tag(tag))


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


def fitting_release(view: View, measured: Mapping[str, Any], name: str, installed: str = "") -> str:
    """Return how to install the newest release that fits here, else where to look; `installed` is what there is."""
    torch = str(measured.get("torch") or "")
    look = f"see `envcheck resolve --with {name} --torch {torch.partition('+')[0]}`" if torch else "install torch first"
    extension, place = facts().find(name), _place(view, measured, torch)
    if extension is None or place is None:
        return f"install a {name} that was built for this torch, or build it from source"
    lookups = Facts(matrix_facts.matrix(view))
    for release in sorted(extension.releases, key=lambda release: Version(release.version), reverse=True):
        judged = fit(lookups, extension.name, release, place, third_party=False)
        if judged.word in (FITS, JIT):
            if release.version == installed.partition("+")[0]:
                return f"{extension.name} {installed} fits by its facts: install it again, from the index of this torch"
            where = judged.wheel.where if judged.wheel is not None and judged.wheel.where else ""
            return f"install {extension.name}=={release.version}{f' from {where}' if where else ''}, with --no-deps"
    return f"no release of {name} on record fits torch {torch}: {look}"


def _place(view: View, measured: Mapping[str, Any], torch: str) -> CellOnHost | None:
    interpreter, cuda = measured["interpreter"], view.environment.get("cuda")
    python = "{}.{}".format(*interpreter["version"]) + ("t" if interpreter["free_threaded"] else "")
    # A torch of the public index says no variant: its CUDA does.
    variant = torch.partition("+")[2] or ("cpu" if not cuda else f"cu{cuda.replace('.', '')}")
    try:
        cell = Cell(torch=Version(torch).base_version, variant=variant, python=python)
    except (ConfigError, ValueError):
        return None
    if interpreter["machine"] not in ("x86_64", "aarch64"):
        return None
    return CellOnHost(cell, interpreter["machine"], cuda or None, True, measured.get("glibc"), None, ())  # noqa: FBT003 (a field)

"""Make the row of a wheel for extensions.yaml from the wheel itself: its name, its METADATA and its libraries."""

import contextlib
import datetime as dt
import email.message
import email.parser
import email.policy
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, cast

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag
from packaging.utils import canonicalize_name
from packaging.version import Version

from envcheck.binaries import native_library
from envcheck.binaries.native_library import Library, dotted, is_foreign, ordered
from envcheck.binaries.wheel_members import WheelContents
from envcheck.errors import refuse
from envcheck.matrix.extensions.file import Abi, Channel, Extension, ExtensionRelease, Extensions, ExtensionWheel
from envcheck.matrix.facts.model import HostArch

_ABIS: Final[tuple[tuple[str, Abi], ...]] = (
    (native_library.NONE, "none"),
    (native_library.STABLE, "stable"),
    (native_library.MIXED, "mixed"),
    (native_library.CPP, "c++"),
)
# PEP 600 and its predecessors: the oldest glibc that a platform tag promises.
_LEGACY: Final = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}
_PLATFORM: Final = re.compile(r"(?:(manylinux1|manylinux20\d\d)|manylinux_(\d+)_(\d+)|linux)_(x86_64|aarch64)")
_PYTHON: Final = re.compile(r"(?:py|cp)\d+")
# Local versions: +cu128, and flash-attn's +cu12torch2.8cxx11abiTRUE.
_VARIANT: Final = re.compile(r"cu\d{3}|cpu")
_BUILT_FOR: Final = re.compile(r"cu\d+torch(\d+\.\d+)cxx11abi(true|false)")
# One library for each CUDA: libbitsandbytes_cuda128.so.
CHOICE: Final = re.compile(r"(?<![a-z])(cuda?)_?\d{2,3}(?!\d)")
# A module for one CPython: _C.cpython-312-x86_64-linux-gnu.so (sysconfig, EXT_SUFFIX).
_MODULE: Final = re.compile(r"(?P<stem>.+)\.cpython-(?P<python>\d+t?)-[\w-]+\.so")
_DEFAULT_PYTHON: Final = "3.12"
_SOURCE: Final = "opened"


class OpenedWheel(NamedTuple):
    """What was opened: the file's name, its bytes, its sha256, who serves it and where, and its content."""

    name: str
    size: int
    sha256: str
    channel: Channel
    where: str | None
    project: str
    version: Version
    tags: frozenset[Tag]
    contents: WheelContents


def without_foreign(contents: WheelContents, name: str, tags: Iterable[Tag]) -> WheelContents:
    """Return what was read of a wheel; libraries for another machine than its name says count as not read."""
    machine = architecture(tags, name)
    foreign = {
        library.path: f"it is for {library.machine}" for library in contents.libraries if is_foreign(library, machine)
    }
    libraries = [library for library in contents.libraries if library.path not in foreign]
    return contents._replace(libraries=libraries, unread={**contents.unread, **foreign})


def extensions_file(opened: OpenedWheel, today: dt.date) -> Extensions:
    """Return a file of facts with the one release of this wheel. Raises ConfigError if it is no wheel for Linux."""
    where = "" if opened.where is None else f", from {opened.where}"
    text = f"METADATA and libraries of {opened.name}{where}, sha256 {opened.sha256}; opened {today}"
    row = Extension(name=opened.project, source=[_SOURCE], releases=[_release(opened)])
    return Extensions(schema="envcheck/extensions/1", sources={_SOURCE: text}, extensions=[row])


def _release(opened: OpenedWheel) -> ExtensionRelease:
    metadata = email.parser.Parser(policy=email.policy.compat32).parsestr(opened.contents.metadata, headersonly=True)
    if not metadata["Name"] or not metadata["Version"]:
        refuse(f"{opened.name}: its METADATA has no name or no version", "download it again, from its origin")
    if canonicalize_name(str(metadata["Name"])) != opened.project or _version(metadata) != opened.version:
        refuse(
            f"{opened.name}: its METADATA is of {_one_line(metadata['Name'])} {_one_line(metadata['Version'])}",
            "the file was renamed: give it the name that it was published with",
        )
    if canonicalize_name(opened.contents.directory.rpartition("-")[0]) != opened.project:
        refuse(
            f"{opened.name}: its METADATA lies in {opened.contents.directory}.dist-info, which no installer takes",
            "download it again, from its origin",
        )
    requires = metadata.get_all("Requires-Dist") or []
    unread = next((line for line in requires if not _is_requirement(line)), None)
    if unread is not None:  # it may be the pin of torch
        text = " ".join(unread.split())[:100]
        refuse(
            f"{opened.name}: its METADATA requires {text!r}, which names no versions of an index",
            "take another release: which versions fit cannot be known",
        )
    _refuse_unread_python(opened, _one_line(metadata["Requires-Python"]))
    _refuse_other_python(opened)
    return ExtensionRelease(
        version=opened.version.public,
        requires_python=_one_line(metadata["Requires-Python"]),
        requires=requirements(requires, _environment(opened)),
        wheels=[_wheel(opened)],
        source=[_SOURCE],
    )


def _refuse_unread_python(opened: OpenedWheel, required: str | None) -> None:
    """Raise ConfigError for tags that name no Python, and for a Requires-Python that is none."""
    if not any(_PYTHON.fullmatch(tag.interpreter) for tag in opened.tags):
        refuse(
            f"{opened.name} is for {', '.join(sorted({tag.interpreter for tag in opened.tags}))}, no CPython",
            "give a wheel for CPython",
        )
    try:
        SpecifierSet(required or "")
    except InvalidSpecifier:
        refuse(
            f"{opened.name}: its METADATA requires Python {required!r}, which is no version specifier",
            "take another release",
        )


def _refuse_other_python(opened: OpenedWheel) -> None:
    """Raise ConfigError if a module is there for other Pythons only than the one that the file's name says."""
    modules: dict[str, set[str]] = {}
    for match in (_MODULE.fullmatch(library.path) for library in opened.contents.libraries):
        if match:
            modules.setdefault(match["stem"], set()).add(f"cp{match['python']}")
    for abi in sorted({tag.abi for tag in opened.tags if tag.abi.startswith("cp")}):
        stem = next((stem for stem, abis in sorted(modules.items()) if abi not in abis), None)
        if stem is not None:
            refuse(
                f"{opened.name}: its module {stem} is for {', '.join(sorted(modules[stem]))}, not for {abi}",
                "the file was renamed: give it the name that it was published with",
            )


def _is_requirement(line: str) -> bool:
    with contextlib.suppress(InvalidRequirement):
        return Requirement(line).url is None
    return False


def _version(metadata: email.message.Message) -> Version | None:
    try:
        return Version(str(metadata["Version"]))
    except ValueError:
        return None


def _one_line(value: Any) -> str | None:
    return " ".join(str(value).split()) if value else None


# What the markers of requirements see where no one wheel is meant: Linux on x86_64, CPython 3.12.
LINUX: Final = {
    "python_version": _DEFAULT_PYTHON,
    "python_full_version": f"{_DEFAULT_PYTHON}.0",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "os_name": "posix",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "extra": "",
}


def _environment(opened: OpenedWheel) -> dict[str, str]:
    """Return what the markers of requirements see: Linux, and the oldest CPython that the wheel is for."""
    cpythons = (tag for tag in opened.tags if _PYTHON.fullmatch(tag.interpreter) and tag.abi != "abi3")
    pythons = [tag.interpreter[2:] for tag in cpythons if tag.interpreter.startswith("cp3")]
    python = f"3.{min(int(text[1:]) for text in pythons)}" if pythons else _DEFAULT_PYTHON
    machine = architecture(opened.tags, opened.name).replace("any", "x86_64")
    return LINUX | {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}


def requirements(lines: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the requirements whose markers hold: name -> specifier, joined where a name is there twice."""
    names: dict[str, list[str]] = {}
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate(dict(environment)):
            names.setdefault(canonicalize_name(requirement.name), []).append(str(requirement.specifier))
    return {name: str(SpecifierSet(",".join(filter(None, parts)))) for name, parts in names.items()}


def architecture(tags: Iterable[Tag], name: str) -> HostArch | Literal["any"]:
    """Return the host architecture of a wheel for Linux, "any" for a pure one; raise ConfigError for others."""
    platforms = sorted({tag.platform for tag in tags})
    if platforms == ["any"]:
        return "any"
    architectures = {match[4] for platform in platforms for match in [_PLATFORM.fullmatch(platform)] if match}
    if len(architectures) != 1:
        refuse(f"{name} is for {', '.join(platforms)}", "give a wheel for Linux with glibc, x86_64 or aarch64")
    return cast("HostArch", architectures.pop())


def oldest_glibc(tags: Iterable[Tag]) -> str | None:
    """Return the oldest glibc on which an installer takes the wheel, None where the tag names none."""
    matches = [match for tag in tags for match in [_PLATFORM.fullmatch(tag.platform)] if match]
    versions = [
        _LEGACY[match[1]] if match[1] else f"{match[2]}.{match[3]}" for match in matches if match[1] or match[2]
    ]
    return min(versions, key=dotted, default=None)


def _wheel(opened: OpenedWheel) -> ExtensionWheel:
    libraries, local = opened.contents.libraries, opened.version.local or ""
    built_for = _BUILT_FOR.fullmatch(local)
    abi = native_library.together(library.abi for library in libraries)
    own = [library for library in libraries if not native_library.is_nvidias(library.name)]
    read = not opened.contents.unread
    needed = [name for library in own for name in library.needed]
    return ExtensionWheel(
        channel=opened.channel,
        where=opened.where,
        file=opened.name,
        sha256={opened.name: opened.sha256},
        arch=architecture(opened.tags, opened.name),
        tags=sorted({f"{tag.interpreter}-{tag.abi}" for tag in opened.tags if _PYTHON.fullmatch(tag.interpreter)}),
        glibc=oldest_glibc(opened.tags),
        size_mb=opened.size // 10**6,
        variants=[local] if _VARIANT.fullmatch(local) else [],
        torch=[built_for[1]] if built_for else [],
        cxx11abi=[abi.endswith("=1)")] if native_library.CPP in abi else [],
        abi=next(word for start, word in _ABIS if abi.startswith(start)) if read else None,
        cuda=native_library.cuda_majors(needed) if read else None,
        cuda_choices=cuda_choices(own),
        sass=[*ordered({code for library in own for code in library.sass})] if read else None,
        ptx=[*ordered({code for library in own for code in library.ptx})] if read else [],
        source=[_SOURCE],
        note=_note(opened),
    )


def cuda_choices(libraries: Iterable[Library]) -> bool:
    """Return whether the wheel has one library for each of several CUDA majors, of which one is loaded."""
    choices: dict[str, set[str]] = {}
    for library in libraries:
        majors = native_library.cuda_majors(library.needed)
        if CHOICE.search(library.name) and majors:
            choices.setdefault(CHOICE.sub(r"\1N", library.name), set()).update(majors)
    return any(len(majors) > 1 for majors in choices.values())


def _note(opened: OpenedWheel) -> str | None:
    """Return what the fields cannot say: libraries that were not read, and a glibc newer than the name promises."""
    notes = [f"not read: {path}: {why}" for path, why in sorted(opened.contents.unread.items())]
    promised = oldest_glibc(opened.tags)
    newer = {
        library.name: library.glibc
        for library in opened.contents.libraries
        if library.glibc and dotted(library.glibc) > dotted(promised or "999")
    }
    if newer:
        name = max(newer, key=lambda each: dotted(newer[each]))
        notes.append(f"{name} needs glibc {newer[name]}, newer than the tag says")
    return "; ".join(notes) or None

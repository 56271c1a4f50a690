"""A wheel that was compiled here: its label, and whether it is what it was compiled to be."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from envcheck.binaries import native_library
from envcheck.binaries.elf import BinaryError
from envcheck.binaries.wheel_members import WheelContents, read_members
from envcheck.errors import PromiseError
from envcheck.images.source_builds.recipe import ExtensionBuild
from envcheck.matrix.facts.lookup import Facts, sass_runs
from envcheck.mirrors.index.file_names import parse_file_name

# The first date that a zip file can hold: what was built twice is equal.
_DATE: Final = (1980, 1, 1, 0, 0, 0)


def relabelled(wheel: Path, directory: Path, label: str) -> Path:
    """Write the wheel with a local version (PEP 440) into a directory and return its path. Bytes have no dates.

    Raise BinaryError or OSError if the wheel cannot be read.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            files = {entry.filename: archive.read(entry) for entry in archive.infolist() if not entry.is_dir()}
            modes = {entry.filename: entry.external_attr for entry in archive.infolist()}
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        message = f"not a wheel: {error}"
        raise BinaryError(message) from error
    project, version, rest = wheel.name.split("-", 2)
    labelled = f"{version}.{label}" if "+" in version else f"{version}+{label}"
    old, new = f"{project}-{version}", f"{project}-{labelled}"
    renamed = {_renamed(name, old, new): (content, modes[name]) for name, content in files.items()}
    renamed = _with_version(renamed, f"{new}.dist-info", labelled)
    path = directory / f"{new}-{rest}"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (content, mode) in sorted(renamed.items(), key=lambda row: (".dist-info/" in row[0], row[0])):
            entry = zipfile.ZipInfo(name, _DATE)
            entry.external_attr = mode
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return path


def _renamed(name: str, old: str, new: str) -> str:
    first, slash, rest = name.partition("/")
    return f"{first.replace(old, new, 1)}{slash}{rest}" if first in (f"{old}.dist-info", f"{old}.data") else name


def _with_version(files: Mapping[str, tuple[bytes, int]], info: str, version: str) -> dict[str, tuple[bytes, int]]:
    metadata, record = f"{info}/METADATA", f"{info}/RECORD"
    if metadata not in files or record not in files:
        message = f"not a wheel: it has no {metadata if metadata not in files else record}"
        raise BinaryError(message)
    text, mode = files[metadata]
    head, blank, body = text.partition(b"\n\n")
    lines = [f"Version: {version}".encode() if line.startswith(b"Version:") else line for line in head.split(b"\n")]
    changed = {**files, metadata: (b"\n".join(lines) + blank + body, mode)}
    rows = [f"{name},{_digest(content)},{len(content)}" for name, (content, _) in changed.items() if name != record]
    return {**changed, record: ("\n".join([*sorted(rows), f"{record},,"]).encode() + b"\n", files[record][1])}


def _digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def require(wheel: Path, build: ExtensionBuild, facts: Facts) -> None:
    """Raise PromiseError, naming the first difference, unless a wheel is what the build was to make."""
    try:
        project, version, _ = parse_file_name(wheel.name)
        contents = read_members(wheel)
    except (BinaryError, ValueError, OSError) as error:
        raise _broken(build, f"{wheel.name}: {error}") from error
    if canonicalize_name(project) != build.sdist.name or version.public != build.sdist.version:
        raise _broken(build, f"its sdist makes {project} {version}")
    wrong = difference(contents, build, facts)
    if wrong:
        raise _broken(build, wrong)


def difference(contents: WheelContents, build: ExtensionBuild, facts: Facts) -> str | None:
    """Return what is wrong with the libraries of a wheel that was compiled for a cell and GPUs; None if nothing is."""
    if contents.unread:
        path, why = next(iter(sorted(contents.unread.items())))
        return f"{path} cannot be read: {why}"
    if not contents.libraries:
        return "it holds no library: nothing was compiled"
    own = [library for library in contents.libraries if not native_library.is_nvidias(library.name)]
    needed = [name for library in own for name in library.needed]
    if any(library.torch_symbols for library in own) and not any(map(native_library.is_torch_library, needed)):
        return "its libraries have symbols of torch, and are linked with none of torch's libraries"
    majors = native_library.cuda_majors(needed)
    cuda = build.devel.cuda
    other = [major for major in majors if cuda is None or major != cuda.partition(".")[0]]
    if other:
        return f"it needs libraries of CUDA {other[0]}, and {build.devel.cell.variant} has {cuda or 'none'}"
    codes = {code for library in own for code in library.sass}
    lacking = [cc for cc in build.gpus if not any(sass_runs(facts, code, cc, cuda or "0") for code in codes)]
    if lacking:
        has = f"code for {', '.join(sorted(codes))}" if codes else "no GPU code"
        return f"it has {has}: none runs on a GPU of {lacking[0]}"
    return None


def _broken(build: ExtensionBuild, why: str) -> PromiseError:
    message = f"the wheel that was compiled of {build.what} is not used: {why}"
    return PromiseError(message, fix="take another version, or report it to its project with the log")

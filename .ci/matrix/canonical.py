"""The one form of matrix.yaml and extensions.yaml: their order, and one row a line where it fits, for short diffs."""

from __future__ import annotations

import json
import re
import textwrap
from typing import Any, Final

import msgspec
from msgspec import structs
from packaging.version import Version

from envcheck.matrix.extensions.file import Extension, ExtensionRelease, Extensions, ExtensionWheel
from envcheck.matrix.facts.model import Build, ImageChoice, Matrix, TorchRelease, TorchVariant, key, python_key

MATRIX_HEADER: Final = """\
# yaml-language-server: $schema=envcheck/matrix/file/matrix.schema.json
# Facts first, each with its source (a key of `sources`); choices (`bases`, `images`) last. Versions are strings.
# A fact with one weak source says `verified: false`. `.ci/matrix/format.py` writes this form.
"""
_WIDTH: Final = 120
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.+/-]*( [A-Za-z0-9_.+/-]+)*")
_RESERVED: Final = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
_LAST: Final = (
    *("verified", "sass_verified", "driver_verified", "libraries_verified", "built_for_verified", "code_verified"),
    *("note", "source"),
)
EXTENSIONS_HEADER: Final = """\
# Native extensions: releases, their wheels, and what these bind to. Each row names its sources (keys of `sources`).
# Versions are strings. `verified: false` and `code_verified: false` mark what one weak source says.
# A wheel without `cuda` and `sass` was never opened: it never counts as fitting. `.ci/matrix/format.py` writes this.
"""
_CHANNELS: Final = ("pypi", "pytorch", "project", "third-party")


def canonical(matrix: Matrix) -> Matrix:
    """Return the same facts and choices in the order of the file."""
    cuda = matrix.cuda
    return structs.replace(
        matrix,
        sources=dict(sorted(matrix.sources.items())),
        cuda=structs.replace(
            cuda,
            families=sorted(cuda.families, key=lambda row: key(row.major)),
            minors=sorted(cuda.minors, key=lambda row: key(row.cuda)),
            capabilities=sorted(cuda.capabilities, key=lambda row: key(row.cc)),
            code=sorted(cuda.code, key=lambda row: key(row.sm)),
            base_images=sorted(cuda.base_images, key=lambda row: key(row.image)),
        ),
        drivers=sorted(matrix.drivers, key=lambda row: key(row.branch)),
        gpus=sorted(matrix.gpus, key=lambda row: (key(row.cc), row.name)),
        torch=[_release_in_order(row) for row in sorted(matrix.torch, key=lambda row: key(row.torch))],
        bases=sorted(matrix.bases, key=lambda row: python_key(row.python)),
        images=sorted((_choice(row) for row in matrix.images), key=lambda row: (key(row.torch), row.variants)),
    )


def _release_in_order(release: TorchRelease) -> TorchRelease:
    variants = sorted(release.variants, key=lambda row: row.variant)
    return structs.replace(release, variants=[_variant_in_order(row) for row in variants])


def _variant_in_order(variant: TorchVariant) -> TorchVariant:
    builds = sorted(variant.builds, key=lambda row: row.arch, reverse=True)
    return structs.replace(variant, builds=[_build(row) for row in builds])


def _build(build: Build) -> Build:
    sass = None if build.sass is None else sorted(build.sass, key=key)
    return structs.replace(build, python=sorted(build.python, key=python_key), sass=sass)


def _choice(choice: ImageChoice) -> ImageChoice:
    return structs.replace(choice, variants=sorted(choice.variants), python=sorted(choice.python, key=python_key))


def dump(matrix: Matrix) -> str:
    """Return the text of matrix.yaml. Loading it gives `canonical(matrix)`; dumping that gives the same bytes."""
    return text(canonical(matrix), MATRIX_HEADER)


def text(document: msgspec.Struct, header: str) -> str:
    """Return a file of facts: the comment `header`, then each table of `document`, a row a line where it fits."""
    lines: list[str] = []
    for name, value in _ordered(msgspec.to_builtins(document)).items():
        lines.append("")
        if isinstance(value, (dict, list)):
            lines.append(f"{name}:")
            _block(value, 2, lines)
        else:
            lines.append(f"{name}: {_flow(value)}")
    return header + "\n".join(lines) + "\n"


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value, key=lambda name: _place(name, value[name]))}
    return [_ordered(item) for item in value] if isinstance(value, list) else value


def _place(name: str, value: Any) -> int:
    """Return a key's place in its row: a note and the sources after the facts, rows within a row after all."""
    return _LAST.index(name) if name in _LAST else len(_LAST) if _nests(value) else -1


def _block(value: dict[str, Any] | list[Any], indent: int, lines: list[str]) -> None:
    pad = " " * indent
    if isinstance(value, list):
        for item in value:
            _item(item, indent, lines)
        return
    for name, item in value.items():
        if _nests(item):
            lines.append(f"{pad}{_flow(name)}:")
            _block(item, indent + 2, lines)
        else:
            lines.extend(_wrapped(f"{pad}{_flow(name)}: ", item, indent + 2))


def _item(item: Any, indent: int, lines: list[str]) -> None:
    line = f"{' ' * indent}- {_flow(item)}"
    if not isinstance(item, dict) or (len(line) <= _WIDTH and not _nests(item)):
        lines.append(line)
        return
    start = len(lines)
    _block(item, indent + 2, lines)
    lines[start] = f"{' ' * indent}- {lines[start].lstrip()}"


def _wrapped(start: str, value: Any, indent: int) -> list[str]:
    flow = _flow(value)
    if len(start) + len(flow) <= _WIDTH or not isinstance(value, (dict, list)):
        return [start + flow]
    inner = textwrap.wrap(flow[1:-1], _WIDTH - indent, break_long_words=False, break_on_hyphens=False)
    return [start + flow[0], *(" " * indent + line for line in inner), " " * (indent - 2) + flow[-1]]


def _nests(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_nests(item) for item in value.values())
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(name)}: {_flow(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _RESERVED
        return value if plain else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def canonical_extensions(extensions: Extensions) -> Extensions:
    """Return the same facts in the order of the file: projects by name, releases and wheels oldest first."""
    rows = sorted((_extension(row) for row in extensions.extensions), key=lambda row: row.name)
    return structs.replace(extensions, sources=dict(sorted(extensions.sources.items())), extensions=rows)


def dump_extensions(extensions: Extensions) -> str:
    """Return the text of extensions.yaml. Loading it gives `canonical_extensions(extensions)`."""
    return text(canonical_extensions(extensions), EXTENSIONS_HEADER)


def _extension(row: Extension) -> Extension:
    releases = sorted((_release(release) for release in row.releases), key=lambda each: Version(each.version))
    return structs.replace(row, releases=releases)


def _release(release: ExtensionRelease) -> ExtensionRelease:
    return structs.replace(
        release,
        requires=dict(sorted(release.requires.items())),
        wheels=sorted((_wheel(wheel) for wheel in release.wheels), key=_wheel_place),
    )


def _wheel(wheel: ExtensionWheel) -> ExtensionWheel:
    return structs.replace(
        wheel,
        tags=sorted(wheel.tags),
        variants=sorted(wheel.variants),
        torch=sorted(wheel.torch, key=key),
        cxx11abi=sorted(wheel.cxx11abi),
        cuda=None if wheel.cuda is None else sorted(wheel.cuda, key=key),
        sass=None if wheel.sass is None else sorted(wheel.sass, key=key),
        ptx=sorted(wheel.ptx, key=key),
    )


def _wheel_place(wheel: ExtensionWheel) -> tuple[object, ...]:
    torches = [key(minor) for minor in wheel.torch]
    return (_CHANNELS.index(wheel.channel), wheel.arch == "aarch64", wheel.cuda or [], torches, wheel.variants)

"""Propose rows for releases of extensions that an index lists and extensions.yaml lacks.

What an index says is the release's tags and METADATA. Nobody opened the wheels: without `cuda` and `sass` they never
count as fitting, until `envcheck matrix wheel` has read them.
"""

from __future__ import annotations

import contextlib
import email.parser
import email.policy
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
from canonical import canonical_extensions
from packaging.tags import Tag
from packaging.version import Version

from envcheck.errors import ConfigError
from envcheck.matrix.extensions.file import Extension, ExtensionRelease, Extensions, ExtensionWheel
from envcheck.matrix.extensions.opened_wheel import LINUX, architecture, oldest_glibc, requirements
from envcheck.matrix.facts.model import HostArch


class SeenFile(NamedTuple):
    """A wheel on an index: its name, its sha256 if the index lists it, and the tags of its name."""

    name: str
    sha256: str | None
    tags: frozenset[Tag]


class SeenRelease(NamedTuple):
    """A release on an index: its Linux wheels, and METADATA of one of them (None: the index does not serve it)."""

    project: str
    version: str
    files: list[SeenFile]
    metadata: str | None


class ExtensionRow(NamedTuple):
    """A proposed release: what it is, its tags, and the files with their sha256 that show it."""

    where: str
    tags: list[str]
    files: list[tuple[str, str | None]]


class ExtensionProposal(NamedTuple):
    """The facts with the proposed rows, the rows, and what was not proposed, with the reason."""

    extensions: Extensions
    rows: list[ExtensionRow]
    left_out: list[str]


def newest_known(extensions: Extensions) -> dict[str, str]:
    """Return the newest release on record of each extension."""
    return {row.name: max((release.version for release in row.releases), key=Version) for row in extensions.extensions}


def propose(extensions: Extensions, listed: Sequence[SeenRelease], source: str, text: str) -> ExtensionProposal:
    """Return the facts with a row, `verified: false`, for each listed release whose METADATA the index serves.

    `source` and `text` are the key and the text of the source that the rows name.
    """
    rows: list[ExtensionRow] = []
    left_out: list[str] = []
    added: dict[str, list[ExtensionRelease]] = {}
    for release in listed:
        where = f"{release.project} {release.version}"
        if release.metadata is None:
            left_out.append(f"{where}: the index serves no METADATA of it")
            continue
        wheels = _wheels(release, source)
        added.setdefault(release.project, []).append(_release(release, release.metadata, wheels, source))
        tags = sorted({tag for wheel in wheels for tag in wheel.tags})
        rows.append(ExtensionRow(where, tags, [(file.name, file.sha256) for file in release.files]))
    if not rows:
        return ExtensionProposal(extensions, [], left_out)
    changed = msgspec.structs.replace(
        extensions,
        sources=extensions.sources | {source: text},
        extensions=[_with(row, added.get(row.name, [])) for row in extensions.extensions],
    )
    return ExtensionProposal(canonical_extensions(changed), rows, left_out)


def _with(row: Extension, releases: list[ExtensionRelease]) -> Extension:
    return msgspec.structs.replace(row, releases=[*row.releases, *releases])


def _release(release: SeenRelease, metadata: str, wheels: list[ExtensionWheel], source: str) -> ExtensionRelease:
    headers = email.parser.Parser(policy=email.policy.compat32).parsestr(metadata, headersonly=True)
    python = headers["Requires-Python"]
    return ExtensionRelease(
        version=release.version,
        requires_python=" ".join(str(python).split()) if python else None,
        requires=requirements(headers.get_all("Requires-Dist") or [], LINUX),
        wheels=wheels,
        verified=False,
        source=[source],
    )


def _wheels(release: SeenRelease, source: str) -> list[ExtensionWheel]:
    """Return a row for each host architecture, with the tags of all its files."""
    by_arch: dict[HostArch | Literal["any"], list[Tag]] = {}
    for file in release.files:
        with contextlib.suppress(ConfigError):  # a wheel for another platform
            by_arch.setdefault(architecture(file.tags, file.name), []).extend(file.tags)
    return [
        ExtensionWheel(
            channel="pypi",
            arch=arch,
            tags=sorted({f"{tag.interpreter}-{tag.abi}" for tag in tags}),
            glibc=oldest_glibc(tags),
            verified=False,
            source=[source],
        )
        for arch, tags in sorted(by_arch.items())
    ]


def markdown(proposal: ExtensionProposal, text: str) -> str:
    """Return the page of a pull request: each row, and the files that show it."""
    lines = [f"# New releases of native extensions\n\nEvidence: {text}.\n"]
    for row in proposal.rows:
        files = "\n".join(f"{sha256 or 'no sha256'}  {name}" for name, sha256 in row.files)
        lines.append(f"## {row.where}\n\n```\n{files}\n```\n")
    return "\n".join(lines)

"""The contents of a published tree: wheels of indexes and revisions of Hugging Face repositories, each with hashes.

A wheel is described from its METADATA.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Final

import msgspec
from packaging.utils import parse_wheel_filename

from envcheck.errors import ConfigError, PromiseError
from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.index import NAME_MAX, parse_file_name
from envcheck.mirrors.store.objects import Store

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_INDEX: Final = re.compile(r"pypi|pytorch/(?:cpu|cu[0-9]{3})")
# A branch is one step of a path. Clients escape a slash in it, so such a branch is published by its commit alone.
BRANCH: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Bytes of a wheel's name: with `.metadata` appended, it must still fit in a file name (NAME_MAX).
_LONGEST_NAME: Final = NAME_MAX - len(".metadata")
_METADATA: Final = re.compile(r"[^/]+\.dist-info/METADATA")
# Bytes. The longest known descriptions have a few hundred KB.
_LARGEST: Final = 16 << 20


class Wheel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One wheel: its file name, the index that its lock names, and the sha256 of its METADATA. `size` in bytes."""

    name: str
    sha256: str
    size: int
    index: str = "pypi"
    metadata: str | None = None
    requires_python: str | None = None

    @property
    def project(self) -> str:
        """Return the project's normalised name (PEP 503)."""
        return parse_wheel_filename(self.name)[0]

    @property
    def version(self) -> str:
        """Return the wheel's version."""
        return str(parse_wheel_filename(self.name)[1])


class Contents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that is published. `branches` maps the branch of a repository, "OWNER/NAME@main", to its commit."""

    schema: str = "envcheck/contents/1"
    wheels: list[Wheel] = []
    models: list[hub_revision.Revision] = []
    branches: dict[str, str] = {}


def merge(old: Contents, new: Contents) -> Contents:
    """Return both contents; for a file, repository or branch that is in both, the entry of `new`."""
    wheels = {(wheel.index, wheel.name, wheel.sha256): wheel for wheel in [*old.wheels, *new.wheels]}
    models = {(model.kind, model.repo, model.revision): model for model in [*old.models, *new.models]}
    return Contents(
        wheels=[wheels[key] for key in sorted(wheels)],
        models=[models[key] for key in sorted(models)],
        branches=dict(sorted({**old.branches, **new.branches}.items())),
    )


def object_sizes(contents: Contents) -> dict[str, int | None]:
    """Map the sha256 of each object that the store must have to its size in bytes, None if unknown."""
    wheels: dict[str, int | None] = {wheel.sha256: wheel.size for wheel in contents.wheels}
    about_them: dict[str, int | None] = {wheel.metadata: None for wheel in contents.wheels if wheel.metadata}
    models = {str(file.sha256): file.size for model in contents.models for file in model.files}
    return dict(sorted({**about_them, **models, **wheels}.items()))


def parse_contents(data: bytes, where: str) -> Contents:
    """Return the contents in `data`, which is not trusted; `where` names its source in errors.

    Raises ConfigError if it is invalid or has a name that could lead outside the tree.
    """
    try:
        contents = msgspec.json.decode(data, type=Contents)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        message = f"{where}: not a valid list of contents: {error}"
        raise ConfigError(message, fix="export it again with `envcheck store export`") from error
    wrong = next(_problems(contents), None)
    if wrong is not None:
        message = f"{where}: {wrong}"
        raise ConfigError(message, fix="export it again with `envcheck store export`")
    return contents


def _problems(contents: Contents) -> Iterator[str]:
    if contents.schema != "envcheck/contents/1":
        yield f"{contents.schema!r} is an unknown schema"
    for wheel in contents.wheels:
        if not _is_publishable(wheel):
            yield f"{wheel.name!r} is not a valid wheel"
    for model in contents.models:
        hub_revision.parse_lock(hub_revision.format_lock(model), model.repo)
    present = {(model.repo, model.revision) for model in contents.models}
    for branch, commit in contents.branches.items():
        repo, _, name = branch.partition("@")
        if (repo, commit) not in present or not BRANCH.fullmatch(name):
            yield f"the branch {branch!r} belongs to no repository in it"


def _is_publishable(wheel: Wheel) -> bool:
    if len(wheel.name.encode("utf-8", "replace")) > _LONGEST_NAME:
        return False
    try:
        parse_file_name(wheel.name)
    except ValueError:
        return False
    hashes = [wheel.sha256, *([wheel.metadata] if wheel.metadata else [])]
    plain_name = "/" not in wheel.name and wheel.name.isascii() and wheel.name.isprintable()
    return (
        plain_name and wheel.size >= 0 and bool(_INDEX.fullmatch(wheel.index)) and all(map(_SHA256.fullmatch, hashes))
    )


def describe_wheel(store: Store, sha256: str, name: str, index: str) -> Wheel:
    """Return the wheel as it is published, and store its METADATA as an object of its own."""
    path = store.path(sha256)
    metadata = _read_metadata(path, name)
    requires = BytesHeaderParser().parsebytes(metadata)["Requires-Python"]
    return Wheel(
        name=name,
        sha256=sha256,
        size=path.stat().st_size,
        index=index,
        metadata=store.add(metadata, f"{name}.metadata"),
        requires_python=str(requires) if requires else None,
    )


def _read_metadata(path: Path, name: str) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if _METADATA.fullmatch(member.filename)]
            if len(members) == 1 and members[0].file_size <= _LARGEST:
                return archive.read(members[0])
    except (zipfile.BadZipFile, OSError) as error:
        raise _not_a_wheel(name) from error
    raise _not_a_wheel(name)


def _not_a_wheel(name: str) -> PromiseError:
    return PromiseError(
        f"{name} is not a wheel: it has no METADATA", fix="the lock names this file: lock the cell again"
    )

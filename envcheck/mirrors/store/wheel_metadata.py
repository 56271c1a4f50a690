"""Describe a wheel of the store as an index publishes it, from the wheel's METADATA."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Final

from envcheck.errors import PromiseError
from envcheck.mirrors.store.manifest import Wheel, wheel_facts
from envcheck.mirrors.store.objects import Store

_METADATA: Final = re.compile(r"[^/]+\.dist-info/METADATA")
# Bytes. The longest known descriptions have a few hundred KB.
_LARGEST: Final = 16 << 20


def describe_wheel(store: Store, sha256: str, name: str, index: str) -> Wheel:
    """Return the wheel as it is published, and store its METADATA as an object of its own."""
    path = store.path(sha256)
    metadata = read_metadata(path, name)
    facts = wheel_facts(metadata)
    return Wheel(
        name=name,
        sha256=sha256,
        size=path.stat().st_size,
        index=index,
        metadata=store.add(metadata, f"{name}.metadata"),
        requires_python=facts.requires_python,
        licence=facts.licence,
        redistributable=facts.redistributable,
    )


def read_metadata(path: Path, name: str) -> bytes:
    """Return a wheel's METADATA. Raises PromiseError if the file is not a wheel."""
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

"""Poison in a real pull-through registry: found by its own name, purged with its links, and pulled anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mirrors.site.audits import Findings, verdicts
from tests.mirrors.site.audits import audit as audited
from tests.mirrors.site.test_up import LAYER, MANIFEST, digest, pulled, up, upstream_registry, wait

pytestmark = pytest.mark.tools
__all__ = ["up", "upstream_registry"]


def audit(root: Path) -> tuple[int, Findings]:
    """Return the exit code and the findings about images, by hash."""
    code, found = audited(root, "images")
    return code, {name.partition("@")[2]: one for name, one in found.items()}


def storage(root: Path) -> Path:
    return root / "cache/registry/test/docker/registry/v2"


def blob(root: Path, content: bytes) -> Path:
    name = digest(content).removeprefix("sha256:")
    return storage(root) / "blobs/sha256" / name[:2] / name / "data"


def links(root: Path, content: bytes) -> list[Path]:
    return list((storage(root) / "repositories").rglob(f"{digest(content).removeprefix('sha256:')}/link"))


def test_a_poisoned_blob_manifest_and_link_are_purged_and_pulled_anew(up: tuple[Path, int]) -> None:
    root, port = up
    right = [MANIFEST, b"{}", LAYER]
    assert pulled(port) == right
    for content in right:
        wait(lambda content=content: bool(blob(root, content).exists() and links(root, content)))  # type: ignore[misc]
    code, found = audit(root)
    assert (code, {one["verdict"] for one in found.values()}, set(found)) == (0, {"clean"}, set(map(digest, right)))
    # Right in size, and JSON still: the registry serves both without a word.
    blob(root, LAYER).write_bytes(b"A" + LAYER[1:])
    blob(root, MANIFEST).write_bytes(MANIFEST.replace(b'"size": 2', b'"size": 3'))
    assert pulled(port) == [MANIFEST.replace(b'"size": 2', b'"size": 3'), b"{}", b"A" + LAYER[1:]]
    assert len(links(root, LAYER)) == 1
    code, found = audit(root)
    assert (code, verdicts(found)) == (
        1,
        {digest(MANIFEST): "poisoned", digest(b"{}"): "clean", digest(LAYER): "poisoned"},
    )
    assert found[digest(LAYER)]["name"].startswith("test/lib/image@sha256:")
    assert (links(root, LAYER), links(root, MANIFEST)) == ([], [])
    assert not blob(root, LAYER).exists()
    assert pulled(port) == right
    # An audit that is killed between a blob and its links leaves nothing that would be served.
    wait(lambda: bool(links(root, LAYER)))
    before = links(root, LAYER)[0].stat().st_mtime_ns
    blob(root, LAYER).unlink()
    assert pulled(port) == right
    wait(lambda: links(root, LAYER)[0].stat().st_mtime_ns > before)
    # A link that leads to another blob gives that under the name of this.
    wait(lambda: bool(links(root, LAYER)))
    links(root, LAYER)[0].write_text(digest(b"{}"))
    code, found = audit(root)
    assert (code, found[digest(LAYER)]["verdict"]) == (1, "clean"), "the blob is; its link was not, and is gone"
    assert links(root, LAYER) == []
    assert pulled(port) == right
    assert audit(root)[0] == 0
    _unread_is_told(root)


def _unread_is_told(root: Path) -> None:
    """Show that what cannot be read is no healthy registry, even where all else is clean."""
    there = blob(root, b"{}")
    there.unlink()
    there.symlink_to(there)
    code, found = audit(root)
    assert (code, found[digest(b"{}")]["verdict"]) == (3, "unreadable")
    assert not (root / "state/audit.json").exists() or json.loads((root / "state/audit.json").read_text())["files"] == 3

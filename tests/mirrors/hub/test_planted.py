"""A hub cache in which another user has planted links: nothing outside of it is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.errors import ConfigError
from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.hub import Reference, fetch_revision, read_revision
from envcheck.mirrors.net.client import Client

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REF = Reference("model", "owner/tiny", "main")
Hubs = Callable[[], Any]


def fetched(hub: Any, to: Path) -> None:
    client = Client(connect=2.0, read=5.0)
    fetch_revision(read_revision(client, hub.url, REF), [hub.url], to, TransferOptions(client), lambda _: None)


@pytest.mark.parametrize("below", ["", "blobs", "snapshots", f"snapshots/{COMMIT}", f"snapshots/{COMMIT}/sub", "refs"])
def test_a_directory_that_is_a_link_is_refused(hubs: Hubs, tmp_path: Path, below: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    planted = tmp_path / "to" / "models--owner--tiny" / below
    planted.parent.mkdir(parents=True)
    planted.symlink_to(victim)
    with pytest.raises(ConfigError, match="has the name of a directory"):
        fetched(hubs(), tmp_path / "to")
    assert list(victim.iterdir()) == []


def test_links_under_the_names_of_temporary_files_are_not_followed(hubs: Hubs, tmp_path: Path) -> None:
    hub = hubs()
    victim, folder = tmp_path / "victim", tmp_path / "to" / "models--owner--tiny"
    victim.mkdir()
    kept = victim / "kept"
    kept.write_bytes(b"kept")
    (folder / "blobs").mkdir(parents=True)
    (folder / "snapshots").mkdir()
    (folder / "snapshots" / f".{COMMIT}.new").symlink_to(victim)
    for row in hub.rows:
        blob = row["lfs"]["oid"] if "lfs" in row else row["oid"]
        (folder / "blobs" / f".{blob}.{blob[:8]}.part").symlink_to(kept)
    fetched(hub, tmp_path / "to")
    assert (kept.read_bytes(), list(victim.iterdir())) == (b"kept", [kept])
    snapshot = folder / "snapshots" / COMMIT
    assert all((snapshot / row["path"]).read_bytes() == hub.content[row["path"]] for row in hub.rows)

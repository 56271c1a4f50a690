"""A power cut at any moment: what had not reached the disk is lost or torn, and none of it is believed afterwards."""

from __future__ import annotations

import dataclasses
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.mirrors.fetch import download as fetch_download
from envcheck.mirrors.fetch.disk import journal, partial_file
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.fetch.transfer import fetch

Serve = Callable[..., Any]
Want = Callable[..., WantedFile]
Sync = Callable[[int], None]


class Disk:
    """What was written, and how much of it a sync had put on the disk when the power went."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes: list[tuple[int, int]] = []
        self.durable = 0
        self.noted = 0
        self.on = True
        self.renamed: list[bool] = []
        self.named = False
        self._lock = threading.Lock()
        self._write = partial_file.write
        monkeypatch.setattr(partial_file, "write", self.write)
        for name in ("fdatasync", "fsync"):
            monkeypatch.setattr(os, name, self._synced(getattr(os, name)))
        monkeypatch.setattr(Path, "replace", self._renaming())

    def write(self, file: int, chunk: bytes, at: int) -> None:
        """Write, and remember where."""
        self._write(file, chunk, at)
        with self._lock:
            self.writes.append((at, len(chunk)))

    def cut(self) -> None:
        """End what syncs: from here on nothing gets to the disk any more."""
        self.on = False

    def _renaming(self) -> Callable[[Path, Path], Path]:
        """Rename; of the file itself remember whether all of it was on the disk."""
        plain = Path.replace

        def replace(path: Path, target: Path) -> Path:
            if path.name.endswith(".part"):
                self.renamed.append(self.durable == len(self.writes))
            return plain(path, target)

        return replace

    def _synced(self, plain: Sync) -> Sync:
        def sync(file: int) -> None:
            name, before, length = (
                str(Path(f"/proc/self/fd/{file}").readlink()),
                len(self.writes),
                os.fstat(file).st_size,
            )
            plain(file)
            if Path(name).is_dir():
                self.named = bool(self.renamed)  # the name is on the disk, too
            elif self.on and name.endswith(".part"):
                self.durable = before
            elif self.on and ".journal" in name:
                self.noted = length

        return sync


def lose(chance: random.Random, kept: Disk, part: Path) -> None:
    """Leave of the unfinished file and its journal what a disk may have: all that was synced, some of the rest."""
    with part.open("r+b") as file:
        for at, length in kept.writes[kept.durable :]:
            if chance.random() < 0.7:
                file.seek(at)
                file.write(bytes(length) if chance.random() < 0.5 else chance.randbytes(length))
    noted = partial_file.journal_path(part)
    text = noted.read_bytes()
    left = text[: chance.randint(kept.noted, len(text))]
    noted.write_bytes(left + bytes(chance.choice([0, 0, 300])))


@pytest.mark.parametrize("seed", range(8))
def test_what_is_believed_after_a_power_cut_is_right(
    serve: Serve,
    wanted_file: Want,
    means: TransferOptions,
    notes: list[str],
    content: bytes,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    chance = random.Random(seed)  # noqa: S311 (a choice of moments)
    monkeypatch.setattr(fetch_download, "_SYNC_SECONDS", 0.02)
    monkeypatch.setattr(fetch_download, "_TICK", 0.01)
    server = serve(delay=0.02, etag=lambda request: '"one"' if request < 5 + seed else '"two"')
    want, kept, enough = wanted_file(server), Disk(monkeypatch), chance.uniform(0.1, 0.9)

    def progress(there: int, size: int) -> None:
        if there > size * enough:
            kept.cut()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(want, dataclasses.replace(means, progress=progress))
    lose(chance, kept, want.path.with_name(f".{want.path.name}.{want.sha256[:8]}.part"))
    monkeypatch.setattr(journal, "boot_id", lambda: "after the power cut")
    kept.on = True
    done = fetch(want, means)
    assert want.path.read_bytes() == content
    assert [note for note in notes if "hash" in note] == []  # no bad piece had to be looked for
    assert done.found + done.moved >= len(content)
    assert (kept.renamed, kept.named) == ([True], True)

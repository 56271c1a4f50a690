"""Strings that stand for secrets, each with a name of its own, and the search for them in all that was left behind."""

import base64
import gzip
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

CHUNK = 1 << 22


class Canaries:
    """Secrets of one test: `canaries["token"]` is one, and any of them is found as itself and within base64."""

    def __init__(self, stem: str | None = None) -> None:
        self.stem = stem or f"canary{secrets.token_hex(6)}"
        self.needles = [self.stem.encode(), *encoded(self.stem)]
        self._pattern = re.compile(rb"%s-([a-z]+)|%s" % (self.stem.encode(), b"|".join(self.needles)))

    def __getitem__(self, name: str) -> str:
        assert re.fullmatch("[a-z]+", name)
        return f"{self.stem}-{name}"

    def within(self, data: str | bytes) -> set[str]:
        """Return the names of those in a text; "part" for one that is encoded, or cut short."""
        data = data.encode(errors="surrogateescape") if isinstance(data, str) else data
        if not any(needle in data for needle in self.needles):
            return set()  # a hundred times as fast, and what nearly every gigabyte comes to
        return {(actual[1] or b"part").decode() for actual in self._pattern.finditer(data)}

    def below(self, *roots: Path, but: Iterable[Path] = ()) -> dict[str, set[str]]:
        """Return file -> the names of those in its content (also as gzip packs it), its name, or where it leads to.

        `but` are the files that the secrets were put in.
        """
        data = {}
        given = {path.resolve() for path in but}
        for path in (path for root in roots for path in [root, *root.rglob("*")] if path.resolve() not in given):
            names = self.within(path.name)
            if path.is_symlink():
                names |= self.within(str(path.readlink()))
            elif path.is_file():
                names |= self._in(path)
            if names:
                data[str(path)] = names
        return data

    def _in(self, path: Path) -> set[str]:
        names: set[str] = set()
        with path.open("rb") as plain:
            packed = plain.read(2) == b"\x1f\x8b"
            plain.seek(0)
            remaining = b""
            while chunk := plain.read(CHUNK):
                names |= self.within(remaining + chunk)
                remaining = chunk[-200:]
            plain.seek(0)
            if packed:
                with gzip.open(plain) as stream:
                    while chunk := stream.read(CHUNK):
                        names |= self.within(remaining + chunk)
                        remaining = chunk[-200:]
        return names


def encoded(text: str) -> list[bytes]:
    """Return what a text is within base64, wherever in a group of three bytes it begins."""
    actual = []
    for before in range(3):
        letters = base64.b64encode(b"\0" * before + text.encode())
        actual.append(letters[-(-before * 8 // 6) : (before + len(text)) * 8 // 6])
    return actual

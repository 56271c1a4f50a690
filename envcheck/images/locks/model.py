"""What a lock is, as data."""

from __future__ import annotations

from typing import Literal

import msgspec

Group = Literal["nvidia", "torch", "base", "devel", "train", "jupyter", "extensions", "user"]


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """One package of a lock: exact version (local label included) and the sha256 of each file that may be it."""

    name: str
    version: str
    sha256: list[str]


class Lock(msgspec.Struct, frozen=True, kw_only=True):
    """One lock file, `<group>.lock`. `index` is where all of it comes from: "pypi" or "pytorch/<variant>".

    Groups are layers, rarest change first: `nvidia` (nvidia-*, cuda-*, triton), `torch` (torch and companions), `base`
    (the rest of the torch environment). The others are what a target of that name adds to it; `extensions` and `user`
    are what a user adds to a target (`build --with`), native extensions of torch apart from the rest.
    """

    group: Group
    index: str
    pins: list[Pin]

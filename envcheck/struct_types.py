"""Has msgspec learn types before threads use them."""

from __future__ import annotations

import msgspec


def know_types(*kinds: type) -> None:
    """Have msgspec learn these types, and those in their fields, now: a module calls this below its types.

    Otherwise it learns a type when it is first decoded, and the process crashes (SIGSEGV, msgspec 0.22) where two
    threads do that at once.
    """
    for kind in kinds:
        msgspec.json.Decoder(kind)

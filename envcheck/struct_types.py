"""Structs of msgspec: records of our own, and types that msgspec must know before threads use them."""

import msgspec


def know_types(*kinds: type) -> None:
    """Have msgspec learn these types, and those in their fields, now: a module calls this below its types.

    Otherwise it learns a type when it is first decoded, and the process crashes (SIGSEGV, msgspec 0.22) where two
    threads do that at once.
    """
    for kind in kinds:
        msgspec.json.Decoder(kind)


class LightRecord(msgspec.Struct, frozen=True):
    """Values that belong together, and are never read from JSON."""


class Secret(LightRecord, frozen=True):
    """A record that holds a secret: its repr, which may end up in a log or a traceback, names its type alone."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"

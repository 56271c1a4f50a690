"""Slurm host lists, as `scontrol show hostnames` and `hostlist` have them: n[08-11] is n08 to n11."""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from envcheck.errors import refuse

# More names than any fleet; `a[1-999999999]` must not fill the memory.
MOST: Final = 1 << 17
_FIX: Final = "write a Slurm host list: n1,n[3-8],gpu[001-064]"


def is_name(text: str) -> bool:
    """Tell whether a text can be a node's name: letters, digits, dots, dashes and underscores; ALL is all nodes."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", text) is not None and text.upper() != "ALL"


def unfold(text: str) -> list[str]:
    """Return the names of a host list, each once, in its order. Raise ConfigError for what is not a host list."""
    names: dict[str, None] = {}
    for entry in filter(None, re.split(r"[,\s]+(?![^\[]*\])", text)):
        if re.fullmatch(r"(?:[^\[\],\s]|\[[^\[\]]*\])+", entry) is None:
            refuse(f"{entry[:40]!r} is not an entry of a host list", _FIX)
        # At odd places stand the brackets' contents.
        parts = re.split(r"\[([^\[\]]*)\]", entry)
        choices = [_numbers(part, entry) if place % 2 else [part] for place, part in enumerate(parts)]
        for name in itertools.islice(map("".join, itertools.product(*choices)), MOST + 1):
            if not is_name(name):
                refuse(f"{name[:40]!r} of the host list is not a node's name", _FIX)
            names[name] = None
        if len(names) > MOST:
            refuse(f"the host list {entry[:40]!r} has more than {MOST:,} names", _FIX)
    if not names:
        refuse(f"the host list {text[:40]!r} names no node", _FIX)
    return [*names]


def _numbers(listed: str, entry: str) -> list[str]:
    numbers: list[str] = []
    for part in listed.split(","):
        match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part.strip())
        low, high = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(high) < int(low):
            refuse(f"{part.strip()[:40]!r} in {entry[:40]!r} is not a number or a range", _FIX)
        if len(numbers) + int(high) - int(low) >= MOST:
            refuse(f"the host list {entry[:40]!r} has more than {MOST:,} names", _FIX)
        numbers += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return numbers


def fold(names: Iterable[str]) -> str:
    """Return the shortest host list that folds the last number of each name; refuse what is no node's name."""
    numbered: dict[tuple[str, str, bool], list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        if not is_name(name):
            refuse(f"{name[:40]!r} cannot stand in a host list", _FIX)
        match = re.fullmatch(r"(.*?)([0-9]{1,18})([^0-9]*)", name, flags=re.DOTALL)
        before, digits, after = match.groups() if match else (name, "", "")
        numbered[before, after, match is None].append(digits)
    entries = [(before, f"{before}{_bracketed(digits)}{after}") for (before, after, _), digits in numbered.items()]
    return ",".join(entry for _, entry in sorted(entries))


def natural(name: str) -> str:
    """Return the key that sorts names as people count: n2 before n10."""
    return re.sub(r"[0-9]{1,18}", lambda number: number[0].zfill(18), name)


def _bracketed(digits: list[str]) -> str:
    """Return digits as one number or as a bracketed list of ranges, by width where a number begins with 0."""
    if len(digits) == 1:
        return digits[0]
    widths = {len(text) for text in digits if text.startswith("0") and text != "0"}
    padded = defaultdict(list)
    for text in digits:
        padded[len(text) if len(text) in widths else 0].append(int(text))
    ranges = []
    for width, numbers in sorted(padded.items()):
        # Consecutive numbers are as far from their places.
        for _, run in itertools.groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
            ends = [str(number).zfill(width) for _, number in run]
            ranges.append(ends[0] if len(ends) == 1 else f"{ends[0]}-{ends[-1]}")
    return f"[{','.join(ranges)}]"

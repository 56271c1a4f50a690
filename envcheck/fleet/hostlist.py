"""Slurm host lists: n[1-16,18-20] to names, and names to a host list; and the nodes that a site expects.

The syntax is that of `scontrol show hostnames` and `scontrol show hostlist`: a list between commas, each entry with any
number of bracketed lists of numbers and ranges. A range keeps the width of its first number: n[08-11] is n08 to n11.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from envcheck import safe_files
from envcheck.errors import ConfigError

# More names than any fleet; `a[1-999999999]` must not fill the memory.
MOST: Final = 1 << 17
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_ENTRY: Final = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_LAST_NUMBER: Final = re.compile(r"(.*?)([0-9]{1,18})([^0-9]*)", re.DOTALL)
_RANGE: Final = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_FIX: Final = "write a Slurm host list: n1,n[3-8],gpu[001-064]"


def is_name(text: str) -> bool:
    """Tell whether a text can be a node's name in a host list: letters, digits, dots, dashes and underscores."""
    return _NAME.fullmatch(text) is not None


def unfold(text: str) -> list[str]:
    """Return the names of a host list, each once, in its order. Raise ConfigError for what is not a host list."""
    names: dict[str, None] = {}
    for entry in _entries(text):
        for name in itertools.islice(_names(entry), MOST + 1):
            names[name] = None
        if len(names) > MOST:
            message = f"the host list {entry[:40]!r} has more than {MOST:,} names"
            raise ConfigError(message, fix="name fewer nodes")
    return [*names]


def fold(names: Iterable[str]) -> str:
    """Return the shortest host list that folds the last number of each name; names that are not a node's are refused.

    `unfold` of it gives the same names. Raise ConfigError for a name that a host list cannot hold.
    """
    numbered: dict[tuple[str, str], list[str]] = defaultdict(list)
    plain = []
    for name in dict.fromkeys(names):
        if not is_name(name):
            message = f"{name[:40]!r} cannot stand in a host list"
            raise ConfigError(message, fix="use letters, digits, dots, dashes and underscores in names of nodes")
        match = _LAST_NUMBER.fullmatch(name)
        if match is None:
            plain.append(name)
        else:
            numbered[match[1], match[3]].append(match[2])
    entries = [(f"{before}{_bracketed(digits)}{after}", before) for (before, after), digits in numbered.items()]
    return ",".join(
        entry for entry, _ in sorted([*entries, *((name, name) for name in plain)], key=lambda e: (e[1], e[0]))
    )


def natural(name: str) -> tuple[object, ...]:
    """Return the key that sorts names as people count: n2 before n10."""
    return tuple((int(part), part) if part.isdigit() else (-1, part) for part in re.split(r"([0-9]{1,18})", name))


def _entries(text: str) -> Iterator[str]:
    remainder = text.strip().strip(",")
    for part in re.split(r"[,\s]+(?![^\[]*\])", remainder) if remainder else []:
        if _ENTRY.fullmatch(part) is None:
            message = f"{part[:40]!r} is not an entry of a host list"
            raise ConfigError(message, fix=_FIX)
        yield part


def _names(entry: str) -> Iterator[str]:
    parts = re.split(r"\[([^\[\]]*)\]", entry)
    # At odd places stand the brackets' contents.
    choices = [_numbers(part, entry) if place % 2 else [part] for place, part in enumerate(parts)]
    for chosen in map("".join, itertools.product(*choices)):
        if not is_name(chosen):
            message = f"{chosen[:40]!r} of the host list is not a node's name"
            raise ConfigError(message, fix=_FIX)
        yield chosen


def _numbers(listed: str, entry: str) -> list[str]:
    numbers: list[str] = []
    for part in listed.split(","):
        match = _RANGE.fullmatch(part.strip())
        low, high = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(high) < int(low):
            message = f"{part.strip()[:40]!r} in {entry[:40]!r} is not a number or a range"
            raise ConfigError(message, fix=_FIX)
        if len(numbers) + int(high) - int(low) >= MOST:
            message = f"the host list {entry[:40]!r} has more than {MOST:,} names"
            raise ConfigError(message, fix="name fewer nodes")
        numbers += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return numbers


def _bracketed(digits: list[str]) -> str:
    """Return digits as one number or as a bracketed list of ranges, by width where a number begins with 0."""
    if len(digits) == 1:
        return digits[0]
    widths = {len(text) for text in digits if text.startswith("0") and text != "0"}
    padded = defaultdict(list)
    for text in digits:
        padded[len(text) if len(text) in widths else 0].append(int(text))
    ranges = [_range(low, high, width) for width in sorted(padded) for low, high in _runs(sorted(padded[width]))]
    return f"[{','.join(ranges)}]"


def _range(low: int, high: int, width: int) -> str:
    first = str(low).zfill(width)
    return first if low == high else f"{first}-{str(high).zfill(width)}"


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    for _, run in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        yield members[0], members[-1]


_FIX_EXPECTED: Final = "give a Slurm host list such as n[1-64], or a file with one in each line"
# A domain may end in many a word; these are no top-level domains.
_TEXT_FILES: Final = (".txt", ".csv", ".list", ".hosts", ".nodes")


def expected_nodes(text: str) -> list[str]:
    """Return the names in a host list, or in the file of that name: host lists between lines, `#` begins a comment.

    Raise ConfigError where there is no name in it.
    """
    path = file_of(text)
    if path is not None and (path.is_dir() or (path.suffix in _TEXT_FILES and not path.exists())):
        message = f"--expect {text[:40]}{' is a directory' if path.is_dir() else ': no such file'}"
        raise ConfigError(message, fix=_FIX_EXPECTED)
    names = unfold(text) if path is None else unfold(_content(path))
    if not names:
        message = f"--expect {text[:40]!r} names no node"
        raise ConfigError(message, fix=_FIX_EXPECTED)
    return names


def file_of(text: str) -> Path | None:
    """Return the file or directory that a text names, also one that is not there; None for a host list."""
    path = Path(text)
    if "/" in text or path.suffix in _TEXT_FILES:
        return path
    with contextlib.suppress(OSError):  # a host list may be longer than any file's name
        return path if path.exists() else None
    return None


def _content(path: Path) -> str:
    try:
        text = safe_files.read_whole(path).decode()
    except UnicodeDecodeError as error:
        message = f"{path} is not a text file"
        raise ConfigError(message, fix="give a file of node names") from error
    return "\n".join(line.partition("#")[0] for line in text.splitlines())

"""What a rank said last: its own lines and frames, those of a hang innermost first, without envcheck's around them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

_LINES: Final = 20
_FRAMES: Final = 8
_WIDTH: Final = 1000
_FRAME: Final = re.compile(r'\s*File "')
# How its file begins to run says nothing of the check; an import of torch is a hundred frames of importlib.
_NOISE: Final = re.compile(r'\s*File "([^"]*/envcheck/runner/(?:worker/)?\w+\.py|<frozen importlib\.[^"]*)", line ')
_DUMPED: Final = re.compile(r'\s*File ".*", line \d+ in ')  # a traceback has a comma before "in"
# A check's file lies under a directory of this run alone.
_STAGED: Final = re.compile(r'(File ")[^"]*/(envcheck/checks/)')


def last_lines(log: str, count: int = _LINES) -> list[str]:
    """Return at most `count` lines, of a long one its end.

    What faulthandler dumps begins at the hang, so its far end is cut, not its head.
    """
    lines = log.splitlines()
    own = list(_telling(lines))
    if not any(map(_FRAME.match, own)):
        own = lines  # it went wrong in envcheck itself: its frames are all there is
    return [_STAGED.sub(r"\1\2", line)[-_WIDTH:] for line in _innermost(own)][-count:]


def _telling(lines: Iterable[str]) -> Iterator[str]:
    """Yield all but the frames of noise; a frame's source, and the dots of a dump cut short, go with it."""
    noise = False
    for line in lines:
        if _FRAME.match(line):
            noise = _NOISE.match(line) is not None
        elif not line[:1].isspace():
            noise = False
        if not noise:
            yield line


def _innermost(lines: Iterable[str]) -> Iterator[str]:
    frames = 0  # so far, of one thread's dump
    for line in lines:
        frames = frames + 1 if _DUMPED.match(line) else 0
        if frames <= _FRAMES:
            yield line

"""A full disk ends a run at its first checkpoint, hours in.

Seen in the wild: a 64 MB or tmpfs /tmp that torch.compile and pip fill; a home directory at its quota, where the
Hugging Face cache goes; a home on a server that is gone, where whoever looks for a file waits for ever.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, passed, undecided, warned
from envcheck.node.lanes import LATE

CHECK = Check(promise="there is room where work, caches and temporary files go", level="quick", seconds=0.01)

_PLACES: Final = {"disk.tmp.free": "temporary files", "disk.home.free": "the home directory", "disk.cwd.free": "here"}
_LIMIT: Final = Limit(
    10 << 30, "B", "ours: one CUDA build of torch with its libraries is 7 GB, one 7B model in bf16 14 GB"
)


def judge(view: View) -> Outcome:
    """Warn on each place with less than the limit; one that does not answer leaves it untold."""
    room = {what: view.snapshot.signal(name) for name, what in _PLACES.items()}
    gone = [f"{what} {signal.reason}" for what, signal in room.items() if str(signal.reason).startswith(LATE)]
    if gone:
        fix = "its file server does not answer: bring it back (`dmesg`, `mount`), or point HOME and TMPDIR elsewhere"
        return undecided("; ".join(gone), fix=fix)
    short = {what: s.value for what, s in room.items() if s.value is not None and not s.value >= _LIMIT.value}
    if short:
        told = "; ".join(f"{what}: {free / 2**30:.1f} GiB free" for what, free in short.items())
        fix = "make room, or point TMPDIR, HF_HOME and the working directory to a larger disk"
        return warned(told, fix=fix, value=min(short.values()), unit="B", limit=_LIMIT)
    unread = [f"{what}: {signal.reason}" for what, signal in room.items() if signal.value is None]
    if unread:
        return warned("; ".join(unread), fix="set HOME and TMPDIR to directories that exist", limit=_LIMIT)
    least = min(signal.value for signal in room.values())
    return passed(f"at least {least / 2**30:.0f} GiB free", value=least, unit="B", limit=_LIMIT)

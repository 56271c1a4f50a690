"""A full disk ends a run at its first checkpoint, hours in."""

from envcheck.checks import Check, Limit, Outcome, View, passed, undecided, warned, worst
from envcheck.node.snapshot import Signal

CHECK = Check("there is room where work, caches and temporary files go", "quick", 0.01)

_ROOM = "make room, or point TMPDIR, HF_HOME and the working directory to a larger disk"
_SERVER = "its file server does not answer: bring it back (`dmesg`, `mount`), or point HOME and TMPDIR elsewhere"
_EXIST = "set HOME and TMPDIR to directories that exist"
_PLACES = {"disk.tmp.free": "temporary files", "disk.home.free": "the home directory", "disk.cwd.free": "here"}
_LIMIT = Limit(10 << 30, "B", "ours: one CUDA build of torch with its libraries is 7 GB, one 7B model in bf16 14 GB")


def judge(view: View) -> Outcome:
    """Warn on each place with less than the limit; one that does not answer leaves it untold."""
    signals = {place: view.snapshot.signal(name) for name, place in _PLACES.items()}
    findings = [finding for place, signal in signals.items() for finding in _place(place, signal)]
    least = min((signal.value for signal in signals.values() if signal.value is not None), default=0)
    return worst(findings, passed(f"at least {least / 2**30:.0f} GiB free", value=least, limit=_LIMIT))


def _place(place: str, signal: Signal) -> list[Outcome]:
    if signal.why == "timed-out":
        return [undecided(f"{place} {signal.reason}", fix=_SERVER, code="disk-space.silent", culprit=place)]
    if signal.value is None:
        text = f"{place}: {signal.reason}"
        return [warned(text, fix=_EXIST, limit=_LIMIT, code="disk-space.unread", culprit=place)]
    if signal.value >= _LIMIT.value:
        return []
    text, code = f"{place}: {signal.value / 2**30:.1f} GiB free", "disk-space.short"
    return [warned(text, fix=_ROOM, value=signal.value, limit=_LIMIT, code=code, culprit=place)]

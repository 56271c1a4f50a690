"""Each DataLoader worker, socket and shared tensor is a file descriptor, and 1024 of them are soon used up."""

from envcheck.checks import Check, Limit, Outcome, View, passed, warned

CHECK = Check("a process may open enough files", "quick", 0.01, signals=("limits.nofile",))

_LIMIT = Limit(4096, "files", "ours: four times Linux' usual 1024, which DataLoader users run into (pytorch#973)")
_FIX = "ulimit -n 65536, --ulimit nofile=65536 for a container, or limits.conf"


def judge(view: View) -> Outcome:
    """Warn below the limit; only many workers and ranks need so many."""
    most = view.snapshot.signal("limits.nofile").value
    if most == "unlimited":
        return passed("unlimited", value=most, limit=_LIMIT)
    text = f"{most} files may be open"
    if most < _LIMIT.value:
        return warned(text, fix=_FIX, value=most, limit=_LIMIT, code="open-files.few")
    return passed(text, value=most, limit=_LIMIT)

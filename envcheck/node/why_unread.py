"""Why a signal has no value: the word that decides, beside the text that people read.

Standard library only, and Python 3.9: snapshots are read in foreign interpreters too.
"""

from __future__ import annotations

import errno
from typing import Literal

# not-collected   the envcheck that took the snapshot did not ask
# unsupported     this hardware, driver, kernel or sandbox has nothing of the kind
# denied          whoever asked may not know
# no-data         it exists, and had no answer: an empty log, a field that the driver does not fill in
# failed          reading it broke, or gave what cannot be
# lost            the GPU does not answer any more
# reset-required  the GPU does not answer until it is reset
# mismatch        the driver's libraries and the kernel module are of two versions
# timed-out       no answer in time
Why = Literal[
    "not-collected",
    "unsupported",
    "denied",
    "no-data",
    "failed",
    "lost",
    "reset-required",
    "mismatch",
    "timed-out",
]
_ERRNO: dict[int, Why] = {
    errno.ENOENT: "unsupported",
    errno.ENOTDIR: "unsupported",
    errno.EISDIR: "unsupported",
    errno.ENODEV: "unsupported",
    errno.ENXIO: "unsupported",
    errno.ENOSYS: "unsupported",
    errno.EOPNOTSUPP: "unsupported",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.ETIMEDOUT: "timed-out",
}
# What the texts of snapshots without `why` have in them; the first row that fits counts.
_TEXTS: tuple[tuple[Why, tuple[str, ...]], ...] = (
    ("failed", ("asking NVML: ",)),
    ("timed-out", ("timed out", "NVML: Timeout", "no answer in ", "took longer than ")),
    ("reset-required", ("GPU requires re",)),
    ("lost", ("GPU is lost", "GPU access blocked", "The operating system has blocked")),
    ("unsupported", ("Not Supported", "Function Not Found", "nvidia-ml-py:", "Deprecated")),
    ("unsupported", ("Argument Version Mismatch", "Version Mismatch for Argument")),
    ("mismatch", ("version mismatch",)),
    ("unsupported", ("No such file", "No such device", "Not a directory", "Is a directory")),
    ("unsupported", ("Function not implemented", "Operation not supported", "is not on the loader's path")),
    ("denied", ("Insufficient Permissions", "Permission denied", "Operation not permitted", "only root")),
    ("no-data", ("Invalid Argument", "No Data", "Not Found", "is empty", "does not say")),
)


def of_errno(number: int | None) -> Why:
    """Return what an errno says; one that says nothing of the kind is a failure."""
    return _ERRNO.get(number or 0, "failed")


def of_os_error(error: OSError) -> Why:
    """Return why a file or a process could not be read."""
    return "timed-out" if isinstance(error, TimeoutError) else of_errno(error.errno)


def of_text(reason: str) -> Why:
    """Return why, as far as the text says it: only for snapshots and reports that have nothing but the text."""
    if reason == "not collected":
        return "not-collected"
    return next((why for why, words in _TEXTS if any(word in reason for word in words)), "failed")

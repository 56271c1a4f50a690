"""Xids 144 to 150, the errors of NVLink 5: whether one is fatal stands in its text, and NVIDIA ignores some of those.

    NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 …)

The words are the unit, the severity, the containment, whether it was injected, the link, and then registers: the first
one (intrinfo) holds a sub-code in bits 20 to 25, the second one is the error status.
"""

from __future__ import annotations

import re
from typing import Any, Final

CODES: Final = range(144, 151)
_WORDS: Final = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]*)(?:/[A-Z0-9_]+)*\s+(?P<severity>Non-?fatal|(?:Link )?Fatal)\b"
    r"(?:[^(]*\((?P<intrinfo>0x[0-9a-f]{1,8})\s+(?P<status>0x[0-9a-f]{1,8}))?",
    re.IGNORECASE,
)
_PROCESS: Final = re.compile(r"^pid=[^,]*, name=[^,]*, ")


def action(code: int, text: str, ignored: list[dict[str, Any]]) -> str:
    """Return the name of the action in xids.json that such an error calls for; `ignored` are the rows of that file."""
    words = _WORDS.search(_PROCESS.sub("", text))
    if words is None:
        return "WORKFLOW_NVLINK5_ERR"
    fatal = not words["severity"].lower().startswith("non")
    listed = any(_matches(row, code, words, fatal=fatal) for row in ignored)
    if fatal:
        return "NVLINK5_IGNORED" if listed else "NVLINK5_FATAL"
    return "IGNORE" if listed else "WORKFLOW_NVLINK5_ERR"


def _matches(row: dict[str, Any], code: int, words: re.Match[str], *, fatal: bool) -> bool:
    if words["intrinfo"] is None or row["xid"] != code or words["unit"].upper() not in row["units"]:
        return False
    bits, status = f"{int(words['intrinfo'], 16):032b}", int(words["status"], 16)
    fits = any(all(want in ("-", bit) for want, bit in zip(layout, bits, strict=True)) for layout in row["intrinfo"])
    return fits and status == row["error_status"] and fatal == row["fatal"]

"""The doctor's rule for a URL in the place of a model's name, written there or set as a variable of the same file."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from typing import Final

from envcheck.mirrors.doctor.document import PreparedDocument

_FIX: Final = "pass OWNER/NAME and set HF_ENDPOINT; or run `envcheck fetch --model` and pass the directory"
_ASSIGNED: Final = re.compile(
    r"(?m)(?:^|;)[ \t]*(?P<name>[A-Za-z_][\w.]{0,60})[ \t]*(?::[^=\n]{1,60})?=(?!=)[ \t]*(?P<value>[^\n]{0,300})"
)
_CALLED: Final = re.compile(
    r"\b(?:(?:from_pretrained|snapshot_download|hf_hub_download)\(\s*(?:\w+\s*=\s*)?"
    r"|pipeline\([^()\n]{0,200}?\bmodel\s*=\s*)(?P<value>[^\n]{0,300})"
)
_URL: Final = re.compile(r"(?:os\.(?:environ\.get|getenv)\(\s*[\"']\w+[\"']\s*,\s*)?[rbfuRBFU]{0,2}[\"']+https?://")
# A variable alone, before an operator, or at the start of an f-string.
_VARIABLE: Final = re.compile(
    r"(?P<bare>[A-Za-z_][\w.]*)\s*(?:[,)+;#]|$)|[rR]?[fF][rR]?[\"']+\{(?P<put>[A-Za-z_]\w*)(?:\.rstrip\([^()]*\))?\}"
)


def url_for_a_model(source: PreparedDocument) -> Iterator[tuple[int, str, str]]:
    """Find calls with a URL instead of a repository's name; a variable has the value that was set last."""
    urls: dict[str, bool] = {}
    steps = heapq.merge(_ASSIGNED.finditer(source.code), _CALLED.finditer(source.code), key=lambda match: match.start())
    for match in steps:
        is_url = _is_url(match["value"], urls)
        if match.re is _ASSIGNED:
            urls[match["name"]] = is_url
        elif is_url:
            yield match.start(), "a URL in the place of a repository's name or a directory", _FIX


def _is_url(value: str, urls: dict[str, bool]) -> bool:
    named = _VARIABLE.match(value)
    return _URL.match(value) is not None or (named is not None and urls.get(named["bare"] or named["put"], False))

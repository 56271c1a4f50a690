"""The doctor's rule for a URL where a model's name belongs: written there, or by way of variables of the same file."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from typing import Final

from envcheck.mirrors.doctor.document import Source

_FIX: Final = "name OWNER/NAME and set HF_ENDPOINT; or `envcheck fetch --model` it and name the directory"
_ASSIGNED: Final = re.compile(
    r"(?m)(?:^|;)[ \t]*(?P<name>[A-Za-z_][\w.]{0,60})[ \t]*(?::[^=\n]{1,60})?=(?!=)[ \t]*(?P<value>[^\n]{0,300})"
)
_CALLED: Final = re.compile(
    r"\b(?:(?:from_pretrained|snapshot_download|hf_hub_download)\(\s*(?:\w+\s*=\s*)?"
    r"|pipeline\([^()\n]{0,200}?\bmodel\s*=\s*)(?P<value>[^\n]{0,300})"
)
_URL: Final = re.compile(r"(?:os\.(?:environ\.get|getenv)\(\s*[\"']\w+[\"']\s*,\s*)?[rbfuRBFU]{0,2}[\"']+https?://")
# A name alone, one that something is put after, or one that an f-string begins with.
_NAMED: Final = re.compile(
    r"(?P<bare>[A-Za-z_][\w.]*)\s*(?:[,)+;#]|$)|[rR]?[fF][rR]?[\"']+\{(?P<put>[A-Za-z_]\w*)(?:\.rstrip\([^()]*\))?\}"
)


def url_for_a_model(source: Source) -> Iterator[tuple[int, str, str]]:
    """Find calls that are given a URL for a repository's name; a variable is what it was set to last."""
    urls: dict[str, bool] = {}
    steps = heapq.merge(_ASSIGNED.finditer(source.code), _CALLED.finditer(source.code), key=lambda found: found.start())
    for found in steps:
        is_url = _is_url(found["value"], urls)
        if found.re is _ASSIGNED:
            urls[found["name"]] = is_url
        elif is_url:
            yield found.start(), "it takes a repository's name or a directory, no URL", _FIX


def _is_url(value: str, urls: dict[str, bool]) -> bool:
    named = _NAMED.match(value)
    return _URL.match(value) is not None or (named is not None and urls.get(named["bare"] or named["put"], False))

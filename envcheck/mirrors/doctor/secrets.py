"""Rules for secrets that lie where they are read by others. Comments are looked at too; no secret is repeated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, Literal

from envcheck.mirrors.doctor.document import Source

_IN_URL: Final = re.compile(
    r"(?i)\b(?P<scheme>[a-z][a-z0-9+.-]{1,10})://(?P<user>[^\s/@:\"'<>]{1,200})(?P<password>:[^\s/@\"'<>]{0,300})?@(?P<host>[\w.\[\]-]+)"
)
_TOKEN: Final = re.compile(r"\b(?:(?:hf|npm|gh[pousr])_[A-Za-z0-9]{30,}|glpat-[\w-]{20,}|pypi-[\w-]{50,})")
_ASKED_FOR: Final = re.compile(r"(?im)^[ \t]*(?:ENV|ARG)\s+(?P<name>\w*(?:TOKEN|PASSWORD|PASSWD|SECRET|API_KEY))\b")
_EXAMPLE: Final = re.compile(r"(?i):?(?:user(?:name)?|pass(?:word|wd)?|token|secret|x+|\*+|\.+|<.*>)$")


def _in_url(source: Source) -> Iterator[tuple[int, str, str]]:
    for found in _IN_URL.finditer(source.text):
        password = found["password"] or ""
        in_comment = source.code[found.start() : found.end()].isspace()
        if not password and found["scheme"].lower() not in {"http", "https"}:
            continue
        if in_comment and _EXAMPLE.match(password or found["user"]):
            continue
        fix = "move it to ~/.netrc (mode 600), or a build secret: `credentials:` and `netrc:` of a profile name it"
        yield (
            found.start(),
            f"a user or password in the URL of {found['host']}: it goes into logs, locks and layers",
            fix,
        )


def _token(source: Source) -> Iterator[tuple[int, str, str]]:
    for found in _TOKEN.finditer(source.text):
        if source.kind == "environment" or re.fullmatch(r"[a-z]+[_-](.)\1*", found[0]):
            continue  # an environment is where a token belongs; xxxx is an example
        yield found.start(), "a token is written here", "revoke it, and give it by a file or a variable"


def _build_argument(source: Source) -> Iterator[tuple[int, str, str]]:
    if source.kind != "dockerfile":
        return
    for found in _ASKED_FOR.finditer(source.code):
        fix = f"RUN --mount=type=secret,id={found['name'].lower()},env={found['name']} ..."
        yield found.start(), f"{found['name']} by ENV or ARG stays in the image's history", fix


_Row = tuple[str, Literal["danger", "unreal", "outdated"], Callable[[Source], Iterator[tuple[int, str, str]]]]
SECRETS: Final[tuple[_Row, ...]] = (
    ("E103", "danger", _in_url),
    ("E104", "danger", _token),
    ("E105", "danger", _build_argument),
)

"""Rules for secrets that others can read. They also search comments; findings never repeat a secret."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, Literal

from envcheck.mirrors.doctor.document import PreparedDocument

_IN_URL: Final = re.compile(
    r"(?i)\b(?P<scheme>[a-z][a-z0-9+.-]{1,10})://(?P<user>[^\s/@:\"'<>]{1,200})(?P<password>:[^\s/@\"'<>]{0,300})?@(?P<host>[\w.\[\]-]+)"
)
_TOKEN: Final = re.compile(r"\b(?:(?:hf|npm|gh[pousr])_[A-Za-z0-9]{30,}|glpat-[\w-]{20,}|pypi-[\w-]{50,})")
_BUILD_ARGUMENT: Final = re.compile(
    r"(?im)^[ \t]*(?:ENV|ARG)\s+(?P<name>\w*(?:TOKEN|PASSWORD|PASSWD|SECRET|API_KEY))\b"
)
_EXAMPLE: Final = re.compile(r"(?i):?(?:user(?:name)?|pass(?:word|wd)?|token|secret|x+|\*+|\.+|<.*>)$")


def _in_url(source: PreparedDocument) -> Iterator[tuple[int, str, str]]:
    for match in _IN_URL.finditer(source.text):
        password = match["password"] or ""
        in_comment = source.code[match.start() : match.end()].isspace()
        if not password and match["scheme"].lower() not in {"http", "https"}:
            continue
        if in_comment and _EXAMPLE.match(password or match["user"]):
            continue
        fix = "move it to ~/.netrc (mode 600) or a build secret, and name that in a profile (`netrc:`, `credentials:`)"
        yield (
            match.start(),
            f"a user or password in the URL of {match['host']}: logs, locks and image layers will contain it",
            fix,
        )


def _token(source: PreparedDocument) -> Iterator[tuple[int, str, str]]:
    for match in _TOKEN.finditer(source.text):
        if source.kind == "environment" or re.fullmatch(r"[a-z]+[_-](.)\1*", match[0]):
            continue  # a token belongs in an environment; xxxx is an example
        yield (
            match.start(),
            "the file contains a token",
            "revoke the token, and pass the new one in a file or a variable",
        )


def _build_argument(source: PreparedDocument) -> Iterator[tuple[int, str, str]]:
    if source.kind != "dockerfile":
        return
    for match in _BUILD_ARGUMENT.finditer(source.code):
        fix = f"RUN --mount=type=secret,id={match['name'].lower()},env={match['name']} ..."
        yield match.start(), f"{match['name']} in ENV or ARG stays in the image's history", fix


_Row = tuple[str, Literal["danger", "unreal", "outdated"], Callable[[PreparedDocument], Iterator[tuple[int, str, str]]]]
SECRETS: Final[tuple[_Row, ...]] = (
    ("E103", "danger", _in_url),
    ("E104", "danger", _token),
    ("E105", "danger", _build_argument),
)

"""JSON of others, read strictly: one document of bounded size, no key twice, text that is text, canonical base64."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Final, TypeVar

import msgspec

# A bundle, a statement or a promotion; the largest of ours is some 20 kB.
MOST: Final = 4_000_000
_Type = TypeVar("_Type")


class MalformedError(ValueError):
    """What is not in the expected form; the text says where and why."""


def decode(content: bytes, kind: type[_Type]) -> _Type:
    """Return the document as this type. Raises MalformedError, and nothing else, for whatever else the bytes are."""
    return convert(parse(content), kind)


def parse(content: bytes) -> Any:
    """Return the document as plain data. Raises MalformedError for what is not one JSON document."""
    if len(content) > MOST:
        message = f"larger than {MOST} bytes"
        raise MalformedError(message)
    try:
        document = json.loads(content.decode("utf-8"), object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
        if b"\\u" in content:
            # An escape can hold half a character ("\ud800"), which no later step could write.
            json.dumps(document, ensure_ascii=False).encode("utf-8")
    except MalformedError:
        raise
    except RecursionError as error:
        message = "nested too deeply"
        raise MalformedError(message) from error
    except UnicodeError as error:
        message = "not UTF-8 text"
        raise MalformedError(message) from error
    except ValueError as error:  # JSONDecodeError, and a number of thousands of digits
        raise MalformedError(_line(error)) from error
    return document


def convert(document: Any, kind: type[_Type]) -> _Type:
    """Return plain data as this type. Raises MalformedError, which names the place, for other data."""
    try:
        return msgspec.convert(document, kind)
    except (ValueError, OverflowError) as error:  # ValidationError is a ValueError
        raise MalformedError(_line(error)) from error


def canonical_base64(text: str, label: str) -> bytes:
    """Return the bytes. Raises MalformedError unless this is how base64 (RFC 4648, padded) writes them."""
    try:
        content = base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeError, binascii.Error) as error:
        message = f"{label} is not base64"
        raise MalformedError(message) from error
    if base64.b64encode(content).decode("ascii") != text:
        message = f"{label} is not canonical base64"
        raise MalformedError(message)
    return content


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        message = "a key is there twice"
        raise MalformedError(message)
    return document


def _no_constant(name: str) -> Any:
    message = f"{name[:20]} is not JSON"
    raise MalformedError(message)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]

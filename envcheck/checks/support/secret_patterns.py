"""What a credential looks like in a line of text: by what it is called, where it stands, or its issuer's own prefix.

What is returned are names, never values.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

NAMED = re.compile(r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY)S?(?:_|$)", re.IGNORECASE)
_HARMLESS_NAME = re.compile(r"TOKENIZERS|_FILE$|_PATH$|_DIR$", re.IGNORECASE)
# A switch, a count, a reference to a secret that is elsewhere, nothing.
_HARMLESS_VALUE = re.compile(
    r"""["']?(?:[\d.]*|true|false|yes|no|none|null|[$`].*|id=.*|/[\w./-]*)["']?""", re.IGNORECASE
)
IN_URL = re.compile(r"//[^/:@\s]+:[^/@\s]+@|https?://[^/:@\s]{16,}@")
# Issuers mark their tokens so that they can be found.
_ISSUED = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
_ISSUERS = tuple((name, re.compile(pattern)) for name, pattern in _ISSUED.items())
_ASSIGNED = re.compile(r"""(?<![\w$./-])(?P<name>[A-Za-z_]\w*)=(?P<value>"[^"]*"|'[^']*'|[^\s;&|]*)""")
_OPTION = re.compile(r"(?<!\S)--(?P<name>[a-z-]*(?:token|password|passwd|api-key|secret))[= ](?P<value>[^-\s]\S*)")
_HEADER = re.compile(r"authorization:\s*(?:bearer|basic|token)\s+[^\s$\"']", re.IGNORECASE)


def variable(name: str, value: str) -> bool:
    """Return whether a variable of this name and value holds a credential."""
    called = NAMED.search(name) is not None and _HARMLESS_NAME.search(name) is None
    return (called and _HARMLESS_VALUE.fullmatch(value.strip()) is None) or bool(marked(value))


def marked(text: str) -> list[str]:
    """Return what stands in a text by its place or its issuer's mark: names, no values."""
    placed = ["a password in a URL"] if IN_URL.search(text) else []
    placed += ["an Authorization header"] if _HEADER.search(text) else []
    return placed + [name for name, pattern in _ISSUERS if pattern.search(text)]


def line(text: str) -> list[str]:
    """Return the credentials in a line of a Dockerfile: its variables and options by name, else what is marked."""
    assigned = [match["name"] for match in _ASSIGNED.finditer(text) if variable(match["name"], match["value"])]
    options = [
        f"--{match['name']}" for match in _OPTION.finditer(text) if not _HARMLESS_VALUE.fullmatch(match["value"])
    ]
    return list(dict.fromkeys([*assigned, *options])) or marked(text)

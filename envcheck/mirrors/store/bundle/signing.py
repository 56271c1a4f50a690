"""Ed25519 signatures (RFC 8032) of files that people carry between machines; keys are PEM files.

    envcheck key new key.pem

The signed message begins with a line that names its purpose, so that a signature is valid for no other purpose.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from envcheck import signing
from envcheck.errors import PromiseError

BYTES: Final = 64
_KINDS: Final[tuple[signing.Kind, ...]] = ("ed25519",)


def sign(content: bytes, purpose: str, key: Path) -> bytes:
    """Return the signature, BYTES long, by a private key. Raises ConfigError if the file is not such a key."""
    return signing.load_private(key, signing.password(), _KINDS).sign(_signed_message(content, purpose))


def verify(content: bytes, signed: bytes, purpose: str, key: Path, label: str) -> None:
    """Raise PromiseError unless `signed` is the signature of the content by this public key.

    `what` names the content in errors. Raises ConfigError if the file is not such a key.
    """
    if not signing.load_public(key, _KINDS).verifies(_signed_message(content, purpose), signed):
        message = f"{label}: it is not signed by the key in {key}"
        raise PromiseError(message, fix="do not use it: ask the person who exported it for its digest and key")


def _signed_message(content: bytes, purpose: str) -> bytes:
    return f"{purpose}\n".encode() + content

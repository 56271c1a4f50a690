"""Ed25519 signatures (RFC 8032) of files that people carry between machines; keys are PEM files.

    openssl genpkey -algorithm ed25519 -out key.pem
    openssl pkey -in key.pem -pubout -out public.pem

The signed message begins with a line that names its purpose, so that a signature is valid for no other purpose.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from envcheck.errors import ConfigError, PromiseError

BYTES: Final = 64
_LARGEST_KEY: Final = 1 << 16


def sign(content: bytes, purpose: str, key: Path) -> bytes:
    """Return the signature, BYTES long, by a private key. Raises ConfigError if the file is not such a key."""
    try:
        private = load_pem_private_key(_read_pem(key), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        private = None
    if not isinstance(private, Ed25519PrivateKey):
        message = f"{key}: not an ed25519 private key in PEM without a password"
        raise ConfigError(message, fix="make one: openssl genpkey -algorithm ed25519 -out FILE")
    return private.sign(_signed_message(content, purpose))


def verify(content: bytes, signed: bytes, purpose: str, key: Path, what: str) -> None:
    """Raise PromiseError unless `signed` is the signature of the content by this public key.

    `what` names the content in errors. Raises ConfigError if the file is not such a key.
    """
    try:
        public = load_pem_public_key(_read_pem(key))
    except (ValueError, UnsupportedAlgorithm):
        public = None
    if not isinstance(public, Ed25519PublicKey):
        message = f"{key}: not an ed25519 public key in PEM"
        raise ConfigError(message, fix="make it from the private key: openssl pkey -in KEY -pubout -out FILE")
    try:
        public.verify(signed, _signed_message(content, purpose))
    except InvalidSignature as error:
        message = f"{what}: it is not signed by the key in {key}"
        raise PromiseError(
            message, fix="do not use it: ask the person who exported it for its digest and key"
        ) from error


def _signed_message(content: bytes, purpose: str) -> bytes:
    return f"{purpose}\n".encode() + content


def _read_pem(key: Path) -> bytes:
    try:
        with key.open("rb") as file:
            return file.read(_LARGEST_KEY)
    except OSError as error:
        message = f"{key}: {error.strerror}"
        raise ConfigError(message, fix="pass a key in PEM") from error

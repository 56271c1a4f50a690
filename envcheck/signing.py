"""Keys and signatures, and the one home of `cryptography`: ed25519 (RFC 8032) and ECDSA over P-256 with SHA-256.

A private key is PEM (PKCS8), with or without a password; its public key is PEM too. A key's id is the base64 of the
SHA-256 of its public key in DER (SubjectPublicKeyInfo), as Sigstore's hint is.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from envcheck import safe_files
from envcheck.errors import ConfigError
from envcheck.struct_types import LightRecord, Secret

Kind = Literal["ed25519", "ECDSA P-256"]
KINDS: Final[tuple[Kind, ...]] = ("ed25519", "ECDSA P-256")
# The environment variable with a private key's password.
PASSWORD: Final = "ENVCHECK_KEY_PASSWORD"  # noqa: S105 (a name)
_LARGEST_KEY: Final = 1 << 16
_OIDC_ISSUER: Final = "1.3.6.1.4.1.57264.1.1"
_BEGIN: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,60})-----")
_MAKE: Final = "make one with `envcheck key new FILE`"
_Private = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey
_Public = ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey


class PublicKey(LightRecord, frozen=True):
    """A key that verifies; `where` is the file that it was read from, "" where it was in none."""

    kind: Kind
    id: str
    pem: bytes
    where: str
    _key: _Public

    def verifies(self, message: bytes, signature: bytes) -> bool:
        """Tell whether the signature is that of the message by this key; of an ECDSA key it is DER."""
        try:
            if isinstance(self._key, ed25519.Ed25519PublicKey):
                self._key.verify(signature, message)
            else:
                self._key.verify(signature, message, ec.ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True


class PrivateKey(Secret, frozen=True):
    """A key that signs, and its public key."""

    public: PublicKey
    _key: _Private

    def sign(self, message: bytes) -> bytes:
        """Return the signature: 64 bytes of an ed25519 key, DER of an ECDSA key."""
        if isinstance(self._key, ed25519.Ed25519PrivateKey):
            return self._key.sign(message)
        return self._key.sign(message, ec.ECDSA(SHA256()))


def new_key(path: Path, secret: bytes | None = None) -> PublicKey:
    """Write a new ed25519 key to a new file that only its owner reads, and its public key to PATH.pub.

    Raises ConfigError where either file is there already, OSError where one cannot be written; nothing is left then.
    """
    key = ed25519.Ed25519PrivateKey.generate()
    locked: KeySerializationEncryption = BestAvailableEncryption(secret) if secret else NoEncryption()
    public = _public(key.public_key(), str(path_of_public(path)))
    private_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked)
    made: list[Path] = []
    try:
        for file, content, mode in ((path, private_pem, 0o600), (path_of_public(path), public.pem, 0o644)):
            _create(file, content, mode, made)
    except BaseException:
        for file in made:
            file.unlink(missing_ok=True)
        raise
    return public


def password(environ: Mapping[str, str] = os.environ) -> bytes | None:
    """Return the password in the environment, None where there is none."""
    return os.fsencode(environ.get(PASSWORD, "")) or None


def path_of_public(path: Path) -> Path:
    """Return where the public key of a private key's file lies: beside it, with .pub after its name."""
    return path.with_name(f"{path.name}.pub")


def load_private(path: Path, secret: bytes | None = None, kinds: tuple[Kind, ...] = KINDS) -> PrivateKey:
    """Return the private key in a file. Raises ConfigError, which says what else the file is."""
    content, expected = _read(path), f"not an {' or '.join(kinds)} private key"
    label = _label(content, path, expected)
    if "PUBLIC" in label:
        message = f"{path}: a public key, {expected}"
        raise ConfigError(message, fix="pass the file of the private key, without .pub")
    if "SIGSTORE" in label or "COSIGN" in label:
        message = f"{path}: a key that only cosign can open, {expected} in PKCS8"
        raise ConfigError(message, fix=_MAKE)
    encrypted = b"ENCRYPTED" in content
    try:
        key = load_pem_private_key(content, password=secret if encrypted else None)
    except TypeError as error:
        message = f"{path}: the key has a password, and none was given"
        raise ConfigError(message, fix=f"set {PASSWORD}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        message = f"{path}: damaged, or of an unknown kind: {expected} in PEM"
        if secret and encrypted:
            message = f"{path}: the password does not open this key, or the file is damaged"
            raise ConfigError(message, fix=f"set {PASSWORD} to the password of this key") from error
        raise ConfigError(message, fix=_MAKE) from error
    kind = _kind(key)
    if not isinstance(key, _Private) or kind not in kinds:
        message = f"{path}: its kind is {kind}, {expected}"
        raise ConfigError(message, fix=_MAKE)
    return PrivateKey(_public(key.public_key(), str(path)), key)


def load_public(path: Path, kinds: tuple[Kind, ...] = KINDS) -> PublicKey:
    """Return the public key in a file. Raises ConfigError, which says what else the file is."""
    content, expected = _read(path), f"not an {' or '.join(kinds)} public key"
    fix = "pass the .pub that `envcheck key new` wrote, or make it: openssl pkey -in KEY -pubout -out FILE"
    label = _label(content, path, expected)
    if "PRIVATE" in label:
        message = f"{path}: a private key, {expected}; do not hand it out"
        raise ConfigError(message, fix=fix)
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        message = f"{path}: damaged, or of an unknown kind: {expected} in PEM"
        raise ConfigError(message, fix=fix) from error
    kind = _kind(key)
    if not isinstance(key, _Public) or kind not in kinds:
        message = f"{path}: its kind is {kind}, {expected}"
        raise ConfigError(message, fix=fix)
    return _public(key, str(path))


def certified_identity(certificate: Any) -> tuple[str, str]:
    """Return whom a certificate of Sigstore's Fulcio names, and the OIDC issuer; "" for what it does not say.

    Nothing is verified. The issuer has an extension of its own (sigstore/fulcio, docs/oid-info.md).
    """
    from cryptography import x509  # noqa: PLC0415 (only where a certificate is at hand)

    names: list[str] = []
    issuer = ""
    for extension in certificate.extensions:
        value = extension.value
        if isinstance(value, x509.SubjectAlternativeName):
            names += value.get_values_for_type(x509.UniformResourceIdentifier)
            names += value.get_values_for_type(x509.RFC822Name)
        elif extension.oid.dotted_string == _OIDC_ISSUER:
            issuer = value.value.decode()
    return names[0] if len(names) == 1 else "", issuer


def _public(key: _Public, where: str) -> PublicKey:
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    identity = base64.b64encode(hashlib.sha256(der).digest()).decode("ascii")
    kind: Kind = "ed25519" if isinstance(key, ed25519.Ed25519PublicKey) else "ECDSA P-256"
    return PublicKey(kind, identity, pem, where, key)


def _kind(key: object) -> str:
    """Return what a key is called in messages."""
    if isinstance(key, (ed25519.Ed25519PrivateKey, ed25519.Ed25519PublicKey)):
        return "ed25519"
    if isinstance(key, (ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey)):
        return "ECDSA P-256" if isinstance(key.curve, ec.SECP256R1) else f"ECDSA {key.curve.name}"
    if isinstance(key, (rsa.RSAPrivateKey, rsa.RSAPublicKey)):
        return "RSA"
    return "DSA" if isinstance(key, (dsa.DSAPrivateKey, dsa.DSAPublicKey)) else "unknown"


def _label(content: bytes, path: Path, wrong: str) -> str:
    """Return what the PEM says that it holds. Its content is never part of a message: it may be a password."""
    begin = _BEGIN.search(content)
    if begin is None:
        message = f"{path}: {'the file has no PEM block' if content.strip() else 'the file is empty'}: {wrong} in PEM"
        raise ConfigError(message, fix=_MAKE)
    return begin[1].decode("ascii")


def _read(path: Path) -> bytes:
    try:
        content = safe_files.read_regular(path, _LARGEST_KEY + 1)
    except OSError as error:
        message = f"{path}: {error.strerror}"
        raise ConfigError(message, fix="pass a key in PEM") from error
    if len(content) > _LARGEST_KEY:
        message = f"{path}: longer than any key"
        raise ConfigError(message, fix="pass a key in PEM")
    return content


def _create(path: Path, content: bytes, mode: int, made: list[Path]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = os.open(path, flags, mode)
    except FileExistsError as error:
        message = f"{path}: a file with this name is there, and a key is never replaced"
        raise ConfigError(message, fix="name another file, or move it away") from error
    made.append(path)
    try:
        safe_files.write(file, content)
        os.fsync(file)
    finally:
        os.close(file)

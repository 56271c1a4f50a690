"""Keys and signatures, and the one home of `cryptography`: ed25519 (RFC 8032) and ECDSA over P-256 with SHA-256.

A private key is PEM (PKCS8), with or without a password; its public key is PEM too. A key's id is the base64 of the
SHA-256 of its public key in DER (SubjectPublicKeyInfo), as Sigstore's hint is.
"""

import base64
import functools
import hashlib
import os
import re
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
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
from envcheck.errors import ConfigError, refuse
from envcheck.struct_types import LightRecord, Secret

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
    public = _public(key.public_key(), path.with_name(f"{path.name}.pub"))
    private_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked)
    made: list[Path] = []
    try:
        for file, content, mode in ((path, private_pem, 0o600), (Path(public.where), public.pem, 0o644)):
            with open(file, "xb", opener=functools.partial(os.open, mode=mode)) as stream:
                made.append(file)
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
    except BaseException as error:
        for file in made:
            file.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            why = f"{error.filename}: a file with this name is there, and a key is never replaced"
            refuse(why, "name another file, or move it away")
        raise
    return public


def password() -> bytes | None:
    """Return the password in the environment, None where there is none."""
    return os.fsencode(os.environ.get(PASSWORD, "")) or None


def load_private(path: Path, secret: bytes | None = None) -> PrivateKey:
    """Return the private key in a file. Raises ConfigError, which says what else the file is."""
    content, label = _read(path, "private")
    if "PUBLIC" in label:
        raise _no_key(path, "a public key", "private", "pass the file of the private key, without .pub")
    if "SIGSTORE" in label or "COSIGN" in label:
        raise _no_key(path, "a key that only cosign can open", "private")
    encrypted = b"ENCRYPTED" in content
    try:
        key = load_pem_private_key(content, password=secret if encrypted else None)
    except TypeError:
        refuse(f"{path}: the key has a password, and none was given", f"set {PASSWORD}")
    except (ValueError, UnsupportedAlgorithm) as error:
        if secret and encrypted:
            why = f"{path}: the password does not open this key, or the file is damaged"
            refuse(why, f"set {PASSWORD} to the password of this key")
        raise _no_key(path, "damaged, or of an unknown kind", "private") from error
    if not isinstance(key, _Private):
        raise _no_key(path, "of another kind", "private")
    return PrivateKey(_public(key.public_key(), path), key)


def load_public(path: Path) -> PublicKey:
    """Return the public key in a file. Raises ConfigError, which says what else the file is."""
    content, label = _read(path, "public")
    fix = "pass the .pub that `envcheck key new` wrote, or make it: openssl pkey -in KEY -pubout -out FILE"
    if "PRIVATE" in label:
        raise _no_key(path, "a private key; do not hand it out", "public", fix)
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _no_key(path, "damaged, or of an unknown kind", "public", fix) from error
    if not isinstance(key, _Public):
        raise _no_key(path, "of another kind", "public", fix)
    return _public(key, path)


def certified_identity(certificate: Any) -> tuple[str, str]:
    """Return whom a certificate of Sigstore's Fulcio names, and the OIDC issuer. Nothing is verified."""
    from cryptography import x509  # noqa: PLC0415 (only where a certificate is at hand)

    extensions = certificate.extensions
    subject = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = [
        name for kind in (x509.UniformResourceIdentifier, x509.RFC822Name) for name in subject.get_values_for_type(kind)
    ]
    issuer = extensions.get_extension_for_oid(x509.ObjectIdentifier(_OIDC_ISSUER)).value.value.decode()
    return names[0] if len(names) == 1 else "", issuer


def _public(key: _Public, path: Path) -> PublicKey:
    if isinstance(key, ec.EllipticCurvePublicKey) and not isinstance(key.curve, ec.SECP256R1):
        raise _no_key(path, f"ECDSA {key.curve.name}", "usable")
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return PublicKey(base64.b64encode(hashlib.sha256(der).digest()).decode("ascii"), pem, str(path), key)


def _no_key(path: Path, what: str, wanted: str, fix: str = _MAKE) -> ConfigError:
    return ConfigError(f"{path}: {what}, not an ed25519 or ECDSA P-256 {wanted} key in PEM", fix=fix)


def _read(path: Path, wanted: str) -> tuple[bytes, str]:
    """Return the content, which is never part of a message (it may be a password), and what PEM says that it holds."""
    try:
        content = safe_files.read_regular(path, _LARGEST_KEY + 1)
    except OSError as error:
        refuse(f"{path}: {error.strerror}", "pass a key in PEM")
    begin = _BEGIN.search(content)
    if len(content) > _LARGEST_KEY or begin is None:
        raise _no_key(path, "longer than any key" if begin else "without a PEM block", wanted)
    return content, begin[1].decode("ascii")

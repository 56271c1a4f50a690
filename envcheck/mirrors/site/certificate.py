"""Check a site's certificate against its key, its name and its CA, by a TLS handshake in memory."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path
from typing import Final

from envcheck.errors import ConfigError
from envcheck.mirrors.site.model import Tls

# More turns than a handshake needs.
_TURNS: Final = 10
# openssl/x509_vfy.h: issuer not found, self-signed, wrong signature.
_UNSIGNED: Final = frozenset({2, 7, 18, 19, 20, 21})
_NAMES: Final = frozenset({62, 64})


def check_certificate(tls: Tls, name: str, ca: Path | None) -> None:
    """Raise ConfigError if clients would refuse the certificate for a name: because of its key, dates or names.

    With `ca`, also if that CA did not sign it; without, the clients decide whom they trust.
    """
    server = _server_context(Path(tls.certificate), Path(tls.key))
    try:
        _handshake(server, _client_context(Path(tls.certificate), ca), name)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _UNSIGNED:
            message, fix = (
                f"{ca} did not sign {tls.certificate}",
                "pass the CA's certificate as --ca, and the chain as CERT",
            )
        elif error.verify_code in _NAMES:
            message, fix = (
                f"{tls.certificate} is not for {name}",
                "pass a name in the certificate as --name, or another CERT",
            )
        else:
            message, fix = (
                f"{tls.certificate}: {error.verify_message}",
                "pass a certificate that clients accept as --tls",
            )
        raise ConfigError(message, fix=fix) from error
    except ssl.SSLError as error:
        message = f"{tls.certificate}: the TLS handshake fails: {error.reason}"
        raise ConfigError(message, fix="pass a certificate that clients accept as --tls") from error
    except ValueError as error:
        message = f"{name!r} is not a host name"
        raise ConfigError(message, fix="pass the host name that clients use as --name") from error


def _server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    has, keyed = _read_text(certificate), _read_text(key)
    if "BEGIN CERTIFICATE" not in has:
        swapped = "; CERT and KEY may be swapped" if "BEGIN CERTIFICATE" in keyed else ""
        message = f"{certificate} holds no certificate in PEM{swapped}"
        raise ConfigError(message, fix="write --tls CERT KEY")
    if "ENCRYPTED" in keyed:
        message = f"{key} has a passphrase, which nginx cannot ask for"
        raise ConfigError(message, fix="pass a key without a passphrase that only the site's user can read")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        mismatch = error.reason == "KEY_VALUES_MISMATCH"
        why = f"is not the key of {certificate}" if mismatch else f"and {certificate}: {error.reason or 'unreadable'}"
        message = f"{key} {why}"
        raise ConfigError(message, fix="pass a matching pair as --tls CERT KEY") from error
    return context


def _read_text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise ConfigError(message, fix="render as the user who owns the site") from error


def _client_context(certificate: Path, ca: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(ca or certificate)
    except (ssl.SSLError, OSError) as error:
        message = f"{ca or certificate}: not a PEM file of certificates"
        raise ConfigError(message, fix="name a file in PEM format") from error
    if ca is None:  # trust the certificate itself, and check only its dates and names
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    return context


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(_TURNS):
        for side in sides:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()

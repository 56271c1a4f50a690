"""A site's certificate, held against its key, its name and its authority by a handshake of OpenSSL's with itself."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path
from typing import Final

from envcheck.errors import ConfigError
from envcheck.mirrors.site.model import Tls

# More than a handshake has turns.
_TURNS: Final = 10
# openssl/x509_vfy.h: no issuer is found, it signed itself, the signature is none of its.
_UNSIGNED: Final = frozenset({2, 7, 18, 19, 20, 21})
_NAMES: Final = frozenset({62, 64})


def checked(tls: Tls, name: str, ca: Path | None) -> None:
    """Raise ConfigError where clients would not take the certificate for a name: its key, its dates, its names.

    With `ca`, also where that did not sign it; without, whom clients trust is theirs to know.
    """
    server = _server(Path(tls.certificate), Path(tls.key))
    try:
        _handshake(server, _client(Path(tls.certificate), ca), name)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _UNSIGNED:
            message, fix = f"{ca} did not sign {tls.certificate}", "give the authority's own as --ca, the chain as CERT"
        elif error.verify_code in _NAMES:
            message, fix = (
                f"{tls.certificate} is not for {name}",
                "give a name that is in it as --name, or another CERT",
            )
        else:
            message, fix = f"{tls.certificate}: {error.verify_message}", "give --tls one that clients will take"
        raise ConfigError(message, fix=fix) from error
    except ssl.SSLError as error:
        message = f"{tls.certificate}: no TLS with it: {error.reason}"
        raise ConfigError(message, fix="give --tls one that clients will take") from error
    except ValueError as error:
        message = f"{name!r} is no name of a host"
        raise ConfigError(message, fix="give --name as clients write it") from error


def _server(certificate: Path, key: Path) -> ssl.SSLContext:
    has, keyed = _text(certificate), _text(key)
    if "BEGIN CERTIFICATE" not in has:
        swapped = "; CERT and KEY may be swapped" if "BEGIN CERTIFICATE" in keyed else ""
        message = f"{certificate} holds no certificate in PEM{swapped}"
        raise ConfigError(message, fix="write --tls CERT KEY")
    if "ENCRYPTED" in keyed:
        message = f"{key} is locked with a passphrase, which nobody is there to give nginx"
        raise ConfigError(message, fix="give a key without one, that only the site's user can read")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        mismatch = error.reason == "KEY_VALUES_MISMATCH"
        why = f"is not the key of {certificate}" if mismatch else f"and {certificate}: {error.reason or 'unreadable'}"
        message = f"{key} {why}"
        raise ConfigError(message, fix="write --tls CERT KEY, which were made together") from error
    return context


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise ConfigError(message, fix="render as the user whom the site belongs to") from error


def _client(certificate: Path, ca: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(ca or certificate)
    except (ssl.SSLError, OSError) as error:
        message = f"{ca or certificate}: no certificate can be read there"
        raise ConfigError(message, fix="name a file in PEM") from error
    if ca is None:  # its own authority, whoever signed it: what is left are its dates and names
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    return context


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(back, there, server_hostname=name),
        server.wrap_bio(there, back, server_side=True),
    )
    for _ in range(_TURNS):
        for side in sides:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()

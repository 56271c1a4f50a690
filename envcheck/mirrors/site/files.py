"""Write a site's files atomically, keep edited ones, and check the certificate that it serves.

rendered.json lists the written files with their hashes; no other file below the directory is ever removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from envcheck import safe_files
from envcheck.errors import ConfigError
from envcheck.mirrors.site.model import Tls

_DIRECTORIES: Final = (
    "cache/index",
    "cache/files",
    "cache/hf",
    "logs/olah",
    "run",
    "public/static",
    "state/metrics",
    "trees",
)
_RENDERED: Final = "rendered.json"


class RenderedFiles(NamedTuple):
    """The result of a render: names below the directory; `kept` maps edited files to their new names."""

    files: list[str]
    removed: list[str]
    kept: dict[str, str]


def write(root: Path, files: Mapping[str, str]) -> RenderedFiles:
    """Write all files below root, and remove files of an earlier render that are no longer rendered.

    Keep edited files under another name. Raise ConfigError if the directory is neither empty nor a site's.
    """
    refuse_foreign_directory(root)
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    before = _read_rendered(root)
    kept = _put_edited_aside(root, before, files)
    stale = [name for name in before if name not in files and (root / name).is_file()]
    for name in stale:
        _remove(root, name)
    for name, text in {**files, _RENDERED: _hashes(files)}.items():
        _write(root / name, text)
    return RenderedFiles(list(files), stale, kept)


def refuse_foreign_directory(root: Path) -> None:
    """Raise ConfigError for a directory that is neither empty nor a site's."""
    if root.is_dir() and any(root.iterdir()) and not (root / "site.json").exists():
        message = f"{root} is not empty and not a mirror site"
        raise ConfigError(message, fix="name an empty directory")


def _put_edited_aside(root: Path, before: Mapping[str, str], files: Mapping[str, str]) -> dict[str, str]:
    """Rename edited files that differ from both the old and the new content; return name -> new name."""
    edited = [name for name in {**before, **files} if _is_edited(root / name, before.get(name), files.get(name))]
    return {name: _put_aside(root, name) for name in edited}


def _hashes(files: Mapping[str, str]) -> str:
    return json.dumps({name: _hash(text.encode()) for name, text in files.items()}, indent=1) + "\n"


def _read_rendered(root: Path) -> dict[str, str]:
    """Return name -> hash of the last render, or an empty mapping if the list cannot be read."""
    try:
        hashes = json.loads((root / _RENDERED).read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(hashes, dict):
        return {}
    return {
        name: str(digest) for name, digest in hashes.items() if (root / name).resolve().is_relative_to(root.resolve())
    }


def _is_edited(path: Path, written: str | None, text: str | None) -> bool:
    """Tell whether a file differs from both the written content and the new content."""
    if not path.is_file():
        return False
    current = _hash(path.read_bytes())
    return current != written and (text is None or current != _hash(text.encode()))


def _put_aside(root: Path, name: str) -> str:
    ends = (f"{name}.edited{number or ''}" for number in range(1 << 16))
    free = next(end for end in ends if not (root / end).exists())
    (root / name).rename(root / free)
    return free


def _remove(root: Path, name: str) -> None:
    (root / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # the directory holds other files
        (root / name).parent.rmdir()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    safe_files.put(path, text.encode())


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

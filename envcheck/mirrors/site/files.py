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
    *("cache/index", "cache/files", "cache/hf", "logs/olah", "run", "public/static", "state/metrics", "trees"),
)
_RENDERED: Final = "rendered.json"
# More turns than a handshake needs.
_TURNS: Final = 10


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
    before, removed, kept = _read_rendered(root), list[str](), dict[str, str]()
    hashes = {name: _hash(text.encode()) for name, text in files.items()}
    for name in [name for name in {**before, **files} if (root / name).is_file()]:
        if _hash((root / name).read_bytes()) not in {before.get(name), hashes.get(name)}:
            kept[name] = _put_aside(root, name)
        elif name not in files:
            (root / name).unlink()
            removed.append(name)
        with contextlib.suppress(OSError):  # the directory holds other files
            (root / name).parent.rmdir()
    for name, text in {**files, _RENDERED: json.dumps(hashes, indent=1) + "\n"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        safe_files.put(root / name, text.encode())
    return RenderedFiles(list(files), removed, kept)


def refuse_foreign_directory(root: Path) -> None:
    """Raise ConfigError for a directory that is neither empty nor a site's."""
    if root.is_dir() and any(root.iterdir()) and not (root / "site.json").exists():
        message = f"{root} is not empty and not a mirror site"
        raise ConfigError(message, fix="name an empty directory")


def _read_rendered(root: Path) -> dict[str, str]:
    """Return name -> hash of the last render, or an empty mapping if the list cannot be read."""
    try:
        pairs = dict(json.loads((root / _RENDERED).read_bytes())).items()
    except (OSError, ValueError, TypeError):
        return {}
    return {name: str(digest) for name, digest in pairs if (root / name).resolve().is_relative_to(root.resolve())}


def _put_aside(root: Path, name: str) -> str:
    ends = (f"{name}.edited{number or ''}" for number in range(1 << 16))
    free = next(end for end in ends if not (root / end).exists())
    (root / name).rename(root / free)
    return free


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def check_certificate(tls: Tls, name: str, ca: Path | None) -> None:
    """Raise ConfigError if clients would refuse the certificate for a name: because of its key, dates or names.

    With `ca`, also if that CA did not sign it; without, the clients decide whom they trust.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        server.load_cert_chain(tls.certificate, tls.key, password=lambda: "")  # nginx cannot ask for one
        client.load_verify_locations(ca or tls.certificate)
        if ca is None:  # trust the certificate itself, and check only its dates and names
            client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        _handshake(server, client, name)
    except (OSError, ValueError) as error:
        why = getattr(error, "verify_message", "") or getattr(error, "reason", None) or str(error)
        message = f"clients would refuse {tls.certificate} with the key {tls.key} for {name}: {why}"
        fix = "pass --tls CERT KEY in PEM that fit each other, are valid today and have that --name; and its CA as --ca"
        raise ConfigError(message, fix=fix) from error


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

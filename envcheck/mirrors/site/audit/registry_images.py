"""Audit an image in a registry over HTTP: its manifests, its configuration and its layers.

A registry names all of these by their digest, so the name itself says what the content must be.
"""

from __future__ import annotations

import dataclasses
import hashlib
import platform
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from envcheck.errors import ConfigError
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.site.audit.report import AuditFinding

_PART: Final = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
_NAME: Final = re.compile(
    rf"(?P<repository>(?:{_PART}:[0-9]+/)?{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>\w[\w.-]*))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_MANIFEST_BYTES: Final = 1 << 24
_CHUNK_BYTES: Final = 1 << 20
_MANIFEST_TYPES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclasses.dataclass(frozen=True)
class ImageName:
    """REPOSITORY[:TAG][@DIGEST]; with a digest the tag says nothing more."""

    repository: str
    tag: str
    digest: str | None = None

    @property
    def reference(self) -> str:
        """Return what the registry is asked for."""
        return self.digest or self.tag


def image_name(text: str) -> ImageName:
    """Return the name of an image as it is written for docker. Raise ConfigError if it is not one."""
    match = _NAME.fullmatch(text)
    if match is None:
        message = f"{text!r} is not an image's name"
        raise ConfigError(message, fix="write REPOSITORY:TAG or REPOSITORY@sha256:DIGEST")
    return ImageName(match["repository"], match["tag"] or "latest", match["digest"])


def audit(base: str, image: ImageName, client: Client) -> Iterator[AuditFinding]:
    """Yield a finding for each manifest and blob of an image, of this machine's architecture, in the registry."""
    content, finding = _manifest(base, image, client)
    yield finding
    if content is None or finding.verdict == "poisoned":
        return
    try:
        manifests, blobs = _parts(content)
    except ValueError as error:
        yield AuditFinding(finding.name, "unreadable", str(error), cache="images")
        return
    for digest in manifests:
        yield from audit(base, dataclasses.replace(image, digest=digest), client)
    yield from (_blob(base, image, digest, client) for digest in blobs)


def _manifest(base: str, image: ImageName, client: Client) -> tuple[bytes | None, AuditFinding]:
    name = f"{image.repository}@{image.digest}" if image.digest else f"{image.repository}:{image.tag}"
    url = f"{base}/v2/{image.repository}/manifests/{image.reference}"
    try:
        with client.get(url, {"Accept": ", ".join(_MANIFEST_TYPES)}) as answer:
            if answer.status != 200:  # noqa: PLR2004 (HTTP's OK)
                return None, AuditFinding(name, "unavailable", f"HTTP status {answer.status}", cache="images")
            content = answer.text(_MANIFEST_BYTES)
    except NetworkError as error:
        return None, AuditFinding(name, "unavailable", str(error), cache="images")
    if image.digest is None:
        return content, AuditFinding(name, "unknown", "a tag gives the manifest no digest", cache="images")
    return content, _compared(name, f"sha256:{hashlib.sha256(content).hexdigest()}", image.digest)


def _blob(base: str, image: ImageName, expected: str, client: Client) -> AuditFinding:
    name, digest = f"{image.repository}@{expected}", hashlib.sha256()
    try:
        with client.get(f"{base}/v2/{image.repository}/blobs/{expected}") as answer:
            if answer.status != 200:  # noqa: PLR2004 (HTTP's OK)
                return AuditFinding(name, "unavailable", f"HTTP status {answer.status}", cache="images")
            for chunk in answer.chunks(_CHUNK_BYTES):
                digest.update(chunk)
    except NetworkError as error:
        return AuditFinding(name, "unavailable", str(error), cache="images")
    return _compared(name, f"sha256:{digest.hexdigest()}", expected)


def _compared(name: str, actual: str, expected: str) -> AuditFinding:
    if actual == expected:
        return AuditFinding(name, "clean", cache="images", by="digest")
    return AuditFinding(name, "poisoned", f"its content has {actual}", cache="images", by="digest")


def _parts(content: bytes) -> tuple[list[str], list[str]]:
    """Return the digests of the manifests and of the blobs that a manifest lists. Raise ValueError."""
    try:
        manifest: Any = msgspec.json.decode(content)
        if "manifests" in manifest:
            return [_digest(row) for row in manifest["manifests"] if _for_this_machine(row)], []
        return [], [_digest(manifest["config"]), *(_digest(row) for row in manifest["layers"])]
    except (msgspec.DecodeError, RecursionError, TypeError, KeyError, AttributeError) as error:
        message = "the registry's answer is not an image manifest"
        raise ValueError(message) from error


def _digest(row: Any) -> str:
    if not _DIGEST.fullmatch(row["digest"]):
        message = f"{row['digest']!r} is not a sha256 digest"
        raise ValueError(message)
    return str(row["digest"])


def _for_this_machine(row: Any) -> bool:
    machine = row.get("platform") or {}
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    return bool((machine.get("os"), machine.get("architecture")) == ("linux", architecture))

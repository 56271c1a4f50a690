"""Audit a mirror over HTTP: fetch the files that locks and images name, and compare their hashes.

A file that the mirror has not cached yet is fetched by the mirror for this. Only the mirror itself can remove a wrong
file from its caches, so a finding says how.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from envcheck.errors import ConfigError, UnavailableError
from envcheck.mirrors.hub.revision import Reference, Revision, file_url
from envcheck.mirrors.index.locate import LocatedFile, LockedPackage, locate
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.net.urls import host_of
from envcheck.mirrors.net.waits import NETWORK_WAITS
from envcheck.mirrors.profiles.model import Index
from envcheck.mirrors.site.audit import registry_images, trees
from envcheck.mirrors.site.audit.registry_images import ImageName
from envcheck.mirrors.site.audit.report import AuditFinding, Cache
from envcheck.mirrors.site.model import Registry, Site

_CHUNK_BYTES: Final = 1 << 20
# Bytes of a package, of which no lock has the size: the largest wheels have 4 GiB. An answer may have no end.
_MOST_BYTES: Final = 16 << 30


@dataclasses.dataclass(frozen=True)
class AuditScope:
    """What an audit fetches: packages of locks, revisions of models and data sets, and images."""

    packages: Sequence[LockedPackage]
    models: Sequence[Revision] = ()
    images: Sequence[ImageName] = ()


def audit_url(base: str, scope: AuditScope, client: Client) -> Iterator[AuditFinding]:
    """Yield the findings about one URL, which serves packages, models or images. Raise UnavailableError."""
    refuse_unreachable(base, client)
    yield from _packages(base, scope.packages, client)
    yield from _models(base, scope.models, client)
    for image in scope.images:
        yield from registry_images.audit(base, image, client)


def audit_site(site: Site, scope: AuditScope, client: Client) -> Iterator[AuditFinding]:
    """Yield the findings about a site of this machine: its trees on the disk, the rest through its own ports."""
    yield from trees.audit(site)
    if scope.packages:
        base = site.at(site.port)
        yield from _reached(site, "packages", base, _packages(base, scope.packages, client), client)
    if scope.models:
        if site.hf is None:
            message = f"{site.root} has no Hugging Face mirror"
            raise ConfigError(message, fix="leave the model's lock out, or render the site without --no-hf")
        base = site.at(site.hf.port)
        yield from _reached(site, "models", base, _models(base, scope.models, client), client)
    for image in scope.images:
        registry, inside = registry_of(site, image)
        base = site.at(registry.port)
        yield from _reached(site, "images", base, registry_images.audit(base, inside, client), client)


def registry_of(site: Site, image: ImageName) -> tuple[Registry, ImageName]:
    """Return the site's registry of an image and the image's name in it. Raise ConfigError if there is none."""
    first, _, path = image.repository.partition("/")
    names = {registry.name: registry for registry in site.registries}
    if path and first in names:
        return names[first], dataclasses.replace(image, repository=path)
    hub = names.get("docker.io")
    if hub is None or (path and ("." in first or ":" in first)):
        message = f"{site.root} mirrors no registry of {image.repository}"
        raise ConfigError(message, fix=f"its registries: {', '.join(sorted(names)) or 'none'}")
    return hub, image if path else dataclasses.replace(image, repository=f"library/{first}")


def _reached(
    site: Site, cache: Cache, base: str, findings: Iterator[AuditFinding], client: Client
) -> Iterator[AuditFinding]:
    """Yield the findings about one of the site's endpoints, or the one that it cannot be reached."""
    try:
        refuse_unreachable(base, client)
    except UnavailableError as error:
        fix = f"run `envcheck mirror site status {site.root}`; {error.fix}"
        yield AuditFinding(host_of(base), "unavailable", error.message, cache=cache, fix=fix)
        return
    for finding in findings:
        wrong = finding.verdict == "poisoned"
        yield dataclasses.replace(finding, fix=removal(site, cache)) if wrong else finding


def refuse_unreachable(base: str, client: Client) -> None:
    """Raise UnavailableError if the host does not answer, so that this is not repeated for every file."""
    try:
        client.get(f"{base}/").close()
    except NetworkError as error:
        with contextlib.suppress(NetworkError):  # the host answers, and redirects to an odd place
            if client.handshake(base) is not None:
                return
        message = f"cannot connect to {host_of(base)}: {error}"
        raise UnavailableError(
            message, fix="check the URL; pass --ca if its certificate authority is private"
        ) from error


def _packages(base: str, needs: Iterable[LockedPackage], client: Client) -> Iterator[AuditFinding]:
    indexes = {"pypi": [Index(url=f"{base}/pypi/simple")], "pytorch": [Index(url=f"{base}/pytorch/whl/{{variant}}")]}
    unlisted = []
    for need in needs:
        located = _located(need, indexes, client)
        if isinstance(located, AuditFinding):
            unlisted.append(located)
        else:
            yield from (_fetched(file, client, "packages") for file in located)
    yield from unlisted


def _located(
    need: LockedPackage, indexes: Mapping[str, Sequence[Index]], client: Client
) -> list[LocatedFile] | AuditFinding:
    try:
        return locate([need], indexes, client)
    except UnavailableError as error:
        return AuditFinding(need.project, "unavailable", error.message)


def _models(endpoint: str, revisions: Iterable[Revision], client: Client) -> Iterator[AuditFinding]:
    for revision in revisions:
        reference = Reference(revision.kind, revision.repo, revision.revision)
        for file in revision.files:
            name = f"{reference.repo}@{reference.revision[:12]}/{file.path}"
            url = file_url(endpoint, reference, file.path)
            yield _fetched(LocatedFile(name, str(file.sha256), file.size, (url,)), client, "models")


def _fetched(file: LocatedFile, client: Client, cache: Cache) -> AuditFinding:
    url = file.urls[0]
    digest = hashlib.sha256()
    try:
        with client.get(url) as answer:
            if answer.status != 200:  # noqa: PLR2004 (HTTP's OK)
                return AuditFinding(file.name, "unavailable", f"HTTP status {answer.status}", cache=cache)
            left = most = _MOST_BYTES if file.size is None or cache == "packages" else file.size
            with NETWORK_WAITS.on(host_of(url), "file", f"{file.name} is not complete"):
                for chunk in answer.chunks(_CHUNK_BYTES):
                    digest.update(chunk)
                    left -= len(chunk)
                    if left < 0:
                        problem = f"{urlsplit(url).path} has more than {most} bytes"
                        return AuditFinding(file.name, "poisoned", problem, cache=cache, by="lock")
    except NetworkError as error:
        return AuditFinding(file.name, "unavailable", str(error), cache=cache)
    if digest.hexdigest() == file.sha256:
        return AuditFinding(file.name, "clean", cache=cache, by="lock")
    problem = f"{urlsplit(url).path} has sha256 {digest.hexdigest()}, the lock has {file.sha256}"
    return AuditFinding(file.name, "poisoned", problem, cache=cache, by="lock")


def removal(site: Site, cache: Cache) -> str:
    """Return the command that empties the cache of a site; the servers then fetch the files again.

    nginx and the registry do not check what they have cached, and their caches cannot be edited over HTTP.
    """
    if cache == "packages":
        return f"find {site.root}/cache/files {site.root}/cache/index -type f -delete"
    folder = "hf" if cache == "models" else "registry"
    return (
        f"envcheck mirror site down {site.root}; rm -r {site.root}/cache/{folder}; envcheck mirror site up {site.root}"
    )

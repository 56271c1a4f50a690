"""A registry of a test's own, which does what it is told to, and what tests push to any registry."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from envcheck.mirrors.net.client import Client
from envcheck.registry.documents import (
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    ImageManifest,
    StoredManifest,
    digest_of,
    parse_reference,
)
from envcheck.registry.repository import Repository
from tests.http_server import Answer, Request, Server

CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
# The kind of what tests attach.
KIND = "application/vnd.example.test"


class FakeRegistry(Server):
    """A registry in memory, without the referrers API. `fault` may answer instead of it."""

    def __init__(self, fault: Callable[[Request], Answer | None] = lambda _request: None, **options: Any) -> None:
        super().__init__(self.answer, **options)
        self.fault = fault
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, tuple[bytes, str]] = {}
        self.tags: dict[str, str] = {}

    def answer(self, request: Request) -> Answer:
        wrong = self.fault(request)
        if wrong is not None:
            return wrong
        _, _, remaining = request.route.partition("/v2/")
        for part, serve in (("/blobs/uploads", self._upload), ("/blobs/", self._blob), ("/manifests/", self._manifest)):
            if part in remaining:
                return serve(request, remaining.partition(part)[2].lstrip("/"))
        if not remaining:
            return Answer(200, b"{}")
        if remaining.endswith("/tags/list"):
            return Answer(200, json.dumps({"tags": sorted(self.tags)}).encode())
        return Answer(404, b'{"errors":[{"code":"UNSUPPORTED","message":"no"}]}')

    def _upload(self, request: Request, text: str) -> Answer:
        if request.method == "POST":
            return Answer(202, headers={"Location": f"{request.route}session?state=1"})
        digest = digest_of(request.body)
        assert f"digest={digest.replace(':', '%3A')}" in request.path, text
        self.blobs[digest] = request.body
        return Answer(201, headers={"Docker-Content-Digest": digest})

    def _blob(self, _: Request, digest: str) -> Answer:
        content = self.blobs.get(digest)
        return Answer(404) if content is None else Answer(200, content)

    def _manifest(self, request: Request, name: str) -> Answer:
        if request.method == "PUT":
            digest = digest_of(request.body)
            self.manifests[digest] = (request.body, request.headers["Content-Type"])
            if name != digest:
                self.tags[name] = digest
            return Answer(201, headers={"Docker-Content-Digest": digest})
        actual = self.manifests.get(self.tags.get(name, name))
        if actual is None:
            return Answer(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"no"}]}')
        return Answer(200, actual[0], {"Content-Type": actual[1], "Docker-Content-Digest": digest_of(actual[0])})


def opened(address: str, name: str = "team/torch", **options: Any) -> Repository:
    """Return a repository at HOST:PORT, or at a URL, that has no logins and does not wait."""
    reference = parse_reference(f"{address}/{name}")
    return Repository(Client(), reference, **{"environ": {"HOME": "/nowhere"}, "sleep": lambda _: None, **options})


def image_manifest(config: bytes, layer: bytes, kind: str = LAYER) -> bytes:
    parts = [
        Descriptor(media_type=each, digest=digest_of(content), size=len(content))
        for each, content in ((CONFIG, config), (kind, layer))
    ]
    document = ImageManifest(schema_version=2, media_type=OCI_MANIFEST, config=parts[0], layers=parts[1:])
    return msgspec.json.encode(document)


def push_parts(
    repository: Repository, config: bytes, layer: bytes, tag: str | None = None, kind: str = LAYER
) -> StoredManifest:
    for blob in (config, layer):
        repository.push_blob(blob)
    content = image_manifest(config, layer, kind)
    repository.push_manifest(content, OCI_MANIFEST, tag)
    return repository.manifest(tag or digest_of(content))


def push_image(
    repository: Repository, word: str = "one", tag: str | None = None, architecture: str = "amd64", os: str = "linux"
) -> StoredManifest:
    """Push an image that no other word gives."""
    config = json.dumps({"architecture": architecture, "os": os, "word": word}).encode()
    return push_parts(repository, config, word.encode() * 1000, tag)


def push_rows(repository: Repository, tag: str, *rows: tuple[StoredManifest, Mapping[str, Any]]) -> StoredManifest:
    """Push an index of these manifests, each with what it says of one, and return it."""
    entries = [
        {"mediaType": one.media_type, "digest": one.digest, "size": len(one.content), **more} for one, more in rows
    ]
    repository.push_manifest(index_of(entries), OCI_INDEX, tag)
    return repository.manifest(tag)


def index_of(entries: Sequence[Mapping[str, Any]]) -> bytes:
    return msgspec.json.encode({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries})


def push_index(repository: Repository, tag: str, **words: str) -> StoredManifest:
    """Push an index with an image for each architecture (`amd64="one"`) and return it."""
    rows = []
    for architecture, word in words.items():
        named, _, variant = architecture.partition("_")
        platform = {"architecture": named, "os": "linux", **({"variant": variant} if variant else {})}
        rows.append((push_image(repository, word), {"platform": platform}))
    return push_rows(repository, tag, *rows)

"""What a registry stores as JSON: manifests, indexes of them, and the descriptors that name both. No I/O.

Sources: OCI image-spec 1.1 (descriptor.md, manifest.md, image-index.md), and Docker's image manifest V2, schema 2.
"""

from __future__ import annotations

import binascii
import hashlib
from typing import Annotated, Any, Final, TypeVar

import msgspec

from envcheck.registry.references import TAMPERED, LyingError
from envcheck.struct_types import LightRecord, know_types

OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX: Final = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFESTS: Final = (OCI_MANIFEST, DOCKER_MANIFEST)
INDEXES: Final = (OCI_INDEX, DOCKER_INDEX)
# The config of an artifact that has none (image-spec 1.1, "Guidance for an Empty Descriptor").
EMPTY_TYPE: Final = "application/vnd.oci.empty.v1+json"
EMPTY: Final = b"{}"
# No known registry takes a larger manifest.
MOST_MANIFEST: Final = 4 << 20

_Digest = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
_Size = Annotated[int, msgspec.Meta(ge=0)]
_D = TypeVar("_D")


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """For which machine the manifest of an index is."""

    architecture: str
    os: str
    variant: str = ""

    def __str__(self) -> str:
        """Return it as engines write it: linux/arm64/v8."""
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


class Descriptor(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Names content by digest, size and type. What else it says of the content is not to be believed unread."""

    media_type: str
    digest: _Digest
    size: _Size
    platform: Platform | None = None
    artifact_type: str | None = None
    annotations: dict[str, str] = {}
    # The content itself in base64, which a small one may have here too (image-spec 1.1, descriptor.md).
    data: str = ""

    @property
    def content(self) -> bytes | None:
        """Return the content if it is here and is what digest and size name, else None."""
        try:
            content = binascii.a2b_base64(self.data)
        except ValueError:
            return None
        return content if self.data and (len(content), digest_of(content)) == (self.size, self.digest) else None

    @property
    def named(self) -> str:
        """Return the start of the digest, as messages show it."""
        return self.digest[:19]


class ImageManifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One image or artifact: its config and layers, and the subject that it is attached to."""

    schema_version: int
    config: Descriptor
    layers: list[Descriptor] = []
    media_type: str | None = None
    artifact_type: str | None = None
    subject: Descriptor | None = None
    annotations: dict[str, str] = {}

    @property
    def kind(self) -> str:
        """Return what the artifact is: its type, or else the type of its config."""
        return self.artifact_type or self.config.media_type


class ImageIndex(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A list of manifests: of one image for several platforms, or of what is attached to one."""

    schema_version: int
    manifests: list[Descriptor]
    media_type: str | None = None
    artifact_type: str | None = None
    subject: Descriptor | None = None
    annotations: dict[str, str] = {}


class StoredManifest(LightRecord, frozen=True):
    """The bytes of a manifest or index, hashed, and the type that registry and bytes agree on."""

    content: bytes
    digest: str
    media_type: str

    @property
    def descriptor(self) -> Descriptor:
        """Return what names these bytes."""
        return Descriptor(media_type=self.media_type, digest=self.digest, size=len(self.content))

    @property
    def is_index(self) -> bool:
        """Tell whether it lists other manifests."""
        return self.media_type in INDEXES

    def image(self) -> ImageManifest:
        """Return it as one image or artifact. Raise LyingError if it is none."""
        if self.media_type not in MANIFESTS:
            message = f"{self.digest} is no manifest of an image: {shown_type(self.media_type)}"
            raise LyingError(message, fix="name one image of the index by its digest")
        return _decoded(self.content, self.digest, ImageManifest)

    def index(self) -> ImageIndex:
        """Return it as an index. Raise LyingError if it is none."""
        if not self.is_index:
            message = f"{self.digest} is no index: {shown_type(self.media_type)}"
            raise LyingError(message, fix=TAMPERED)
        return _decoded(self.content, self.digest, ImageIndex)

    @property
    def children(self) -> list[Descriptor]:
        """Return what else must be there for it: of an index its manifests, of an image its config and layers."""
        if self.is_index:
            return self.index().manifests
        image = self.image()
        return [image.config, *image.layers]

    @property
    def subject(self) -> Descriptor | None:
        """Return what it says that it is attached to."""
        return (self.index() if self.is_index else self.image()).subject


class _Shape(msgspec.Struct, rename="camel"):
    media_type: str | None = None
    manifests: Any = None
    layers: Any = None
    config: Any = None


know_types(ImageManifest, ImageIndex, _Shape)


def digest_of(content: bytes) -> str:
    """Return the sha256 digest of bytes as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def read_manifest(content: bytes, content_type: str, where: str) -> StoredManifest:
    """Return the manifest in a response, whose type must be the one that its bytes name.

    `where` is the text of messages. Raise LyingError.
    """
    digest = digest_of(content)
    stated = content_type.partition(";")[0].strip().lower()
    shape = _decoded(content, digest, _Shape)
    own = shape.media_type
    media_type = own or stated
    if own and stated and own != stated:
        message = f"{where} is {shown_type(own)}, and the registry says {shown_type(stated)}"
        raise LyingError(message, fix=TAMPERED)
    if media_type not in (*MANIFESTS, *INDEXES):
        message = f"{where} is not a manifest: {shown_type(media_type)}"
        raise LyingError(message, fix="push the image again in OCI's or docker's format (schema 2)")
    foreign = [shape.layers, shape.config] if media_type in INDEXES else [shape.manifests]
    if any(part is not None for part in foreign):
        message = f"{where} can be read as an image and as an index"
        raise LyingError(message, fix=TAMPERED)  # CVE-2021-41190
    return StoredManifest(content, digest, media_type)


def shown_type(media_type: str) -> str:
    """Return a media type as a message shows it: it comes from outside."""
    return repr(media_type[:80]) if media_type else "of no type"


def encode(document: object) -> bytes:
    """Return the bytes of a document: the same ones each time."""
    return msgspec.json.encode(document, order="sorted")


def _decoded(content: bytes, digest: str, kind: type[_D]) -> _D:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = str(error) if isinstance(error, msgspec.DecodeError) else "not UTF-8, or nested too deeply"
        message = f"{digest} is not a valid document of a registry: {text[:120]}"
        raise LyingError(message, fix=TAMPERED) from None

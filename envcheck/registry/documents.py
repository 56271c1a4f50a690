"""What a registry stores as JSON: manifests, indexes of them, and the descriptors that name both. No I/O.

Sources: OCI image-spec 1.1 (descriptor.md, manifest.md, image-index.md), and Docker's image manifest V2, schema 2.
"""

import binascii
import hashlib
from typing import Annotated, Any, Final, TypeVar

import msgspec

from envcheck.errors import refuse
from envcheck.registry.references import TAMPERED, LyingError
from envcheck.struct_types import LightRecord, know_types

OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
MANIFESTS: Final = (OCI_MANIFEST, "application/vnd.docker.distribution.manifest.v2+json")
INDEXES: Final = (OCI_INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
# The config of an artifact that has none (image-spec 1.1, "Guidance for an Empty Descriptor").
EMPTY_TYPE: Final = "application/vnd.oci.empty.v1+json"
EMPTY: Final = b"{}"
# No known registry takes a larger manifest.
MOST_MANIFEST: Final = 4 << 20
_D = TypeVar("_D")


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """For which machine the manifest of an index is."""

    architecture: str
    os: str


class Descriptor(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Names content by digest, size and type; `data` may hold a small content in base64 (image-spec 1.1)."""

    media_type: str
    digest: Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
    size: Annotated[int, msgspec.Meta(ge=0)]
    platform: Platform | None = None
    data: str = ""

    @property
    def content(self) -> bytes | None:
        """Return the content if it is here and is what digest and size name, else None."""
        try:
            content = binascii.a2b_base64(self.data)
        except ValueError:
            return None
        return content if self.data and (len(content), digest_of(content)) == (self.size, self.digest) else None


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


class ImageIndex(msgspec.Struct, frozen=True):
    """The manifests of one image, one for each platform."""

    manifests: list[Descriptor]


class _Shape(msgspec.Struct, rename="camel"):
    media_type: str | None = None
    manifests: Any = None
    layers: Any = None
    config: Any = None


know_types(ImageManifest, ImageIndex, _Shape)


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
        if self.is_index:
            refuse(f"{self.digest} is an index, and no image", "name one image of the index by its digest", LyingError)
        return _decoded(self.content, self.digest, ImageManifest)

    def index(self) -> ImageIndex:
        """Return what the index lists. Raise LyingError if it is none."""
        return _decoded(self.content, self.digest, ImageIndex)


def digest_of(content: bytes) -> str:
    """Return the sha256 digest of bytes as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def described(content: bytes, media_type: str) -> Descriptor:
    """Return what names these bytes."""
    return Descriptor(media_type=media_type, digest=digest_of(content), size=len(content))


def read_manifest(content: bytes, content_type: str, where: str) -> StoredManifest:
    """Return the manifest in a response, whose type must be the one that its bytes name."""
    digest = digest_of(content)
    stated = content_type.partition(";")[0].strip().lower()
    shape = _decoded(content, digest, _Shape)
    media_type = shape.media_type or stated
    if stated and media_type != stated:
        refuse(f"{where} is {media_type[:80]!r}, and the registry says {stated[:80]!r}", TAMPERED, LyingError)
    if media_type not in (*MANIFESTS, *INDEXES):
        message = f"{where} is not a manifest: its type is {media_type[:80]!r}"
        raise LyingError(message, fix="push the image again in OCI's or docker's format (schema 2)")
    foreign = [shape.layers, shape.config] if media_type in INDEXES else [shape.manifests]
    if any(part is not None for part in foreign):
        message = f"{where} can be read as an image and as an index"
        raise LyingError(message, fix=TAMPERED)  # CVE-2021-41190
    return StoredManifest(content, digest, media_type)


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

"""What registries name and store, and what their answers can end in: references, manifests, descriptors. No I/O.

Sources: OCI image-spec 1.1 (descriptor.md, manifest.md, image-index.md), and Docker's image manifest V2, schema 2.
"""

import hashlib
import json
import re
from typing import Annotated, Any, ClassVar, Final, TypeVar

import msgspec
from msgspec import structs

from envcheck.errors import ConfigError, EnvcheckError, NotFoundError, UnavailableError, refuse
from envcheck.mirrors.net.urls import is_loopback
from envcheck.mirrors.profiles.model import redacted
from envcheck.registry.statement import MalformedError, decode_json
from envcheck.struct_types import LightRecord, know_types

TAMPERED: Final = "do not use it: ask who runs the registry, and push it again from where it was made"


class AbsentError(NotFoundError):
    """The registry answers that it does not have it (exit 1)."""


class DeniedError(UnavailableError):
    """The registry wants a login, or the login does not suffice (exit 3)."""


class RegistryUnavailableError(UnavailableError):
    """The registry does not answer, or with errors only (exit 3)."""


class RefusedError(UnavailableError):
    """The registry does not accept what was sent; `codes` are its own error codes (exit 3)."""

    def __init__(self, message: str, *, fix: str, codes: tuple[str, ...] = ()) -> None:
        super().__init__(message, fix=fix)
        self.codes = codes


class LyingError(EnvcheckError):
    """The registry sent something else than what was named: another digest, size or type (exit 1)."""

    exit_code: ClassVar[int] = 1


DOCKER_HUB: Final = "docker.io"
# Docker Hub's API has another host than its name.
_HUB_API: Final = "registry-1.docker.io"
_HUB_NAMES: Final = {"docker.io", "index.docker.io", _HUB_API}
_DIGEST: Final = r"sha256:[0-9a-f]{64}"
_TAG: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
# As docker reads it: the first part is a registry if it is localhost, or has a dot or a port, or follows http(s)://.
_REFERENCE: Final = re.compile(
    rf"""(?:(?P<scheme>https?)://(?=[^/]+/))?
    (?:(?(scheme)|(?=localhost/|[^/]*[.:]))
    (?P<registry>(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::(?P<port>[0-9]{{1,5}}))?)/)?
    (?P<path>{_PART}(?:/{_PART})*)(?::(?P<tag>{_TAG}))?(?:@(?P<digest>{_DIGEST}))?""",
    re.VERBOSE,
)
_PORTS: Final = 65535
_LONGEST: Final = 255


class ImageReference(LightRecord, frozen=True):
    """A repository in a registry, and the tag or digest in it. `plain` means http without TLS."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None
    plain: bool = False

    @property
    def name(self) -> str:
        """Return REGISTRY/REPOSITORY."""
        return f"{self.registry}/{self.repository}"

    @property
    def url(self) -> str:
        """Return the URL of the registry, without a path."""
        host = _HUB_API if self.registry == DOCKER_HUB else self.registry
        return f"{'http' if self.plain else 'https'}://{host}"

    @property
    def wanted(self) -> str:
        """Return what is asked for: the digest, else the tag, else `latest`."""
        return self.digest or self.tag or "latest"

    def pinned(self, digest: str) -> "ImageReference":
        """Return the same repository with this digest, and no tag."""
        return structs.replace(self, tag=None, digest=digest)

    def __str__(self) -> str:
        return f"{self.name}{f':{self.tag}' if self.tag else ''}{f'@{self.digest}' if self.digest else ''}"


def is_digest(text: str) -> bool:
    """Tell whether a text is a sha256 digest as registries write it."""
    return re.fullmatch(_DIGEST, text) is not None


def is_tag(text: str) -> bool:
    """Tell whether a text can be a tag."""
    return re.fullmatch(_TAG, text) is not None


def parse_reference(text: str) -> ImageReference:
    """Read a reference. Raise ConfigError, which repeats no password, for anything else."""
    read = _REFERENCE.fullmatch(text)
    if read is None or not 0 < int(read["port"] or 1) <= _PORTS or len(read["path"]) > _LONGEST:
        shown = redacted(text)
        message = f"{(shown if shown.isprintable() else ascii(shown))[:300]!r} is no reference to an image"
        fix = "write REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:DIGEST, the name in lower case and without a login"
        raise ConfigError(message, fix=fix)
    registry, path = (read["registry"] or DOCKER_HUB).lower(), read["path"]
    if registry in _HUB_NAMES:
        registry, path = DOCKER_HUB, path if "/" in path else f"library/{path}"
    plain = read["scheme"] == "http" if read["scheme"] else is_loopback((read["host"] or DOCKER_HUB).strip("[]"))
    return ImageReference(registry, path, read["tag"], read["digest"], plain)


OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
MANIFESTS: Final = (OCI_MANIFEST, "application/vnd.docker.distribution.manifest.v2+json")
INDEXES: Final = (OCI_INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
# The config of an artifact that has none (image-spec 1.1, "Guidance for an Empty Descriptor").
EMPTY_TYPE: Final = "application/vnd.oci.empty.v1+json"
EMPTY: Final = b"{}"
_D = TypeVar("_D")
# A host's architecture as image manifests write it.
ARCHS: Final = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64"}
_USUAL: Final = {"amd64": "v1", "arm64": "v8"}


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """For which machine the manifest of an index, or the config of an image, is."""

    architecture: Annotated[str, msgspec.Meta(max_length=64)] = ""
    os: Annotated[str, msgspec.Meta(max_length=64)] = ""
    variant: Annotated[str, msgspec.Meta(max_length=64)] = ""

    @property
    def normal(self) -> tuple[str, str, str]:
        """Return os, architecture and variant as engines compare them (containerd's platforms.Normalize)."""
        arch = ARCHS.get(self.architecture.lower(), self.architecture.lower())
        variant = f"v{self.variant.lower().removeprefix('v')}" if self.variant else ""
        return self.os.lower() or "linux", arch, "" if variant == _USUAL.get(arch) else variant


class Descriptor(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Names content by digest, size and type; `data` may hold a small content in base64 (image-spec 1.1)."""

    media_type: str
    digest: Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
    size: Annotated[int, msgspec.Meta(ge=0)]
    platform: Platform | None = None
    data: bytes = b""
    annotations: dict[str, Any] | None = None  # others write null, and values that are no text

    @property
    def content(self) -> bytes | None:
        """Return the content if it is here and is what digest and size name, else None."""
        is_named = (len(self.data), digest_of(self.data)) == (self.size, self.digest)
        return self.data if self.data and is_named else None


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


know_types(ImageManifest, ImageIndex, Platform, _Shape)


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
        refuse(f"{where} is not a manifest: its type is {media_type[:80]!r}", "push it again as schema 2", LyingError)
    foreign = [shape.layers, shape.config] if media_type in INDEXES else [shape.manifests]
    if any(part is not None for part in foreign):
        refuse(f"{where} can be read as an image and as an index", TAMPERED, LyingError)
    return StoredManifest(content, digest, media_type)


def refuse_two_readings(manifest: StoredManifest) -> None:
    """Raise LyingError where keys differ in their case alone: engines in Go take the last, msgspec the exact one."""

    def once(pairs: list[tuple[str, Any]]) -> None:
        if len({name.casefold() for name, _ in pairs}) < len(pairs):
            refuse(f"{manifest.digest} can be read in two ways: a key is there twice", TAMPERED, LyingError)

    try:
        json.loads(manifest.content, object_pairs_hook=once)
    except (RecursionError, ValueError):  # a number of over 4300 digits is one
        refuse(f"{manifest.digest} is nested too deeply, or has a number that is too long", TAMPERED, LyingError)


def _decoded(content: bytes, digest: str, kind: type[_D]) -> _D:
    try:
        return decode_json(content, kind)
    except MalformedError as error:
        refuse(f"{digest} is not a valid document of a registry: {error}", TAMPERED, LyingError)

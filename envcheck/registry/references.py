"""The name of an image in a registry, and what a registry's answer can end in."""

from __future__ import annotations

import re
from typing import ClassVar, Final

from msgspec import structs

from envcheck.errors import ConfigError, EnvcheckError, NotFoundError, UnavailableError
from envcheck.mirrors.net.urls import is_loopback
from envcheck.mirrors.profiles.model import redacted
from envcheck.struct_types import LightRecord

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

    def pinned(self, digest: str) -> ImageReference:
        """Return the same repository with this digest, and no tag."""
        return structs.replace(self, tag=None, digest=digest)

    def __str__(self) -> str:
        """Return the reference as other tools read it."""
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

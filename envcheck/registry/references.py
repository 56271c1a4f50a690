"""What a registry's answer can end in: absent, denied, unavailable, refused, or bytes that are not what was named."""

from __future__ import annotations

import re
from typing import ClassVar, Final

from msgspec import structs

from envcheck.errors import ConfigError, EnvcheckError, NotFoundError, UnavailableError
from envcheck.mirrors.net.urls import is_loopback
from envcheck.mirrors.profiles.model import redacted
from envcheck.struct_types import LightRecord


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


TAMPERED = "do not use it: ask who runs the registry, and push it again from where it was made"


DOCKER_HUB: Final = "docker.io"
# Docker Hub's API has another host than its name.
_HUB_API: Final = "registry-1.docker.io"
_HUB_NAMES: Final = {"docker.io", "index.docker.io", _HUB_API}
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH: Final = re.compile(rf"{_PART}(?:/{_PART})*")
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::([0-9]{1,5}))?")
_PORTS: Final = 65535
_LONGEST: Final = 255
_FORM: Final = "write REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:DIGEST"


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
    return _DIGEST.fullmatch(text) is not None


def is_tag(text: str) -> bool:
    """Tell whether a text can be a tag."""
    return _TAG.fullmatch(text) is not None


def parse_reference(text: str) -> ImageReference:
    """Read a reference. Raise ConfigError, which repeats no password, for anything else."""
    scheme, separator, name = text.rpartition("://")
    if separator and scheme not in {"http", "https"}:
        raise _invalid(text, f"a registry is reached by http or https, not by {scheme!r}", _FORM)
    name, at, digest = name.partition("@")
    if at and (":" not in digest or "/" in digest or "@" in digest):
        raise _invalid(text, "what follows its @ is no digest", "remove a user or password: `docker login` keeps them")
    if at and not is_digest(digest):
        raise _invalid(text, "its digest is not sha256: and 64 hexadecimal digits", _FORM)
    registry, path = _split(name, named=bool(separator))
    path, colon, tag = path.partition(":")
    if colon and not is_tag(tag):
        raise _invalid(text, f"{tag!r} is not a tag", "use letters, digits, _, . and -, at most 128 of them")
    registry = DOCKER_HUB if registry.lower() in _HUB_NAMES else registry.lower()
    host = _HOST.fullmatch(registry)
    if host is None or not 0 < int(host[2] or 1) <= _PORTS:
        raise _invalid(text, f"{registry!r} is not HOST or HOST:PORT", _FORM)
    if registry == DOCKER_HUB and path and "/" not in path:
        path = f"library/{path}"
    if _PATH.fullmatch(path) is None or len(path) > _LONGEST:
        why = "it names no repository" if not path else f"{path!r} is not the name of a repository"
        raise _invalid(text, why, "use lower case letters, digits and single . _ - between them, parts joined by /")
    plain = scheme == "http" if separator else is_loopback(host[1].strip("[]"))
    return ImageReference(registry, path, tag or None, digest or None, plain)


def _split(text: str, *, named: bool) -> tuple[str, str]:
    """Return the registry and the rest; after a scheme the first part is always the registry."""
    first, slash, remainder = text.partition("/")
    if named or (slash and (first == "localhost" or "." in first or ":" in first)):
        return first, remainder
    return DOCKER_HUB, text


def _invalid(text: str, why: str, fix: str) -> ConfigError:
    printable = redacted(text)
    printable = printable if printable.isprintable() else ascii(printable)
    return ConfigError(f"the reference {printable[:300]!r} is invalid: {why}", fix=fix)

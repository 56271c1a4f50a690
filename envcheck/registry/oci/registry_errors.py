"""What a registry's answer can end in: absent, denied, unavailable, refused, or bytes that are not what was named."""

from __future__ import annotations

from typing import ClassVar

from envcheck.errors import EnvcheckError, NotFoundError, UnavailableError


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

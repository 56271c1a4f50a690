"""What a request fails of: a host that refuses, stalls, is silent, or is not trusted. The text is for the user."""

from __future__ import annotations

from envcheck.mirrors.net import read_deadlines


class NetworkError(Exception):
    """A request that failed: refused, timed out, cut off, or not trusted. The text is for the user.

    `fix` is what to do, if it is not to choose another mirror.
    """

    def __init__(self, message: str = "", fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


class SlowError(NetworkError):
    """A response that stalled."""


class SilentError(SlowError):
    """A host of which nothing came for as long as connecting or one read may take."""


class UntrustedError(NetworkError):
    """A host that failed TLS: its certificate, its name, or its protocol."""


def read_error(error: Exception) -> NetworkError:
    """Return what an error of a connection or a read is to the user."""
    silent: type[NetworkError] = SilentError if read_deadlines.is_silent(error) else NetworkError
    kind = SlowError if read_deadlines.is_stalled(error) else silent
    return kind(read_deadlines.describe(error))

"""What a registry asks for with 401: the header WWW-Authenticate, read without I/O.

Sources: RFC 9110 §11.6.1, and the token specification of the distribution project.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

from envcheck.struct_types import LightRecord

_SCHEME: Final = re.compile(r"\s*,?\s*([A-Za-z][A-Za-z0-9-]*)(?:\s+|$|(?=\s*,))(?!=)")
_PARAMETER: Final = re.compile(r"\s*,?\s*([A-Za-z0-9_-]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s,\"]*))")


class Challenge(LightRecord, frozen=True):
    """One way to log in: `basic`, or `bearer` with the place where a token is issued."""

    scheme: str
    parameters: Mapping[str, str]

    @property
    def realm(self) -> str:
        """Return where a token is issued."""
        return self.parameters.get("realm", "")

    def scopes(self, own: Sequence[str]) -> list[str]:
        """Return what a token is to allow: our own scopes, and what the registry names of another resource."""
        named = self.parameters.get("scope", "").split()
        mine = {scope.rpartition(":")[0] for scope in own}
        return [*own, *(scope for scope in named if scope.rpartition(":")[0] not in mine)]

    def query(self, own: Sequence[str]) -> list[tuple[str, str]]:
        """Return the parameters of a request for a token."""
        service = self.parameters.get("service")
        return [*([("service", service)] if service else []), *(("scope", scope) for scope in self.scopes(own))]

    def token_url(self, own: Sequence[str]) -> str:
        """Return the URL that issues a token for these scopes."""
        query = urlencode(self.query(own))
        return f"{self.realm}{('&' if '?' in self.realm else '?') + query if query else ''}"


def challenges(header: str) -> list[Challenge]:
    """Return the challenges in a header, in order; what cannot be read is left out."""
    return [Challenge(scheme.lower(), dict(parameters)) for scheme, parameters in _parts(header)]


def preferred(challenges: Iterable[Challenge]) -> Challenge | None:
    """Return the challenge to answer: a token before a password, which then does not go with each request."""
    supported = [challenge for challenge in challenges if challenge.scheme in {"bearer", "basic"}]
    return min(supported, key=lambda challenge: challenge.scheme != "bearer", default=None)


def _parts(header: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    at = 0
    while scheme := _SCHEME.match(header, at):
        at, parameters = scheme.end(), list[tuple[str, str]]()
        while parameter := _PARAMETER.match(header, at):
            quoted, bare = parameter[2], parameter[3]
            parameters.append((parameter[1].lower(), bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)))
            at = parameter.end()
        yield scheme[1], parameters

"""Open a repository: with the CA, the logins and the limits of a mirror profile, and at its mirrors for reading.

A mirror serves what is named by digest as well as its origin does. Tags and what is attached may be old there, or
missing: ask the origin for these, unless the profile is closed and names only mirrors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from envcheck.errors import ConfigError
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.credentials import Login, Netrc, host_credentials
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.settings.containers import mirrors
from envcheck.registry.oci.exchange import Exchange
from envcheck.registry.oci.login.accounts import Account, account_for
from envcheck.registry.oci.login.authorization import Authorization
from envcheck.registry.oci.references import ImageReference, parse_reference
from envcheck.registry.oci.repository import Repository


def open_repository(
    reference: ImageReference,
    profile: Profile | None = None,
    *,
    client: Client | None = None,
    environ: Mapping[str, str] | None = None,
    **options: Any,
) -> Repository:
    """Return the repository of a reference; nothing is sent yet. `options` are those of Exchange."""
    environ = os.environ if environ is None else environ
    client = client or registry_client(profile)
    authorization = Authorization(client, reference, _account(reference, profile, environ))
    return Repository(Exchange(client, reference, authorization, **options))


def registry_client(profile: Profile | None = None, **options: Any) -> Client:
    """Return a client for registries: with the CA of a profile, and with a closed one for its hosts only.

    It has no logins of its own: a registry gets one when it asks.
    """
    if profile is None:
        return Client(**options)
    within = registry_hosts(profile) if profile.closed else None
    return Client(ca=Path(profile.ca) if profile.ca else None, within=within, **options)


def registry_hosts(profile: Profile) -> frozenset[str]:
    """Return the hosts of the registries that a profile names, without ports."""
    names = [name for listed in mirrors(profile).values() for name in listed]
    urls = (name if "://" in name else f"https://{name}" for name in names)
    return frozenset(host for url in urls if (host := urlsplit(url).hostname))


def places(reference: ImageReference, profile: Profile | None) -> list[ImageReference]:
    """Return where a reference can be read: at the profile's mirrors of its registry, in order, then at itself.

    A closed profile leaves out what it does not name.
    """
    if profile is None:
        return [reference]
    urls = [_at(mirror, reference) for mirror in mirrors(profile).get(reference.registry, [])]
    hosts = registry_hosts(profile)
    own = urlsplit(reference.url).hostname
    return list(dict.fromkeys([*urls, *([] if profile.closed and urls and own not in hosts else [reference])]))


def _at(mirror: str, reference: ImageReference) -> ImageReference:
    """Return the reference at a mirror, HOST[:PORT][/PATH] with http:// before it if it has no TLS."""
    base = (mirror if "://" in mirror else f"https://{mirror}").rstrip("/")
    mirrored = parse_reference(f"{base}/{reference.repository}")
    return ImageReference(mirrored.registry, mirrored.repository, reference.tag, reference.digest, mirrored.plain)


def _account(
    reference: ImageReference, profile: Profile | None, environ: Mapping[str, str]
) -> Callable[[], Account | None]:
    """Return what finds the login: of the profile for this host, else of `docker login` or `podman login`."""

    def find() -> Account | None:
        named = None if profile is None else _of_profile(reference, profile, environ)
        return named or account_for(reference, environ)

    return find


def _of_profile(reference: ImageReference, profile: Profile, environ: Mapping[str, str]) -> Account | None:
    logins: list[Login] = [*host_credentials(profile, environ)]
    if profile.netrc:
        logins.append(Netrc(Path(profile.netrc), [reference.url]))
    try:
        header = next((header for login in logins if (header := login.header(reference.url)) is not None), None)
    except OSError as error:
        message = f"the mirror profile {profile.name}: {error.strerror}"
        raise ConfigError(message, fix=f"set the secret of {reference.registry}") from None
    if header is None:
        return None
    kind, _, secret = header.partition(" ")
    return Account(token=secret) if kind == "Bearer" else Account(header)

"""Input and output of every renderer of client settings."""

from __future__ import annotations

import msgspec

from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Credential, Index, Profile, host_of


class RenderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to render settings for. `variant` is put into PyTorch indexes, `distro` and `suite` into apt's sources.

    `ca` is a bundle of this machine's roots and the profile's, or None. `before` lists the variables that an earlier
    `envcheck mirror show --format env` set. `local` keeps sources that are files on this machine.
    """

    variant: str | None = None
    distro: str = "debian"
    suite: str | None = None
    ca: str | None = None
    before: tuple[str, ...] = ()
    local: bool = True


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Files by path, and what the client cannot do with them, in sentences."""

    files: dict[str, str]
    notes: list[str] = msgspec.field(default_factory=list, name="cannot")


def mirror_urls(indexes: list[Index], options: RenderOptions, kind: str) -> list[str]:
    """Return the URLs of one kind, with the variant put in, without the client's default."""
    selected = [i for i in indexes if i.kind == kind and i.url != CLIENT_DEFAULT and (options.local or i.local is None)]
    urls = [i.url for i in selected if options.variant is not None or "{variant}" not in i.url]
    return [url.replace("{variant}", options.variant or "") for url in urls]


def secret_of(profile: Profile, url: str) -> Credential | None:
    """Return the place of the secret for a URL's host, or None."""
    return profile.credentials.get(host_of(url))


def ca_notes(profile: Profile, options: RenderOptions) -> list[str]:
    """Return a note if the profile's CA replaces all other roots."""
    if profile.ca is None or options.ca is not None:
        return []
    return [f"{profile.ca} replaces every root the client trusts: it must hold this machine's too"]

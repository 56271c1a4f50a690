"""What every form of a profile is given and gives."""

from __future__ import annotations

import msgspec

from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Credential, Index, Profile, host_of


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """For what settings are wanted. `variant` stands in PyTorch indexes, `distro` and `suite` in apt's sources.

    `ca` is a bundle of all roots to trust, where one was made of this machine's and the profile's. `before` are the
    variables that an earlier `env` set. `local` keeps sources that are files of this machine.
    """

    variant: str | None = None
    distro: str = "debian"
    suite: str | None = None
    ca: str | None = None
    before: tuple[str, ...] = ()
    local: bool = True


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Files by path, and what they cannot do, each a sentence for a person."""

    files: dict[str, str]
    cannot: list[str] = []


def named(indexes: list[Index], wish: Wish, kind: str) -> list[str]:
    """Return the URLs of one kind that are not the client's own default, with the variant put in."""
    wanted = [i for i in indexes if i.kind == kind and i.url != CLIENT_DEFAULT and (wish.local or i.local is None)]
    known = [i.url for i in wanted if wish.variant is not None or "{variant}" not in i.url]
    return [url.replace("{variant}", wish.variant or "") for url in known]


def secret_of(profile: Profile, url: str) -> Credential | None:
    """Return where the secret for a URL's host is."""
    return profile.credentials.get(host_of(url))


def own_roots(profile: Profile, wish: Wish) -> list[str]:
    """Return what is to be said of a CA that replaces all others."""
    if profile.ca is None or wish.ca is not None:
        return []
    return [f"{profile.ca} replaces every root the client trusts: it must hold this machine's too"]

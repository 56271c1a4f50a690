"""conda's .condarc and npm's .npmrc."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from envcheck.mirrors.profiles.model import Profile, host_of
from envcheck.mirrors.settings.base import Setting, Wish, own_roots, secret_of


def conda(profile: Profile, wish: Wish) -> Setting:
    """Return .condarc; JSON's strings are YAML's too."""
    channels = profile.conda
    lines = [f"channel_alias: {json.dumps(channels.channel_alias)}"] if channels.channel_alias else []
    if channels.default_channels:
        lines += ["default_channels:", *(f"  - {json.dumps(url)}" for url in channels.default_channels)]
    if channels.custom_channels:
        rows = channels.custom_channels.items()
        lines += ["custom_channels:", *(f"  {json.dumps(name)}: {json.dumps(url)}" for name, url in rows)]
    if not lines:
        return Setting(files={}, cannot=["it names no conda channels"])
    ca = wish.ca or profile.ca
    lines += [f"ssl_verify: {json.dumps(ca)}"] if ca else []
    text = "\n".join(lines) + "\n"
    return Setting(files={"~/.condarc": text}, cannot=_conda_cannot(profile) + own_roots(profile, wish))


def _conda_cannot(profile: Profile) -> list[str]:
    channels = profile.conda
    found = ["pip inside a conda environment reads pip's settings, not these"]
    if "nvidia" not in channels.custom_channels:
        alias = channels.channel_alias
        found.append(
            f"the nvidia channel is asked at {host_of(alias)}; many mirrors have none, for its licence"
            if alias
            else "the nvidia channel is not among them: `-c nvidia` goes to its origin"
        )
    return found


def npm(profile: Profile, wish: Wish) -> Setting:
    """Return .npmrc. npm itself puts a variable in for `${NAME}`."""
    if profile.npm is None:
        return Setting(files={}, cannot=["it names no npm registry"])
    lines, cannot = [f"registry={profile.npm}"], ["a package-lock.json made through it may record the mirror's URLs"]
    ca = wish.ca or profile.ca
    lines += [f"cafile={ca}"] if ca else []
    secret = secret_of(profile, profile.npm)
    if secret is not None and secret.token_env is not None:
        lines.append(
            f"//{host_of(profile.npm)}{urlsplit(profile.npm).path.rstrip('/')}/:_authToken=${{{secret.token_env}}}"
        )
    elif secret is not None:
        cannot.append(f"npm takes a token from a variable alone: name {host_of(profile.npm)}'s under token_env")
    return Setting(files={"~/.npmrc": "\n".join(lines) + "\n"}, cannot=cannot + own_roots(profile, wish))

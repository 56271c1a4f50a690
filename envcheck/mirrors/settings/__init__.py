"""The settings of each client for a profile: files, and notes on what the client cannot do with them.

A renderer is a pure function of a profile and RenderOptions. Its files have their paths on a machine; `~/` is the
user's home directory. No file holds a secret: a client that can look one up gets the place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from envcheck.errors import ConfigError
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.settings import clients, shell, system
from envcheck.mirrors.settings.clients import ClientSettings, RenderOptions

Renderer = Callable[[Profile, RenderOptions], ClientSettings]
RENDERERS: Final[Mapping[str, Renderer]] = {
    "pip": clients.pip,
    "uv": clients.uv,
    "hf": clients.hf,
    "apt": system.apt,
    "conda": clients.conda,
    "npm": clients.npm,
    "buildkitd": system.buildkitd,
    "daemon": system.daemon,
    "registries": system.registries,
    "env": shell.env,
}


def render(profile: Profile, format_name: str, options: RenderOptions) -> ClientSettings:
    """Return the settings of one client. Raise ConfigError if the profile has nothing for it."""
    settings = RENDERERS[format_name](profile, options)
    if not settings.files:
        message = f"{profile.name}: {'; '.join(settings.notes) or f'the profile sets nothing for {format_name}'}"
        raise ConfigError(message, fix="see `envcheck mirror show` for what it sets, or pass another profile")
    return settings

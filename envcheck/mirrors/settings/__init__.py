"""A profile as each client's own settings: pure text, and what that client cannot be told.

A form is a function of a profile and a wish. Its files have the paths they have on a machine, without the leading
slash; `~/` is the user's home directory. No file holds a secret: where a client can look one up, it is told where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from envcheck.errors import ConfigError
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.settings import apt, containers, hf, others, python, shell
from envcheck.mirrors.settings.base import Setting, Wish

Form = Callable[[Profile, Wish], Setting]
FORMS: Final[Mapping[str, Form]] = {
    "pip": python.pip,
    "uv": python.uv,
    "hf": hf.hf,
    "apt": apt.apt,
    "conda": others.conda,
    "npm": others.npm,
    "buildkitd": containers.buildkitd,
    "daemon": containers.daemon,
    "registries": containers.registries,
    "env": shell.env,
}


def render(profile: Profile, form: str, wish: Wish) -> Setting:
    """Return a profile in one form. Raise ConfigError where the profile says nothing that belongs there."""
    setting = FORMS[form](profile, wish)
    if not setting.files:
        message = f"{profile.name}: {'; '.join(setting.cannot) or f'nothing in it for {form}'}"
        raise ConfigError(message, fix="see `envcheck mirror show` for what it sets, or name another profile")
    return setting

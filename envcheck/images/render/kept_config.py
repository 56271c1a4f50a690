"""What `keep: true` of a profile leaves in an image: one pip.conf and one uv.toml, without credentials."""

from __future__ import annotations

from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.settings.base import RenderOptions
from envcheck.mirrors.settings.python import pip_conf, uv_toml


def keep_files(profile: Profile, variant: str) -> dict[str, str]:
    """Return path below / -> content. Files of this machine mean nothing in an image: only what is remote is named."""
    wish = RenderOptions(variant=variant, local=False)
    return {"etc/pip.conf": pip_conf(profile, wish), "etc/uv/uv.toml": uv_toml(profile, wish)}

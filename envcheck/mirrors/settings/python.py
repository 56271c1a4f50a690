"""pip.conf and uv.toml."""

from __future__ import annotations

import json

from envcheck.mirrors.profiles.model import Profile, host_of
from envcheck.mirrors.settings.base import Setting, Wish, named, own_roots, secret_of

PYPI = "pypi-mirror"
PYTORCH = "pytorch-mirror"


def pip(profile: Profile, wish: Wish) -> Setting:
    """Return pip.conf: one index, since pip knows no order among several."""
    simple, links = (named(profile.pypi, wish, kind) for kind in ("simple", "find-links"))
    text = pip_conf(profile, wish)
    files = {"~/.config/pip/pip.conf": text} if text.count("\n") > 1 else {}
    cannot = [] if files else ["nothing in it for pip"]
    cannot += ["uv reads none of pip's settings: it needs its own (`--format uv`)"] if files else []
    cannot += _left_out(simple, "pip")
    cannot += _torch(profile, wish, "pip install")
    for url in simple[:1] + links:
        if secret_of(profile, url):
            cannot.append(f"the password of {host_of(url)} is not in it: pip takes it from a netrc file")
    return Setting(files=files, cannot=cannot + own_roots(profile, wish))


def pip_conf(profile: Profile, wish: Wish) -> str:
    """Return the file; `[global]` alone where the profile changes nothing of pip."""
    simple, links = (named(profile.pypi, wish, kind) for kind in ("simple", "find-links"))
    ca = (wish.ca or profile.ca) if wish.local else None
    lines = ["[global]"]
    lines += [f"index-url = {simple[0]}"] if simple else []
    lines += ["find-links =", *(f"    {url}" for url in links)] if links else []
    lines += [f"cert = {ca}"] if ca else []
    return "\n".join(lines) + "\n"


def uv(profile: Profile, wish: Wish) -> Setting:
    """Return uv.toml: one default index, and PyTorch's as one that is used only where it is named."""
    text = uv_toml(profile, wish)
    files = {"~/.config/uv/uv.toml": text} if text.strip() else {}
    cannot = [] if files else ["nothing in it for uv"]
    cannot += _left_out(named(profile.pypi, wish, "simple"), "uv")
    if files:
        cannot.append("--torch-backend and UV_TORCH_BACKEND ignore every mirror: leave them out")
        cannot.append("uv.lock records the mirror's URLs: lock without it, or with `--frozen` (astral-sh/uv#6349)")
    if f'name = "{PYTORCH}"' in text:
        cannot.append(
            f"{PYTORCH} is asked only for what [tool.uv.sources] says comes from it: torch = {{ index = {PYTORCH!r} }}"
        )
    cannot += _torch(profile, wish, "uv pip install")
    cannot += [f"uv.toml names no CA: set SSL_CERT_FILE={profile.ca} (`envcheck mirror env`)"] if profile.ca else []
    if any(secret_of(profile, index.url) for index in [*profile.pypi, *profile.pytorch]):
        cannot.append("passwords are not in it: `envcheck mirror env` gives uv those of variables and files")
    return Setting(files=files, cannot=cannot)


def uv_toml(profile: Profile, wish: Wish) -> str:
    """Return the file; blank where the profile changes nothing of uv."""
    links = named(profile.pypi, wish, "find-links")
    parts = [f"find-links = {json.dumps(links)}"] if links else []
    parts += [_index(profile, PYPI, url, "default = true") for url in named(profile.pypi, wish, "simple")[:1]]
    torch = [(url, "explicit = true") for url in named(profile.pytorch, wish, "simple")]
    torch += [(url, 'format = "flat"\nexplicit = true') for url in named(profile.pytorch, wish, "find-links")]
    parts += [_index(profile, PYTORCH, url, options) for url, options in torch[:1]]
    return "\n\n".join(parts) + "\n"


def _index(profile: Profile, name: str, url: str, options: str) -> str:
    private = '\nauthenticate = "always"' if secret_of(profile, url) else ""
    return f'[[index]]\nname = "{name}"\nurl = {json.dumps(url)}\n{options}{private}'


def _left_out(simple: list[str], client: str) -> list[str]:
    rest = ", ".join(host_of(url) or url for url in simple[1:])
    return [f"{client} tries no second index when the first fails: {rest} left out"] if rest else []


def _torch(profile: Profile, wish: Wish, command: str) -> list[str]:
    """Say how PyTorch's own index is used, which is no setting: as an extra index it would be pooled without order."""
    if not profile.pytorch:
        return []
    if wish.variant is None and any("{variant}" in index.url for index in profile.pytorch):
        return ["PyTorch's index is of one variant: give --variant cu128 (or cpu, …)"]
    simple, links = (named(profile.pytorch, wish, kind) for kind in ("simple", "find-links"))
    option = f"--index-url {simple[0]}" if simple else f"--no-index --find-links {links[0]}" if links else ""
    return [f"torch needs an index of its own: {command} {option} torch (never --extra-index-url)"] if option else []

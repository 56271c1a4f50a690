"""pip.conf and uv.toml."""

from __future__ import annotations

import json

from envcheck.mirrors.profiles.model import Profile, host_of
from envcheck.mirrors.settings.base import ClientSettings, RenderOptions, ca_notes, mirror_urls, secret_of

PYPI = "pypi-mirror"
PYTORCH = "pytorch-mirror"
TORCH_BACKEND_NOTE = "--torch-backend and UV_TORCH_BACKEND ignore every mirror: do not use them"


def pip(profile: Profile, options: RenderOptions) -> ClientSettings:
    """Return pip.conf with one index, because pip has no order among several."""
    simple, links = (mirror_urls(profile.pypi, options, kind) for kind in ("simple", "find-links"))
    text = pip_conf(profile, options)
    files = {"~/.config/pip/pip.conf": text} if text.count("\n") > 1 else {}
    notes = [] if files else ["the profile sets nothing for pip"]
    notes += ["uv reads none of pip's settings: it needs its own (`--format uv`)"] if files else []
    notes += unused_indexes(simple, "pip")
    notes += torch_notes(profile, options, "pip install")
    for url in simple[:1] + links:
        if secret_of(profile, url):
            notes.append(f"the file holds no password of {host_of(url)}: pip takes it from a netrc file")
    return ClientSettings(files=files, notes=notes + ca_notes(profile, options))


def pip_conf(profile: Profile, options: RenderOptions) -> str:
    """Return the file: only `[global]` if the profile changes nothing for pip."""
    simple, links = (mirror_urls(profile.pypi, options, kind) for kind in ("simple", "find-links"))
    ca = (options.ca or profile.ca) if options.local else None
    lines = ["[global]"]
    lines += [f"index-url = {simple[0]}"] if simple else []
    lines += ["find-links =", *(f"    {url}" for url in links)] if links else []
    lines += [f"cert = {ca}"] if ca else []
    return "\n".join(lines) + "\n"


def uv(profile: Profile, options: RenderOptions) -> ClientSettings:
    """Return uv.toml: one default index, and PyTorch's index as an explicit one."""
    text = uv_toml(profile, options)
    files = {"~/.config/uv/uv.toml": text} if text.strip() else {}
    notes = [] if files else ["the profile sets nothing for uv"]
    notes += unused_indexes(mirror_urls(profile.pypi, options, "simple"), "uv")
    if files:
        notes.append(TORCH_BACKEND_NOTE)
        notes.append("uv.lock records the mirror's URLs: lock without the file, or pass `--frozen` (uv#6349)")
    if f'name = "{PYTORCH}"' in text:
        notes.append(
            f"uv uses {PYTORCH} only for packages of [tool.uv.sources] that name it: torch = {{ index = {PYTORCH!r} }}"
        )
    notes += torch_notes(profile, options, "uv pip install")
    notes += (
        [f"uv.toml has no key for a CA: set SSL_CERT_FILE={profile.ca} (`mirror show --format env`)"]
        if profile.ca
        else []
    )
    if any(secret_of(profile, index.url) for index in [*profile.pypi, *profile.pytorch]):
        notes.append("the file holds no passwords: `mirror show --format env` passes those of variables and files")
    return ClientSettings(files=files, notes=notes)


def uv_toml(profile: Profile, options: RenderOptions) -> str:
    """Return the file: blank if the profile changes nothing for uv."""
    links = mirror_urls(profile.pypi, options, "find-links")
    parts = [f"find-links = {json.dumps(links)}"] if links else []
    parts += [_index(profile, PYPI, url, "default = true") for url in mirror_urls(profile.pypi, options, "simple")[:1]]
    torch = [(url, "explicit = true") for url in mirror_urls(profile.pytorch, options, "simple")]
    torch += [(url, 'format = "flat"\nexplicit = true') for url in mirror_urls(profile.pytorch, options, "find-links")]
    parts += [_index(profile, PYTORCH, url, lines) for url, lines in torch[:1]]
    return "\n\n".join(parts) + "\n"


def _index(profile: Profile, name: str, url: str, lines: str) -> str:
    private = '\nauthenticate = "always"' if secret_of(profile, url) else ""
    return f'[[index]]\nname = "{name}"\nurl = {json.dumps(url)}\n{lines}{private}'


def unused_indexes(simple: list[str], client: str) -> list[str]:
    """Return a note on the indexes after the first, which a client does not use."""
    unused = ", ".join(host_of(url) or url for url in simple[1:])
    return [f"{client} tries no second index when the first fails: {unused} left out"] if unused else []


def torch_notes(profile: Profile, options: RenderOptions, command: str) -> list[str]:
    """Return a note on using PyTorch's index. As an extra index pip would mix it with the others, without order."""
    if not profile.pytorch:
        return []
    if options.variant is None and any("{variant}" in index.url for index in profile.pytorch):
        return ["the URL of PyTorch's index needs a variant: pass --variant cu128 (or cpu, …)"]
    simple, links = (mirror_urls(profile.pytorch, options, kind) for kind in ("simple", "find-links"))
    option = f"--index-url {simple[0]}" if simple else f"--no-index --find-links {links[0]}" if links else ""
    return [f"torch needs its own index: {command} {option} torch (never --extra-index-url)"] if option else []

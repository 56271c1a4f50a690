"""What `keep: true` of a profile leaves in an image: one pip.conf and one uv.toml, without credentials."""

from __future__ import annotations

import json

from envcheck.mirrors.profile import CLIENT_DEFAULT, Profile


def keep_files(profile: Profile, variant: str) -> dict[str, str]:
    """Return path below / -> content. Files of this machine mean nothing in an image: only what is remote is named."""
    pypi = [i for i in profile.pypi if i.local is None and i.url != CLIENT_DEFAULT]
    simple = [index.url for index in pypi if index.kind == "simple"]
    links = [index.url for index in pypi if index.kind == "find-links"]
    torch = [i for i in profile.pytorch if i.local is None and i.url != CLIENT_DEFAULT and i.kind == "simple"]
    pip = ["[global]"]
    pip += [f"index-url = {simple[0]}"] if simple else []
    pip += ["find-links =", *(f"    {url}" for url in links)] if links else []
    uv = [f"find-links = {json.dumps(links)}"] if links else []
    uv += [f'[[index]]\nname = "pypi-mirror"\nurl = {json.dumps(url)}\ndefault = true' for url in simple[:1]]
    for index in torch[:1]:
        url = json.dumps(index.url.replace("{variant}", variant))
        uv += [f'[[index]]\nname = "pytorch-mirror"\nurl = {url}\nexplicit = true']
    return {"etc/pip.conf": "\n".join(pip) + "\n", "etc/uv/uv.toml": "\n\n".join(uv) + "\n"}

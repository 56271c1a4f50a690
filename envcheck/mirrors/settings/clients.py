"""The settings of pip, uv, huggingface_hub, ModelScope, conda and npm, and what every renderer takes and returns."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import msgspec

from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Credential, Index, Profile, hf_environment, host_of


class RenderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to render settings for. `variant` is put into PyTorch indexes, `distro` and `suite` into apt's sources.

    `ca` is a bundle of this machine's roots and the profile's, or None. `before` lists the variables that an earlier
    `envcheck mirror show --format env` set. `local` keeps sources that are files on this machine.
    """

    variant: str | None = None
    distro: str | None = None
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


def hf(profile: Profile, options: RenderOptions) -> ClientSettings:  # noqa: ARG001 (a form's signature)
    """Return NAME=value lines for `docker run --env-file` and systemd's EnvironmentFile."""
    if not variables(profile):
        return ClientSettings(files={}, notes=["the profile names no Hugging Face endpoint"])
    text = "".join(f"{name}={value}\n" for name, value in variables(profile).items())
    return ClientSettings(files={"hf.env": text}, notes=client_notes(profile))


def variables(profile: Profile) -> dict[str, str]:
    """Return the variables that make the hubs' clients use the profile's endpoints, if it names any."""
    variables = hf_environment(profile) if profile.hf.endpoint is not None else {}
    return variables | ({"MODELSCOPE_DOMAIN": profile.modelscope} if profile.modelscope is not None else {})


def client_notes(profile: Profile) -> list[str]:
    """Return notes on what huggingface_hub and ModelScope do in spite of the settings."""
    notes = []
    if profile.hf.endpoint is not None:
        host = host_of(profile.hf.endpoint)
        notes = [
            "huggingface_hub reads the variables once, when it is imported: set them before",
            "huggingface_hub compares no hashes and accepts wrong bytes of the right size; `envcheck fetch` verifies",
            "xet ignores the endpoint, so it is off; without xet huggingface_hub refuses files over 50 GB",
            f"a netrc does not reach huggingface_hub: {host} can only be given a token",
        ]
        notes.append(
            f"HF_TOKEN is sent to {host}, because the profile has `token: allow`"
            if profile.hf.token == "allow"  # noqa: S105 (a policy)
            else f"HF_TOKEN is not sent to {host}: gated models need `token: allow` in the profile"
        )
    if profile.hf.fallbacks:
        fallback = host_of(profile.hf.fallbacks[0])
        notes.append(f"huggingface_hub uses one endpoint: only `envcheck fetch` falls back to {fallback}")
    if profile.modelscope is not None:
        notes.append("from_pretrained of transformers does not use ModelScope: call modelscope's snapshot_download")
    return notes


def conda(profile: Profile, options: RenderOptions) -> ClientSettings:
    """Return .condarc; a JSON string is also a YAML string."""
    channels = profile.conda
    lines = [f"channel_alias: {json.dumps(channels.channel_alias)}"] if channels.channel_alias else []
    if channels.default_channels:
        lines += ["default_channels:", *(f"  - {json.dumps(url)}" for url in channels.default_channels)]
    if channels.custom_channels:
        rows = channels.custom_channels.items()
        lines += ["custom_channels:", *(f"  {json.dumps(name)}: {json.dumps(url)}" for name, url in rows)]
    if not lines:
        return ClientSettings(files={}, notes=["the profile names no conda channels"])
    ca = options.ca or profile.ca
    lines += [f"ssl_verify: {json.dumps(ca)}"] if ca else []
    text = "\n".join(lines) + "\n"
    return ClientSettings(files={"~/.condarc": text}, notes=_conda_notes(profile) + ca_notes(profile, options))


def _conda_notes(profile: Profile) -> list[str]:
    channels = profile.conda
    notes = ["pip inside a conda environment reads pip's settings, not these"]
    if "nvidia" not in channels.custom_channels:
        alias = channels.channel_alias
        notes.append(
            f"`-c nvidia` goes to {host_of(alias)}; many mirrors lack that channel because of its licence"
            if alias
            else "the profile does not mirror the nvidia channel: `-c nvidia` goes to its origin"
        )
    return notes


def npm(profile: Profile, options: RenderOptions) -> ClientSettings:
    """Return .npmrc. npm itself replaces `${NAME}` by the variable."""
    if profile.npm is None:
        return ClientSettings(files={}, notes=["the profile names no npm registry"])
    lines, notes = [f"registry={profile.npm}"], ["a package-lock.json made through it may record the mirror's URLs"]
    ca = options.ca or profile.ca
    lines += [f"cafile={ca}"] if ca else []
    secret = secret_of(profile, profile.npm)
    if secret is not None and secret.token_env is not None:
        lines.append(
            f"//{host_of(profile.npm)}{urlsplit(profile.npm).path.rstrip('/')}/:_authToken=${{{secret.token_env}}}"
        )
    elif secret is not None:
        notes.append(f"npm takes a token from a variable only: name that of {host_of(profile.npm)} under token_env")
    return ClientSettings(files={"~/.npmrc": "\n".join(lines) + "\n"}, notes=notes + ca_notes(profile, options))

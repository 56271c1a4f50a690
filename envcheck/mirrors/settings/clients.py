"""huggingface_hub's and ModelScope's variables, conda's .condarc and npm's .npmrc."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from envcheck.mirrors.profiles.model import Profile, hf_environment, host_of
from envcheck.mirrors.settings.base import ClientSettings, RenderOptions, ca_notes, secret_of


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

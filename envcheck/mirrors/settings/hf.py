"""huggingface_hub's environment, as a file of NAME=value lines."""

from __future__ import annotations

from envcheck.mirrors.profiles.model import Profile, hf_environment, host_of
from envcheck.mirrors.settings.base import ClientSettings, RenderOptions


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

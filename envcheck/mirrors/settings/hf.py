"""huggingface_hub's environment, as a file of NAME=value lines."""

from __future__ import annotations

from envcheck.mirrors.profiles.model import Profile, hf_environment, host_of
from envcheck.mirrors.settings.base import Setting, Wish


def hf(profile: Profile, wish: Wish) -> Setting:  # noqa: ARG001 (a form's signature)
    """Return the lines that `docker run --env-file` and systemd's EnvironmentFile take."""
    if not variables(profile):
        return Setting(files={}, cannot=["it names no Hugging Face endpoint"])
    text = "".join(f"{name}={value}\n" for name, value in variables(profile).items())
    return Setting(files={"hf.env": text}, cannot=cannot(profile))


def variables(profile: Profile) -> dict[str, str]:
    """Return what makes the hubs' clients use the profile; nothing where it names none."""
    found = hf_environment(profile) if profile.hf.endpoint is not None else {}
    return found | ({"MODELSCOPE_DOMAIN": profile.modelscope} if profile.modelscope is not None else {})


def cannot(profile: Profile) -> list[str]:
    """Return what huggingface_hub and ModelScope do all the same."""
    found = []
    if profile.hf.endpoint is not None:
        host = host_of(profile.hf.endpoint)
        found = [
            "huggingface_hub reads it once, when it is imported: set it before",
            "it holds no content against a hash: a mirror's wrong bytes of the right size are taken (`envcheck fetch`)",
            "xet ignores the endpoint, so it is off; without it huggingface_hub refuses files over 50 GB",
            f"a netrc does not reach huggingface_hub: {host} can only be given a token",
        ]
        found.append(
            f"HF_TOKEN is sent to {host}, as `token: allow` says"
            if profile.hf.token == "allow"  # noqa: S105 (a policy)
            else f"HF_TOKEN is not sent, as it would go to {host}: gated models need `token: allow` in the profile"
        )
    if profile.hf.fallbacks:
        found.append(f"it knows one endpoint: only `envcheck fetch` asks {host_of(profile.hf.fallbacks[0])} after it")
    if profile.modelscope is not None:
        found.append("from_pretrained of transformers does not ask ModelScope: use modelscope's snapshot_download")
    return found

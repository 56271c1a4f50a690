"""A profile as commands of a POSIX shell, for `eval`.

ENVCHECK_MIRROR_WAS_NAME keeps the earlier value of the variable NAME; the next call restores it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from envcheck.mirrors.profiles.model import Credential, Profile
from envcheck.mirrors.settings import clients
from envcheck.mirrors.settings.clients import ClientSettings, RenderOptions, ca_notes, mirror_urls, secret_of

# Lists the variables that an earlier call set, so that the next call can restore them.
SET_VARIABLE: Final = "ENVCHECK_MIRROR_SET"
_SAVED_PREFIX: Final = "ENVCHECK_MIRROR_WAS_"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# For uv, current pip and huggingface_hub; for pip before 24.2, overriding its file; for programs that use requests.
_CA_VARIABLES: Final = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
# uv splits its list at commas, pip at blanks.
_SEPARATOR: Final = re.compile(r"[\s,]")


def env(profile: Profile, options: RenderOptions) -> ClientSettings:
    """Return lines that restore the variables of an earlier call, save their values, and export the profile's.

    The shell looks secrets up after the restore, so no host gets the secret of an earlier profile.
    """
    words = _exports(profile, options)
    lines = [_restore_line(name) for name in _variable_names(options.before)]
    lines += [f'[ -z "${{{name}+x}}" ] || export {_SAVED_PREFIX}{name}="${name}"' for name in words]
    lines += [f"export {name}={word}" for name, word in words.items()]
    if words:
        lines.append(f"export {SET_VARIABLE}={shlex.quote(' '.join(words))}")
    elif options.before:
        lines.append(f"unset {SET_VARIABLE}")
    notes = [] if words else ["the profile sets no variable"]
    notes += _python_notes(profile, options) + clients.client_notes(profile) + ca_notes(profile, options)
    unsupported = {"apt": profile.apt, "registries": profile.registries, "conda": profile.conda.custom_channels}
    names = [name for name, value in unsupported.items() if value]
    notes += [f"variables cannot set {name}: use `envcheck mirror show --format {name}`" for name in names]
    return ClientSettings(files={"envcheck.sh": "\n".join(lines) + "\n"} if lines else {}, notes=notes)


def _python_notes(profile: Profile, options: RenderOptions) -> list[str]:
    """Return what no variable of pip or uv can set: a second index, and PyTorch's."""
    simple, links = (mirror_urls(profile.pypi, options, kind) for kind in ("simple", "find-links"))
    notes = clients.unused_indexes(simple, "uv")
    notes += [clients.TORCH_BACKEND_NOTE] if simple or links or profile.pytorch else []
    # The command line names the variant, so the note keeps the placeholder.
    shown = msgspec.structs.replace(options, variant=options.variant or "{variant}")
    torch = clients.torch_notes(profile, shown, "uv pip install")
    return notes + [f"{text}; {{variant}} is cu128, cpu, …" if "{variant}" in text else text for text in torch]


def restored_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment as it was before any call, as the shell restores it."""
    names = _variable_names(environ.get(SET_VARIABLE, "").split())
    set_by_us = {SET_VARIABLE, *names, *(f"{_SAVED_PREFIX}{name}" for name in names)}
    saved = {name: environ[f"{_SAVED_PREFIX}{name}"] for name in names if f"{_SAVED_PREFIX}{name}" in environ}
    return {name: value for name, value in environ.items() if name not in set_by_us} | saved


def _variable_names(texts: Iterable[str]) -> list[str]:
    return [name for name in dict.fromkeys(texts) if _NAME.fullmatch(name)]


def _restore_line(name: str) -> str:
    saved = f"{_SAVED_PREFIX}{name}"
    return f'if [ -n "${{{saved}+x}}" ]; then export {name}="${saved}"; unset {saved}; else unset {name}; fi'


def _exports(profile: Profile, options: RenderOptions) -> dict[str, str]:
    simple, links = (mirror_urls(profile.pypi, options, kind) for kind in ("simple", "find-links"))
    private = secret_of(profile, simple[0]) if simple else None
    values: dict[str, str | None] = {
        "PIP_INDEX_URL": simple[0] if simple else None,
        "UV_DEFAULT_INDEX": (f"{clients.PYPI}={simple[0]}" if private else simple[0]) if simple else None,
        "PIP_FIND_LINKS": None if any(map(_SEPARATOR.search, links)) else " ".join(links) or None,
        "UV_FIND_LINKS": None if any(map(_SEPARATOR.search, links)) else ",".join(links) or None,
        "CONDA_CHANNEL_ALIAS": profile.conda.channel_alias,
        "NPM_CONFIG_REGISTRY": profile.npm,
        "NETRC": profile.netrc,
        **dict.fromkeys(_CA_VARIABLES, options.ca or profile.ca),
        **clients.variables(profile),
    }
    words = {name: shlex.quote(value) for name, value in values.items() if value is not None}
    words |= _uv_login(clients.PYPI, private)
    token = secret_of(profile, profile.hf.endpoint) if profile.hf.endpoint else None
    if token is not None and token.user is None and profile.hf.token == "allow":  # noqa: S105 (a policy)
        words["HF_TOKEN"] = _secret_word(token)
    return words


def _uv_login(index: str, secret: Credential | None) -> dict[str, str]:
    """Return the variables with uv's user and password for an index; the user of a token is `__token__`."""
    if secret is None:
        return {}
    name = index.upper().replace("-", "_")
    user = shlex.quote(secret.user or "__token__")
    return {f"UV_INDEX_{name}_USERNAME": user, f"UV_INDEX_{name}_PASSWORD": _secret_word(secret)}


def _secret_word(secret: Credential) -> str:
    variable, file = secret.password_env or secret.token_env, secret.password_file or secret.token_file
    return f'"${{{variable}-}}"' if variable else f'"$(cat -- {shlex.quote(file or "")})"'

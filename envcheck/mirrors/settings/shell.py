"""A profile as commands of a POSIX shell, for `eval`.

What a variable was before is kept in another one, ENVCHECK_MIRROR_WAS_NAME, and given back by the next call.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Final

from envcheck.mirrors.profiles.model import Credential, Profile
from envcheck.mirrors.settings import hf, python
from envcheck.mirrors.settings.base import Setting, Wish, named, own_roots, secret_of

# Names what an earlier call set, so that the next one can take it back.
SET: Final = "ENVCHECK_MIRROR_SET"
_WAS: Final = "ENVCHECK_MIRROR_WAS_"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# uv, and pip and huggingface_hub of today; pip before 24.2, whatever its file says; what is made with requests.
_ROOTS: Final = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
# uv's list is split at commas, pip's at blanks.
_LISTED: Final = re.compile(r"[\s,]")


def env(profile: Profile, wish: Wish) -> Setting:
    """Return `export` lines; before them what takes an earlier call back, and keeps what is there.

    Secrets are looked up by the shell, after that: one that an earlier profile gave goes to no other's host.
    """
    words = _exports(profile, wish)
    lines = [_give_back(name) for name in _names(wish.before)]
    lines += [f'[ -z "${{{name}+x}}" ] || export {_WAS}{name}="${name}"' for name in words]
    lines += [f"export {name}={word}" for name, word in words.items()]
    lines += [f"export {SET}={shlex.quote(' '.join(words))}"] if words else [f"unset {SET}"] if wish.before else []
    cannot = [] if words else ["it sets no variable"]
    cannot += [text for text in python.uv(profile, wish).cannot if "second index" in text or "torch" in text]
    cannot = [text for text in cannot if python.PYTORCH not in text] + hf.cannot(profile) + own_roots(profile, wish)
    deaf = {"apt": profile.apt, "registries": profile.registries, "conda": profile.conda.custom_channels}
    cannot += [f"no variable does for {form}: `--format {form}` of show" for form, there in deaf.items() if there]
    return Setting(files={"envcheck.sh": "\n".join(lines) + "\n"} if lines else {}, cannot=cannot)


def taken_back(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment as it was before any call, as the shell will have it."""
    names = _names(environ.get(SET, "").split())
    ours = {SET, *names, *(f"{_WAS}{name}" for name in names)}
    before = {name: environ[f"{_WAS}{name}"] for name in names if f"{_WAS}{name}" in environ}
    return {name: value for name, value in environ.items() if name not in ours} | before


def _names(given: Iterable[str]) -> list[str]:
    """Return what could be names of variables: the list comes out of the environment, and goes to a shell."""
    return [name for name in dict.fromkeys(given) if _NAME.fullmatch(name)]


def _give_back(name: str) -> str:
    was = f"{_WAS}{name}"
    return f'if [ -n "${{{was}+x}}" ]; then export {name}="${was}"; unset {was}; else unset {name}; fi'


def _exports(profile: Profile, wish: Wish) -> dict[str, str]:
    """Return variable -> a word of the shell, quoted."""
    simple, links = (named(profile.pypi, wish, kind) for kind in ("simple", "find-links"))
    private = secret_of(profile, simple[0]) if simple else None
    plain: dict[str, str | None] = {
        "PIP_INDEX_URL": simple[0] if simple else None,
        "UV_DEFAULT_INDEX": (f"{python.PYPI}={simple[0]}" if private else simple[0]) if simple else None,
        "PIP_FIND_LINKS": None if any(map(_LISTED.search, links)) else " ".join(links) or None,
        "UV_FIND_LINKS": None if any(map(_LISTED.search, links)) else ",".join(links) or None,
        "CONDA_CHANNEL_ALIAS": profile.conda.channel_alias,
        "NPM_CONFIG_REGISTRY": profile.npm,
        "NETRC": profile.netrc,
        **dict.fromkeys(_ROOTS, wish.ca or profile.ca),
        **hf.variables(profile),
    }
    words = {name: shlex.quote(value) for name, value in plain.items() if value is not None}
    words |= _login(python.PYPI, private)
    token = secret_of(profile, profile.hf.endpoint) if profile.hf.endpoint else None
    if token is not None and token.user is None and profile.hf.token == "allow":  # noqa: S105 (a policy)
        words["HF_TOKEN"] = _secret(token)
    return words


def _login(index: str, secret: Credential | None) -> dict[str, str]:
    """Return the variables from which uv takes an index's user and password; a token's user is the index's usual."""
    if secret is None:
        return {}
    name = index.upper().replace("-", "_")
    user = shlex.quote(secret.user or "__token__")
    return {f"UV_INDEX_{name}_USERNAME": user, f"UV_INDEX_{name}_PASSWORD": _secret(secret)}


def _secret(secret: Credential) -> str:
    variable, file = secret.password_env or secret.token_env, secret.password_file or secret.token_file
    return f'"${{{variable}-}}"' if variable else f'"$(cat -- {shlex.quote(file or "")})"'

"""A profile as commands of a POSIX shell, for `eval`."""

from __future__ import annotations

import re
import shlex
from typing import Final

from envcheck.mirrors.profile import Credential, Profile
from envcheck.mirrors.settings import hf, python
from envcheck.mirrors.settings.base import Setting, Wish, named, own_roots, secret_of

# Names what an earlier call set, so that the next one can take it back.
SET: Final = "ENVCHECK_MIRROR_SET"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# uv, and pip and huggingface_hub of today; pip before 24.2, whatever its file says; what is made with requests.
_ROOTS: Final = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
# uv's list is split at commas, pip's at blanks.
_LISTED: Final = re.compile(r"[\s,]")


def env(profile: Profile, wish: Wish) -> Setting:
    """Return `export` lines, before them an `unset` of what an earlier call set. Secrets are looked up by the shell."""
    words = _exports(profile, wish)
    gone = [name for name in wish.before if name not in words and _NAME.fullmatch(name)]
    lines = [f"unset {' '.join(gone)}"] if gone else []
    lines += [f"export {name}={word}" for name, word in words.items()]
    lines += [f"export {SET}={shlex.quote(' '.join(words))}"] if words else [f"unset {SET}"] if wish.before else []
    cannot = [] if words else ["it sets no variable"]
    cannot += [text for text in python.uv(profile, wish).cannot if "second index" in text or "torch" in text]
    cannot = [text for text in cannot if python.PYTORCH not in text] + hf.cannot(profile) + own_roots(profile, wish)
    deaf = {"apt": profile.apt, "registries": profile.registries, "conda": profile.conda.custom_channels}
    cannot += [f"no variable does for {form}: `--format {form}` of show" for form, there in deaf.items() if there]
    return Setting(files={"envcheck.sh": "\n".join(lines) + "\n"} if lines else {}, cannot=cannot)


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

"""The logins of this machine, as `docker login` and `podman login` leave them.

$REGISTRY_AUTH_FILE, $DOCKER_CONFIG/config.json (or ~/.docker/config.json), $XDG_RUNTIME_DIR/containers/auth.json and
~/.config/containers/auth.json are read in this order; the first one with a login for the registry counts.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from envcheck.errors import ConfigError
from envcheck.registry.oci.login.helpers import HelperAnswer, helper_login
from envcheck.registry.oci.references import DOCKER_HUB, ImageReference
from envcheck.struct_types import Secret, know_types

_HUB_KEY: Final = "https://index.docker.io/v1/"
_IDENTITY: Final = "<token>"
_API: Final = re.compile(r"/v[12]/?$")


class Account(Secret, frozen=True):
    """A login for one registry: the header of a password, an identity token, or a token of the registry itself."""

    basic: str = ""
    identity: str = ""
    token: str = ""


def basic(user: str, password: str) -> str:
    """Return the Authorization header of a user and a password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class _Entry(msgspec.Struct):
    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""
    registrytoken: str = ""

    def __repr__(self) -> str:
        """Show no secret."""
        return "_Entry()"


class _LoginFile(msgspec.Struct):
    """What docker and podman read, to whom null is as good as nothing."""

    auths: dict[str, _Entry | None] | None = None
    helpers: dict[str, str] | None = msgspec.field(name="credHelpers", default=None)
    store: str | None = msgspec.field(name="credsStore", default=None)


know_types(_LoginFile)


def login_files(environ: Mapping[str, str]) -> list[Path]:
    """Return the files that may hold a login, in the order in which they count."""
    home, runtime = Path(environ.get("HOME") or "/root"), environ.get("XDG_RUNTIME_DIR")
    files = [Path(environ["REGISTRY_AUTH_FILE"])] if environ.get("REGISTRY_AUTH_FILE") else []
    files.append(Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json")
    files += [Path(runtime) / "containers/auth.json"] if runtime else []
    files.append(Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "containers/auth.json")
    return files


def account_for(reference: ImageReference, environ: Mapping[str, str]) -> Account | None:
    """Return the login for a repository's registry, or None. Raise ConfigError for a file that cannot be read."""
    for path in login_files(environ):
        logins = _read(path)
        account = None if logins is None else _account(logins, reference, path)
        if account is not None:
            return account
    return None


def _read(path: Path) -> _LoginFile | None:
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        message = f"{path}: cannot read the logins of registries: {error.strerror}"
        raise ConfigError(message, fix="make it readable, or name another file in REGISTRY_AUTH_FILE") from None
    try:
        return msgspec.json.decode(content or b"{}", type=_LoginFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # whose text could repeat a secret
        message = f"{path}: not a valid file of logins"
        raise ConfigError(message, fix="run `docker login` again, or move the file away") from None


def _account(logins: _LoginFile, reference: ImageReference, path: Path) -> Account | None:
    """Return the login of one file: of the registry's own helper, of the store, or of the file itself."""
    keys = list(_keys(reference))
    helpers = logins.helpers or {}
    helper = next((helpers[key] for key in keys if key in helpers), logins.store)
    if helper:
        server = _HUB_KEY if reference.registry == DOCKER_HUB else reference.registry
        answer = helper_login(helper, server, str(path))
        if answer is not None:
            return _of_helper(answer)
    stored = {_plain_key(key): entry for key, entry in (logins.auths or {}).items()}
    return next((account for key in keys if (account := _of_entry(stored.get(key), key, path))), None)


def _keys(reference: ImageReference) -> Iterator[str]:
    """Yield the names under which a login may stand: podman keeps some for a part of a registry; the longest counts."""
    parts = reference.repository.split("/")
    yield from ("/".join([reference.registry, *parts[:count]]) for count in range(len(parts), 0, -1))
    yield reference.registry
    if reference.registry == DOCKER_HUB:
        yield from (_HUB_KEY, "index.docker.io")


def _plain_key(key: str) -> str:
    """Return the key without scheme and path of the API, which older clients wrote."""
    if key == _HUB_KEY:
        return DOCKER_HUB
    return _API.sub("", key.partition("://")[2] or key).rstrip("/").lower()


def _of_helper(answer: HelperAnswer) -> Account:
    if answer.user == _IDENTITY:
        return Account(identity=answer.secret)
    return Account(basic(answer.user, answer.secret))


def _of_entry(entry: _Entry | None, key: str, path: Path) -> Account | None:
    if entry is None:
        return None
    user, password = entry.username, entry.password
    if entry.auth:
        try:
            user, _, password = base64.b64decode(entry.auth, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            message = f"{path}: the login of {key} is not base64 of USER:PASSWORD"
            raise ConfigError(message, fix=f"run `docker login {key}` again") from None
    password = password.rstrip("\0")  # some clients pad it
    if not (password or entry.identitytoken or entry.registrytoken):
        return None
    return Account(basic(user, password) if password else "", entry.identitytoken, entry.registrytoken)

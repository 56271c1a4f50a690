"""A mirror profile: where pip, PyTorch wheels, Hugging Face, apt and the registry are reached from; the one chosen."""

import re
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from envcheck import safe_files
from envcheck.data import xdg
from envcheck.errors import ConfigError

CLIENT_DEFAULT: Final = "default"
_SCHEME: Final = r"[A-Za-z][A-Za-z0-9+.-]*://|//|"
_QUERY: Final = r"(://[^\s?]*)\?[^\s`'\")]*"
_HOST: Final = r"(\[[0-9a-fA-F:.]+\]|[^\[\]:@\s]+)(:[0-9]{1,5})?"


class Index(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A source of wheels: `simple` is a PEP 503 index, `find-links` is a page or directory of files.

    `url` is https://, http://, file://, an absolute path, or "default" for the client's own index. In the URL of a
    PyTorch index, `{variant}` stands for cu128, cpu, …
    """

    url: str
    kind: Literal["simple", "find-links"] = "simple"

    @property
    def local(self) -> Path | None:
        """Return the directory on this machine, or None for an index on the network."""
        if self.url.startswith("file:"):
            return Path(unquote(urlsplit(self.url).path))
        return Path(self.url) if self.url.startswith("/") else None


class HuggingFace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How huggingface_hub reaches models. Timeouts in seconds: the hub's 10 s are too short for a cold mirror (#1703).

    `trusted` is the endpoint whose hashes of a revision are believed. `endpoint` serves the bytes. envcheck asks
    `fallbacks`, in order, for the files that `endpoint` lacks; huggingface_hub itself uses one endpoint only.
    """

    endpoint: str | None = None
    fallbacks: list[str] = []
    trusted: str | None = None
    etag_timeout: int = 60
    download_timeout: int = 60
    token: Literal["never", "allow"] = "never"  # noqa: S105 (a policy)

    @property
    def endpoints(self) -> list[str]:
        """Return the endpoints that serve bytes, in order."""
        return list(dict.fromkeys([*([self.endpoint] if self.endpoint is not None else []), *self.fallbacks]))


class Conda(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How conda reaches channels, with .condarc's keys. `custom_channels` maps a channel to its parent URL."""

    channel_alias: str | None = None
    default_channels: list[str] = []
    custom_channels: dict[str, str] = {}


class Credential(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the secret for one host is stored: the name of a variable or the path of a file, never the secret itself.

    Exactly one of the four is set. A password needs `user`; a token does not.
    """

    user: str | None = None
    password_env: str | None = None
    password_file: str | None = None
    token_env: str | None = None
    token_file: str | None = None


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sources of each kind, in order; docs/mirrors.md explains the keys. No URL has a password.

    A list without a remote source uses the client's default, unless the profile is `closed`, which forbids downloads
    from hosts that it does not name.
    """

    name: str
    pypi: list[Index] = []
    pytorch: list[Index] = []
    hf: HuggingFace = HuggingFace()
    apt: list[str] = []
    registry: str | None = None
    registries: dict[str, list[str]] = {}
    conda: Conda = Conda()
    npm: str | None = None
    modelscope: str | None = None
    credentials: dict[str, Credential] = {}
    ca: str | None = None
    netrc: str | None = None
    keep: bool = False
    closed: bool = False

    def indexes(self, part: str) -> list[Index]:
        """Return the indexes for a part of a lock: "pypi", "pytorch" or "pytorch/cu128"."""
        return self.pypi if part == "pypi" else self.pytorch


def network_indexes(indexes: list[Index], *, closed: bool = False) -> list[Index]:
    """Return the indexes on the network, in order. Without any, return the client's default, unless `closed`."""
    remote = [index for index in indexes if index.local is None]
    if closed:
        return [index for index in remote if index.url != CLIENT_DEFAULT]
    return remote or [Index(url=CLIENT_DEFAULT)]


def has_userinfo(url: str) -> bool:
    """Tell whether a URL holds a user or a password, also when it is unescaped or the URL has no scheme."""
    scheme, after_scheme = _split_scheme(url)
    if not scheme:
        return re.match(r"[^/]*:[^/]*@", after_scheme) is not None
    authority = re.split(r"[/?#]", after_scheme, maxsplit=1)[0]
    return "@" in authority or (":" in authority and "@" in after_scheme and re.fullmatch(_HOST, authority) is None)


def _split_scheme(url: str) -> tuple[str, str]:
    scheme = re.match(_SCHEME, url)
    prefix = scheme[0] if scheme else ""
    return prefix, url.removeprefix(prefix)


def host_of(url: str) -> str:
    """Return host:port of a URL or a bare `host:port/path`. A redirect or page may name one that is not printable."""
    host = urlsplit(url if "://" in url else f"//{url}").netloc.rpartition("@")[2].lower()
    return host if host.isprintable() else "".join(sign if sign.isprintable() else "?" for sign in host)


def without_queries(text: str) -> str:
    """Return a program's output without the queries of its URLs: a signed link is a secret."""
    return re.sub(_QUERY, r"\1?...", text)


def without_logins(text: str) -> str:
    """Return a text without the users and passwords of its URLs."""
    return re.sub(r"://[^/\s]*@", "://***@", text)


def redacted(url: str) -> str:
    """Return a URL or other text without the parts that a log must not hold: user, password, query."""
    if has_userinfo(url):
        url = f"{_split_scheme(url)[0]}***@{url.rpartition('@')[2]}"
    shown, query, _ = url.partition("?")
    return f"{shown}?..." if query else shown


def hf_environment(profile: Profile) -> dict[str, str]:
    """Return the environment that makes huggingface_hub use the profile, and only the profile.

    Xet is off because its downloads ignore HF_ENDPOINT (huggingface_hub#4475). No token is sent without
    `token: allow`, because the host in HF_ENDPOINT would receive it.
    """
    hf = profile.hf
    environment = {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": str(hf.download_timeout),
        "HF_HUB_ETAG_TIMEOUT": str(hf.etag_timeout),
    }
    if hf.endpoint is not None:
        environment |= {"HF_ENDPOINT": hf.endpoint.rstrip("/"), "HF_HUB_DISABLE_XET": "1"}
    if hf.token == "never":  # noqa: S105 (a policy)
        environment["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1"  # noqa: S105 (a switch)
    return dict(sorted(environment.items()))


def choice_path() -> Path:
    """Return the path of the file with the choice."""
    return xdg("XDG_CONFIG_HOME", ".config") / "envcheck" / "mirror"


def read_choice() -> str | None:
    """Return the chosen name or path, or None without a choice. Raise ConfigError if the file cannot be read."""
    file = choice_path()
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip() or None if file.is_file() else None
    except OSError as error:
        message = f"{file}: cannot read the chosen mirror: {error.strerror}"
        raise ConfigError(message, fix="pass --mirror none, host, ...; or set HOME to this user's own") from error


def plain_profile(name: str) -> Profile | None:
    """Return the profile `none`, also where `user` stands for it; None for one that must be read from YAML.

    Importing YAML takes a fifth of the start of `envcheck resolve`, and most users need none of it.
    """
    chosen = read_choice() if name == "user" else name
    return Profile(name="none") if chosen in (None, "none", "user") else None


def write_choice(name: str | None) -> Path:
    """Write the choice atomically, or remove it; return the path of its file."""
    file = choice_path()
    if name is None:
        file.unlink(missing_ok=True)
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    safe_files.put(file, f"{name}\n".encode())
    return file

"""A mirror profile: where pip, PyTorch wheels, Hugging Face, apt and the registry are reached from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec

CLIENT_DEFAULT: Final = "default"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|//|")
_QUERY: Final = re.compile(r"(://[^\s?]*)\?[^\s`'\")]*")
_BARE: Final = re.compile(r"[^/]*:[^/]*@")
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:@\s]+)(:[0-9]{1,5})?")


class Index(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where wheels are. `simple` is a PEP 503 index, `find-links` a page or directory of files.

    `url` is https://, http://, file://, an absolute path, or "default": the client's own. In a PyTorch index
    `{variant}` stands for cu128, cpu, …
    """

    url: str
    kind: Literal["simple", "find-links"] = "simple"

    @property
    def local(self) -> Path | None:
        """Return the directory on this machine, or None for what is reached over a network."""
        if self.url.startswith("file:"):
            return Path(unquote(urlsplit(self.url).path))
        return Path(self.url) if self.url.startswith("/") else None


class HuggingFace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How huggingface_hub reaches models. Seconds; the hub's own 10 s break cold mirrors (huggingface_hub#1703).

    `trusted` is the endpoint that is believed about a revision's hashes; `endpoint` need only have the bytes, and
    `fallbacks` are asked by envcheck, in order, for what it does not give: huggingface_hub itself knows one endpoint.
    """

    endpoint: str | None = None
    fallbacks: list[str] = []
    trusted: str | None = None
    etag_timeout: int = 60
    download_timeout: int = 60
    token: Literal["never", "allow"] = "never"  # noqa: S105 (a policy)

    @property
    def endpoints(self) -> list[str]:
        """Return where bytes come from, in order."""
        return list(dict.fromkeys([*([self.endpoint] if self.endpoint is not None else []), *self.fallbacks]))


class Conda(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How conda reaches channels; the keys are .condarc's own. `custom_channels` maps a channel to its parent URL."""

    channel_alias: str | None = None
    default_channels: list[str] = []
    custom_channels: dict[str, str] = {}


class Credential(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the secret for one host is: a variable's name or a file's path, never the secret itself.

    One of the four is given. A password belongs to `user`; a token stands alone.
    """

    user: str | None = None
    password_env: str | None = None
    password_file: str | None = None
    token_env: str | None = None
    token_file: str | None = None


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ordered sources; a list without any remote one ends with the client's own default. URLs hold no user:password.

    `apt` are base URLs (the distribution's path below them is appended), or empty for the base's own sources.
    `registry` is what images' bases are pulled from; `registries` maps an upstream to its mirrors in order.
    `modelscope` is ModelScope's host or a mirror of it; it is another hub than Hugging Face's, with names of its own.
    `credentials` maps a host to where its secret is.
    `ca` is the path of a PEM bundle that is trusted beside this machine's roots. `netrc` is a path, its content only
    ever a build secret. `keep` leaves one credential-free pip.conf, uv.toml and the HF environment in the image.
    `closed` says that no byte may come from a host the profile does not name: a probe fails a mirror that leaves, and
    where it names nobody nobody is asked.
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


def attempts(indexes: list[Index], *, closed: bool = False) -> list[Index]:
    """Return the sources to be tried over the network, in order: at least the client's own default, if not `closed`."""
    remote = [index for index in indexes if index.local is None]
    if closed:
        return [index for index in remote if index.url != CLIENT_DEFAULT]
    return remote or [Index(url=CLIENT_DEFAULT)]


def has_userinfo(url: str) -> bool:
    """Tell whether a URL carries a user or a password, as it should or as people paste one: unescaped, no scheme."""
    begin, rest = _parted(url)
    if not begin:
        return _BARE.match(rest) is not None
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    return "@" in authority or (":" in authority and "@" in rest and _HOST.fullmatch(authority) is None)


def _parted(url: str) -> tuple[str, str]:
    """Return a URL's scheme with the slashes after it, and the rest."""
    scheme = _SCHEME.match(url)
    begin = scheme[0] if scheme else ""
    return begin, url.removeprefix(begin)


def host_of(url: str) -> str:
    """Return the host, and the port where one is given, of a URL or of a bare `host:port/path`."""
    return urlsplit(url if "://" in url else f"//{url}").netloc.rpartition("@")[2].lower()


def without_query(url: str) -> str:
    """Return the URL up to its `?`: what follows is often a token, and a path appended to it would not be one."""
    return url.partition("?")[0]


def without_queries(text: str) -> str:
    """Return what a program said without the queries of URLs in it: a link that a mirror signed is a secret."""
    return _QUERY.sub(r"\1?...", text)


def redacted(url: str) -> str:
    """Return a URL, or what is no URL, without what a log must not hold: user, password, query."""
    if has_userinfo(url):
        url = f"{_parted(url)[0]}***@{url.rpartition('@')[2]}"
    shown, query, _ = url.partition("?")
    return f"{shown}?..." if query else shown


def hf_environment(profile: Profile) -> dict[str, str]:
    """Return the environment that makes huggingface_hub use the profile, and only the profile.

    Xet is off because its data plane ignores HF_ENDPOINT (huggingface_hub#4475); without `token: allow` no token is
    sent, because it would go to whatever HF_ENDPOINT names.
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

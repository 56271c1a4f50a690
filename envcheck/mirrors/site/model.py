"""The model of a mirror site: its addresses, upstreams and ports, as stored in its site.json."""

import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from envcheck.errors import ConfigError, refuse
from envcheck.mirrors.profiles.model import redacted

# Characters with a meaning to nginx, a systemd unit or the shell that copies trees.
_UNSAFE: Final = re.compile(r"[\"'`$\\;{}#%<>|&()\s]")
_URL: Final = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~!*+,=:@%/-]*)?")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_SOURCE: Final = re.compile(r"rsync://[^/@]+/.+|/.+|(?!.*://)[^/:-][^/:]*::?[^@]+")


class SiteIndex(msgspec.Struct, frozen=True, kw_only=True):
    """A Python index that is proxied: `url` without its last slash; `links` are the origins its pages link to."""

    part: Literal["pypi", "pytorch"]
    url: str
    links: list[str] = []

    @property
    def origin(self) -> str:
        """Return its scheme, host and port."""
        return origin(self.url)

    @property
    def path(self) -> str:
        """Return the index's path at its origin, no slash at its end."""
        return urlsplit(self.url).path.rstrip("/")

    @property
    def parent(self) -> str:
        """Return the path above the index, which relative links may lead to."""
        return self.path.rpartition("/")[0]

    @property
    def at(self) -> str:
        """Return the path at which this site has the index."""
        return f"/{self.part}/{'simple' if self.part == 'pypi' else 'whl'}"


class Registry(msgspec.Struct, frozen=True, kw_only=True):
    """One pull-through registry: `url` is its upstream, `port` where the site has it, `inner` its own."""

    name: str
    url: str
    port: int
    inner: int
    debug: int


class SiteHub(msgspec.Struct, frozen=True, kw_only=True):
    """Where the site has models. `inner` is olah's port, 0 where there is none: what the store has is then all.

    No `endpoint` means olah's own default. `tokens` is a file of nginx's.
    """

    port: int
    inner: int
    endpoint: str | None = None
    tokens: str | None = None


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of PEM files."""

    certificate: str
    key: str


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is rendered, by the options of `mirror site render`. Sizes are bytes; `owner` is uid:gid.

    `ca` is what upstream certificates are checked against, `client_ca` what clients trust; `resolvers` are asked for
    upstream names at run time, so that nginx starts also where no upstream can be reached.
    """

    root: str
    addresses: list[str]
    name: str
    port: int
    indexes: list[SiteIndex]
    ca: str
    resolvers: list[str]
    mtail: int
    node: int
    prometheus: int
    cache_size: int
    min_free: int
    hf: SiteHub | None = None
    registries: list[Registry] = []
    tls: Tls | None = None
    users: str | None = None
    allow: list[str] = []
    s3: str | None = None
    s3_port: int = 0
    sync: dict[str, str] = {}
    trees: dict[str, str] = {}
    store: str | None = None
    owner: str = "0:0"
    client_ca: str | None = None
    offline: bool = False
    schema: Literal["envcheck/site/1"] = "envcheck/site/1"

    @property
    def origins(self) -> list[str]:
        """Return every origin that files are taken from: the indexes' own and those that their pages link to."""
        return list(dict.fromkeys(url for index in self.indexes for url in (index.origin, *index.links)))

    def at(self, port: int) -> str:
        """Return the URL of one of its ports for clients."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"{'https' if self.tls else 'http'}://{name}:{port}"


def origin(url: str) -> str:
    """Return scheme, host and port of a URL, as it begins."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def netloc(url: str) -> str:
    """Return host[:port] of a URL."""
    return urlsplit(url).netloc


def checked(site: Site) -> Site:
    """Return the site. Raise ConfigError for values that are unsafe or that nginx would misread."""
    for text in _texts(msgspec.to_builtins(site)):
        if _UNSAFE.search(text) or not text.isprintable():
            message = f"{redacted(text)!r}: a blank or one of \"'`$\\;{{}}#%<>|&() in a path or URL of the site"
            raise ConfigError(message, fix="choose another name")
    endpoint = [site.hf.endpoint] if site.hf and site.hf.endpoint else []
    for url in [*site.origins, *(registry.url for registry in site.registries), *site.trees.values(), *endpoint]:
        checked_url(url)
    for name in [*(registry.name for registry in site.registries), *site.sync, *site.trees]:
        if not _NAME.fullmatch(name):
            refuse(f"{name!r} is not a valid name for a part of the site", "use letters, digits, dots and dashes")
    for name, source in site.sync.items():
        if not _SOURCE.fullmatch(source):
            message = f"the source of {name} is not a source for rsync, or has a password"
            raise ConfigError(message, fix="write rsync://HOST/MODULE/PATH, HOST:PATH or /PATH")
        if name == "store":
            message = "the name store is reserved for the tree of `envcheck store release`"
            raise ConfigError(message, fix="choose another name for the copy")
    if site.users and site.hf and not site.hf.tokens:
        message = "--users does not protect Hugging Face: hf sends no user and password"
        raise ConfigError(message, fix="pass --hf-tokens FILE too, or --no-hf")
    _check_networks(site)
    return site


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in lists and mappings, but for the names of keys."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from _texts(item)


def checked_url(url: str) -> str:
    """Return a URL. Raise ConfigError if it is not a URL."""
    if not _URL.fullmatch(url):
        refuse(f"{redacted(url)!r} is not a URL of an upstream", "write a URL with scheme and host")
    return url


def _check_networks(site: Site) -> None:
    try:
        beyond = [address for address in site.addresses if not ipaddress.ip_address(address).is_loopback]
        for network in site.allow:
            ipaddress.ip_network(network)
    except ValueError as error:
        raise ConfigError(str(error), fix="write an address as 192.0.2.10, a network as 192.0.2.0/24") from error
    if beyond and site.tls is None:
        message = f"other machines can reach {beyond[0]}, but the site has no TLS"
        raise ConfigError(message, fix="pass --tls CERTIFICATE KEY, or a loopback --address")


def read(root: Path) -> Site:
    """Return the site that was rendered into a directory."""
    path = root / "site.json"
    try:
        site = msgspec.json.decode(path.read_bytes(), type=Site)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        message = f"{path}: cannot read a mirror site: {error}"
        raise ConfigError(message, fix=f"run `envcheck mirror site render {root}` without --offline") from error
    if Path(site.root) != root.absolute():
        refuse(f"{path} was made for {site.root}", f"run `envcheck mirror site render {root}` without --offline")
    return site

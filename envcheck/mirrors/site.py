"""A mirror site: its addresses, upstreams and ports, as stored in its site.json, and the files that it is rendered to.

The same site gives the same texts; all upstreams come from the site. compose.yaml and systemd/ start the same parts:
docker compose or systemd runs them, envcheck does not. parts.toml.j2 says what they are. rendered.json lists the
written files with their hashes; no other file is ever removed.
"""

import contextlib
import hashlib
import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

from envcheck import safe_files
from envcheck.data import data_path, rendered
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


def checked(site: Site) -> Site:
    """Return the site. Raise ConfigError for values that are unsafe or that nginx would misread."""
    for text in _texts(msgspec.to_builtins(site)):
        if _UNSAFE.search(text) or not text.isprintable():
            refuse(f"{redacted(text)!r}: a blank or one of \"'`$\\;{{}}#%<>|&() in a path or URL", "use another name")
    endpoint = [site.hf.endpoint] if site.hf and site.hf.endpoint else []
    for url in [*site.origins, *(registry.url for registry in site.registries), *site.trees.values(), *endpoint]:
        checked_url(url)
    for name in [*(registry.name for registry in site.registries), *site.sync, *site.trees]:
        if not _NAME.fullmatch(name):
            refuse(f"{name!r} is not a valid name for a part of the site", "use letters, digits, dots and dashes")
    for name, source in site.sync.items():
        if not _SOURCE.fullmatch(source):
            refuse(f"{name}: no rsync source, or has a password", "write rsync://HOST/MODULE/PATH, HOST:PATH or /PATH")
        if name == "store":
            refuse("the name store is reserved for `store release`", "choose another name for the copy")
    if site.users and site.hf and not site.hf.tokens:
        refuse("--users does not protect Hugging Face: hf sends no password", "pass --hf-tokens FILE too, or --no-hf")
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
        refuse(f"other machines reach {beyond[0]}, and the site has no TLS", "pass --tls, or a loopback --address")


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


_ONCE: Final = {
    "compose.yaml": "site/compose.yaml.j2",
    "mtail/mirror.mtail": "site/mirror.mtail.j2",
    "nginx/nginx.conf": "site/nginx.conf.j2",
    "prometheus/prometheus.yml": "site/prometheus.yml.j2",
    "prometheus/rules.yml": "site/rules.yml.j2",
    "systemd/envcheck-mirror.target": "site/target.j2",
}
_DIRECTORIES: Final = (
    *("cache/index", "cache/files", "cache/hf", "logs/olah", "run", "public/static", "state/metrics", "trees"),
)
_RENDERED: Final = "rendered.json"


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process. `program` is its name in the image, if it differs there; `build` is a Dockerfile of the image."""

    name: str
    argv: list[str]
    image: str
    build: list[str] = []
    reads: list[str] = []
    environment: dict[str, str] = {}
    program: str = ""


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A timer's task: `when` in systemd's syntax, `commands` in order, with the credentials of the part `like`."""

    name: str
    about: str
    when: str
    commands: list[str]
    like: str = ""
    environment: dict[str, str] = {}


class Programs(msgspec.Struct, frozen=True, kw_only=True):
    """What runs a site: its processes, nginx last, and the tasks of its timers."""

    parts: list[Part]
    tasks: list[Task]


def programs(site: Site) -> Programs:
    """Return what runs a site. Raise ConfigError for a site that cannot be rendered safely."""
    return msgspec.toml.decode(rendered("site/parts.toml.j2", {"site": checked(site)}), type=Programs)


def render(site: Site) -> dict[str, str]:
    """Return path below the site's directory -> text. Raise ConfigError for a site that cannot be rendered safely."""
    run = programs(site)
    context = {
        "site": site,
        "addresses": [f"[{address}]" if ":" in address else address for address in site.addresses],
        "netlocs": {origin: urlsplit(origin).netloc for origin in site.origins},
        "hf_netloc": urlsplit(site.hf.endpoint or "").netloc if site.hf else "",
        "places": _places(site),
        "parts": run.parts,
    }
    files = {path: rendered(template, context) for path, template in _ONCE.items()}
    files |= {path: rendered(template, {**context, **more}) for path, template, more in _each(site, run)}
    files["grafana/dashboard.json"] = data_path("templates").joinpath("site/dashboard.json").read_text(encoding="utf-8")
    files["client.yaml"] = _pretty(_client(site))
    files["site.json"] = _pretty(site)
    return dict(sorted(files.items()))


def _client(site: Site) -> dict[str, Any]:
    base, parts = site.at(site.port), {index.part for index in site.indexes}
    store = f"{base}/static/store" if site.store else None
    pypi = [f"{base}/pypi/simple"] if "pypi" in parts else []
    torch = [f"{base}/pytorch/whl/{{variant}}"] if "pytorch" in parts else []
    lists = {"pypi": pypi, "pytorch": torch}
    if store:
        lists = {"pypi": [*pypi, f"{store}/simple"], "pytorch": [*torch, f"{store}/whl/{{variant}}"]}
    profile: dict[str, Any] = {"name": "mirror-site"}
    profile |= {part: [{"url": url} for url in urls] for part, urls in lists.items() if urls}
    if site.hf:
        profile["hf"] = {"endpoint": site.at(site.hf.port), "token": "allow" if site.hf.tokens else "never"}
    if site.registries:
        plain = 0 if site.tls is None else len("https://")
        profile["registries"] = {registry.name: [site.at(registry.port)[plain:]] for registry in site.registries}
    return {**profile, "ca": site.client_ca} if site.client_ca else profile


def _pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode() + "\n"


def _each(site: Site, run: Programs) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield path, template and extra variables of each file that a site has several times or not at all."""
    unit = "systemd/envcheck-mirror-"
    for part in run.parts:
        yield f"{unit}{part.name}.service", "site/service.j2", {"part": part}
    for task in run.tasks:
        yield f"{unit}{task.name}.service", "site/task.service.j2", {"task": task}
        yield f"{unit}{task.name}.timer", "site/task.timer.j2", {"task": task}
    for name, source in site.sync.items():
        yield f"sync/{name}.sh", "site/sync.sh.j2", {"name": name, "source": source}
    if site.store:
        yield f"{unit}store.service", "site/store.service.j2", {}
        yield f"{unit}store.path", "site/store.path.j2", {}
    for registry in site.registries:
        yield f"registry/{registry.name}.yml", "site/registry.yml.j2", {"registry": registry}
    if site.hf and site.hf.inner:
        yield "olah/olah.toml", "site/olah.toml.j2", {}


def _places(site: Site) -> list[dict[str, str]]:
    """Return the locations that serve files: `at` on the site, `to` upstream; `variable` is the path below both."""
    near = [
        {"at": f"/{index.part}", "to": f"{index.origin}{index.parent}", "variable": f"{index.part}_path"}
        for index in site.indexes
    ]
    hosts = {origin: urlsplit(origin).netloc for origin in site.origins}
    return near + [{"at": f"/files/{host}", "to": origin, "variable": "files_path"} for origin, host in hosts.items()]


class RenderedFiles(NamedTuple):
    """The result of a render: names below the directory; `kept` maps edited files to their new names."""

    files: list[str]
    removed: list[str]
    kept: dict[str, str]


def write(root: Path, files: Mapping[str, str]) -> RenderedFiles:
    """Write all files below root, and remove files of an earlier render that are no longer rendered.

    Keep edited files under another name. Raise ConfigError if the directory is neither empty nor a site's.
    """
    refuse_foreign_directory(root)
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    before, removed, kept = _read_rendered(root), list[str](), dict[str, str]()
    hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    for name in [name for name in {**before, **files} if (root / name).is_file()]:
        if hashlib.sha256((root / name).read_bytes()).hexdigest() not in {before.get(name), hashes.get(name)}:
            kept[name] = _put_aside(root, name)
        elif name not in files:
            (root / name).unlink()
            removed.append(name)
        with contextlib.suppress(OSError):  # the directory holds other files
            (root / name).parent.rmdir()
    for name, text in {**files, _RENDERED: json.dumps(hashes, indent=1) + "\n"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        safe_files.put(root / name, text.encode())
    return RenderedFiles(list(files), removed, kept)


def refuse_foreign_directory(root: Path) -> None:
    """Raise ConfigError for a directory that is neither empty nor a site's."""
    if root.is_dir() and any(root.iterdir()) and not (root / "site.json").exists():
        refuse(f"{root} is not empty and not a mirror site", "name an empty directory")


def _read_rendered(root: Path) -> dict[str, str]:
    """Return name -> hash of the last render, or an empty mapping if the list cannot be read."""
    try:
        pairs = dict(json.loads((root / _RENDERED).read_bytes())).items()
    except (OSError, ValueError, TypeError):
        return {}
    return {name: str(digest) for name, digest in pairs if (root / name).resolve().is_relative_to(root.resolve())}


def _put_aside(root: Path, name: str) -> str:
    ends = (f"{name}.edited{number or ''}" for number in range(1 << 16))
    free = next(end for end in ends if not (root / end).exists())
    (root / name).rename(root / free)
    return free

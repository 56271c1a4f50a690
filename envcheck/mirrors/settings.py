"""A profile as the settings of each client: files, and notes on what the client cannot do with them.

Pure functions of a profile and RenderOptions; client-files.j2 has the files, client-notes.j2 the notes. No file holds
a secret: a client that can look one up gets the place.
"""

import re
import shlex
from typing import Any, Final

import msgspec

from envcheck.data import rendered
from envcheck.errors import refuse
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Credential, Index, Profile, hf_environment, host_of


class RenderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to render settings for. `variant` is put into PyTorch indexes, `distro` and `suite` into apt's sources.

    `ca` is a bundle of this machine's roots and the profile's, or None. `before` lists the variables that an earlier
    `envcheck mirror show --format env` set. `local` keeps sources that are files on this machine.
    """

    variant: str | None = None
    distro: str | None = None
    suite: str | None = None
    ca: str | None = None
    before: tuple[str, ...] = ()
    local: bool = True


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Files by path, and what the client cannot do with them, in sentences."""

    files: dict[str, str]
    notes: list[str] = msgspec.field(default_factory=list, name="cannot")


# Where each file is; `~/` is the user's home.
_PATHS: Final = {
    "pip": "~/.config/pip/pip.conf",
    "uv": "~/.config/uv/uv.toml",
    "hf": "hf.env",
    "apt": "/etc/apt/sources.list.d/envcheck.sources",
    "conda": "~/.condarc",
    "npm": "~/.npmrc",
    "buildkitd": "/etc/buildkit/buildkitd.toml",
    "daemon": "/etc/docker/daemon.json",
    "registries": "/etc/containers/registries.conf.d/envcheck.conf",
    "env": "envcheck.sh",
}
FORMATS: Final = tuple(_PATHS)


def settings_of(profile: Profile, format_name: str, options: RenderOptions) -> ClientSettings:
    """Return the settings of one client; no files if the profile has nothing for it."""
    files = {_PATHS[format_name]: client_file(profile, format_name, options)}
    files = {path: text for path, text in (_apt(profile, options) if format_name == "apt" else files).items() if text}
    return ClientSettings(files=files, notes=notes(profile, format_name, options, sets=bool(files)))


def client_file(profile: Profile, format_name: str, options: RenderOptions) -> str:
    """Return a client's file, empty if the profile has nothing for it."""
    text = rendered("client-files.j2", _context(profile, format_name, options)).strip()
    return f"{text}\n" if text else ""


def render(profile: Profile, format_name: str, options: RenderOptions) -> ClientSettings:
    """Return the settings of one client. Raise ConfigError if the profile has nothing for it."""
    settings = settings_of(profile, format_name, options)
    if not settings.files:
        refuse(
            f"{profile.name}: {'; '.join([f'the profile sets nothing for {format_name}', *settings.notes])}",
            "see `envcheck mirror show` for what it sets, or pass another profile",
        )
    return settings


def notes(profile: Profile, format_name: str, options: RenderOptions, *, sets: bool) -> list[str]:
    """Return what a client cannot do with its settings. The format "torch" is the index of PyTorch by itself."""
    lines = rendered("client-notes.j2", {**_context(profile, format_name, options), "sets": sets}).splitlines()
    return [line for line in lines if line.strip()]


def _context(profile: Profile, format_name: str, options: RenderOptions) -> dict[str, Any]:
    # The command line of `env` names the variant, so its note keeps the placeholder.
    variant = options.variant or ("{variant}" if format_name == "env" else None)
    shown = msgspec.structs.replace(options, variant=variant)
    simple, links = (_urls(profile.pypi, options, kind) for kind in ("simple", "find-links"))
    torch_simple, torch_links = (_urls(profile.pytorch, shown, kind) for kind in ("simple", "find-links"))
    listed = mirrors(profile)
    hub = [name if "://" in name else f"https://{name}" for name in listed.get(_DOCKER_HUB, [])]
    words = _exports(profile, options)
    unset = [name for name in (*options.before, *([SET_VARIABLE] if options.before else [])) if _NAME.fullmatch(name)]
    return {
        "profile": profile,
        "format": format_name,
        "options": options,
        "ca": options.ca or profile.ca,
        "host": host_of,
        "secret": lambda url: profile.credentials.get(host_of(url)),
        "simple": simple,
        "links": links,
        "torch_simple": torch_simple,
        "torch_links": torch_links,
        "no_variant": variant is None and any("{variant}" in index.url for index in profile.pytorch),
        "private_indexes": any(profile.credentials.get(host_of(i.url)) for i in [*profile.pypi, *profile.pytorch]),
        "private_apt": profile.netrc or any(profile.credentials.get(host_of(url)) for url in profile.apt),
        "private_registries": ", ".join(host for host, _ in _registry_hosts(profile) if host in profile.credentials),
        "conda": {key: value for key, value in msgspec.to_builtins(profile.conda).items() if value},
        "hub_variables": _hub_variables(profile),
        "mirrors": listed,
        "registry_hosts": _registry_hosts(profile),
        "all_hub": hub,
        "hub": [url for url in hub if "/" not in url.partition("://")[2].rstrip("/")],  # dockerd takes no path
        "words": words,
        "unset": unset,
        "set_variable": SET_VARIABLE,
    }


def _urls(indexes: list[Index], options: RenderOptions, kind: str) -> list[str]:
    """Return the URLs of one kind, with the variant put in, without the client's default."""
    selected = [i for i in indexes if i.kind == kind and i.url != CLIENT_DEFAULT and (options.local or i.local is None)]
    urls = [i.url for i in selected if options.variant is not None or "{variant}" not in i.url]
    return [url.replace("{variant}", options.variant or "") for url in urls]


def _hub_variables(profile: Profile) -> dict[str, str]:
    variables = hf_environment(profile) if profile.hf.endpoint is not None else {}
    return variables | ({"MODELSCOPE_DOMAIN": profile.modelscope} if profile.modelscope is not None else {})


# Debian's suites without updates and security suites.
_ROLLING: Final = frozenset({"sid", "unstable", "experimental"})
_LISTS_DIRECTORY: Final = "/etc/apt/envcheck"


def _apt(profile: Profile, options: RenderOptions) -> dict[str, str]:
    """Return the sources and lists of mirrors for this machine's distribution, and the CA of their hosts."""
    if not profile.apt or options.suite is None or options.distro not in ("debian", "ubuntu"):
        return {}
    files_by_name = apt_sources_of(profile.apt, options.distro, options.suite, _LISTS_DIRECTORY)
    files = {_PATHS["apt"]: files_by_name.pop("envcheck.sources")}
    files |= {f"{_LISTS_DIRECTORY}/{name}": text for name, text in files_by_name.items()}
    hosts = dict.fromkeys(host_of(url).partition(":")[0] for url in profile.apt if url.startswith("https://"))
    lines = [f'Acquire::https::{host}::CAInfo "{profile.ca}";\n' for host in hosts if profile.ca]
    return {**files, "/etc/apt/apt.conf.d/80envcheck": "".join(lines)}


def apt_sources_of(bases: list[str], distro: str, suite: str, lists: str) -> dict[str, str]:
    """Return file name -> content: the sources, and a list of mirrors for each archive, which apt reads at `lists`."""
    archives = {"debian": [suite, f"{suite}-updates"], "debian-security": [f"{suite}-security"]}
    if distro == "ubuntu":
        archives = {"ubuntu": [suite, f"{suite}-updates", f"{suite}-security"]}
    elif suite in _ROLLING:
        archives = {"debian": [suite]}
    context = {"format": "apt-sources", "distro": distro, "archives": archives, "lists": lists}
    files = {"envcheck.sources": rendered("client-files.j2", context).rstrip("\n") + "\n"}
    for archive in archives:
        lines = [f"{base.rstrip('/')}/{archive}\tpriority:{n}\n" for n, base in enumerate(bases, 1)]
        files[f"{archive}.mirrors"] = "".join(lines)
    return files


_DOCKER_HUB: Final = "docker.io"


def mirrors(profile: Profile) -> dict[str, list[str]]:
    """Return upstream -> its mirrors. `registry`, which serves the bases, mirrors Docker Hub unless one is named."""
    if _DOCKER_HUB not in profile.registries and profile.registry is not None:
        return {_DOCKER_HUB: [profile.registry], **profile.registries}
    return dict(profile.registries)


def _registry_hosts(profile: Profile) -> list[tuple[str, bool]]:
    """Return each mirror's host once, and whether it has no TLS."""
    hosts: dict[str, bool] = {}
    for name in (mirror for of_upstream in mirrors(profile).values() for mirror in of_upstream):
        hosts.setdefault((name.partition("://")[2] or name).partition("/")[0], name.startswith("http://"))
    return list(hosts.items())


# Lists the variables that an earlier call set, so that the next call can unset them.
SET_VARIABLE: Final = "ENVCHECK_MIRROR_SET"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# For uv, current pip and huggingface_hub; for pip before 24.2, overriding its file; for programs that use requests.
_CA_VARIABLES: Final = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
# uv splits its list at commas, pip at blanks.
_SEPARATOR: Final = re.compile(r"[\s,]")


def _exports(profile: Profile, options: RenderOptions) -> dict[str, str]:
    simple, links = (_urls(profile.pypi, options, kind) for kind in ("simple", "find-links"))
    private = profile.credentials.get(host_of(simple[0])) if simple else None
    splits = any(map(_SEPARATOR.search, links))
    values: dict[str, str | None] = {
        "PIP_INDEX_URL": simple[0] if simple else None,
        "UV_DEFAULT_INDEX": (f"pypi-mirror={simple[0]}" if private else simple[0]) if simple else None,
        "PIP_FIND_LINKS": None if splits else " ".join(links) or None,
        "UV_FIND_LINKS": None if splits else ",".join(links) or None,
        "CONDA_CHANNEL_ALIAS": profile.conda.channel_alias,
        "NPM_CONFIG_REGISTRY": profile.npm,
        "NETRC": profile.netrc,
        **dict.fromkeys(_CA_VARIABLES, options.ca or profile.ca),
        **_hub_variables(profile),
    }
    words = {name: shlex.quote(value) for name, value in values.items() if value is not None}
    if private is not None:  # the user of a token is `__token__`
        words["UV_INDEX_PYPI_MIRROR_USERNAME"] = shlex.quote(private.user or "__token__")
        words["UV_INDEX_PYPI_MIRROR_PASSWORD"] = _secret_word(private)
    token = profile.credentials.get(host_of(profile.hf.endpoint)) if profile.hf.endpoint else None
    if token is not None and token.user is None and profile.hf.token == "allow":  # noqa: S105 (a policy)
        words["HF_TOKEN"] = _secret_word(token)
    return words


def _secret_word(secret: Credential) -> str:
    variable, file = secret.password_env or secret.token_env, secret.password_file or secret.token_file
    return f'"${{{variable}-}}"' if variable else f'"$(cat -- {shlex.quote(file or "")})"'

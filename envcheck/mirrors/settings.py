"""A profile as the settings of each client: files, and notes on what the client cannot do with them.

Pure functions of a profile and RenderOptions; client-notes.j2 has the notes. Files have their paths on a machine; `~/`
is the user's home. No file holds a secret: a client that can look one up gets the place.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from envcheck.data import rendered
from envcheck.errors import ConfigError
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


def settings_of(profile: Profile, format_name: str, options: RenderOptions) -> ClientSettings:
    """Return the settings of one client; no files if the profile has nothing for it."""
    files = {path: text for path, text in FORMATS[format_name](profile, options).items() if text.strip()}
    return ClientSettings(files=files, notes=notes(profile, format_name, options, sets=bool(files)))


def render(profile: Profile, format_name: str, options: RenderOptions) -> ClientSettings:
    """Return the settings of one client. Raise ConfigError if the profile has nothing for it."""
    settings = settings_of(profile, format_name, options)
    if not settings.files:
        message = f"{profile.name}: {'; '.join([f'the profile sets nothing for {format_name}', *settings.notes])}"
        raise ConfigError(message, fix="see `envcheck mirror show` for what it sets, or pass another profile")
    return settings


def notes(profile: Profile, format_name: str, options: RenderOptions, *, sets: bool) -> list[str]:
    """Return what a client cannot do with its settings. The format "torch" is the index of PyTorch by itself."""
    # The command line of `env` names the variant, so its note keeps the placeholder.
    shown = (
        options if format_name != "env" else msgspec.structs.replace(options, variant=options.variant or "{variant}")
    )
    simple, links = (_urls(profile.pypi, options, kind) for kind in ("simple", "find-links"))
    torch = [*_urls(profile.pytorch, shown, "simple")[:1], *_urls(profile.pytorch, shown, "find-links")[:1]]
    option = "--index-url" if _urls(profile.pytorch, shown, "simple") else "--no-index --find-links"
    named = [*profile.pypi, *profile.pytorch]
    hub = _hub_mirrors(profile)
    context: dict[str, Any] = {
        "profile": profile,
        "format": format_name,
        "options": options,
        "sets": sets,
        "host": host_of,
        "secret": lambda url: _secret_of(profile, url),
        "simple": simple,
        "links": links,
        "others": ", ".join(host_of(url) or url for url in simple[1:]),
        "no_variant": shown.variant is None and any("{variant}" in index.url for index in profile.pytorch),
        "torch_option": f"{option} {torch[0]}" if torch else "",
        "private_indexes": any(_secret_of(profile, index.url) for index in named),
        "private_apt": profile.netrc or any(_secret_of(profile, url) for url in profile.apt),
        "private_registries": ", ".join(host for host, _ in _registry_hosts(profile) if host in profile.credentials),
        "other_upstreams": ", ".join(upstream for upstream in mirrors(profile) if upstream != _DOCKER_HUB),
        "with_path": len(hub) - len(_without_path(hub)),
    }
    lines = rendered("client-notes.j2", context).splitlines()
    return [line for line in lines if line.strip()]


def _urls(indexes: list[Index], options: RenderOptions, kind: str) -> list[str]:
    """Return the URLs of one kind, with the variant put in, without the client's default."""
    selected = [i for i in indexes if i.kind == kind and i.url != CLIENT_DEFAULT and (options.local or i.local is None)]
    urls = [i.url for i in selected if options.variant is not None or "{variant}" not in i.url]
    return [url.replace("{variant}", options.variant or "") for url in urls]


def _secret_of(profile: Profile, url: str) -> Credential | None:
    return profile.credentials.get(host_of(url))


def pip_conf(profile: Profile, options: RenderOptions) -> str:
    """Return pip.conf with one index, because pip has no order among several: only `[global]` if nothing is set."""
    simple, links = (_urls(profile.pypi, options, kind) for kind in ("simple", "find-links"))
    ca = (options.ca or profile.ca) if options.local else None
    lines = ["[global]"]
    lines += [f"index-url = {simple[0]}"] if simple else []
    lines += ["find-links =", *(f"    {url}" for url in links)] if links else []
    lines += [f"cert = {ca}"] if ca else []
    return "\n".join(lines) + "\n"


def _pip(profile: Profile, options: RenderOptions) -> dict[str, str]:
    text = pip_conf(profile, options)
    return {"~/.config/pip/pip.conf": text} if text.count("\n") > 1 else {}


def uv_toml(profile: Profile, options: RenderOptions) -> str:
    """Return uv.toml: one default index, and PyTorch's as an explicit one; blank if nothing is set."""

    def index(name: str, url: str, lines: str) -> str:
        private = '\nauthenticate = "always"' if _secret_of(profile, url) else ""
        return f'[[index]]\nname = "{name}"\nurl = {json.dumps(url)}\n{lines}{private}'

    links = _urls(profile.pypi, options, "find-links")
    parts = [f"find-links = {json.dumps(links)}"] if links else []
    parts += [index(_PYPI, url, "default = true") for url in _urls(profile.pypi, options, "simple")[:1]]
    torch = [(url, "explicit = true") for url in _urls(profile.pytorch, options, "simple")]
    torch += [(url, 'format = "flat"\nexplicit = true') for url in _urls(profile.pytorch, options, "find-links")]
    parts += [index("pytorch-mirror", url, lines) for url, lines in torch[:1]]
    return "\n\n".join(parts) + "\n"


_PYPI: Final = "pypi-mirror"


def _hub_variables(profile: Profile) -> dict[str, str]:
    """Return the variables that make the hubs' clients use the profile's endpoints, if it names any."""
    variables = hf_environment(profile) if profile.hf.endpoint is not None else {}
    return variables | ({"MODELSCOPE_DOMAIN": profile.modelscope} if profile.modelscope is not None else {})


def _hf(profile: Profile, _options: RenderOptions) -> dict[str, str]:
    """Return NAME=value lines for `docker run --env-file` and systemd's EnvironmentFile."""
    return {"hf.env": "".join(f"{name}={value}\n" for name, value in _hub_variables(profile).items())}


def _conda(profile: Profile, options: RenderOptions) -> dict[str, str]:
    """Return .condarc, in JSON, which is YAML."""
    content = {key: value for key, value in msgspec.to_builtins(profile.conda).items() if value}
    ca = options.ca or profile.ca
    return {
        "~/.condarc": json.dumps({**content, **({"ssl_verify": ca} if ca else {})}, indent=2) + "\n" if content else ""
    }


def _npm(profile: Profile, options: RenderOptions) -> dict[str, str]:
    """Return .npmrc. npm itself replaces `${NAME}` by the variable."""
    if profile.npm is None:
        return {}
    ca, secret = options.ca or profile.ca, _secret_of(profile, profile.npm)
    text = f"registry={profile.npm}\n" + (f"cafile={ca}\n" if ca else "")
    if secret is not None and secret.token_env is not None:
        at = f"{host_of(profile.npm)}{urlsplit(profile.npm).path.rstrip('/')}"
        text += f"//{at}/:_authToken=${{{secret.token_env}}}\n"
    return {"~/.npmrc": text}


_KEYRINGS: Final = {
    "debian": "/usr/share/keyrings/debian-archive-keyring.gpg",
    "ubuntu": "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
}
_COMPONENTS: Final = {"debian": "main", "ubuntu": "main universe"}
# Debian's suites without updates and security suites.
_ROLLING: Final = frozenset({"sid", "unstable", "experimental"})
_LISTS_DIRECTORY: Final = "/etc/apt/envcheck"


def _apt(profile: Profile, options: RenderOptions) -> dict[str, str]:
    """Return the sources and lists of mirrors for this machine's distribution, and the CA of their hosts."""
    if not profile.apt or options.suite is None or options.distro not in _KEYRINGS:
        return {}
    files_by_name = apt_sources_of(profile.apt, options.distro, options.suite, _LISTS_DIRECTORY)
    files = {"/etc/apt/sources.list.d/envcheck.sources": files_by_name.pop("envcheck.sources")}
    files |= {f"{_LISTS_DIRECTORY}/{name}": text for name, text in files_by_name.items()}
    hosts = dict.fromkeys(host_of(url).partition(":")[0] for url in profile.apt if url.startswith("https://"))
    lines = [f'Acquire::https::{host}::CAInfo "{profile.ca}";\n' for host in hosts if profile.ca]
    return {**files, "/etc/apt/apt.conf.d/80envcheck": "".join(lines)}


def apt_sources_of(bases: list[str], distro: str, suite: str, lists: str) -> dict[str, str]:
    """Return file name -> content: the sources, and a list of mirrors for each archive, which apt reads at `lists`.

    deb822 with a list of mirrors: after a dead host or a 404, apt tries the next one.
    """
    archives = {"debian": [suite, f"{suite}-updates"], "debian-security": [f"{suite}-security"]}
    if distro == "ubuntu":
        archives = {"ubuntu": [suite, f"{suite}-updates", f"{suite}-security"]}
    elif suite in _ROLLING:
        archives = {"debian": [suite]}
    files, stanzas = {}, []
    for archive, suites in archives.items():
        lines = [f"{base.rstrip('/')}/{archive}\tpriority:{n}" for n, base in enumerate(bases, 1)]
        files[f"{archive}.mirrors"] = "\n".join(lines) + "\n"
        stanzas.append(
            f"Types: deb\nURIs: mirror+file:{lists}/{archive}.mirrors\nSuites: {' '.join(suites)}\n"
            f"Components: {_COMPONENTS[distro]}\nSigned-By: {_KEYRINGS[distro]}\n"
        )
    return files | {"envcheck.sources": "\n".join(stanzas)}


_DOCKER_HUB: Final = "docker.io"


def mirrors(profile: Profile) -> dict[str, list[str]]:
    """Return upstream -> its mirrors. `registry`, which serves the bases, mirrors Docker Hub unless one is named."""
    if _DOCKER_HUB not in profile.registries and profile.registry is not None:
        return {_DOCKER_HUB: [profile.registry], **profile.registries}
    return dict(profile.registries)


def _bare(mirror: str) -> str:
    return mirror.partition("://")[2] or mirror


def _registry_hosts(profile: Profile) -> list[tuple[str, bool]]:
    """Return each mirror's host once, and whether it has no TLS."""
    names = [mirror for of_upstream in mirrors(profile).values() for mirror in of_upstream]
    hosts: dict[str, bool] = {}
    for name in names:
        hosts.setdefault(_bare(name).partition("/")[0], name.startswith("http://"))
    return list(hosts.items())


def _hub_mirrors(profile: Profile) -> list[str]:
    return [name if "://" in name else f"https://{name}" for name in mirrors(profile).get(_DOCKER_HUB, [])]


def _without_path(urls: list[str]) -> list[str]:
    return [url for url in urls if "/" not in _bare(url).rstrip("/")]


def _buildkitd(profile: Profile, _options: RenderOptions) -> dict[str, str]:
    """Return buildkitd.toml. `http` and `ca` belong to the mirror's host, not to its upstream (buildkit#6177)."""
    parts = []
    for upstream, names in mirrors(profile).items():
        listed = ", ".join(json.dumps(_bare(name)) for name in names)
        parts.append(f"[registry.{json.dumps(upstream)}]\n  mirrors = [{listed}]\n")
    for host, no_tls in _registry_hosts(profile):
        line = "http = true" if no_tls else f"ca = [{json.dumps(profile.ca)}]" if profile.ca else None
        parts += [f"[registry.{json.dumps(host)}]\n  {line}\n"] if line else []
    return {"/etc/buildkit/buildkitd.toml": "\n".join(parts)}


def _daemon(profile: Profile, _options: RenderOptions) -> dict[str, str]:
    """Return daemon.json, which supports mirrors of Docker Hub only."""
    urls = _without_path(_hub_mirrors(profile))
    insecure = [host for host, no_tls in _registry_hosts(profile) if no_tls]
    content = {"registry-mirrors": urls} | ({"insecure-registries": insecure} if insecure else {})
    return {"/etc/docker/daemon.json": json.dumps(content, indent=2) + "\n"} if urls else {}


def _registries(profile: Profile, _options: RenderOptions) -> dict[str, str]:
    """Return registries.conf (version 2) for podman, buildah and skopeo: the mirrors in order, then the origin."""
    parts = []
    for upstream, names in mirrors(profile).items():
        parts.append(f"[[registry]]\nprefix = {json.dumps(upstream)}\nlocation = {json.dumps(upstream)}\n")
        for name in names:
            insecure = "insecure = true\n" if name.startswith("http://") else ""
            parts.append(f"[[registry.mirror]]\nlocation = {json.dumps(_bare(name))}\n{insecure}")
    return {"/etc/containers/registries.conf.d/envcheck.conf": "\n".join(parts)}


# Lists the variables that an earlier call set, so that the next call can unset them.
SET_VARIABLE: Final = "ENVCHECK_MIRROR_SET"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# For uv, current pip and huggingface_hub; for pip before 24.2, overriding its file; for programs that use requests.
_CA_VARIABLES: Final = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
# uv splits its list at commas, pip at blanks.
_SEPARATOR: Final = re.compile(r"[\s,]")


def _env(profile: Profile, options: RenderOptions) -> dict[str, str]:
    """Return lines for a POSIX shell's `eval`: unset the variables of an earlier call, then set the profile's.

    The shell looks secrets up after that, so no host gets the secret of an earlier profile.
    """
    words = _exports(profile, options)
    unset = [name for name in (*options.before, *([SET_VARIABLE] if options.before else [])) if _NAME.fullmatch(name)]
    lines = [f"unset {name}" for name in unset] + [f"export {name}={word}" for name, word in words.items()]
    lines += [f"export {SET_VARIABLE}={shlex.quote(' '.join(words))}"] if words else []
    return {"envcheck.sh": "".join(f"{line}\n" for line in lines)}


def _exports(profile: Profile, options: RenderOptions) -> dict[str, str]:
    simple, links = (_urls(profile.pypi, options, kind) for kind in ("simple", "find-links"))
    private = _secret_of(profile, simple[0]) if simple else None
    splits = any(map(_SEPARATOR.search, links))
    values: dict[str, str | None] = {
        "PIP_INDEX_URL": simple[0] if simple else None,
        "UV_DEFAULT_INDEX": (f"{_PYPI}={simple[0]}" if private else simple[0]) if simple else None,
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
    token = _secret_of(profile, profile.hf.endpoint) if profile.hf.endpoint else None
    if token is not None and token.user is None and profile.hf.token == "allow":  # noqa: S105 (a policy)
        words["HF_TOKEN"] = _secret_word(token)
    return words


def _secret_word(secret: Credential) -> str:
    variable, file = secret.password_env or secret.token_env, secret.password_file or secret.token_file
    return f'"${{{variable}-}}"' if variable else f'"$(cat -- {shlex.quote(file or "")})"'


FORMATS: Final[Mapping[str, Callable[[Profile, RenderOptions], dict[str, str]]]] = {
    "pip": _pip,
    "uv": lambda profile, options: {"~/.config/uv/uv.toml": uv_toml(profile, options)},
    "hf": _hf,
    "apt": _apt,
    "conda": _conda,
    "npm": _npm,
    "buildkitd": _buildkitd,
    "daemon": _daemon,
    "registries": _registries,
    "env": _env,
}

"""The `host` profile: this machine's own configuration of pip, uv, apt and certificates."""

import configparser
import os
import re
import ssl
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, Final

import msgspec

from envcheck.errors import ConfigError, refuse
from envcheck.mirrors.profiles.model import (
    CLIENT_DEFAULT,
    HuggingFace,
    Index,
    Profile,
    has_userinfo,
    redacted,
)


class AptSource(msgspec.Struct, frozen=True, kw_only=True):
    """The archives of one distribution: URIs and the suites that they serve."""

    uris: list[str]
    suites: list[str]


def _deb822(text: str) -> list[AptSource]:
    sources = []
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n[ \t]*\n", lines):
        fields = dict(re.findall(r"^([\w-]+):[ \t]*(.*(?:\n[ \t]+.*)*)", stanza, re.MULTILINE))
        values = {key.lower(): value.split() for key, value in fields.items()}
        if "deb" in values.get("types", []) and values.get("enabled", ["yes"]) != ["no"]:
            sources.append(AptSource(uris=values.get("uris", []), suites=values.get("suites", [])))
    return sources


def _one_line(text: str) -> list[AptSource]:
    pattern = re.compile(r"^\s*deb\s+(?:\[[^\]]*\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)", re.MULTILINE)
    return [AptSource(uris=[m["uri"]], suites=[m["suite"]]) for m in pattern.finditer(text)]


def base_urls(sources: Iterable[AptSource], distro: str, suite: str) -> list[str]:
    """Return the base URLs, without `/debian` or `/ubuntu`, that serve this suite of the distribution."""
    path = f"/{distro}"
    uris = (uri.rstrip("/") for s in sources if suite in s.suites for uri in s.uris)
    bases = [uri.removesuffix(path) for uri in uris if uri.endswith(path)]
    return list(dict.fromkeys(base for base in bases if base.startswith(("http://", "https://"))))


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of a package client: the index that replaces its default, or None, and the others in order."""

    index: str | None = None
    extra: list[str] = []
    find_links: list[str] = []
    cert: str | None = None


def pip_config(files: Iterable[tuple[PurePath, str]], environ: Mapping[str, str]) -> ClientConfig:
    """Return pip's configuration. A later file overrides an earlier one, `install` `global`, a variable all."""
    pairs = [pair for path, text in files for pair in _pip_file(path, text)]
    pairs += [(name.removeprefix("PIP_"), value) for name, value in environ.items() if name.startswith("PIP_")]
    merged = {key.lower().replace("_", "-").removeprefix("--"): value for key, value in pairs if value}
    return ClientConfig(
        index=merged.get("index-url"),
        extra=merged.get("extra-index-url", "").split(),
        find_links=merged.get("find-links", "").split(),
        cert=merged.get("cert"),
    )


def _pip_file(path: PurePath, text: str) -> list[tuple[str, str]]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text, str(path))
    except configparser.Error as error:
        refuse(f"{path}: {str(error).splitlines()[0]}", "correct the file, or set PIP_CONFIG_FILE to another one")
    return [pair for section in ("global", "install") if parser.has_section(section) for pair in parser.items(section)]


def uv_config(files: Iterable[tuple[PurePath, str]], environ: Mapping[str, str]) -> ClientConfig:
    """Return uv's configuration from its files (system, then user) and variables. `[[index]]` tables stay in order."""
    layers = [*(_uv_file(path, text) for path, text in files), _uv_environment(environ)][::-1]
    return ClientConfig(
        index=next((layer.index for layer in layers if layer.index), None),
        extra=list(dict.fromkeys(url for layer in layers for url in layer.extra)),
        find_links=list(dict.fromkeys(url for layer in layers for url in layer.find_links)),
        cert=next((layer.cert for layer in layers if layer.cert), None),
    )


def _uv_environment(environ: Mapping[str, str]) -> ClientConfig:
    named = [_url_of(entry) for entry in environ.get("UV_INDEX", "").split()]
    return ClientConfig(
        index=_url_of(environ.get("UV_DEFAULT_INDEX", "")) or _url_of(environ.get("UV_INDEX_URL", "")) or None,
        extra=named + environ.get("UV_EXTRA_INDEX_URL", "").split(),
        find_links=[part for part in environ.get("UV_FIND_LINKS", "").replace(",", " ").split() if part],
        cert=environ.get("SSL_CERT_FILE") or None,
    )


def _url_of(entry: str) -> str:
    """Return the URL of uv's `name=url`, which may have blanks around it. An `=` inside a query does not separate."""
    name, separator, url = entry.partition("=")
    return (url if separator and "/" not in name else entry).strip()


def _uv_file(path: PurePath, text: str) -> ClientConfig:
    try:
        data = msgspec.toml.decode(text.encode(), type=dict[str, Any])
        tables = [*data.get("index", []), *data.get("pip", {}).get("index", [])]
        plain = {**data.get("pip", {}), **data}
        default = next((t["url"] for t in tables if t.get("default")), plain.get("index-url"))
        extra = [*(t["url"] for t in tables if not t.get("default")), *plain.get("extra-index-url", [])]
    except (msgspec.MsgspecError, RecursionError, KeyError, TypeError, AttributeError) as error:
        refuse(f"{path}: {error}", "correct the file (`uv pip list` refuses it too)")
    return ClientConfig(index=default, extra=extra, find_links=plain.get("find-links", []))


_CA_VARIABLES: Final = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_CERTIFICATE: Final = re.compile(r"-----BEGIN (\w+ )?CERTIFICATE-----.*?-----END (\w+ )?CERTIFICATE-----", re.DOTALL)
_TORCH_INDEX: Final = re.compile(r"/whl/(cpu|cu[0-9]+)/?$")


def host_profile(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> Profile:
    """Return the profile from this machine's configuration; tests set `root` to another directory with an /etc."""
    environ = os.environ if environ is None else environ
    home = Path(environ.get("HOME") or "/root")
    uv = uv_config(_read_existing(_uv_files(environ, root, home)), environ)
    pip = pip_config(_read_existing(_pip_files(environ, root, home)), environ)
    ca = next((path for path in [*map(environ.get, _CA_VARIABLES), pip.cert] if path), None)
    netrc = Path(environ.get("NETRC") or home / ".netrc")
    hf = HuggingFace(endpoint=environ.get("HF_ENDPOINT") or None)
    return merge(uv, pip, ca=ca, netrc=str(netrc) if netrc.is_file() else None, hf=hf)


def merge(uv: ClientConfig, pip: ClientConfig, *, ca: str | None, netrc: str | None, hf: HuggingFace) -> Profile:
    """Return one profile from the settings of uv and pip, uv first. Raise ConfigError for a password in a URL."""
    default = uv.index or pip.index or CLIENT_DEFAULT
    extra = list(dict.fromkeys([*uv.extra, *pip.extra]))
    links = [Index(url=url, kind="find-links") for url in dict.fromkeys([*uv.find_links, *pip.find_links])]
    for url in [default, *extra, *(link.url for link in links), hf.endpoint or ""]:
        what = "password" if has_userinfo(url) else "query" if "?" in url else None
        if what:
            message = f"this machine's pip, uv or HF configuration has a {what} in {redacted(url)}"
            raise ConfigError(message, fix="move the secret to ~/.netrc, which reaches a build as a secret only")
    torch = [Index(url=_TORCH_INDEX.sub("/whl/{variant}", url)) for url in extra if _TORCH_INDEX.search(url)]
    simple = [Index(url=url) for url in [default, *(u for u in extra if not _TORCH_INDEX.search(u))]]
    return Profile(name="host", pypi=[*simple, *links], pytorch=[*torch, *links], ca=ca, netrc=netrc, hf=hf)


def apt_sources(root: Path = Path("/")) -> list[AptSource]:
    """Return this machine's enabled apt sources, an empty list if it has no apt."""
    etc = root / "etc/apt"
    files = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]
    parsers = {".list": _one_line, ".sources": _deb822}
    read = _read_existing([path for path in files if path.suffix in parsers])
    return [source for path, text in read for source in parsers[path.suffix](text)]


def system_roots(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the PEM file of the certificates that this machine trusts, or None if there is none."""
    environ = os.environ if environ is None else environ
    configured = [environ[v] for v in _CA_VARIABLES if environ.get(v)]
    system = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"]
    return next((Path(p) for p in [*configured, *system] if Path(p).is_file()), None)


def ca_bundle(profile: Profile, environ: Mapping[str, str] | None = None) -> str | None:
    """Return this machine's roots and the profile's as PEM text, because SSL_CERT_FILE replaces all other roots.

    Return certificates only: comments between them do not belong in a build.
    """
    if profile.ca is None:
        return None
    roots = system_roots(environ)
    default = ssl.get_default_verify_paths().cafile
    texts = [Path(path).read_text() for path in dict.fromkeys([str(roots) if roots else default, profile.ca]) if path]
    return certificates(texts)


def certificates(texts: Iterable[str]) -> str:
    """Return the certificates in PEM texts, each once, without the text between them."""
    return "\n".join(dict.fromkeys(match[0] for text in texts for match in _CERTIFICATE.finditer(text))) + "\n"


def distribution(root: Path = Path("/")) -> tuple[str | None, str | None]:
    """Return the distribution and the code name of its release from /etc/os-release."""
    file = root / "etc/os-release"
    text = file.read_text(errors="replace") if file.is_file() else ""
    fields = dict(re.findall(r'^([A-Z_]+)="?([^"\n]*)"?$', text, re.MULTILINE))
    return fields.get("ID"), fields.get("VERSION_CODENAME")


def _read_existing(paths: list[Path]) -> list[tuple[Path, str]]:
    try:
        return [(path, path.read_text()) for path in paths if path.is_file()]
    except (OSError, UnicodeDecodeError) as error:
        message = f"this machine's configuration cannot be read: {error}"
        raise ConfigError(message, fix="make the file readable, or write a mirror profile of your own") from error


def _pip_files(environ: Mapping[str, str], root: Path, home: Path) -> list[Path]:
    chosen = environ.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return []
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [root / "etc/xdg/pip/pip.conf", root / "etc/pip.conf"]
    files += [home / ".pip/pip.conf", config / "pip/pip.conf"]
    files += [Path(environ.get("VIRTUAL_ENV") or sys.prefix) / "pip.conf"]
    return [*files, Path(chosen)] if chosen else files


def _uv_files(environ: Mapping[str, str], root: Path, home: Path) -> list[Path]:
    if environ.get("UV_NO_CONFIG"):
        return []
    if environ.get("UV_CONFIG_FILE"):
        return [Path(environ["UV_CONFIG_FILE"])]
    return [root / "etc/uv/uv.toml", Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "uv/uv.toml"]

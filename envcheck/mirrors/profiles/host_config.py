"""The `host` profile: this machine's own configuration of pip, uv, apt and certificates."""

from __future__ import annotations

import os
import re
import ssl
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from envcheck.errors import ConfigError
from envcheck.mirrors.profiles.apt_config import AptSource, parse_sources
from envcheck.mirrors.profiles.model import (
    CLIENT_DEFAULT,
    HuggingFace,
    Index,
    Profile,
    has_userinfo,
    redacted,
    without_query,
)
from envcheck.mirrors.profiles.pip_config import ClientConfig, pip_config, uv_config

_CA_VARIABLES: Final = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_CERTIFICATE: Final = re.compile(r"-----BEGIN (\w+ )?CERTIFICATE-----.*?-----END (\w+ )?CERTIFICATE-----", re.DOTALL)
_TORCH_INDEX: Final = re.compile(r"/whl/(cpu|cu[0-9]+)/?$")


def host_profile(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> Profile:
    """Return the profile from this machine's configuration; tests set `root` to another directory with an /etc."""
    environ = os.environ if environ is None else environ
    home = Path(environ.get("HOME") or "/root")
    uv = uv_config(_read_existing(_uv_files(environ, root, home)), environ)
    pip = pip_config(_read_existing(_pip_files(environ, root, home)), environ)
    return merge(uv, pip, ca=_ca(environ, pip), netrc=_netrc(environ, home), hf=_hf(environ))


def merge(uv: ClientConfig, pip: ClientConfig, *, ca: str | None, netrc: str | None, hf: HuggingFace) -> Profile:
    """Return one profile from the settings of uv and pip, uv first. Raise ConfigError for a password in a URL."""
    default = uv.index or pip.index or CLIENT_DEFAULT
    extra = list(dict.fromkeys([*uv.extra, *pip.extra]))
    links = [Index(url=url, kind="find-links") for url in dict.fromkeys([*uv.find_links, *pip.find_links])]
    for url in [default, *extra, *(link.url for link in links), hf.endpoint or ""]:
        if has_userinfo(url):
            message = f"this machine's pip, uv or HF configuration has a password in {redacted(url)}"
            raise ConfigError(message, fix="move user and password to ~/.netrc, which reaches a build as a secret only")
        if without_query(url) != url:
            message = f"this machine's pip, uv or HF configuration has a query in {redacted(url)}"
            raise ConfigError(
                message, fix="remove the query; move a token to ~/.netrc, which reaches a build as a secret only"
            )
    torch = [Index(url=_TORCH_INDEX.sub("/whl/{variant}", url)) for url in extra if _TORCH_INDEX.search(url)]
    simple = [Index(url=url) for url in [default, *(u for u in extra if not _TORCH_INDEX.search(u))]]
    return Profile(name="host", pypi=[*simple, *links], pytorch=[*torch, *links], ca=ca, netrc=netrc, hf=hf)


def apt_sources(root: Path = Path("/")) -> list[AptSource]:
    """Return this machine's enabled apt sources, an empty list if it has no apt."""
    etc = root / "etc/apt"
    files = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]
    return parse_sources(
        (path.name, text) for path, text in _read_existing(files) if path.suffix in {".list", ".sources"}
    )


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
    blocks = [match[0] for text in texts for match in _CERTIFICATE.finditer(text)]
    return "\n".join(dict.fromkeys(blocks)) + "\n"


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
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return [root / "etc/uv/uv.toml", config / "uv/uv.toml"]


def _ca(environ: Mapping[str, str], pip: ClientConfig) -> str | None:
    configured = [environ.get(variable) for variable in _CA_VARIABLES]
    return next((path for path in [*configured, pip.cert] if path), None)


def _netrc(environ: Mapping[str, str], home: Path) -> str | None:
    path = Path(environ.get("NETRC") or home / ".netrc")
    return str(path) if path.is_file() else None


def _hf(environ: Mapping[str, str]) -> HuggingFace:
    return HuggingFace(endpoint=environ.get("HF_ENDPOINT") or None)

"""The configuration of pip and uv on this machine, read and merged as those programs do it."""

from __future__ import annotations

import configparser
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

import msgspec

from envcheck.errors import ConfigError


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of a package client: the index that replaces its default, or None, and the others in order."""

    index: str | None = None
    extra: list[str] = []
    find_links: list[str] = []
    cert: str | None = None


def pip_config(files: Iterable[tuple[PurePath, str]], environ: Mapping[str, str]) -> ClientConfig:
    """Return pip's configuration. A later file overrides an earlier one, `install` `global`, a variable all."""
    merged: dict[str, str] = {}
    for path, text in files:
        merged |= _pip_file(path, text)
    merged |= {_option_name(k.removeprefix("PIP_")): v for k, v in environ.items() if k.startswith("PIP_") and v}
    return ClientConfig(
        index=merged.get("index-url"),
        extra=merged.get("extra-index-url", "").split(),
        find_links=merged.get("find-links", "").split(),
        cert=merged.get("cert"),
    )


def _pip_file(path: PurePath, text: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text, str(path))
    except configparser.Error as error:
        reason = str(error).splitlines()[0]
        message = f"{path}: {reason}"
        raise ConfigError(message, fix="correct the file, or set PIP_CONFIG_FILE to another one") from error
    sections = [s for s in ("global", "install") if parser.has_section(s)]
    return {_option_name(key): value for section in sections for key, value in parser.items(section) if value}


def _option_name(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


def uv_config(files: Iterable[tuple[PurePath, str]], environ: Mapping[str, str]) -> ClientConfig:
    """Return uv's configuration from its files (system, then user) and variables. `[[index]]` tables stay in order."""
    merged = ClientConfig()
    for path, text in files:
        merged = _overridden(merged, _uv_file(path, text))
    return _overridden(merged, _uv_environment(environ))


def _uv_environment(environ: Mapping[str, str]) -> ClientConfig:
    named = [_url_of(entry) for entry in environ.get("UV_INDEX", "").split()]
    return ClientConfig(
        index=_url_of(environ.get("UV_DEFAULT_INDEX", "")) or environ.get("UV_INDEX_URL") or None,
        extra=named + environ.get("UV_EXTRA_INDEX_URL", "").split(),
        find_links=[part for part in environ.get("UV_FIND_LINKS", "").replace(",", " ").split() if part],
        cert=environ.get("SSL_CERT_FILE") or None,
    )


def _url_of(entry: str) -> str:
    """Return the URL of uv's `name=url`. An `=` inside the query of a URL does not separate."""
    name, separator, url = entry.partition("=")
    return url if separator and "/" not in name else entry


def _uv_file(path: PurePath, text: str) -> ClientConfig:
    try:
        data = msgspec.toml.decode(text.encode(), type=dict[str, Any])
        tables = [*data.get("index", []), *data.get("pip", {}).get("index", [])]
        plain = {**data.get("pip", {}), **data}
        default = next((t["url"] for t in tables if t.get("default")), plain.get("index-url"))
        named = [t["url"] for t in tables if not t.get("default")]
        extra = [*named, *plain.get("extra-index-url", [])]
    except (msgspec.MsgspecError, RecursionError, KeyError, TypeError, AttributeError) as error:
        message = f"{path}: {error}"
        raise ConfigError(message, fix="correct the file (`uv pip list` refuses it too)") from error
    return ClientConfig(index=default, extra=extra, find_links=plain.get("find-links", []))


def _overridden(below: ClientConfig, above: ClientConfig) -> ClientConfig:
    return ClientConfig(
        index=above.index or below.index,
        extra=[*above.extra, *(url for url in below.extra if url not in above.extra)],
        find_links=[*above.find_links, *(url for url in below.find_links if url not in above.find_links)],
        cert=above.cert or below.cert,
    )

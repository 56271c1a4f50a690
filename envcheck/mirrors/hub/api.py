"""Choose the endpoint whose model hashes are trusted and the token for each host, from the profile and this machine."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from envcheck.errors import ConfigError
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.credentials import BearerToken, Login, Netrc, host_credentials, profile_urls
from envcheck.mirrors.profiles.model import Profile


def trusted_endpoint(profile: Profile, *, mirror: bool) -> str:
    """Return the endpoint whose hashes are trusted: the profile's `trusted`, or huggingface_hub's default.

    With `mirror`, the profile's own endpoint is trusted. HF_ENDPOINT alone is not: it usually names a mirror, which
    would confirm its own bytes. Raises ConfigError if there is no trusted endpoint.
    """
    if profile.hf.trusted is not None:
        return profile.hf.trusted
    if mirror and profile.hf.endpoint is not None:
        return profile.hf.endpoint
    default = None if profile.closed else default_endpoint()
    if not default or default.rstrip("/") in {endpoint.rstrip("/") for endpoint in profile.hf.endpoints}:
        message = "no trusted endpoint for the hashes: a mirror cannot confirm its own files"
        own = ", or pass --trust-mirror" if profile.hf.endpoint is not None else ""
        fix = f"set `hf: {{trusted: URL}}` in a profile, or install huggingface_hub beside envcheck{own}"
        fix = f"{fix}; `fetch --lock FILE` needs no trusted endpoint"
        raise ConfigError(message, fix=fix)
    return default


def default_endpoint() -> str | None:
    """Return the default endpoint of huggingface_hub; None if it is not installed."""
    try:
        constants = importlib.import_module("huggingface_hub.constants")
    except ImportError:
        return None
    default = getattr(constants, "_HF_DEFAULT_ENDPOINT", None)
    return default if isinstance(default, str) else None


def hub_client(profile: Profile, *more_endpoints: str, probes: bool = False, **options: Any) -> Client:
    """Return a client with the profile's CA and credentials; `more_endpoints` also get the token.

    With a closed profile it connects only to hosts that the profile names. With `probes` it connects to others too,
    so that a probe can find redirects to them.
    """
    ca = Path(profile.ca) if profile.ca else None
    within = named_hosts(profile) if profile.closed and not probes else None
    known_logins = logins(profile, *more_endpoints)
    if profile.netrc:
        known_logins.append(Netrc(Path(profile.netrc), [*profile_urls(profile), *more_endpoints]))
    return Client(ca=ca, logins=known_logins, within=within, **options)


def named_hosts(profile: Profile) -> frozenset[str]:
    """Return the hosts from which a profile fetches packages, models and datasets, without ports."""
    indexes = [index.url for index in [*profile.pypi, *profile.pytorch] if index.local is None]
    urls = [*indexes, *profile.hf.endpoints, profile.hf.trusted or "", profile.modelscope or ""]
    return frozenset(name for url in urls if (name := urlsplit(url).hostname))


def logins(profile: Profile, *more_endpoints: str, environ: Mapping[str, str] | None = None) -> list[Login]:
    """Return the credentials for each host.

    Those of the profile's `credentials` go to the host that they name. huggingface_hub's token goes to the endpoints,
    and only if the profile allows it.
    """
    environ = os.environ if environ is None else environ
    own = _token(environ) if profile.hf.token == "allow" else ""  # noqa: S105 (a policy)
    endpoints = dict.fromkeys([*profile.hf.endpoints, *filter(None, [profile.hf.trusted]), *more_endpoints])
    return [*host_credentials(profile, environ), *(BearerToken(url, own) for url in endpoints if own)]


def token_path(environ: Mapping[str, str]) -> Path:
    """Return the file in which huggingface_hub keeps its token."""
    home = environ.get("HF_HOME") or str(Path(environ.get("HOME") or "/root", ".cache/huggingface"))
    return Path(environ.get("HF_TOKEN_PATH") or f"{home}/token")


def _token(environ: Mapping[str, str]) -> str:
    file = token_path(environ)
    token = environ.get("HF_TOKEN") or (file.read_text(errors="replace") if file.is_file() else "")
    return token.strip() if token.strip().isprintable() else ""

"""Who is believed about a model's hashes, and which token may be sent: read off this machine and the profile."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from envcheck.errors import ConfigError
from envcheck.mirrors.http import Bearer
from envcheck.mirrors.profile import Profile


def trusted(profile: Profile, *, mirror: bool, environ: Mapping[str, str] | None = None) -> str:
    """Return the endpoint whose hashes are believed: the profile's, or huggingface_hub's own, or this machine's.

    `mirror` says that the profile's own endpoint is. Raise ConfigError where nobody is.
    """
    environ = os.environ if environ is None else environ
    if profile.hf.trusted is not None:
        return profile.hf.trusted
    if mirror and profile.hf.endpoint is not None:
        return profile.hf.endpoint
    found = default_endpoint() or environ.get("HF_ENDPOINT")
    if not found or (profile.hf.endpoint is not None and found.rstrip("/") == profile.hf.endpoint.rstrip("/")):
        message = "nobody is trusted for the hashes: a mirror must not vouch for its own bytes"
        fix = "give --lock FILE, `hf: {trusted: URL}` in a profile, huggingface_hub here, or --trust-mirror"
        raise ConfigError(message, fix=fix)
    return found


def default_endpoint() -> str | None:
    """Return the endpoint that huggingface_hub asks when nobody configured one; None where it is not installed."""
    try:
        constants = importlib.import_module("huggingface_hub.constants")
    except ImportError:
        return None
    found = getattr(constants, "_HF_DEFAULT_ENDPOINT", None)
    return found if isinstance(found, str) else None


def bearer(profile: Profile, endpoint: str, environ: Mapping[str, str] | None = None) -> Bearer | None:
    """Return the token for an endpoint, or None unless the profile allows one.

    It is huggingface_hub's own, or the one that the profile's `credentials` name for the host.
    """
    environ = os.environ if environ is None else environ
    if profile.hf.token != "allow":  # noqa: S105 (a policy)
        return None
    named = profile.credentials.get(urlsplit(endpoint).netloc) or profile.credentials.get(
        urlsplit(endpoint).hostname or ""
    )
    if named is not None and (named.token_env or named.token_file):
        token = environ.get(named.token_env or "") or _read(named.token_file)
    else:
        home = environ.get("HF_HOME") or os.path.join(environ.get("HOME") or "/root", ".cache/huggingface")  # noqa: PTH118
        token = environ.get("HF_TOKEN") or _read(environ.get("HF_TOKEN_PATH") or f"{home}/token")
    return Bearer(endpoint, token) if token else None


def _read(path: str | None) -> str:
    return Path(path).read_text().strip() if path and Path(path).is_file() else ""

"""A mirror profile: where pip, PyTorch wheels, Hugging Face, apt and the registry are reached from."""

from __future__ import annotations

from typing import Literal

import msgspec


class Index(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where wheels are. `simple` is a PEP 503 index, `find-links` a page or directory of files.

    `url` is https://, http://, file:// or an absolute path. In a PyTorch index `{variant}` stands for cu128, cpu, …
    """

    url: str
    kind: Literal["simple", "find-links"] = "simple"


class HuggingFace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How huggingface_hub reaches models. Seconds; the hub's own 10 s break cold mirrors (reference: README)."""

    endpoint: str | None = None
    etag_timeout: int = 60
    download_timeout: int = 60
    token: Literal["never", "allow"] = "never"  # noqa: S105 (a policy)


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ordered sources; an empty list leaves the client its own default. URLs with user:password are refused.

    `apt` are base URLs (the distribution's path below them is appended by suite), or empty for the base's own sources.
    `ca` holds every root the build trusts, PEM. `netrc` is a path, its content only ever a build secret.
    `keep` leaves one credential-free pip.conf, uv.toml and the HF environment in the image.
    """

    name: str
    pypi: list[Index] = []
    pytorch: list[Index] = []
    hf: HuggingFace = HuggingFace()
    apt: list[str] = []
    registry: str | None = None
    ca: str | None = None
    netrc: str | None = None
    keep: bool = False

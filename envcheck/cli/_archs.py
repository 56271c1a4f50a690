"""Host architectures as people and Docker name them."""

from __future__ import annotations

from typing import Final

ARCHS: Final = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}

"""The apt sources of a machine, in one-line and deb822 format."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec


class AptSource(msgspec.Struct, frozen=True, kw_only=True):
    """The archives of one distribution: URIs and the suites that they serve."""

    uris: list[str]
    suites: list[str]


def parse_sources(texts: Iterable[tuple[str, str]]) -> list[AptSource]:
    """Return the enabled binary sources of (file name, content) pairs, in order."""
    return [
        source for name, text in texts for source in (_deb822(text) if name.endswith(".sources") else _one_line(text))
    ]


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

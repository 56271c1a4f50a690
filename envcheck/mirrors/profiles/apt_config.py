"""A machine's apt sources, one-line and deb822, as far as a build needs them."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec


class AptSource(msgspec.Struct, frozen=True, kw_only=True):
    """Archives of one distribution: URIs, and the suites they are used for."""

    uris: list[str]
    suites: list[str]


def parse_sources(texts: Iterable[tuple[str, str]]) -> list[AptSource]:
    """Return the enabled binary sources of (file name, content) pairs, in order."""
    return [
        source for name, text in texts for source in (_deb822(text) if name.endswith(".sources") else _one_line(text))
    ]


def _deb822(text: str) -> list[AptSource]:
    found = []
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n[ \t]*\n", lines):
        fields = dict(re.findall(r"^([\w-]+):[ \t]*(.*(?:\n[ \t]+.*)*)", stanza, re.MULTILINE))
        named = {key.lower(): value.split() for key, value in fields.items()}
        if "deb" in named.get("types", []) and named.get("enabled", ["yes"]) != ["no"]:
            found.append(AptSource(uris=named.get("uris", []), suites=named.get("suites", [])))
    return found


def _one_line(text: str) -> list[AptSource]:
    pattern = re.compile(r"^\s*deb\s+(?:\[[^\]]*\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)", re.MULTILINE)
    return [AptSource(uris=[m["uri"]], suites=[m["suite"]]) for m in pattern.finditer(text)]


def bases_for(sources: Iterable[AptSource], distro: str, suite: str) -> list[str]:
    """Return the base URLs (without `/debian` or `/ubuntu`) these sources reach a distribution's suite at."""
    ending = f"/{distro}"
    uris = (uri.rstrip("/") for s in sources if suite in s.suites for uri in s.uris)
    found = [uri.removesuffix(ending) for uri in uris if uri.endswith(ending)]
    return list(dict.fromkeys(base for base in found if base.startswith(("http://", "https://"))))

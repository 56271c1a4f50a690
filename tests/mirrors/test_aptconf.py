"""A machine's apt sources, in both of apt's forms."""

from __future__ import annotations

from envcheck.mirrors.profiles.host_config import AptSource, base_urls, parse_sources

DEB822 = """\
Types: deb deb-src
# a comment
URIs: https://a.example/debian
  https://b.example/debian/
Suites: bookworm bookworm-updates
Components: main

Types: deb-src
URIs: https://c.example/debian
Suites: bookworm

Enabled: no
Types: deb
URIs: https://d.example/debian
Suites: bookworm
"""
ONE_LINE = """\
# deb https://e.example/debian bookworm main
deb [arch=amd64 signed-by=/x.gpg] https://f.example/debian bookworm main contrib
deb-src https://g.example/debian bookworm main
deb https://h.example/ubuntu noble main
deb cdrom:[Debian]/debian bookworm main
"""


def test_only_enabled_binary_sources_count() -> None:
    assert parse_sources([("debian.sources", DEB822)]) == [
        AptSource(
            uris=["https://a.example/debian", "https://b.example/debian/"], suites=["bookworm", "bookworm-updates"]
        )
    ]
    assert [source.uris for source in parse_sources([("sources.list", ONE_LINE)])][:2] == [
        ["https://f.example/debian"],
        ["https://h.example/ubuntu"],
    ]


def test_only_the_bases_distribution_and_suite_count() -> None:
    sources = parse_sources([("debian.sources", DEB822), ("sources.list", ONE_LINE)])
    assert base_urls(sources, "debian", "bookworm") == ["https://a.example", "https://b.example", "https://f.example"]
    assert base_urls(sources, "ubuntu", "noble") == ["https://h.example"]
    assert base_urls(sources, "ubuntu", "jammy") == []

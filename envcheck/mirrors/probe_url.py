"""Measure the hosts of URLs that a person gave: the same file at several places."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from envcheck.errors import ConfigError
from envcheck.mirrors.budget import Budget, at_once
from envcheck.mirrors.measured import Measured, Sight
from envcheck.mirrors.origins import URL, sources
from envcheck.mirrors.probe import Look, Mirror, latency_of, rated_all, reach_files
from envcheck.mirrors.profile import Index, Profile, has_userinfo, redacted, without_query
from envcheck.mirrors.sights import Asked, Candidate


def mirrors_of(urls: Sequence[str], trust: Mirror) -> list[Mirror]:
    """Return each URL's host as a mirror, reached as `trust` is: with its CA and its netrc file."""
    for url in urls:
        if has_userinfo(url) or not url.startswith(("https://", "http://")) or not urlsplit(url).hostname:
            message = f"{redacted(url)!r} is no URL that may be asked"
            raise ConfigError(message, fix="write https://HOST/PATH/FILE; a password belongs into a netrc file")
    hosts = [urlsplit(url).netloc for url in urls]
    return [
        Mirror(host, Profile(name=host, pypi=[Index(url=url)]), trust.client)
        for host, url in zip(hosts, urls, strict=True)
    ]


def asked_of(urls: Sequence[str]) -> list[Asked]:
    """Return the file that is needed: by its name alone, as nothing says more of it."""
    return [Asked(_name(urls[0]), "", (), URL)]


def probe_urls(mirrors: Sequence[Mirror], budget: Budget) -> list[Measured]:
    """Return what was seen of each URL."""
    looks = [Look(mirror, URL, 1) for mirror in mirrors]
    files = budget.share(0.7)
    at_once(lambda look: _look(look, files), looks, len(looks), files)
    return rated_all(looks, budget)


def _look(look: Look, budget: Budget) -> None:
    url = sources(look.mirror.profile, URL)[0].url
    look.latency, look.latency_why = latency_of(look.mirror.client, url, budget)
    sight = Sight(need=_name(url), listed="url", name=_name(url), url=without_query(url))
    reach_files(look, [[Candidate(sight, url)]], budget)


def _name(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2]) or urlsplit(url).netloc

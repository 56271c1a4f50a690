"""apt's sources in deb822, whose list of mirrors apt walks itself: a dead host or a 404 leads to the next."""

from __future__ import annotations

from typing import Final

from envcheck.mirrors.profiles.model import Profile, host_of
from envcheck.mirrors.settings.base import Setting, Wish, secret_of

_KEYRINGS: Final = {
    "debian": "/usr/share/keyrings/debian-archive-keyring.gpg",
    "ubuntu": "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
}
_COMPONENTS: Final = {"debian": "main", "ubuntu": "main universe"}
# Debian's suites that have neither updates nor security of their own.
_ROLLING: Final = frozenset({"sid", "unstable", "experimental"})
_LISTS: Final = "/etc/apt/envcheck"


def apt(profile: Profile, wish: Wish) -> Setting:
    """Return the sources of this machine's distribution, their lists, and the CA for their hosts."""
    if not profile.apt:
        return Setting(files={}, cannot=["it names no apt mirror"])
    if wish.suite is None or wish.distro not in _KEYRINGS:
        return Setting(files={}, cannot=["apt's sources need a suite: give --suite bookworm, or another"])
    written = sources(profile.apt, wish.distro, wish.suite, _LISTS)
    files = {"/etc/apt/sources.list.d/envcheck.sources": written.pop("envcheck.sources")}
    files |= {f"{_LISTS}/{name}": text for name, text in written.items()}
    hosts = list(dict.fromkeys(host_of(url) for url in profile.apt if url.startswith("https://")))
    if profile.ca and hosts:
        lines = [f'Acquire::https::{host.partition(":")[0]}::CAInfo "{profile.ca}";' for host in hosts]
        files["/etc/apt/apt.conf.d/80envcheck"] = "\n".join(lines) + "\n"
    cannot = [
        "the machine's own sources stay: move /etc/apt/sources.list and sources.list.d/*.sources away",
        "security updates come from the mirror too, as late as it is: keep the origin's as well where that matters",
    ]
    if any(secret_of(profile, url) for url in profile.apt) or profile.netrc:
        cannot.append("apt reads neither netrc nor variables: write the login to /etc/apt/auth.conf.d (mode 600)")
    return Setting(files=files, cannot=cannot)


def sources(bases: list[str], distro: str, suite: str, lists: str) -> dict[str, str]:
    """Return file name -> content: the sources, and one list of mirrors an archive, which is at `lists` for apt."""
    files, stanzas = {}, []
    for archive, suites in _archives(distro, suite).items():
        lines = [f"{base.rstrip('/')}/{archive}\tpriority:{n}" for n, base in enumerate(bases, 1)]
        files[f"{archive}.mirrors"] = "\n".join(lines) + "\n"
        stanzas.append(
            f"Types: deb\nURIs: mirror+file:{lists}/{archive}.mirrors\nSuites: {' '.join(suites)}\n"
            f"Components: {_COMPONENTS[distro]}\nSigned-By: {_KEYRINGS[distro]}\n"
        )
    return files | {"envcheck.sources": "\n".join(stanzas)}


def _archives(distro: str, suite: str) -> dict[str, list[str]]:
    if distro == "ubuntu":
        return {"ubuntu": [suite, f"{suite}-updates", f"{suite}-security"]}
    if suite in _ROLLING:
        return {"debian": [suite]}
    return {"debian": [suite, f"{suite}-updates"], "debian-security": [f"{suite}-security"]}

"""apt's sources in deb822 with a list of mirrors: after a dead host or a 404, apt tries the next mirror."""

from __future__ import annotations

from typing import Final

from envcheck.mirrors.profiles.model import Profile, host_of
from envcheck.mirrors.settings.base import ClientSettings, RenderOptions, secret_of

_KEYRINGS: Final = {
    "debian": "/usr/share/keyrings/debian-archive-keyring.gpg",
    "ubuntu": "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
}
_COMPONENTS: Final = {"debian": "main", "ubuntu": "main universe"}
# Debian's suites without updates and security suites.
_ROLLING: Final = frozenset({"sid", "unstable", "experimental"})
_LISTS_DIRECTORY: Final = "/etc/apt/envcheck"


def apt(profile: Profile, options: RenderOptions) -> ClientSettings:
    """Return the sources and lists of mirrors for this machine's distribution, and the CA of their hosts."""
    if not profile.apt:
        return ClientSettings(files={}, notes=["the profile names no apt mirror"])
    if options.suite is None or options.distro not in _KEYRINGS:
        return ClientSettings(files={}, notes=["apt's sources need a suite: pass --suite, e.g. --suite bookworm"])
    files_by_name = sources(profile.apt, options.distro, options.suite, _LISTS_DIRECTORY)
    files = {"/etc/apt/sources.list.d/envcheck.sources": files_by_name.pop("envcheck.sources")}
    files |= {f"{_LISTS_DIRECTORY}/{name}": text for name, text in files_by_name.items()}
    hosts = list(dict.fromkeys(host_of(url) for url in profile.apt if url.startswith("https://")))
    if profile.ca and hosts:
        lines = [f'Acquire::https::{host.partition(":")[0]}::CAInfo "{profile.ca}";' for host in hosts]
        files["/etc/apt/apt.conf.d/80envcheck"] = "\n".join(lines) + "\n"
    notes = [
        "the machine's own sources stay: move /etc/apt/sources.list and sources.list.d/*.sources away",
        "security updates come from the mirror too and may be late: keep the origin's source as well if that matters",
    ]
    if any(secret_of(profile, url) for url in profile.apt) or profile.netrc:
        notes.append("apt reads neither netrc nor variables: write the login to /etc/apt/auth.conf.d (mode 600)")
    return ClientSettings(files=files, notes=notes)


def sources(bases: list[str], distro: str, suite: str, lists: str) -> dict[str, str]:
    """Return file name -> content: the sources, and a list of mirrors for each archive, which apt reads at `lists`."""
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

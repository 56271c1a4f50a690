"""apt's sources, and registry mirrors for BuildKit, dockerd, and podman, buildah and skopeo.

apt gets deb822 with a list of mirrors: after a dead host or a 404, it tries the next one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from envcheck.mirrors.profiles.model import Profile, host_of
from envcheck.mirrors.settings.clients import ClientSettings, RenderOptions, secret_of

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
        return ClientSettings(files={}, notes=["apt's sources are for Debian and Ubuntu, which this machine has not"])
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


_DOCKER_HUB = "docker.io"
_NO_REGISTRY = "the profile names no registry"


def mirrors(profile: Profile) -> dict[str, list[str]]:
    """Return upstream -> its mirrors. `registry`, which serves the bases, mirrors Docker Hub unless one is named."""
    if _DOCKER_HUB not in profile.registries and profile.registry is not None:
        return {_DOCKER_HUB: [profile.registry], **profile.registries}
    return dict(profile.registries)


def _without_scheme(mirror: str) -> tuple[str, bool]:
    return mirror.partition("://")[2] or mirror, mirror.startswith("http://")


def _hosts(profile: Profile) -> Iterator[tuple[str, bool]]:
    seen = set()
    for name, no_tls in (_without_scheme(mirror) for names in mirrors(profile).values() for mirror in names):
        host = name.partition("/")[0]
        if host not in seen:
            seen.add(host)
            yield host, no_tls


def _login_notes(profile: Profile) -> list[str]:
    private = [host for host, _ in _hosts(profile) if host in profile.credentials]
    return [f"the file holds no password: log the client in to {', '.join(private)}"] if private else []


def buildkitd(profile: Profile, options: RenderOptions) -> ClientSettings:  # noqa: ARG001 (a form's signature)
    """Return buildkitd.toml. `http` and `ca` belong to the mirror's host, not to its upstream (buildkit#6177)."""
    parts = []
    for upstream, names in mirrors(profile).items():
        listed = ", ".join(json.dumps(_without_scheme(name)[0]) for name in names)
        parts.append(f"[registry.{json.dumps(upstream)}]\n  mirrors = [{listed}]\n")
    for host, no_tls in _hosts(profile):
        line = "http = true" if no_tls else f"ca = [{json.dumps(profile.ca)}]" if profile.ca else None
        parts += [f"[registry.{json.dumps(host)}]\n  {line}\n"] if line else []
    if not parts:
        return ClientSettings(files={}, notes=[_NO_REGISTRY])
    notes = [
        "dockerd's own builder does not read it: `docker buildx create --config`, or a buildkitd of your own",
        "BuildKit asks the origin when every mirror fails: block the origin if that must not happen",
    ]
    return ClientSettings(files={"/etc/buildkit/buildkitd.toml": "\n".join(parts)}, notes=notes + _login_notes(profile))


def daemon(profile: Profile, options: RenderOptions) -> ClientSettings:  # noqa: ARG001 (a form's signature)
    """Return daemon.json, which supports mirrors of Docker Hub only."""
    names = mirrors(profile).get(_DOCKER_HUB, [])
    urls = [name if "://" in name else f"https://{name}" for name in names]
    without_path = [url for url in urls if "/" not in url.partition("://")[2].rstrip("/")]
    insecure = [host for host, no_tls in _hosts(profile) if no_tls]
    if not without_path:
        return ClientSettings(files={}, notes=["the profile names no mirror of Docker Hub that fits daemon.json"])
    content = {"registry-mirrors": without_path} | ({"insecure-registries": insecure} if insecure else {})
    notes = [
        "a docker-container builder of buildx does not read it: use `--format buildkitd` (moby/buildkit#606)",
        "it is the whole file: merge it into an existing daemon.json, and restart dockerd",
    ]
    others = [upstream for upstream in mirrors(profile) if upstream != _DOCKER_HUB]
    notes += [f"dockerd mirrors only Docker Hub: {', '.join(others)} left out"] if others else []
    notes += (
        [f"dockerd takes no path after a mirror's host: {len(urls) - len(without_path)} left out"]
        if urls != without_path
        else []
    )
    if profile.ca:
        notes.append(f"the CA is a separate file: copy {profile.ca} to /etc/docker/certs.d/HOST:PORT/ca.crt")
    text = json.dumps(content, indent=2) + "\n"
    return ClientSettings(files={"/etc/docker/daemon.json": text}, notes=notes + _login_notes(profile))


def registries(profile: Profile, options: RenderOptions) -> ClientSettings:  # noqa: ARG001 (a form's signature)
    """Return registries.conf (version 2): the mirrors in order, then the origin."""
    parts = []
    for upstream, names in mirrors(profile).items():
        parts.append(f"[[registry]]\nprefix = {json.dumps(upstream)}\nlocation = {json.dumps(upstream)}\n")
        for name, no_tls in map(_without_scheme, names):
            insecure = "insecure = true\n" if no_tls else ""
            parts.append(f"[[registry.mirror]]\nlocation = {json.dumps(name)}\n{insecure}")
    if not parts:
        return ClientSettings(files={}, notes=[_NO_REGISTRY])
    notes = [
        "docker does not read it: use `--format daemon` and `--format buildkitd`",
        "it does not complete short names",
    ]
    if profile.ca:
        notes.append(f"the CA is a separate file: copy {profile.ca} to /etc/containers/certs.d/HOST:PORT/ca.crt")
    path = "/etc/containers/registries.conf.d/envcheck.conf"
    return ClientSettings(files={path: "\n".join(parts)}, notes=notes + _login_notes(profile))

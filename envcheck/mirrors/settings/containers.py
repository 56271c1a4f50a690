"""Registry mirrors for BuildKit, dockerd, and podman, buildah and skopeo."""

from __future__ import annotations

import json
from collections.abc import Iterator

from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.settings.base import Setting, Wish

_HUB = "docker.io"
_NONE = "it names no registry"


def mirrors(profile: Profile) -> dict[str, list[str]]:
    """Return upstream -> its mirrors. Where only the one that bases come from is named, it is Docker Hub's."""
    if _HUB not in profile.registries and profile.registry is not None:
        return {_HUB: [profile.registry], **profile.registries}
    return dict(profile.registries)


def _plain(mirror: str) -> tuple[str, bool]:
    """Return a mirror without its scheme, and whether it has no TLS."""
    return mirror.partition("://")[2] or mirror, mirror.startswith("http://")


def _hosts(profile: Profile) -> Iterator[tuple[str, bool]]:
    seen = set()
    for name, plain in (_plain(mirror) for names in mirrors(profile).values() for mirror in names):
        host = name.partition("/")[0]
        if host not in seen:
            seen.add(host)
            yield host, plain


def _log_in(profile: Profile) -> list[str]:
    private = [host for host, _ in _hosts(profile) if host in profile.credentials]
    return [f"no password is in it: log the client in to {', '.join(private)}"] if private else []


def buildkitd(profile: Profile, wish: Wish) -> Setting:  # noqa: ARG001 (a form's signature)
    """Return buildkitd.toml. What a mirror speaks is said of the mirror's host, not of its upstream (buildkit#6177)."""
    parts = []
    for upstream, names in mirrors(profile).items():
        listed = ", ".join(json.dumps(_plain(name)[0]) for name in names)
        parts.append(f"[registry.{json.dumps(upstream)}]\n  mirrors = [{listed}]\n")
    for host, plain in _hosts(profile):
        said = "http = true" if plain else f"ca = [{json.dumps(profile.ca)}]" if profile.ca else None
        parts += [f"[registry.{json.dumps(host)}]\n  {said}\n"] if said else []
    if not parts:
        return Setting(files={}, cannot=[_NONE])
    cannot = [
        "dockerd's own builder does not read it: `docker buildx create --config`, or a buildkitd of your own",
        "BuildKit goes on to the origin when every mirror fails: cut it off where that must not be",
    ]
    return Setting(files={"/etc/buildkit/buildkitd.toml": "\n".join(parts)}, cannot=cannot + _log_in(profile))


def daemon(profile: Profile, wish: Wish) -> Setting:  # noqa: ARG001 (a form's signature)
    """Return daemon.json, which knows mirrors of Docker Hub alone."""
    names = mirrors(profile).get(_HUB, [])
    urls = [name if "://" in name else f"https://{name}" for name in names]
    rooted = [url for url in urls if "/" not in url.partition("://")[2].rstrip("/")]
    insecure = [host for host, plain in _hosts(profile) if plain]
    if not rooted:
        return Setting(files={}, cannot=["it names no mirror of Docker Hub that daemon.json could name"])
    content = {"registry-mirrors": rooted} | ({"insecure-registries": insecure} if insecure else {})
    cannot = [
        "a builder of its own (docker-container, buildx) does not read it: `--format buildkitd` (moby/buildkit#606)",
        "it is the whole file: join it with the daemon.json that is there, and restart dockerd",
    ]
    others = [upstream for upstream in mirrors(profile) if upstream != _HUB]
    cannot += [f"dockerd mirrors Docker Hub alone: {', '.join(others)} left out"] if others else []
    cannot += (
        [f"dockerd takes no path after a mirror's host: {len(urls) - len(rooted)} left out"] if urls != rooted else []
    )
    if profile.ca:
        cannot.append(f"the CA is a file of its own: copy {profile.ca} to /etc/docker/certs.d/HOST:PORT/ca.crt")
    text = json.dumps(content, indent=2) + "\n"
    return Setting(files={"/etc/docker/daemon.json": text}, cannot=cannot + _log_in(profile))


def registries(profile: Profile, wish: Wish) -> Setting:  # noqa: ARG001 (a form's signature)
    """Return registries.conf (version 2): mirrors in order, the origin last."""
    parts = []
    for upstream, names in mirrors(profile).items():
        parts.append(f"[[registry]]\nprefix = {json.dumps(upstream)}\nlocation = {json.dumps(upstream)}\n")
        for name, plain in map(_plain, names):
            insecure = "insecure = true\n" if plain else ""
            parts.append(f"[[registry.mirror]]\nlocation = {json.dumps(name)}\n{insecure}")
    if not parts:
        return Setting(files={}, cannot=[_NONE])
    cannot = [
        "docker does not read it: `--format daemon` and `--format buildkitd`",
        "short names are not completed by it",
    ]
    if profile.ca:
        cannot.append(f"the CA is a file of its own: copy {profile.ca} to /etc/containers/certs.d/HOST:PORT/ca.crt")
    path = "/etc/containers/registries.conf.d/envcheck.conf"
    return Setting(files={path: "\n".join(parts)}, cannot=cannot + _log_in(profile))

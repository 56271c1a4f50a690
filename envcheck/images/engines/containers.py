"""Which image exactly: the digests an engine states of it, by what each is the digest of."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
# Storage drivers that only the older stores have: containerd has snapshotters of other names, btrfs and zfs excepted.
_DRIVERS = ("overlay2", "fuse-overlayfs", "vfs", "aufs", "devicemapper", "windowsfilter")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")


@dataclasses.dataclass(frozen=True)
class Digests:
    """Digests of an image, each "sha256:..."; None where the engine does not state it.

    `repository` are REPOSITORY@DIGEST, each once; the containerd store also lists names that were only given locally.
    """

    manifest: str | None = None
    config: str | None = None
    index: str | None = None
    repository: tuple[str, ...] = ()


def of_docker(attributes: Mapping[str, Any], manifests: Sequence[Mapping[str, Any]] = ()) -> Digests:
    """Read a docker engine's answer about an image, and its list of the manifests in an index (API 1.48).

    With the containerd store the id is the digest of a manifest or an index, as the descriptor says (API 1.48); before
    that, nothing states which. With the older stores, known by their drivers, it is the digest of the config.
    """
    identity, repository = str(attributes.get("Id") or ""), _strings(attributes.get("RepoDigests"))
    descriptor = attributes.get("Descriptor") or {}
    media, digest = descriptor.get("mediaType"), _digest(descriptor.get("digest"))
    if media in _INDEXES:
        return Digests(_only(manifests), None, digest, repository)
    if media in _MANIFESTS:
        return Digests(digest, None, None, repository)
    driver = (attributes.get("GraphDriver") or {}).get("Name")
    return Digests(None, _digest(identity) if driver in _DRIVERS and not descriptor else None, None, repository)


def of_podman(attributes: Mapping[str, Any]) -> Digests:
    """Read one entry of `podman image inspect`: its id is the config's digest, `Digest` that of the manifest."""
    identity = str(attributes.get("Id") or "").removeprefix("sha256:")
    return Digests(
        manifest=_digest(attributes.get("Digest")),
        config=_digest(f"sha256:{identity}"),
        repository=_strings(attributes.get("RepoDigests")),
    )


def is_index(attributes: Mapping[str, Any]) -> bool:
    """Tell whether a docker engine says that an image is an index of manifests."""
    return (attributes.get("Descriptor") or {}).get("mediaType") in _INDEXES


def _only(manifests: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the digest of the one image that the engine holds of an index; with several it is open which one runs."""
    held = [m for m in manifests if m.get("Kind") == "image" and m.get("Available")]
    return _digest((held[0].get("Descriptor") or {}).get("digest")) if len(held) == 1 else None


def _digest(value: Any) -> str | None:
    return value if isinstance(value, str) and value.startswith("sha256:") and len(value) > len("sha256:") else None


def _strings(values: Any) -> tuple[str, ...]:
    named = {value for value in values or () if isinstance(value, str) and "@" in value}
    return tuple(sorted(value for value in named if "<none>" not in value))


OWNER: Final = "envcheck.owner"


class BindMount(NamedTuple):
    """A file or directory of this machine, seen inside the container at `target`."""

    source: Path
    target: str
    read_only: bool = True


class ImageInfo(NamedTuple):
    """What the engine says of an image: its id (a sha256), bytes on disk, tags and labels.

    `layers` are the digests of its unpacked layers (diff_ids); `command` is what it starts, ENTRYPOINT and CMD.
    """

    id: str
    size: int
    tags: list[str]
    labels: dict[str, str]
    env: dict[str, str]
    user: str
    layers: list[str]
    command: tuple[str, ...] = ()
    digests: Digests = Digests()


def owner() -> str:
    """Return what a container of this process is labelled with."""
    return f"{socket.gethostname()}:{os.getpid()}"


def is_orphan(label: str) -> bool:
    """Tell whether the process of this machine that a container was labelled with is gone."""
    host, _, pid = label.rpartition(":")
    return host == socket.gethostname() and not Path("/proc", pid).exists()

"""What containers of docker and of podman have in common: mounts, what an image says of itself, and whose they are."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final, NamedTuple

from envcheck.images.engines.digests import Digests

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

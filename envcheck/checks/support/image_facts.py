"""Where a check's process stands: in an image that is being validated, in a container, or on a machine."""

from __future__ import annotations

import os

import envcheck

# Where the runner mounts envcheck into an image; nobody installs it there.
_STAGED = "/run/envcheck/"
# What docker and podman leave in a container's root.
_MARKS = ("/.dockerenv", "/run/.containerenv")


def is_image() -> bool:
    """Return whether this is an image under test, whose files and variables are those it is handed on with."""
    return envcheck.__file__.startswith(_STAGED)


def contained() -> bool:
    """Return whether this is a container of docker's, podman's or Kubernetes', an image under test included."""
    return is_image() or "KUBERNETES_SERVICE_HOST" in os.environ or any(map(os.path.exists, _MARKS))

"""What podman says is read into the same form."""

from __future__ import annotations

import json

import pytest

from envcheck.errors import UnavailableError
from envcheck.images import engines
from envcheck.images.engines import command
from envcheck.images.engines.podman import Podman, image_info

# `podman image inspect` of 4.3, cut to what is read.
SAID = """[{"Id": "86cd", "RepoTags": ["localhost/x:1"], "Size": 231, "Labels": {"envcheck.torch": "2.8.0"},
  "Config": {"User": "1000:1000", "Env": ["A=b=c"], "Entrypoint": ["tini"], "Cmd": null},
  "RootFS": {"Type": "layers", "Layers": ["sha256:1"]}}]"""


def test_an_image_is_read() -> None:
    info = image_info(json.loads(SAID)[0])
    assert info.labels == {"envcheck.torch": "2.8.0"}
    assert info.env == {"A": "b=c"}
    assert info.command == ("tini",)
    assert (info.id, info.user, info.size, info.layers) == ("86cd", "1000:1000", 231, ["sha256:1"])


def test_podman_builds_nothing_it_cannot_inspect() -> None:
    if command.which("podman") is None:
        pytest.skip("podman is not installed")
    assert Podman().inspect("localhost/no-such-image:1") is None


def test_without_podman_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "which", lambda _: None)
    with pytest.raises(UnavailableError, match="podman is not installed; install podman, or choose another --engine"):
        engines.find("podman")

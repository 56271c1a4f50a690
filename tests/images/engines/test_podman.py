"""What podman says is read into the same form; what an engine of an older kind lacks is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.errors import UnavailableError
from envcheck.images import engines
from envcheck.images.engines import subprocesses
from envcheck.images.engines.containers import Digests
from envcheck.images.engines.podman import Podman, image_info

# `podman image inspect` of 4.3, cut to what is read.
SAID = """[{"Id": "86cd", "Digest": "sha256:d1", "RepoTags": ["localhost/x:1"],
  "RepoDigests": ["localhost/x@sha256:d1"], "Size": 231, "Labels": {"envcheck.torch": "2.8.0"},
  "Config": {"User": "1000:1000", "Env": ["A=b=c"], "Entrypoint": ["tini"], "Cmd": null},
  "RootFS": {"Type": "layers", "Layers": ["sha256:1"]}}]"""


def test_an_image_is_read() -> None:
    info = image_info(json.loads(SAID)[0])
    assert info.labels == {"envcheck.torch": "2.8.0"}
    assert info.env == {"A": "b=c"}
    assert info.command == ("tini",)
    assert (info.id, info.user, info.size, info.layers) == ("86cd", "1000:1000", 231, ["sha256:1"])
    assert info.digests == Digests("sha256:d1", "sha256:86cd", None, ("localhost/x@sha256:d1",))


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Return what puts a program of this name on the PATH: a shell script."""

    def put(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return put


def test_a_podman_that_takes_no_named_context_is_told_from_one_that_does(program: Callable[[str, str], None]) -> None:
    program("podman", "echo '--build-context argument=value'")
    Podman().demand_contexts()
    program("podman", "echo '--cache-from stringArray'")
    with pytest.raises(
        UnavailableError, match=r"this podman does not support; use podman 4\.2 or later, or leave --prefetch"
    ):
        Podman().demand_contexts()


def test_no_layer_is_taken_for_the_text_of_its_run_alone(program: Callable[[str, str], None]) -> None:
    program("podman", "exit 0")
    assert "--no-cache" in Podman().frontend()


def test_without_podman_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocesses, "which", lambda _: None)
    with pytest.raises(UnavailableError, match="podman is not installed; install podman, or choose another --engine"):
        engines.find("podman")

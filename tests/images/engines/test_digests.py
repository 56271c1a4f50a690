"""Which digest an engine states is read as what it is the digest of, and as nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from envcheck.images.engines import containers
from envcheck.images.engines import docker as docker_sdk
from envcheck.images.engines.containers import Digests
from tests.tables import each

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
HELD: dict[str, Any] = {"Kind": "image", "Available": True, "Descriptor": {"digest": "sha256:m"}}
ATTESTATION: dict[str, Any] = {"Kind": "attestation", "Available": True, "Descriptor": {"digest": "sha256:t"}}
CONTAINERD: dict[str, Any] = {"Id": "sha256:1", "RepoDigests": [], "GraphDriver": {"Name": "overlayfs"}}
ABSENT: dict[str, Any] = {"Kind": "image", "Available": False, "Descriptor": {"digest": "sha256:o"}}


def answer(media: str | None, identity: str = "sha256:1", *repository: str) -> dict[str, Any]:
    """Return what docker says of an image whose descriptor, if any, is of this media type."""
    data: dict[str, Any] = {"Id": identity, "RepoDigests": list(repository), "GraphDriver": {"Name": "overlay2"}}
    return {**data, "Descriptor": {"mediaType": media, "digest": identity}} if media else data


@each(
    "data, manifests, expected",
    [
        (answer(None), [], Digests(config="sha256:1")),
        (answer(None, "sha256:1", "x@sha256:2"), [], Digests(config="sha256:1", repository=("x@sha256:2",))),
        # The containerd store before API 1.48: the id is of a manifest or an index, and nothing says which.
        (CONTAINERD | {"RepoDigests": ["x@sha256:1", "x@sha256:1"]}, [], Digests(repository=("x@sha256:1",))),
        (CONTAINERD, [], Digests()),
        (answer(MANIFEST), [], Digests(manifest="sha256:1")),
        (answer(INDEX), [HELD, ATTESTATION, ABSENT], Digests(manifest="sha256:m", index="sha256:1")),
        (answer(INDEX), [HELD, HELD], Digests(index="sha256:1")),
        (answer(INDEX), [], Digests(index="sha256:1")),
        (answer("application/unknown"), [], Digests()),
        ({"Id": "", "RepoDigests": None, "Descriptor": None}, [], Digests()),
        (answer(None, "sha256:1", "<none>@<none>"), [], Digests(config="sha256:1")),
    ],
)
def test_docker(data: dict[str, Any], manifests: list[dict[str, Any]], expected: Digests) -> None:
    assert containers.of_docker(data, manifests) == expected


class Answer:
    """What the engine answers over HTTP."""

    def __init__(self, body: object, *, ok: bool) -> None:
        self.body, self.ok = body, ok

    def json(self) -> object:
        """Return the body."""
        return self.body


class Engine:
    """An engine that holds one image, and lists the manifests of an index where it knows how."""

    def __init__(self, media: str, reply: Answer) -> None:
        self.api = self.images = self
        self.base_url, self.timeout = "http+docker://localhost", 60
        self.id, self.tags, self.attrs, self.reply = "sha256:1", list[str](), answer(media), reply
        self.urls: list[str] = []

    def get(self, url: str, **options: Any) -> Any:
        """Return the image, or the answer to a request."""
        if not options:
            return self
        self.urls.append(url)
        return self.reply


@pytest.mark.parametrize(
    ("media", "ok", "expected"),
    [
        (INDEX, True, Digests(manifest="sha256:m", index="sha256:1")),
        (INDEX, False, Digests(index="sha256:1")),
        (MANIFEST, True, Digests(manifest="sha256:1")),
    ],
)
def test_an_engine_is_asked_for_the_manifests_of_an_index_only(
    monkeypatch: pytest.MonkeyPatch, media: str, expected: Digests, *, ok: bool
) -> None:
    engine = Engine(media, Answer({"Manifests": [HELD]}, ok=ok))
    monkeypatch.setattr(docker_sdk, "_engine", lambda *_: _HeldRegistry(engine))
    held = docker_sdk.inspect("x")
    assert held is not None
    assert held.digests == expected
    assert engine.urls == (["http+docker://localhost/v1.48/images/sha256:1/json"] if media == INDEX else [])


class _HeldRegistry:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> Engine:
        return self._engine

    def __exit__(self, *_: object) -> None:
        pass

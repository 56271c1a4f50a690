"""A copy takes along what is attached, from one registry to another and within one."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from envcheck.registry.attachments import attach, referrers
from envcheck.registry.promotions import copy_image
from envcheck.registry.references import LyingError
from envcheck.registry.repository import Repository
from tests.http_server import Servers
from tests.registry.oci.fakes import KIND, FakeRegistry, opened, push_image, push_index

Fresh = Callable[[str], Repository]


@pytest.mark.tools
@pytest.mark.parametrize("back", [False, True])
def test_an_image_goes_to_another_registry_with_its_proofs_and_their_signatures(
    docker_registry: str,
    referrers_registry: str,
    fresh: Fresh,
    back: bool,  # noqa: FBT001 (a column)
) -> None:
    first, second = (referrers_registry, docker_registry) if back else (docker_registry, referrers_registry)
    source, target = fresh(first), fresh(second)
    index = push_index(source, "latest", amd64="one", arm64="two")
    child = source.manifest(index.index().manifests[0])
    proof = attach(source, child.descriptor, KIND, [("application/json", b'"proof"')], {}).descriptor
    signature = attach(source, proof, KIND, [("application/json", b'"signature"')], {}).descriptor
    copied = copy_image(source, target, index.digest)
    assert target.manifest(index.digest).content == index.content
    assert [one.descriptor for one in referrers(target, child.digest).artifacts] == [proof]
    [signed] = referrers(target, proof.digest).artifacts
    assert signed.descriptor == signature
    assert target.blob(signed.manifest.layers[0], 100) == b'"signature"'
    assert len(copied.manifests) == 5
    assert copied.notes == []
    assert copy_image(source, target, index.digest).blobs == []


@pytest.mark.tools
def test_within_a_registry_blobs_are_taken_over_and_not_sent(docker_registry: str, fresh: Fresh) -> None:
    source, target = fresh(docker_registry), fresh(docker_registry)
    manifest = push_image(source, "within")
    attach(source, manifest.descriptor, KIND, [("application/json", b'"proof"')], {})
    assert copy_image(source, target, manifest.digest).blobs == []
    [actual] = referrers(target, manifest.digest).artifacts
    assert target.blob(actual.manifest.layers[0], 100) == b'"proof"'


def test_what_is_attached_and_cannot_be_copied_is_listed(servers: Servers) -> None:
    registries = [servers.start(FakeRegistry()) for _ in range(2)]
    source, target = (opened(registry.netloc) for registry in registries)
    manifest = push_image(source)
    proof = attach(source, manifest.descriptor, KIND, [("application/json", b'"proof"')], {})
    del registries[0].manifests[proof.descriptor.digest]
    copied = copy_image(source, target, manifest.digest)
    assert copied.notes == [f"not copied: {proof.descriptor.digest}"]
    assert copied.manifests == [manifest.digest]


def test_what_is_attached_too_deep_is_not_left_out_in_silence(servers: Servers) -> None:
    first, second = (servers.start(FakeRegistry()) for _ in range(2))
    source, target = opened(first.netloc), opened(second.netloc)
    subject = push_image(source).descriptor
    top = subject.digest
    for number in range(5):
        subject = attach(source, subject, KIND, [("application/json", b"%d" % number)], {}).descriptor
    with pytest.raises(LyingError, match="lies too deep"):
        copy_image(source, target, top)


def test_a_copy_that_the_target_does_not_have_is_found_out(servers: Servers) -> None:
    first, second = (servers.start(FakeRegistry()) for _ in range(2))
    source, target = opened(first.netloc), opened(second.netloc)
    manifest = push_image(source)
    other = json.dumps({"schemaVersion": 2}).encode()

    def spoil(_: object) -> None:
        for digest in second.manifests:
            second.manifests[digest] = (other, "application/vnd.oci.image.manifest.v1+json")

    second.fault = spoil
    with pytest.raises(LyingError):
        copy_image(source, target, manifest.digest)

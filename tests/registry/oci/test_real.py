"""The client with real registries: one without the referrers API, one with it."""

from __future__ import annotations

import hashlib
import random
import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envcheck.registry.documents import OCI_MANIFEST, digest_of
from envcheck.registry.references import AbsentError
from envcheck.registry.repository import Repository
from tests.registries import stored_blob
from tests.registry.oci.fakes import image, opened, push_image

pytestmark = pytest.mark.tools

Fresh = Callable[[str], Repository]


def test_an_image_is_pushed_and_read_by_its_tag_and_its_digest(real: str, fresh: Fresh) -> None:
    repository = fresh(real)
    manifest = push_image(repository, tag="latest")
    content, blobs = image("one")
    assert (manifest.content, manifest.digest) == (content, digest_of(content))
    assert repository.manifest(manifest.digest) == repository.manifest("latest") == manifest
    assert {blob.digest: repository.blob(blob, 1 << 20) for blob in manifest.children} == blobs
    assert repository.tags() == ["latest"]
    assert repository.has_manifest(manifest.digest)


def test_what_is_not_there_is_absent(real: str, fresh: Fresh) -> None:
    repository, nothing = fresh(real), f"sha256:{'0' * 64}"
    with pytest.raises(AbsentError):
        repository.manifest("latest")
    assert repository.tags() == []
    layer = push_image(repository).image().layers[0]
    for read in (
        lambda: repository.manifest(nothing),
        lambda: repository.manifest("absent"),
        lambda: repository.blob(type(layer)(media_type="x/y", digest=nothing, size=1), 10),
    ):
        with pytest.raises(AbsentError):
            read()
    assert not repository.has_manifest(nothing)
    assert not repository.has_blob(type(layer)(media_type="x/y", digest=nothing, size=1))


def test_a_blob_is_taken_over_from_another_repository(docker_registry: str, fresh: Fresh, docker_files: Path) -> None:
    source, target = fresh(docker_registry), fresh(docker_registry)
    content = random.Random(5).randbytes(5_000_000)  # noqa: S311 (data, no secret)
    blob = source.push_blob(content)
    before = target.exchange.sent
    assert target.mounted(blob, source.reference.repository)
    assert target.exchange.sent == before + 1, "its bytes were not sent"
    assert target.blob(blob, 10_000_000) == content
    assert stored_blob(docker_files, blob.digest).stat().st_size == len(content)


def test_a_large_file_is_sent_and_read_as_a_stream(docker_registry: str, fresh: Fresh, tmp_path: Path) -> None:
    repository, digest = fresh(docker_registry), hashlib.sha256()
    with (tmp_path / "large").open("wb") as file:
        for seed in range(8):
            part = random.Random(seed).randbytes(10 << 20)  # noqa: S311 (data, no secret)
            file.write(part)
            digest.update(part)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    blob = repository.push_blob(tmp_path / "large")
    with (tmp_path / "again").open("w+b") as repeated:
        repository.save_blob(blob, repeated)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # KiB, of a file of 80 MiB
    assert blob.digest == f"sha256:{digest.hexdigest()}"
    assert (tmp_path / "again").stat().st_size == blob.size == 80 << 20


def test_many_uploads_of_one_blob_at_once_all_end_well(real: str, fresh: Fresh) -> None:
    """docker-registry answers 500 while it writes what another upload of the same blob asks for."""
    repository, content = fresh(real), b"the same " * 1000
    name = repository.reference.repository
    with ThreadPoolExecutor(16) as pool:
        pushed = list(pool.map(lambda _: opened(real, name, sleep=time.sleep).push_blob(content), range(32)))
    assert pushed == [pushed[0]] * 32
    assert repository.blob(pushed[0], 1 << 20) == content


def test_all_tags_are_listed(real: str, referrers_registry: str, fresh: Fresh) -> None:
    """The registry with the referrers API cuts a list to the number that is asked for, and names no next page."""
    repository = fresh(real)
    push_image(repository, tag="t")
    most = 1100 if real == referrers_registry else 20
    content, names = image("one")[0], [f"t{number:04}" for number in range(most)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: repository.push_manifest(content, OCI_MANIFEST, name), names))
    assert sorted(repository.tags()) == ["t", *names]

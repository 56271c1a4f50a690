"""The client with real registries: one without the referrers API, one with it."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from envcheck.registry.documents import AbsentError, digest_of
from envcheck.registry.repository import Repository
from tests.registry.oci.fakes import image, opened, push_image

pytestmark = pytest.mark.tools

Fresh = Callable[[str], Repository]


def test_an_image_is_pushed_and_read_by_its_tag_and_its_digest(real: str, fresh: Fresh) -> None:
    repository = fresh(real)
    manifest = push_image(repository, tag="latest")
    content, blobs = image("one")
    assert (manifest.content, manifest.digest) == (content, digest_of(content))
    assert repository.manifest(manifest.digest) == repository.manifest("latest") == manifest
    assert {
        blob.digest: repository.blob(blob, 1 << 20) for blob in [manifest.image().config, *manifest.image().layers]
    } == blobs
    assert repository.tags() == ["latest"]


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


def test_many_uploads_of_one_blob_at_once_all_end_well(real: str, fresh: Fresh) -> None:
    """docker-registry answers 500 while it writes what another upload of the same blob asks for."""
    repository, content = fresh(real), b"the same " * 1000
    name = repository.reference.repository
    with ThreadPoolExecutor(16) as pool:
        pushed = list(pool.map(lambda _: opened(real, name, sleep=time.sleep).push_blob(content), range(32)))
    assert pushed == [pushed[0]] * 32
    assert repository.blob(pushed[0], 1 << 20) == content

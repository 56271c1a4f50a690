"""What is attached to an image is found by everybody and lost by none, whatever a registry lists."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec import structs

from envcheck.errors import UnavailableError
from envcheck.registry.attachments import (
    _MOST_OF_IMAGE,
    Allowance,
    Attachment,
    attach,
    detach,
    fallback_tag,
    own_tag,
    referrers,
    remote_images,
)
from envcheck.registry.documents import (
    OCI_INDEX,
    OCI_MANIFEST,
    AbsentError,
    DeniedError,
    LyingError,
    RefusedError,
    RegistryUnavailableError,
    StoredManifest,
)
from envcheck.registry.repository import Repository
from tests.http_server import Answer, Request
from tests.registry.oci.fakes import KIND, FakeRegistry, index_of, opened, push_image, push_index
from tests.tables import each

Fresh = Callable[[str], Repository]
WRITERS = 8


def attached(repository: Repository, subject: StoredManifest, word: str = "proof") -> Attachment:
    return attach(repository, subject.descriptor, KIND, json.dumps(word).encode(), {"word": word})


def words(repository: Repository, subject: str) -> list[str]:
    actual = referrers(repository, subject).artifacts
    return sorted(json.loads(repository.blob(one.manifest.layers[0], 1000)) for one in actual)


SCRIPT = """
import sys
from envcheck.registry.attachments import attach
from envcheck.mirrors.net.client import Client
from envcheck.registry.repository import Repository
from envcheck.registry.documents import parse_reference
*names, word = sys.argv[1:]
repositories = [Repository(Client(), parse_reference(name)) for name in names]
subjects = [repository.manifest(repository.reference.wanted) for repository in repositories]
print("ready", flush=True)
sys.stdin.readline()
for repository, subject in zip(repositories, subjects):
    attach(repository, subject.descriptor, "application/vnd.example.test", word.encode())
"""


@pytest.mark.tools
def test_eight_writers_at_once_lose_none(docker_registry: str, referrers_registry: str, fresh: Fresh) -> None:
    """Processes of their own, which begin together; each sends the same empty config, too."""
    repositories = [fresh(docker_registry), fresh(referrers_registry)]
    subjects = [push_image(repository, tag="latest") for repository in repositories]
    command = [sys.executable, "-c", SCRIPT, *(f"{one.reference.name}:latest" for one in repositories)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    pipe = subprocess.PIPE
    writers = [
        subprocess.Popen([*command, f'"proof{n}"'], env=environment, stdin=pipe, stdout=pipe, stderr=pipe)
        for n in range(WRITERS)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    errors = [writer.communicate(timeout=120)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * WRITERS, errors
    for repository, subject in zip(repositories, subjects, strict=True):
        assert words(repository, subject.digest) == sorted(f"proof{n}" for n in range(WRITERS))


@pytest.mark.tools
def test_a_repository_that_is_not_there_is_absent(real: str, fresh: Fresh) -> None:
    repository = fresh(real)
    with pytest.raises(AbsentError):
        repository.manifest("latest")
    assert repository.tags() == []


@pytest.mark.tools
def test_many_uploads_of_one_blob_at_once_all_end_well(real: str, fresh: Fresh) -> None:
    """docker-registry answers 500 while it writes what another upload of the same blob asks for."""
    repository, content = fresh(real), b"the same " * 1000
    name = repository.reference.repository
    with ThreadPoolExecutor(16) as pool:
        pushed = list(pool.map(lambda _: opened(real, name, sleep=time.sleep).push_blob(content), range(32)))
    assert pushed == [pushed[0]] * 32
    assert repository.blob(pushed[0], 1 << 20) == content


@pytest.fixture
def subject(repository: Repository) -> StoredManifest:
    return push_image(repository)


@pytest.mark.parametrize("hidden", ["index", "own tag", "both"])
def test_each_place_alone_suffices(
    registry: FakeRegistry, repository: Repository, subject: StoredManifest, hidden: str
) -> None:
    attachment = attached(repository, subject)
    for tag in {
        "index": [fallback_tag(subject.digest)],
        "own tag": [own_tag(subject.digest, attachment.descriptor.digest)],
    }.get(hidden, [fallback_tag(subject.digest), own_tag(subject.digest, attachment.descriptor.digest)]):
        del registry.tags[tag]
    if hidden == "both":
        entry = {"digest": attachment.descriptor.digest}
        listing = Answer(200, index_of([entry]), {"Content-Type": OCI_INDEX})
        registry.fault = lambda request: listing if "/referrers/" in request.path else None
    assert words(repository, subject.digest) == ["proof"]


@each("status", [400, 403, 409, 412])
def test_where_no_tag_moves_the_same_manifest_is_pushed_again(status: int, registry: FakeRegistry) -> None:
    """ECR, Docker Hub, Harbor and Artifactory refuse it (aws/aws-sdk#750, docker/hub-feedback#2466, kots#5940)."""
    repository, registry.fault = opened(registry.netloc), lambda _: None
    subject, other = push_image(repository, tag="stable"), push_image(repository, "two")
    first = attached(repository, subject)

    def immutable(request: Request) -> Answer | None:
        taken = request.route.rpartition("/")[2] in registry.tags
        return Answer(status, b'{"errors":[{"code":"TAG_INVALID"}]}') if request.method == "PUT" and taken else None

    registry.fault = immutable
    repository.push_manifest(subject.content, OCI_MANIFEST, "stable")
    assert attached(repository, subject) == first
    with pytest.raises(UnavailableError, match="stable is another manifest there: if tags are immutable"):
        repository.push_manifest(other.content, OCI_MANIFEST, "stable")
    lost = Answer(400, b'{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN"}]}')
    registry.fault = lambda request: lost if request.method == "PUT" else None
    for tag in ("stable", None):
        with pytest.raises(UnavailableError) as refused:
            repository.push_manifest(subject.content, OCI_MANIFEST, tag)
        assert "another manifest" not in refused.value.fix


@each("status", [404, 403, 500])
def test_a_registry_that_says_it_lists_what_no_api_lists_gets_the_index(status: int, registry: FakeRegistry) -> None:
    """AWS ECR sent OCI-Subject without having the referrers API (sigstore/sigstore-js#1183)."""
    repository = opened(registry.netloc)
    subject = push_image(repository)

    def told(request: Request) -> Answer | None:
        registry.fault = lambda _: None
        answer = registry.answer(request)
        registry.fault = told
        if "/referrers/" in request.path:
            return Answer(status)
        return dataclasses.replace(answer, headers={**answer.headers, "OCI-Subject": subject.digest})

    registry.fault = told
    assert attached(repository, subject).note == ""
    assert fallback_tag(subject.digest) in registry.tags


@each(
    "body",
    [
        index_of([]),
        b'{"manifests":null}',
        b"",
        b"<html>welcome</html>",
        b"[]",
        b'{"manifests":[{"digest":"sha512:00"},7,{}]}',
    ],
)
def test_an_api_that_answers_with_nothing_hides_nothing(body: bytes, registry: FakeRegistry) -> None:
    registry.fault = lambda r: Answer(200, body, {"Content-Type": OCI_INDEX}) if "/referrers/" in r.path else None
    repository = opened(registry.netloc)
    subject = push_image(repository)
    attached(repository, subject)
    assert words(repository, subject.digest) == ["proof"]


def test_the_api_is_read_page_by_page_and_never_in_part(
    registry: FakeRegistry, repository: Repository, subject: StoredManifest
) -> None:
    done, lost = [attached(repository, subject, f"proof{n}") for n in range(3)], list[int]()
    registry.tags.clear()

    def page(request: Request) -> Answer | None:
        if "/referrers/" not in request.path:
            return None
        number = int(request.path.partition("page=")[2] or 0)
        if lost and number:
            return Answer(lost[-1])
        entries = [{"digest": done[number].descriptor.digest}]
        link = {"Link": f'<{request.route}?page={number + 1}>; rel="next"'} if number < 2 else {}
        return Answer(200, index_of(entries), {"Content-Type": OCI_INDEX, **link})

    registry.fault = page
    assert words(repository, subject.digest) == ["proof0", "proof1", "proof2"]
    for status in (400, 404):
        lost.append(status)
        with pytest.raises(RegistryUnavailableError, match="in part only"):
            referrers(repository, subject.digest)


@pytest.mark.parametrize("place", ["/referrers/", "/tags/list", "/manifests/sha256-"])
@pytest.mark.parametrize(("status", "kind"), [(503, RegistryUnavailableError), (403, DeniedError)])
def test_a_place_that_cannot_be_read_is_no_empty_one(
    registry: FakeRegistry,
    repository: Repository,
    subject: StoredManifest,
    place: str,
    status: int,
    kind: type[Exception],
) -> None:
    """It might have listed the failure that revokes what the others list."""
    attached(repository, subject)
    registry.fault = lambda request: Answer(status) if place in request.path else None
    with pytest.raises(kind):
        referrers(repository, subject.digest)


@pytest.mark.parametrize("index", [False, True])
def test_a_fallback_tag_that_resolves_to_the_subject_is_neither_read_nor_written(
    registry: FakeRegistry,
    index: bool,  # noqa: FBT001 (a column)
) -> None:
    """An image for several platforms is an index, too; its manifests are attached to nothing."""
    repository = opened(registry.netloc)
    subject = push_index(repository, "latest", amd64="one", arm64="two") if index else push_image(repository)
    tag = fallback_tag(subject.digest)
    registry.tags[tag] = subject.digest
    attachment = attached(repository, subject)
    assert registry.tags[tag] == subject.digest
    assert "other clients may not find it" in attachment.note
    actual = referrers(repository, subject.digest)
    assert [one.descriptor for one in actual.artifacts] == [attachment.descriptor]
    assert actual.unread == {}
    detach(repository, subject.digest, {})  # oras-project/oras-go#1396: GitLab, and `publish --replace`
    assert registry.tags[tag] == subject.digest


def test_a_registry_that_takes_known_types_alone_or_lost_an_index_s_image_is_told(
    registry: FakeRegistry, repository: Repository, subject: StoredManifest
) -> None:
    """github.com/ocx-sh/ocx/issues/480 (GitLab), snok/container-retention-policy/issues/97 (a clean-up)."""
    body = b'{"errors":[{"code":"MANIFEST_INVALID"}]}'
    registry.fault = lambda request: Answer(400, body) if b"artifactType" in request.body else None
    with pytest.raises(RefusedError, match=r"\(400 MANIFEST_INVALID\); use another registry"):
        attached(repository, subject)
    index = push_index(repository, "latest", amd64="one", arm64="two")
    del registry.manifests[index.index().manifests[0].digest]
    with pytest.raises(AbsentError, match="an index names it: a clean-up of what has no tag"):
        remote_images(repository, "latest", "amd64")


def test_entries_of_others_stay_in_the_index_as_they_are(repository: Repository, subject: StoredManifest) -> None:
    foreign = {"mediaType": "x/y", "digest": f"sha256:{'c' * 64}", "size": 7, "unknown": {"kept": True}}
    document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [foreign], "annotations": {"a": "b"}}
    repository.push_manifest(json.dumps(document).encode(), OCI_INDEX, fallback_tag(subject.digest))
    attachment = attached(repository, subject)
    index = json.loads(repository.manifest(fallback_tag(subject.digest)).content)
    assert index["manifests"][0] == foreign
    assert [one["digest"] for one in index["manifests"][1:]] == [attachment.descriptor.digest]
    assert index["annotations"] == {"a": "b"}
    [(name, why)] = referrers(repository, subject.digest).unread.items()
    assert (name, why.reason.value) == (foreign["digest"], "dangling")


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_blob_that_the_registry_lost_is_sent_again(registry: FakeRegistry, times: int) -> None:
    """Registries lose one of two uploads of the same blob, and say so when the manifest comes."""
    repository = opened(registry.netloc)
    subject, refused = push_image(repository), list[str]()

    def lose(request: Request) -> Answer | None:
        if request.method != "PUT" or ".proof" not in request.path or len(refused) == times:
            return None
        refused.append(request.path)
        registry.blobs.clear()
        return Answer(400, b'{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN"}]}')

    registry.fault = lose
    if times == 3:
        with pytest.raises(RefusedError, match="MANIFEST_BLOB_UNKNOWN"):
            attached(repository, subject)
        return
    attached(repository, subject)
    assert words(repository, subject.digest) == ["proof"]


def test_content_in_a_descriptor_counts_only_if_its_digest_and_size_name_it(registry: FakeRegistry) -> None:
    repository = opened(registry.netloc)
    blob = repository.push_blob(b"true")
    before = len(registry.requests)
    for data, requests in ((b"true", 0), (b"false", 1), (b"", 1)):
        assert repository.blob(structs.replace(blob, data=data), 100) == b"true"
        assert len(registry.requests) - before == requests
        before = len(registry.requests)
    assert structs.replace(blob, data=b"true", size=5).content is None


def test_each_image_has_a_share_of_its_own_however_many_there_are(registry: FakeRegistry) -> None:
    repository = opened(registry.netloc)
    shares = [Allowance(repository) for _ in range(20)]
    for share in shares:
        share.take(_MOST_OF_IMAGE)
    with pytest.raises(LyingError, match="attached to one image"):
        shares[0].take(1)

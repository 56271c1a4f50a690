"""What a registry's refusals and failures end in, and which of them are tried again."""

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from envcheck.errors import EnvcheckError
from envcheck.mirrors.profiles.model import Profile
from envcheck.registry.documents import (
    OCI_MANIFEST,
    AbsentError,
    DeniedError,
    LyingError,
    RefusedError,
    RegistryUnavailableError,
    parse_reference,
)
from envcheck.registry.repository import open_repository
from tests.http_server import Answer, Request, Servers
from tests.registry.oci.fakes import FakeRegistry, opened, push_image
from tests.tables import each


def failing(status: int, times: int = 99, **headers: str) -> Callable[[Request], Answer | None]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda request: Answer(status, b"{}", named) if request.number <= times else None


@pytest.mark.parametrize(
    ("status", "kind", "code", "message"),
    [
        (401, DeniedError, 3, "docker login 127.0.0.1"),
        (403, DeniedError, 3, "docker login 127.0.0.1"),
        (404, RegistryUnavailableError, 3, "no registry answers at 127.0.0.1"),
        (400, RefusedError, 3, "does not accept"),
        (405, RefusedError, 3, "does not accept"),
        (429, RegistryUnavailableError, 3, "answers 429; wait, or log in"),
        (500, RegistryUnavailableError, 3, "answers 500"),
        (503, RegistryUnavailableError, 3, "answers 503"),
    ],
)
def test_each_refusal_has_its_error_with_what_to_do(
    registry: FakeRegistry, status: int, kind: type[EnvcheckError], code: int, message: str
) -> None:
    registry.fault = failing(status)
    with pytest.raises(kind, match=message) as refused:
        opened(registry.netloc).manifest("latest")
    assert (refused.value.exit_code, registry.netloc in str(refused.value)) == (code, True)
    assert str(refused.value).isprintable()
    assert len(registry.requests) == {404: 2, 429: 4, 500: 4, 503: 4}.get(status, 1)


@each(
    "answer",
    [
        Answer(404, b"<html>", {"Content-Type": "text/html"}),
        Answer(404, b"{}", {"Content-Type": "application/json"}),
        Answer(200, b"<html>", {"Content-Type": "text/html; charset=utf-8"}),
        Answer(200, b'{"a":1}', {"Content-Type": "text/html"}),
    ],
)
def test_a_server_that_is_no_registry_is_named(answer: Answer, registry: FakeRegistry) -> None:
    registry.fault, repository = lambda _: answer, opened(registry.netloc)
    for ask in (
        repository.tags,
        lambda: repository.manifest("latest"),
        lambda: repository.manifest(f"sha256:{'a' * 64}"),
    ):
        with pytest.raises(RegistryUnavailableError) as refused:
            ask()
        assert refused.value.exit_code == 3
        assert str(refused.value).isprintable()


def test_what_a_registry_does_not_have_is_absent(registry: FakeRegistry) -> None:
    with pytest.raises(AbsentError, match="404 MANIFEST_UNKNOWN"):
        opened(registry.netloc).manifest("latest")
    registry.fault = lambda request: Answer(404) if "/manifests/" in request.path else None
    with pytest.raises(AbsentError, match="does not have"):  # a registry answers at /v2/
        opened(registry.netloc).manifest("latest")


def test_what_a_registry_asks_to_wait_is_waited_and_has_a_limit(registry: FakeRegistry) -> None:
    registry.fault, waited = failing(429, 2, Retry_After="7"), list[float]()
    assert opened(registry.netloc, sleep=waited.append).tags() == []
    assert waited == [7.0, 7.0]
    for value in ("61", "9" * 400):
        registry.fault, before = failing(429, 999, Retry_After=value), len(registry.requests)
        with pytest.raises(RegistryUnavailableError, match="asks to wait"):
            opened(registry.netloc, sleep=waited.append).tags()
        assert len(registry.requests) == before + 1
    registry.fault = failing(429, 999, Retry_After="25")
    waited.clear()
    with pytest.raises(RegistryUnavailableError, match="asks to wait 25 s"):
        opened(registry.netloc, sleep=waited.append).tags()
    assert waited == [25.0, 25.0]


def test_an_answer_that_breaks_off_is_asked_for_again(registry: FakeRegistry) -> None:
    repository = opened(registry.netloc)
    layer = push_image(repository).image().layers[0]
    content, broken = registry.blobs[layer.digest], list[int]()

    def cut(request: Request) -> Answer | None:
        if "/blobs/" not in request.path or broken:
            return None
        broken.append(request.number)
        return Answer(200, [content[:100]], {"Content-Length": str(len(content))}, close=True)

    registry.fault = cut
    assert repository.blob(layer, 1 << 20) == content
    assert len(broken) == 1


def lie(registry: FakeRegistry, part: str, body: bytes, **headers: str) -> None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    registry.fault = lambda request: (
        Answer(200, body, named) if request.method == "GET" and part in request.path else None
    )


def test_a_manifest_is_what_its_digest_its_size_and_its_type_name(registry: FakeRegistry) -> None:
    repository = opened(registry.netloc)
    manifest, other = push_image(repository, tag="latest"), push_image(repository, "other").content
    named: dict[str, Any] = {"Content_Type": OCI_MANIFEST}
    for expected, answer, headers in (
        (manifest.digest, other, named),
        (manifest.digest, manifest.content + b" ", named),
        ("latest", manifest.content, {"Content_Type": "application/octet-stream"}),
        (manifest.descriptor, other, named),
    ):
        lie(registry, "/manifests/", answer, **headers)
        with pytest.raises(LyingError) as refused:
            repository.manifest(expected)
        assert refused.value.exit_code == 1
    lie(registry, "/manifests/", manifest.content, **named)
    smaller = type(manifest.descriptor)(media_type=OCI_MANIFEST, digest=manifest.digest, size=7)
    with pytest.raises(LyingError, match="type or size"):
        repository.manifest(smaller)
    assert repository.manifest(manifest.descriptor) == manifest
    config = manifest.image().config
    lie(registry, "/blobs/", gzip.compress(registry.blobs[config.digest], 0), Content_Encoding="gzip")
    assert repository.blob(config, 1 << 20) == registry.blobs[config.digest]  # quay/quay#1310


@pytest.mark.parametrize("change", ["flip", "longer", "shorter", "length"])
def test_a_blob_is_what_its_digest_and_its_size_name(registry: FakeRegistry, change: str) -> None:
    repository = opened(registry.netloc)
    layer = push_image(repository).image().layers[0]
    content = registry.blobs[layer.digest]
    changed = {"flip": b"X" + content[1:], "longer": content + b"x", "shorter": content[:-1], "length": content}[change]
    if change == "length":  # it comes in parts without a length, and does not end
        endless_body = (b"x" * 1000 for _ in range(1_000_000))
        registry.fault = lambda _: Answer(200, endless_body)
    else:
        lie(registry, "/blobs/", changed)
    with pytest.raises((LyingError, RegistryUnavailableError)):
        repository.blob(layer, 1 << 20)
    with pytest.raises(LyingError, match=f"^{repository.reference.name}: the blob .*, more than 1;"):
        repository.blob(layer, 1)
    assert registry.sent < 20_000_000


def test_pages_of_tags_are_read_to_their_end(registry: FakeRegistry) -> None:
    def pages(request: Request) -> Answer | None:
        number = int(request.path.partition("last=")[2] or 0)
        link = {"Link": f'</v2/team/torch/tags/list?last={number + 1}>; rel="next"'} if number < 3 else {}
        return Answer(200, json.dumps({"tags": [f"t{number}", "no tag!"]}).encode(), link)

    registry.fault = pages
    assert opened(registry.netloc).tags() == ["t0", "t1", "t2", "t3"]


@each("target", ["/v2/team/torch/tags/list", "https://other.example/v2/x", "/v2/x?{}"])
def test_pages_that_never_end_or_lead_elsewhere_are_refused(
    registry: FakeRegistry, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envcheck.registry.repository._PAGES", 5)
    registry.fault = lambda r: Answer(200, b'{"tags":[]}', {"Link": f"<{target.format(r.number)}>; rel=next"})
    before = len(registry.requests)
    with pytest.raises(RegistryUnavailableError, match="no end or are on another host"):
        opened(registry.netloc).tags()
    assert len(registry.requests) - before == (1 if "other" in target else 5)


def test_a_manifest_of_100_mb_is_not_read(registry: FakeRegistry) -> None:
    parts = (b" " * 100_000 for _ in range(1000))
    registry.fault = lambda _: Answer(200, parts, {"Content-Type": OCI_MANIFEST})
    with pytest.raises(LyingError, match=f"^{registry.netloc} has as .*:latest more than 4194304 bytes"):
        opened(registry.netloc).manifest("latest")
    assert registry.sent < 20_000_000
    registry.fault = lambda _: Answer(200, [], {"Content-Length": "100000000"})
    with pytest.raises(LyingError, match="more than 4194304 bytes"):
        opened(registry.netloc).manifest("latest")
    assert len(registry.requests) == 2


def test_a_closed_profile_refuses_a_registry_that_it_does_not_name(registry: FakeRegistry) -> None:
    reference = parse_reference(f"{registry.netloc}/a/b")
    with pytest.raises(RegistryUnavailableError, match=r"127\.0\.0\.1:\d+ is not in the profile.*add the host"):
        open_repository(reference, Profile(name="site", registries={"a.example": ["b.example"]}, closed=True)).tags()
    assert registry.requests == []
    named = Profile(name="site", registries={"a.example": [f"http://{registry.netloc}"]}, closed=True)
    assert open_repository(reference, named).tags() == []


def test_http_and_https_taken_for_each_other_are_named(servers: Servers) -> None:
    plain = servers.start(FakeRegistry())
    with pytest.raises(RegistryUnavailableError, match=rf"write http://{plain.netloc}/"):
        opened(f"https://{plain.netloc}").manifest("latest")
    # What a server of Go's answers, such as docker-registry over TLS.
    page = Answer(400, b"Client sent an HTTP request to an HTTPS server.\n")
    other = servers.start(FakeRegistry(lambda _: page))
    with pytest.raises(RefusedError, match="or write https:// before it"):
        opened(other.netloc).manifest("latest")

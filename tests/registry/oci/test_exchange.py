"""What a registry's refusals and failures end in, and which of them are tried again."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from envcheck.errors import EnvcheckError
from envcheck.mirrors.net.client import Client
from envcheck.registry.documents import OCI_MANIFEST
from envcheck.registry.references import AbsentError, DeniedError, LyingError, RefusedError, RegistryUnavailableError
from tests.http_server import Answer, Request, Servers, deaf
from tests.registry.oci.fakes import FakeRegistry, image, opened, push_image
from tests.tables import each


def failing(status: int, times: int = 99, **headers: str) -> Callable[[Request], Answer | None]:
    """Return a fault of the first requests."""
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
    servers: Servers, status: int, kind: type[EnvcheckError], code: int, message: str
) -> None:
    registry = servers.start(FakeRegistry(failing(status)))
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
def test_a_server_that_is_no_registry_is_named(answer: Answer, servers: Servers) -> None:
    """Whatever is asked: its tags, a tag, or a digest."""
    repository = opened(servers.start(FakeRegistry(lambda _: answer)).netloc)
    for ask in (
        repository.tags,
        lambda: repository.manifest("latest"),
        lambda: repository.manifest(f"sha256:{'a' * 64}"),
    ):
        with pytest.raises(RegistryUnavailableError) as refused:
            ask()
        assert refused.value.exit_code == 3
        assert str(refused.value).isprintable()


def test_what_a_registry_does_not_have_is_absent(servers: Servers) -> None:
    registry = servers.start(FakeRegistry())
    with pytest.raises(AbsentError, match="404 MANIFEST_UNKNOWN"):
        opened(registry.netloc).manifest("latest")
    registry.fault = lambda request: Answer(404) if "/manifests/" in request.path else None
    with pytest.raises(AbsentError, match="does not have"):  # a registry answers at /v2/
        opened(registry.netloc).manifest("latest")


def test_what_a_registry_asks_to_wait_is_waited_and_has_a_limit(servers: Servers) -> None:
    registry, waited = servers.start(FakeRegistry(failing(429, 2, Retry_After="7"))), list[float]()
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


def test_a_connection_that_is_reset_is_made_again(servers: Servers) -> None:
    def reset(request: Request) -> Answer | None:
        if request.number > 2:
            return None
        request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise ConnectionError

    registry = servers.start(FakeRegistry(reset))
    assert opened(registry.netloc).tags() == []
    assert len(registry.requests) == 3


def test_an_answer_that_breaks_off_is_asked_for_again(servers: Servers) -> None:
    registry = servers.start(FakeRegistry())
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


def test_a_registry_that_takes_no_connection_is_left_in_time() -> None:
    with deaf() as (host, port):
        began = time.monotonic()
        with pytest.raises(RegistryUnavailableError, match="no connection in time"):
            opened(f"{host}:{port}", client=Client(connect=0.3)).tags()
        assert time.monotonic() - began < 5


def lie(registry: FakeRegistry, part: str, body: bytes, **headers: str) -> None:
    """Have a registry answer so to reads of a part of its API."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    registry.fault = lambda request: (
        Answer(200, body, named) if request.method == "GET" and part in request.path else None
    )


def test_a_manifest_is_what_its_digest_its_size_and_its_type_name(servers: Servers) -> None:
    registry = servers.start(FakeRegistry())
    repository = opened(registry.netloc)
    manifest, other = push_image(repository, tag="latest"), image("other")[0]
    named: dict[str, Any] = {"Content_Type": OCI_MANIFEST}
    for expected, answer, headers in (
        (manifest.digest, other, named),
        (manifest.digest, manifest.content + b" ", named),
        ("latest", other, {**named, "Docker_Content_Digest": manifest.digest}),
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


@pytest.mark.parametrize("change", ["flip", "longer", "shorter", "length"])
def test_a_blob_is_what_its_digest_and_its_size_name(servers: Servers, change: str) -> None:
    registry = servers.start(FakeRegistry())
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
    assert registry.sent < 20_000_000


def test_a_blob_that_is_too_large_is_refused_before_it_is_asked_for(servers: Servers) -> None:
    registry = servers.start(FakeRegistry())
    repository = opened(registry.netloc)
    huge = type(push_image(repository).descriptor)(media_type="x/y", digest=f"sha256:{'a' * 64}", size=100_000_000)
    before = len(registry.requests)
    with pytest.raises(LyingError, match="100000000 bytes, more than 4194304"):
        repository.blob(huge, 4 << 20)
    assert len(registry.requests) == before


def test_a_manifest_of_100_mb_is_not_read(servers: Servers) -> None:
    parts = (b" " * 100_000 for _ in range(1000))
    registry = servers.start(FakeRegistry(lambda _: Answer(200, parts, {"Content-Type": OCI_MANIFEST})))
    with pytest.raises(LyingError, match="more than 4194304 bytes"):
        opened(registry.netloc).manifest("latest")
    assert registry.sent < 20_000_000
    registry.fault = lambda _: Answer(200, [], {"Content-Length": "100000000"})
    with pytest.raises(LyingError, match="more than 4194304 bytes"):
        opened(registry.netloc).manifest("latest")
    assert len(registry.requests) == 2


def test_pages_of_tags_are_read_to_their_end(servers: Servers) -> None:
    def pages(request: Request) -> Answer | None:
        number = int(request.path.partition("last=")[2] or 0)
        link = {"Link": f'</v2/team/torch/tags/list?last={number + 1}>; rel="next"'} if number < 3 else {}
        return Answer(200, json.dumps({"tags": [f"t{number}", "no tag!"]}).encode(), link)

    registry = servers.start(FakeRegistry(pages))
    assert opened(registry.netloc).tags() == ["t0", "t1", "t2", "t3"]


@pytest.mark.parametrize("target", ["/v2/team/torch/tags/list", "https://other.example/v2/x", "/v2/x?{}"])
def test_pages_that_never_end_or_lead_elsewhere_are_refused(
    servers: Servers, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envcheck.registry.repository._PAGES", 5)
    registry = servers.start(
        FakeRegistry(lambda r: Answer(200, b'{"tags":[]}', {"Link": f"<{target.format(r.number)}>; rel=next"}))
    )
    with pytest.raises(RegistryUnavailableError, match="no end or are on another host"):
        opened(registry.netloc).tags()
    assert len(registry.requests) == {"/v2/team/torch/tags/list": 2, "/v2/x?{}": 5}.get(target, 1)


@pytest.mark.parametrize("absolute", [True, False])
def test_a_blob_is_sent_where_the_registry_says(servers: Servers, absolute: bool) -> None:  # noqa: FBT001 (a column)
    """A session's URL may have a query of its own, and be absolute or not."""

    def session(request: Request) -> Answer | None:
        place = f"{registry.url if absolute else ''}/v2/x/blobs/uploads/1?state=a%2Fb"
        return Answer(202, headers={"Location": place}) if request.method == "POST" else None

    registry = servers.start(FakeRegistry(session))
    blob = opened(registry.netloc).push_blob(b"content")
    assert registry.blobs == {blob.digest: b"content"}
    assert registry.paths[-1] == f"/v2/x/blobs/uploads/1?state=a%2Fb&digest=sha256%3A{blob.digest[7:]}"


def test_a_registry_that_stores_something_else_is_found_out(servers: Servers) -> None:
    wrong = {"Docker-Content-Digest": f"sha256:{'b' * 64}"}
    registry = servers.start(FakeRegistry(lambda r: Answer(201, b"", wrong) if r.method == "PUT" else None))
    repository = opened(registry.netloc)
    with pytest.raises(LyingError, match="names sha256:bbb"):
        repository.push_blob(b"content")
    with pytest.raises(LyingError, match="names sha256:bbb"):
        repository.push_manifest(image("one")[0], OCI_MANIFEST)


def test_an_upload_that_is_lost_is_begun_again(servers: Servers) -> None:
    """A connection breaks, the session is gone (404), or the registry was busy: the blob is sent anew."""
    unknown = Answer(404, b'{"errors":[{"code":"BLOB_UPLOAD_UNKNOWN"}]}')
    for fault in (unknown, Answer(500), Answer(400, b'{"errors":[{"code":"BLOB_UPLOAD_INVALID"}]}')):
        failed = list[int]()

        def once(request: Request, fault: Answer = fault, failed: list[int] = failed) -> Answer | None:
            if request.method != "PUT" or failed:
                return None
            failed.append(1)
            return fault

        registry = servers.start(FakeRegistry(once))
        blob = opened(registry.netloc).push_blob(b"content")
        assert registry.blobs == {blob.digest: b"content"}
        assert [r.method for r in registry.requests] == ["HEAD", "POST", "PUT", "HEAD", "POST", "PUT"]

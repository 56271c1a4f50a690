"""What is read out of a registry's JSON, its type and its platforms."""

from __future__ import annotations

import json

import pytest

from envcheck.registry.documents import DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST, read_manifest
from envcheck.registry.logins import challenges
from envcheck.registry.references import LyingError
from envcheck.registry.repository import next_page
from tests.registry.oci.fakes import image
from tests.tables import each

CONTENT = image("one")[0]


@each(
    "content, content_type, why",
    [
        (CONTENT, DOCKER_MANIFEST, "the registry says"),
        (CONTENT, "text/html", "the registry says"),
        (b'{"schemaVersion":2}', "text/html", "not a manifest"),
        (b"<html>", OCI_MANIFEST, "not a valid document"),
        (b"\xff", OCI_MANIFEST, "not a valid document"),
        (b"[" * 100_000, OCI_MANIFEST, "not a valid document"),
        (CONTENT[:-1] + b',"manifests":[]}', OCI_MANIFEST, "as an image and as an index"),
        (CONTENT[:-1] + b',"manifests":[{}]}', OCI_MANIFEST, "as an image and as an index"),
        (json.dumps({"mediaType": OCI_INDEX, "layers": [{}]}).encode(), OCI_INDEX, "as an image and as an index"),
    ],
)
def test_a_type_that_bytes_and_registry_do_not_agree_on_is_refused(content: bytes, content_type: str, why: str) -> None:
    with pytest.raises(LyingError, match=why):
        read_manifest(content, content_type, "it")


@each("size", ["-1", '"7"', "null"])
def test_a_descriptor_without_a_size_is_refused(size: str) -> None:
    content = CONTENT.replace(b'"size":3000', b'"size":' + size.encode())
    assert content != CONTENT
    with pytest.raises(LyingError, match="size"):
        read_manifest(content, OCI_MANIFEST, "it").image()


@each(
    "header, expected",
    [
        ('Bearer realm="https://a/t",service="x y"', [("bearer", {"realm": "https://a/t", "service": "x y"})]),
        (
            'Basic realm="x, y", Bearer realm="https://a/t?k=1"',
            [("basic", {"realm": "x, y"}), ("bearer", {"realm": "https://a/t?k=1"})],
        ),
        ("Negotiate, bearer realm=https://a/t", [("negotiate", {}), ("bearer", {"realm": "https://a/t"})]),
        ("", []),
        ("=", []),
    ],
)
def test_the_challenges_of_a_registry_are_read(header: str, expected: list[tuple[str, dict[str, str]]]) -> None:
    assert list(challenges(header)) == expected


@each(
    "link, target",
    [
        ('</v2/a/tags/list?n=2&last=b>; rel="next"', "/v2/a/tags/list?n=2&last=b"),
        ("<https://r.example/x>; rel=next", "https://r.example/x"),
        ('</first>; rel="first", </x>; rel="next"', "/x"),
        ('</x>; rel="prev"', None),
        ("", None),
    ],
)
def test_the_next_page_is_read_out_of_a_link(link: str, target: str | None) -> None:
    assert next_page(link) == target

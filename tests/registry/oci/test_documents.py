"""What is read out of a registry's JSON, its type and its platforms."""

from __future__ import annotations

import json

import pytest

from envcheck.registry.documents import (
    DOCKER_MANIFEST,
    OCI_INDEX,
    OCI_MANIFEST,
    ImageIndex,
    Platform,
    digest_of,
    platform_choice,
    read_manifest,
)
from envcheck.registry.logins import challenges, preferred
from envcheck.registry.references import LyingError
from envcheck.registry.repository import next_page
from tests.registry.oci.fakes import image
from tests.tables import each

CONTENT = image("one")[0]


def _index(*platforms: str) -> ImageIndex:
    names = [dict(zip(("os", "architecture", "variant"), name.split("/"), strict=False)) for name in platforms]
    entries = [
        {"mediaType": OCI_MANIFEST, "digest": digest_of(bytes([n])), "size": n, "platform": name}
        for n, name in enumerate(names)
    ]
    document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
    return read_manifest(json.dumps(document).encode(), OCI_INDEX, "it").index()


@each(
    "platforms, expected, chosen",
    [
        (["linux/amd64", "linux/arm64"], Platform(os="linux", architecture="arm64"), 1),
        (["unknown/unknown", "linux/amd64"], Platform(os="linux", architecture="amd64"), 1),
        (["linux/arm/v6", "linux/arm/v7"], Platform(os="linux", architecture="arm", variant="v7"), 1),
        (["linux/arm64/v8"], Platform(os="linux", architecture="arm64"), 0),
        (["linux/arm64"], Platform(os="linux", architecture="arm64", variant="v8"), 0),
        (["linux/arm/v6"], Platform(os="linux", architecture="arm", variant="v7"), None),
        (["windows/amd64"], Platform(os="linux", architecture="amd64"), None),
    ],
)
def test_a_platform_chooses_the_manifest_of_an_index(
    platforms: list[str], expected: Platform, chosen: int | None
) -> None:
    descriptor = platform_choice(_index(*platforms), expected)
    assert (None if descriptor is None else descriptor.size) == chosen


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
    "header, url",
    [
        (
            'Bearer realm="https://a/t",service="x y",scope="repository:a/b:pull,push"',
            "https://a/t?service=x+y&scope=MINE",
        ),
        ('Basic realm="x, y", Bearer realm="https://a/t?k=1"', "https://a/t?k=1&scope=MINE"),
        (
            'Bearer realm="https://a/t",scope="registry:catalog:*"',
            "https://a/t?scope=MINE&scope=registry%3Acatalog%3A%2A",
        ),
        ("Negotiate, bearer realm=https://a/t", "https://a/t?scope=MINE"),
    ],
)
def test_a_challenge_is_answered_with_our_own_scope(header: str, url: str) -> None:
    challenge = preferred(challenges(header))
    assert challenge is not None
    assert challenge.token_url(["repository:a/b:pull"]) == url.replace("MINE", "repository%3Aa%2Fb%3Apull")


@each("header", ["", "Negotiate", "=", 'Digest realm="x"'])
def test_what_is_no_known_challenge_is_none(header: str) -> None:
    assert preferred(challenges(header)) is None


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

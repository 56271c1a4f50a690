"""What is read out of a name, a registry's JSON, its type, its challenges and its links; all else is refused."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envcheck.errors import ConfigError
from envcheck.registry.attachments import whole_images
from envcheck.registry.documents import (
    MANIFESTS,
    OCI_INDEX,
    OCI_MANIFEST,
    LyingError,
    StoredManifest,
    parse_reference,
    read_manifest,
    refuse_two_readings,
)
from envcheck.registry.logins import challenges
from envcheck.registry.repository import Repository
from tests.http_server import Answer
from tests.registry.oci.fakes import FakeRegistry, image_manifest, opened, push_image, push_rows
from tests.tables import beside, each

CASES = beside(__file__)

CONTENT = image_manifest(b"{}", b"x" * 3000)
DIGEST = "sha256:" + "a" * 64
MARK = "vnd.docker.reference.type"


@each(
    "content, content_type, why",
    [
        (CONTENT, MANIFESTS[1], "the registry says"),
        (CONTENT, "text/html", "the registry says"),
        (b'{"schemaVersion":2}', "text/html", "not a manifest"),
        (b"<html>", OCI_MANIFEST, "not a valid document"),
        (b"\xff", OCI_MANIFEST, "not a valid document"),
        (b"[" * 100_000, OCI_MANIFEST, "not a valid document"),
        (CONTENT[:-1] + b',"manifests":[]}', OCI_MANIFEST, "as an image and as an index"),
        (json.dumps({"mediaType": OCI_INDEX, "layers": [{}]}).encode(), OCI_INDEX, "as an image and as an index"),
        *((CONTENT.replace(b'"size":3000', b'"size":' + size), OCI_MANIFEST, "size") for size in (b"-1", b'"7"')),
    ],
)
def test_a_document_that_is_none_or_of_two_types_is_refused(content: bytes, content_type: str, why: str) -> None:
    with pytest.raises(LyingError, match=why):
        read_manifest(content, content_type, "it").image()


@each("more", [b"9" * 5000, b"[" * 100_000, b'{"a":1,"A":1}', b'{"K":1,"\\u212a":1}'])
def test_what_engines_may_read_otherwise_is_refused(more: bytes) -> None:
    manifest = StoredManifest(CONTENT[:-1] + b',"x":' + more + b"}", DIGEST, OCI_MANIFEST)
    with pytest.raises(LyingError, match=r"twice|too long"):
        refuse_two_readings(manifest)


@each("annotations", [None, {"size": 1}, {}])
def test_what_others_annotate_an_entry_with_is_no_reason_to_refuse_it(annotations: object) -> None:
    entry = {"mediaType": OCI_MANIFEST, "digest": DIGEST, "size": 7, "annotations": annotations}
    index = read_manifest(json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode(), OCI_INDEX, "it").index()
    assert [one.annotations for one in index.manifests] == [annotations]


@given(content=st.binary(max_size=300), content_type=st.sampled_from([OCI_MANIFEST, OCI_INDEX, ""]))
def test_any_bytes_are_a_document_or_a_refusal(content: bytes, content_type: str) -> None:
    for one in (content, CONTENT.replace(b"schemaVersion", content)):
        with contextlib.suppress(LyingError):
            manifest = read_manifest(one, content_type, "it")
            manifest.index() if manifest.is_index else manifest.image()


NULLS = st.none() | st.integers() | st.booleans() | st.text(max_size=8)
SPELLED = st.fixed_dictionaries(
    {},
    optional={
        "os": st.sampled_from(["linux", "Linux", "", "windows", "unknown"]),
        "architecture": st.sampled_from(["amd64", "x86_64", "arm64", "aarch64", "unknown", ""]),
        "variant": st.sampled_from(["", "v1", "V8", "8", "v3"]),
    },
)
ENTRY = st.fixed_dictionaries(
    {"image": st.integers(0, 4)},
    optional={"platform": SPELLED | NULLS, "annotations": st.none() | st.just({MARK: "attestation-manifest"})},
)


@pytest.fixture
def pushed(registry: FakeRegistry) -> tuple[Repository, list[StoredManifest]]:
    repository = opened(registry.netloc)
    configs = [("amd64", "linux"), ("arm64", "linux"), ("amd64", "windows"), ("", ""), ("s390x", "linux")]
    return repository, [push_image(repository, f"{arch} {os}", None, arch, os) for arch, os in configs]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries=st.lists(ENTRY, max_size=4))
def test_an_index_is_refused_or_names_every_image_that_an_engine_could_take(
    pushed: tuple[Repository, list[StoredManifest]], entries: list[dict[str, Any]]
) -> None:
    repository, images = pushed
    rows = [(images[entry.pop("image")], entry) for entry in entries]
    push_rows(repository, "any", *rows)
    with contextlib.suppress(LyingError):
        named = whole_images(repository, "any")
        assert named
        assert [image.manifest for image in named] == [one.digest for one, _ in rows]  # its layers are no attestation's
        assert all(image.platform[0] == "linux" for image in named)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_manifest_or_index_of_which_any_value_is_another_is_one_or_a_refusal(data: st.DataObject) -> None:
    index = {"mediaType": OCI_INDEX, "manifests": [{"mediaType": OCI_MANIFEST, "digest": DIGEST, "size": 7}]}
    document = data.draw(st.sampled_from([json.loads(CONTENT), index]))
    place = document
    while (
        (key := data.draw(st.sampled_from(list(place)))) and isinstance(place[key], dict) and data.draw(st.booleans())
    ):
        place = place[key]
    place[key] = data.draw(st.recursive(NULLS | st.floats(), lambda part: st.lists(part, max_size=3), max_leaves=4))
    kind = data.draw(st.sampled_from([OCI_MANIFEST, OCI_INDEX, ""]))
    with contextlib.suppress(LyingError):
        manifest = read_manifest(json.dumps(document).encode(), kind, "it")
        manifest.index() if manifest.is_index else manifest.image()


@each("header, expected", CASES["challenges"])
def test_the_challenges_of_a_registry_are_read(header: str, expected: dict[str, dict[str, str]]) -> None:
    assert challenges(header) == expected


@each(
    "link, target",
    [
        ('</v2/a/tags/list?n=2&last=b>; rel="next"', "/v2/a/tags/list?n=2&last=b"),
        ("</x>; rel=next", "/x"),
        ('</first>; rel="first", </x>; rel="next"', "/x"),
        ('</x>; rel="prev"', None),
        ("", None),
    ],
)
def test_the_next_page_is_read_out_of_a_link(registry: FakeRegistry, link: str, target: str | None) -> None:
    first = len(registry.requests)
    registry.fault = lambda request: Answer(200, b'{"tags":[]}', {"Link": link} if request.number == first + 1 else {})
    opened(registry.netloc).tags()
    assert registry.paths[first + 1 :] == ([target] if target else [])


@each(
    "text, shown, url",
    [
        ("torch", "docker.io/library/torch", "https://registry-1.docker.io"),
        ("torch:2.8", "docker.io/library/torch:2.8", "https://registry-1.docker.io"),
        ("team/torch", "docker.io/team/torch", "https://registry-1.docker.io"),
        ("index.docker.io/torch", "docker.io/library/torch", "https://registry-1.docker.io"),
        ("registry.example/torch", "registry.example/torch", "https://registry.example"),
        (f"r.example:5000/a/b:tag@{DIGEST}", f"r.example:5000/a/b:tag@{DIGEST}", "https://r.example:5000"),
        ("Registry.Example/a__b/c-d.e:Tag_1", "registry.example/a__b/c-d.e:Tag_1", "https://registry.example"),
        ("localhost/a", "localhost/a", "http://localhost"),
        ("127.0.0.1:5000/a", "127.0.0.1:5000/a", "http://127.0.0.1:5000"),
        ("[::1]:5000/a", "[::1]:5000/a", "http://[::1]:5000"),
        ("https://127.0.0.1:5000/a", "127.0.0.1:5000/a", "https://127.0.0.1:5000"),
        ("http://registry/a", "registry/a", "http://registry"),
    ],
)
def test_a_reference_names_a_registry_a_repository_and_what_is_in_it(text: str, shown: str, url: str) -> None:
    reference = parse_reference(text)
    assert (str(reference), reference.url) == (shown, url)


@each(
    "text",
    [
        *("", "https://torch", "ftp://registry.example/a", "-registry.example/a"),
        *(f"registry.example:{port}/a" for port in (0, 65536)),
        *(f"{login}:CANARY@registry.example/a" for login in ("user", "https://user", "http://u")),
        *(f"registry.example/{name}" for name in ("", "Torch", "a//b", "../b", "a" * 256, "a\n", "a:", "a:b c", "a@")),
        *(f"registry.example/a{named}" for named in (f":{'b' * 129}", "@sha256:abc", f"@{DIGEST.upper()}")),
    ],
)
def test_what_is_no_reference_is_one_line_that_repeats_no_password(text: str) -> None:
    with pytest.raises(ConfigError, match="no reference to an image; write REGISTRY/NAME:TAG") as refused:
        parse_reference(text)
    assert str(refused.value).isprintable()
    assert "CANARY" not in str(refused.value)

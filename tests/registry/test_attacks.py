"""What an enemy who can write to the registry, or a fault, leads to: the refusal it must end in, and never an image.

Each attack is made with real registries, the one without the referrers API and the one with it, where they let it be.
"""

import datetime as dt
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import pytest

from envcheck.registry import choosing
from envcheck.registry import statement as statements
from envcheck.registry.attachments import REPORT_TYPE, attach, fallback_tag, own_tag, referrers
from envcheck.registry.documents import OCI_INDEX, OCI_MANIFEST, ImageManifest, StoredManifest
from envcheck.registry.envelope import BUNDLE_ANNOTATIONS, BUNDLE_TYPE, sign
from envcheck.registry.statement import Sha256, Subject, written
from envcheck.signing import load_private
from tests import proofs
from tests.registry.oci.fakes import FakeRegistry, push_rows
from tests.registry.site import NOW, Site

DAY: Final = 86400


def put(site: Site, image: StoredManifest, content: bytes) -> None:
    attach(site.repository, image.descriptor, BUNDLE_TYPE, content, BUNDLE_ANNOTATIONS)


def envelope_of(site: Site, image: StoredManifest) -> bytes:
    [proof] = [one for one in referrers(site.repository, image.digest).artifacts if one.manifest.kind == BUNDLE_TYPE]
    return site.repository.blob(proof.manifest.layers[0], 1 << 20)


def another_image_s_index(site: Site, image: StoredManifest) -> None:
    other = site.image("other")
    site.attach(other)
    index = site.repository.manifest(fallback_tag(other.digest))
    site.repository.push_manifest(index.content, index.media_type, fallback_tag(image.digest))
    for one in referrers(site.repository, other.digest).artifacts:
        content = site.repository.manifest(one.descriptor).content
        site.repository.push_manifest(content, OCI_MANIFEST, own_tag(image.digest, one.descriptor.digest))


def another_image_s_statement(site: Site, image: StoredManifest) -> None:
    other = site.image("other")
    site.attach(other)
    put(site, image, envelope_of(site, other))


def two_subjects(site: Site, image: StoredManifest) -> None:
    digests = [one.digest.partition(":")[2] for one in (image, site.image("other"))]
    site.attach(image, subject=[Subject(name=site.name, digest=Sha256(sha256=digest)) for digest in digests])


def changed_after_signing(site: Site, image: StoredManifest) -> None:
    key = load_private(site.folder / "release")
    put(site, image, proofs.exchanged(*(proofs.bundle(site.stated(image, level=x), key) for x in ("static", "full"))))


def of_another_type(site: Site, image: StoredManifest) -> None:
    key = load_private(site.folder / "release")
    put(site, image, sign(msgspec.json.encode(proofs.stated("cpu")), "application/json", key))


def promotion_as_proof(site: Site, image: StoredManifest) -> None:
    key = load_private(site.folder / "release")
    words = {
        "schema": "envcheck/promotion/1",
        "alias": "x",
        "from": "x",
        "digest": image.digest,
        "at": "",
        "proofs": [],
    }
    put(site, image, sign(json.dumps(words).encode(), statements.PAYLOAD_TYPE, key))


def ended(seconds: int) -> dict[str, str]:
    moment = NOW + dt.timedelta(seconds=seconds)
    return {"started": written(moment - dt.timedelta(minutes=1)), "ended": written(moment)}


ATTACKS: Final[dict[str, tuple[Callable[[Site, StoredManifest], Any], str]]] = {
    "the index and the tags of another image": (another_image_s_index, "wrong-subject"),
    "the statement about another image": (another_image_s_statement, "wrong-subject"),
    "a statement about two images": (two_subjects, "wrong-subject"),
    "a payload that was changed after signing": (changed_after_signing, "tampered"),
    "a key that the policy does not name": (lambda s, i: s.attach(i, by="other"), "wrong-key"),
    "a proof of last month": (lambda s, i: s.attach(i, **ended(-31 * DAY)), "expired"),
    "a clock that is a day ahead": (lambda s, i: s.attach(i, **ended(DAY)), "from-the-future"),
    "a signature of another type": (of_another_type, "unknown-format"),
    "a promotion as a proof": (promotion_as_proof, "unknown-format"),
    "bytes that are no bundle": (lambda s, i: put(s, i, b"{}"), "unknown-format"),
    "a run on another architecture": (lambda s, i: s.attach(i, arch="riscv64"), "wrong-arch"),
}


@pytest.mark.tools
@pytest.mark.parametrize(("attack", "refusal"), ATTACKS.values(), ids=ATTACKS)
def test_each_attack_ends_in_its_refusal(
    attack: Callable[[Site, StoredManifest], Any], refusal: str, site: Site
) -> None:
    image = site.image("one")
    attack(site, image)
    assert site.reasons(f"{site.name}@{image.digest}") == {refusal}
    site.attach(image)
    assert site.chosen(f"{site.name}@{image.digest}") == image.digest


AMD64: Final = {"platform": {"os": "linux", "architecture": "amd64"}}


def many(image: StoredManifest, count: int) -> list[tuple[StoredManifest, dict[str, Any]]]:
    return [(image, {**AMD64, "digest": f"sha256:{number:064x}"}) for number in range(count)]


def test_an_index_that_names_thousands_of_images_costs_few_requests(lied: Site, registry: FakeRegistry) -> None:
    image = lied.repository.manifest("2.13.0-cpu-py311-runtime")
    push_rows(lied.repository, "huge", *many(image, 5000))
    before = len(registry.requests)
    document = lied.pull("--from", lied.name)
    assert document["chosen"].endswith(image.digest)
    assert [(row["digest"], row["reason"]) for row in document["refused"]] == [("huge", "unknown-format")]
    assert len(registry.requests) - before < 30


def test_one_image_with_too_many_attachments_does_not_stop_the_pull_of_another(lied: Site) -> None:
    image = lied.image("two", "2.14.0-cpu-py311-runtime")
    push_rows(lied.repository, fallback_tag(image.digest), *many(image, 10_001))
    document = lied.pull("--from", lied.name)
    assert document["chosen"] is not None
    assert [(row["digest"], row["reason"]) for row in document["refused"]] == [(image.digest, "tampered")]


def test_a_pull_says_what_it_renames_and_lists_old_refusals_with_all_only(
    lied: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    lied.attach(lied.repository.manifest("2.13.0-cpu-py311-runtime"), by="other")
    name = "envcheck/torch:2.13.0-cpu-py311-runtime"
    holds = {name: "sha256:old"}
    engine = SimpleNamespace(
        pull=lambda pinned: holds.setdefault(pinned, "sha256:new"),
        inspect=lambda wanted: SimpleNamespace(id=holds[wanted]),
        tag=lambda _, tagged: holds[tagged],
    )
    monkeypatch.setattr("envcheck.images.engines.find", lambda _: "docker")
    monkeypatch.setattr("envcheck.images.engines.connect", lambda _: engine)
    for words, listed in (((), False), (("--all",), True)):
        status, said = lied.run("pull", "--from", lied.name, "--policy", lied.policy, *words)
        assert status == 0, said
        assert f"{name} was the image sha256:old here, and is sha256:new now" in said
        assert ("wrong-key" in said, "1 more refused; --all lists them" in said) == (listed, not listed)
        assert said.splitlines()[-1] == f"docker run --rm -it --shm-size 8g {name}"


@pytest.mark.parametrize("where", ["manifest", "blob"])
def test_large_attachments_do_not_stop_the_pull_of_another(
    lied: Site, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    image = lied.image("two", "2.14.0-cpu-py311-runtime")
    for number in range(9):
        filler = "x" * (3_000_000 if where == "manifest" else 0)
        content, kept = b"%d" % number * (1 if filler else 250_000), {**BUNDLE_ANNOTATIONS, "filler": filler}
        attach(lied.repository, image.descriptor, BUNDLE_TYPE, content, kept)
    monkeypatch.setattr("envcheck.registry.attachments._MOST_OF_IMAGE", 1_000_000)
    document = lied.pull("--from", lied.name)
    assert document["chosen"] is not None
    assert {row["reason"] for row in document["refused"]} == {"tampered"}
    bound = "more than 65536 bytes" if where == "manifest" else "attached to one image has over 1000000 bytes"
    assert all(bound in row["detail"] for row in document["refused"]), document["refused"]


def test_what_lies_beside_images_that_nobody_proved_is_not_kept(lied: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    proven, image = lied.repository.manifest("2.13.0-cpu-py311-runtime"), lied.image("two", "2.13.0-cpu-py312-runtime")
    put(lied, image, b"x" * 100_000)
    kept: dict[str, int] = {}
    best = choosing._best  # noqa: SLF001 (what it is given is what is in memory)

    def noted(screened: list[Any], *more: Any) -> Any:
        kept.update({one.digest: len(one.attached) for one in screened})
        return best(screened, *more)

    monkeypatch.setattr(choosing, "_best", noted)
    assert lied.chosen() == proven.digest
    assert kept == {proven.digest: 1, image.digest: 0}


@pytest.mark.parametrize("key", ["manifests", "Manifests", "MANIFESTS", "manife\u017fts"])
def test_an_index_that_engines_read_otherwise_is_not_promoted(lied: Site, key: str) -> None:
    """Go's decoder ignores the case of a key and takes the last: docker, podman and skopeo would see the stranger."""
    proven, stranger = lied.repository.manifest("2.13.0-cpu-py311-runtime"), lied.image("stranger")
    sound, other = (push_rows(lied.repository, tag, (one, AMD64)) for tag, one in (("one", proven), ("x", stranger)))
    entries = json.dumps(json.loads(other.content)["manifests"])
    content = f'{sound.content.decode()[:-1]}, "{key}": {entries}}}'.encode()
    lied.repository.push_manifest(content, OCI_INDEX, "two")
    status, message = lied.promote(lied.repository.manifest("two"), "--to", "stable")
    assert (status, "can be read in two ways" in message) == (1, True), message
    assert lied.promote(sound, "--to", "stable")[0] == 0


@pytest.mark.parametrize("digests", [0, 1])
def test_an_index_of_no_image_is_not_promoted(lied: Site, digests: int) -> None:
    document = ImageManifest(schema_version=2, media_type=OCI_MANIFEST, config=lied.repository.push_blob(b"{}"))
    said = msgspec.json.encode(document)
    lied.repository.push_manifest(said, OCI_MANIFEST, "said")
    marked = {"vnd.docker.reference.type": "attestation-manifest"}
    more = {"platform": {"os": "unknown", "architecture": "unknown"}, "annotations": marked}
    index = push_rows(lied.repository, "x", *[(lied.repository.manifest("said"), more)][:digests])
    status, message = lied.promote(index, "--to", "stable")
    assert (status, "is an index of no image" in message) == (1, True), message


@pytest.mark.tools
def test_a_failure_that_an_index_calls_a_report_is_read_and_counts(on_disk: Site) -> None:
    image = on_disk.image("one")
    on_disk.publish(image)
    on_disk.publish(image, failed=True, ago=60)
    index = json.loads(on_disk.repository.manifest(fallback_tag(image.digest)).content)
    for entry in index["manifests"]:
        entry["artifactType"] = REPORT_TYPE
    on_disk.repository.push_manifest(json.dumps(index).encode(), OCI_INDEX, fallback_tag(image.digest))
    assert on_disk.reasons(f"{on_disk.name}@{image.digest}") == {"failed", "failed-since"}

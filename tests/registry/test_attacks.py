"""What an enemy who can write to the registry, or a fault, leads to: the refusal it must end in, and never an image.

Each attack is made with real registries, the one without the referrers API and the one with it, where they let it be.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from envcheck.mirrors.net import responses
from envcheck.registry import statement as statements
from envcheck.registry.attached_proofs import read_proofs
from envcheck.registry.attachments import REPORT_TYPE, attach, fallback_tag, own_tag, referrers
from envcheck.registry.documents import OCI_INDEX, OCI_MANIFEST, StoredManifest
from envcheck.registry.envelope import BUNDLE_TYPE, bundle_annotations, sign
from envcheck.registry.statement import Sha256, Subject, written
from envcheck.signing import load_private
from tests import proofs
from tests.http_server import Answer, RawServer, Servers, endless
from tests.registries import stored_blob
from tests.registry.oci.fakes import FakeRegistry
from tests.registry.site import NOW, Site

DAY: Final = 86400


def put(site: Site, image: StoredManifest, content: bytes) -> None:
    """Attach these bytes as a signed proof."""
    layers = [(BUNDLE_TYPE, content)]
    attach(site.repository, image.descriptor, BUNDLE_TYPE, layers, bundle_annotations(statements.PREDICATE_TYPE))


def envelope_of(site: Site, image: StoredManifest) -> bytes:
    """Return the bytes of the one proof beside an image."""
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
    key, payload = load_private(site.folder / "release"), re.compile(rb'"payload":"[^"]*"')
    ours, theirs = (proofs.bundle(site.stated(image, level=level), key) for level in ("static", "full"))
    changed = payload.search(theirs)
    assert changed is not None
    put(site, image, payload.sub(changed[0], ours))


def of_another_type(site: Site, image: StoredManifest) -> None:
    key = load_private(site.folder / "release")
    put(site, image, sign(statements.encode(proofs.stated("cpu")), "application/json", key))


def huge(site: Site, image: StoredManifest) -> None:
    put(site, image, bytes(100_000_000))


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
    "a bundle of 100 MB": (huge, "unknown-format"),
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


@pytest.mark.tools
def test_a_report_that_is_exchanged_on_the_disk_is_tampering(on_disk: Site, docker_files: Path) -> None:
    image = on_disk.image("one")
    on_disk.attach(image)
    [report] = [
        one for one in referrers(on_disk.repository, image.digest).artifacts if one.manifest.kind == REPORT_TYPE
    ]
    file = stored_blob(docker_files, report.manifest.layers[0].digest)
    honest = file.read_bytes()
    file.write_bytes(proofs.packed("h200x1").content)
    assert on_disk.reasons(f"{on_disk.name}@{image.digest}") == {"tampered"}
    file.write_bytes(honest)
    assert on_disk.chosen(f"{on_disk.name}@{image.digest}") == image.digest


@pytest.fixture
def fake(servers: Servers) -> FakeRegistry:
    return servers.start(FakeRegistry())


@pytest.fixture
def lied(fake: FakeRegistry, tmp_path: Path) -> Site:
    """Return a repository with a proven image, in a registry that does what a test says."""
    site = Site(fake.netloc, tmp_path)
    site.attach(site.image("one", "2.13.0-cpu-py311-runtime"))
    return site


def index_of(image: StoredManifest, digests: list[str], arch: str = "amd64") -> bytes:
    platform = {"os": "linux", "architecture": arch}
    entry = {"mediaType": image.media_type, "size": len(image.content), "platform": platform}
    entries = [{**entry, "digest": digest} for digest in digests]
    return json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}).encode()


def test_an_index_that_names_thousands_of_images_costs_few_requests(lied: Site, fake: FakeRegistry) -> None:
    image = lied.repository.manifest("2.13.0-cpu-py311-runtime")
    digests = [f"sha256:{number:064x}" for number in range(5000)]
    lied.repository.push_manifest(index_of(image, digests), OCI_INDEX, "huge")
    before = len(fake.requests)
    document = lied.pull("--from", lied.name)
    assert document["chosen"].endswith(image.digest)
    assert any("names 5000 images for Linux" in note for note in document["notes"])
    assert len(fake.requests) - before < 30


def test_one_image_with_too_many_attachments_does_not_stop_the_pull_of_another(lied: Site) -> None:
    image = lied.image("two", "2.14.0-cpu-py311-runtime")
    many = index_of(image, [f"sha256:{number:064x}" for number in range(10_001)])
    lied.repository.push_manifest(many, OCI_INDEX, fallback_tag(image.digest))
    document = lied.pull("--from", lied.name)
    assert document["chosen"] is not None
    assert [(row["digest"], row["reason"]) for row in document["refused"]] == [(image.digest, "tampered")]


OUTAGES: Final[list[tuple[str, Answer, int]]] = [
    ("/manifests/sha256:", Answer(401, headers={"WWW-Authenticate": 'Basic realm="x"'}), 3),
    ("/manifests/sha256:", Answer(403), 3),
    ("/manifests/sha256:", Answer(404), 1),
    ("/tags/list", Answer(429, headers={"Retry-After": "0"}), 3),
    ("/tags/list", Answer(429, headers={"Retry-After": "3600"}), 3),
    ("/referrers/", Answer(503, headers={"Retry-After": "0"}), 3),
    ("/blobs/", Answer(503, headers={"Retry-After": "0"}), 3),
    ("/blobs/", Answer(404), 1),
]


@pytest.mark.parametrize(("place", "answer", "status"), OUTAGES)
def test_a_registry_that_does_not_answer_leads_to_no_image(
    place: str, answer: Answer, status: int, lied: Site, fake: FakeRegistry
) -> None:
    image = lied.repository.manifest("2.13.0-cpu-py311-runtime")
    fake.fault = lambda request: answer if place in request.path else None
    words = (f"{lied.name}@{image.digest}", "--policy", lied.policy)
    assert lied.run("pull", *words, "--dry-run")[0] == status
    assert lied.run("proof", *words)[0] == status
    fake.fault = lambda _: None
    assert lied.chosen(f"{lied.name}@{image.digest}") == image.digest


def test_no_registry_is_no_proof(lied: Site) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nothing = f"127.0.0.1:{free.getsockname()[1]}/team/torch"
    for words in (("pull", "--from", nothing, "--dry-run"), ("proof", nothing)):
        assert lied.run(*words, "--policy", lied.policy)[0] == 3


@pytest.mark.parametrize(
    "lie",
    [
        Answer(200, b'{"schemaVersion":2,"manifests":[]}', {"Content-Type": OCI_INDEX}),
        Answer(200, b"<html>welcome</html>", {"Content-Type": "text/html"}),
        Answer(200, b""),
    ],
)
def test_a_referrers_api_that_answers_with_nothing_hides_no_failure(
    lie: Answer, lied: Site, fake: FakeRegistry
) -> None:
    image = lied.repository.manifest("2.13.0-cpu-py311-runtime")
    fake.fault = lambda request: lie if "/referrers/" in request.path else None
    assert lied.chosen() == image.digest
    lied.publish(image, failed=True, ago=60)
    assert lied.reasons() == {"failed", "failed-since"}


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


@pytest.mark.tools
def test_reports_are_not_read_and_neither_are_blobs(on_disk: Site) -> None:
    image = on_disk.image("one")
    for ago in (60, 120, 180):
        on_disk.publish(image, ago=ago)
    reading = on_disk.at(image)
    tags = reading.tags()
    before = reading.sent
    assert len(read_proofs(reading, image.digest, tags).proofs) == 3
    assert reading.sent - before == 5, "the index, the referrers API that is not there, and three proofs"
    assert len(read_proofs(reading, image.digest, tags).proofs) == 3
    assert reading.sent - before == 9, "the API is asked once"


@pytest.mark.tools
def test_two_who_publish_at_once_lose_nothing(on_disk: Site) -> None:
    image = on_disk.image("one")
    reports = [on_disk.report(image, ago=3600), on_disk.report(image, ago=60, failed=True)]
    words = [sys.executable, "-m", "envcheck", "publish", f"{on_disk.name}@{image.digest}"]
    both = [
        subprocess.Popen([*words, "--report", str(report), "--key", str(on_disk.folder / "release")])
        for report in reports
    ]
    assert [one.wait(120) for one in both] == [0, 0]
    assert on_disk.reasons(f"{on_disk.name}@{image.digest}") == {"failed", "failed-since"}


@pytest.mark.parametrize("sent", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"])
def test_a_registry_that_hardly_sends_ends_each_command_with_one_line(
    sent: bytes, lied: Site, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "SECONDS", 0.3)
    monkeypatch.setattr(responses, "_PAGE_SECONDS", 0.5)
    slow = servers.start(RawServer(endless(sent, b"X-More: 1\r\n", 0.05)))
    image = lied.repository.manifest("2.13.0-cpu-py311-runtime")
    name, key = f"{slow.netloc}/team/torch@{image.digest}", ("--key", lied.folder / "release")
    policy = ("--policy", lied.policy)
    for words in (
        ("publish", name, "--report", lied.report(image), *key),
        ("proof", name, *policy, "--no-here"),
        ("pull", name, *policy, "--dry-run"),
        ("promote", name, "--to", "stable", *policy, *key),
    ):
        status, output = lied.run(*words)
        assert (status, output.count("\n")) == (3, 0), output
        # A hundred lines of a head are no valid HTTP; a page has one deadline.
        assert "its answer is not valid HTTP" in output or "without a complete answer" in output, output


@pytest.mark.tools
def test_a_clock_that_is_behind_is_named_when_it_promotes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = site.image("first"), site.image("second")
    for image in (first, second):
        site.attach(image)
    site.later(monkeypatch, 120)
    assert site.promote(first, "--to", "stable")[0] == 0
    site.later(monkeypatch, 0)
    status, message = site.promote(second, "--to", "stable")
    assert (status, "check the clocks" in message) == (1, True), message
    assert site.chosen(f"{site.name}:stable") == first.digest

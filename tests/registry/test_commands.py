"""`publish`, `proof`, `promote` and `pull` with real registries: what is proven is chosen, and nothing else ever is.

The reports are recorded: no GPU took part. The runs on a CPU are as the policy of most tests allows.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from envcheck.registry.attachments import REPORT_TYPE, RemoteImage, fallback_tag, referrers
from envcheck.registry.documents import OCI_MANIFEST, ImageManifest, StoredManifest
from envcheck.registry.envelope import BUNDLE_TYPE
from envcheck.registry.publishing import PreparedProof, delete_replaced
from envcheck.registry.repository import Repository
from envcheck.registry.statement import written
from envcheck.signing import load_private
from tests import proofs
from tests.processes import program
from tests.registries import stored_blob
from tests.registry.oci.fakes import push_image, push_index, push_rows
from tests.registry.site import NOW, Site

pytestmark = pytest.mark.tools


def test_what_is_published_is_read_back_holds_and_is_pulled_by_its_digest(site: Site) -> None:
    image = site.image("one", "2.13.0-cpu-py311-runtime")
    assert site.reasons() == {"no-proof"}
    status, output = site.publish(image, "--policy", site.policy)
    assert (status, output.splitlines()[-1]) == (0, "  read back: holds for the node that ran"), output
    assert "published PASSED" in output or "published WARNED" in output
    status, output = site.run("proof", f"{site.name}@{image.digest}", "--policy", site.policy, "--json")
    [row] = json.loads(output)["proofs"]
    assert (status, row["holds"], row["reason"]) == (0, True, None)
    assert site.chosen() == site.chosen(f"{site.name}@{image.digest}") == image.digest
    status, output = site.publish(image, "--policy", site.policy, "--json", ago=1800)
    [row] = json.loads(output)["published"]
    assert (status, row["holds"], row["reason"], row["detail"]) == (0, True, None, "")


@pytest.mark.parametrize(
    ("keys", "setting", "report", "reason"),
    [
        ('"other.pub"', "", {}, "wrong-key"),
        ('"release.pub"', "max_age = '10m'", {}, "expired"),
        ('"release.pub"', "warnings = 'refuse'", {}, "failed"),
        ('"release.pub"', "required = ['nccl-env']", {}, "check-missing"),
        ('"release.pub"', "", {"failed": True}, "failed"),
    ],
)
def test_what_pull_would_refuse_is_published_and_exits_1(
    keys: str, setting: str, report: dict[str, Any], reason: str, site: Site
) -> None:
    image = site.image("one", "one")
    policy = site.write_policy(f"{setting}\n", keys=keys)
    status, output = site.publish(image, "--policy", policy, **report)
    assert (status, output.startswith("published ")) == (1, True), output
    assert output.splitlines()[-2] == "  read back: refused for the node that ran"
    assert output.splitlines()[-1].startswith(f"    {reason}: ")
    assert reason in site.reasons(f"{site.name}@{image.digest}", policy=policy)


def test_what_a_newer_proof_replaces_is_deleted_when_asked_and_nothing_else(site: Site) -> None:
    image = site.image("one", "one")
    for ago, more in ((5000, {}), (4000, {"failed": True}), (3000, {"key": "other"}), (2000, {})):
        assert site.publish(image, ago=ago, **more)[0] == 0
    before = set(site.repository.tags())
    assert site.publish(image, "--replace", ago=5500)[0] == 0
    assert before < set(site.repository.tags()), "a newer proof, a failed run and another key's stay"
    status, output = site.publish(image, "--replace", "--json", ago=1000)
    [row] = json.loads(output)["published"]
    assert (status, len(row["replaced"])) == (0, 3), output
    left = referrers(site.repository, image.digest)
    kinds = [one.manifest.kind for one in left.artifacts]
    assert (kinds.count(BUNDLE_TYPE), kinds.count(REPORT_TYPE), left.unread) == (3, 6, {})
    assert site.chosen(f"{site.name}@{image.digest}") == image.digest
    own = site.image("own", "own")
    for ago in (3000, 2000, 1000):
        assert site.publish(own, "--replace", ago=ago)[0] == 0
        kinds = [one.manifest.kind for one in referrers(site.repository, own.digest).artifacts]
        assert sorted(kinds) == sorted([BUNDLE_TYPE, REPORT_TYPE])


def test_a_proof_that_does_not_hold_or_is_not_listed_replaces_none(lied: Site) -> None:
    image = lied.repository.manifest("2.13.0-cpu-py311-runtime")
    lied.publish(image, ago=2000)
    policy = lied.write_policy(keys='"other.pub"')
    status, output = lied.publish(image, "--replace", "--policy", policy, ago=1000)
    assert (status, "wrong-key" in output) == (1, True), output  # this registry deletes nothing: exit 3 if it was asked
    new = lied.stated(image, ended=written(NOW))
    remote = RemoteImage(lied.name, image.digest, new.facts.image.config, "amd64")
    prepared = PreparedProof(remote, proofs.packed("cpu"), new)
    assert delete_replaced(lied.repository, prepared, load_private(lied.folder / "release").public) == []


def test_a_registry_that_lets_nobody_delete_is_told_and_the_proof_is_there(lied: Site) -> None:
    image = lied.repository.manifest("2.13.0-cpu-py311-runtime")
    lied.publish(image, ago=2000)
    status, message = lied.publish(image, "--replace", ago=1000)
    assert (status, "does not accept to delete" in message) == (3, True), message
    assert len(referrers(lied.repository, image.digest).artifacts) == 6
    assert lied.chosen(f"{lied.name}@{image.digest}") == image.digest


def test_a_report_of_another_image_publishes_nothing(site: Site) -> None:
    one, other = site.image("one", "one"), site.image("other", "other")
    status, output = site.run(
        "publish", f"{site.name}:one", "--report", site.report(other), "--key", site.folder / "release"
    )
    assert (status, "about another image" in output) == (1, True), output
    assert sorted(site.repository.tags()) == ["one", "other"]
    assert one.digest != other.digest


def test_the_newest_torch_comes_first_and_then_the_newest_proof(site: Site) -> None:
    old = site.image("old", "2.8.0-cpu-py311-runtime-amd64-1")
    new = site.image("new", "2.13.0-cpu-py311-runtime-amd64-1")
    rebuilt = site.image("rebuilt", "2.13.0-cpu-py311-runtime-amd64-2")
    site.publish(old, ago=60, cell="torch2.8.0-cpu-py311")
    assert site.chosen() == old.digest
    site.publish(new, ago=3600, cell="torch2.13.0-cpu-py311")
    site.publish(rebuilt, ago=7200, cell="torch2.13.0-cpu-py311")
    assert site.chosen() == new.digest
    assert site.chosen("torch2.8*", "--from", site.name) == old.digest
    site.publish(rebuilt, ago=30, cell="torch2.13.0-cpu-py311")
    assert site.chosen() == rebuilt.digest
    site.publish(old, ago=20, failed=True, cell="torch2.8.0-cpu-py311")
    assert site.reasons("torch2.9*", "--from", site.name) == {"no-proof"}
    assert site.chosen("--from", site.name, "--target", "devel") is None


def test_evidence_that_does_not_hold_leads_to_the_next_image(on_disk: Site, docker_files: Path) -> None:
    old = on_disk.image("old", "2.8.0-cpu-py311-runtime")
    new = on_disk.image("new", "2.8.0-cpu-py311-runtime-2")
    on_disk.publish(old, ago=7200, cell="torch2.8.0-cpu-py311")
    _, output = on_disk.publish(new, "--json", ago=60, cell="torch2.8.0-cpu-py311")
    assert on_disk.chosen() == new.digest
    report = json.loads(output)["published"][0]["report"]
    stored_blob(docker_files, on_disk.repository.manifest(report).image().layers[0].digest).unlink()
    document = on_disk.pull("--from", on_disk.name)
    assert document["chosen"].endswith(old.digest)
    assert [(row["digest"], row["reason"]) for row in document["refused"]] == [(new.digest, "dangling")]


def test_an_alias_is_what_was_promoted_last_and_does_not_go_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = site.image("first", "a"), site.image("second", "b")
    for image in (first, second):
        assert site.publish(image)[0] == 0
    assert site.reasons(f"{site.name}:a") == {"alias-not-promoted"}
    status, output = site.promote(first, "--to", "stable")
    assert (status, f"promoted {site.name}:stable" in output) == (0, True), output
    assert site.chosen(f"{site.name}:stable") == first.digest
    _tag(site.repository, "stable", second)
    assert site.reasons(f"{site.name}:stable") == {"alias-not-promoted"}
    _tag(site.repository, "stable", first)
    assert site.chosen(f"{site.name}:stable") == first.digest
    site.later(monkeypatch, 2)
    status, output = site.promote(second, "--to", "stable", "--dry-run")
    assert (status, "promoted" in output, output.startswith("met ")) == (0, False, True)
    assert site.promote(second, "--to", "stable")[0] == 0
    assert site.chosen(f"{site.name}:stable") == second.digest
    _tag(site.repository, "stable", first)
    assert site.reasons(f"{site.name}:stable") == {"alias-not-promoted"}


def test_a_promotion_wants_a_proof_for_each_of_the_policys_gpus(site: Site) -> None:
    image = site.image("one")
    assert site.promote(image, "--to", "stable")[0] == 1
    assert "stable" not in site.repository.tags()
    site.publish(image)
    gpus = site.write_policy(promote='gpus = ["H100 x8"]').read_text().replace('"cpu"', '"gpu"')
    (site.folder / "gpus.toml").write_text(gpus)
    status, output = site.promote(image, "--to", "stable", policy=site.folder / "gpus.toml")
    assert (status, output.split()[:4]) == (1, ["not", "met", "H100", "x8:"])
    assert "stable" not in site.repository.tags()


def test_an_index_is_proven_and_promoted_by_its_image(site: Site) -> None:
    index = push_index(site.repository, "index", amd64="one")
    image = site.image("one")
    assert site.publish(image)[0] == 0
    assert site.promote(index, "--to", "stable")[0] == 0
    assert site.chosen(f"{site.name}:stable") == site.chosen() == image.digest


# Entries that an engine takes or that no builder writes, beside a proven image for amd64; and how each is refused.
STRANGERS: dict[str, tuple[dict[str, Any], str]] = {
    "other spelling": ({"platform": {"os": "Linux", "architecture": "aarch64"}}, "the image for arm64: no-proof"),
    "another variant": (
        {"platform": {"os": "linux", "architecture": "arm64", "variant": "v9"}},
        "is linux/arm64 by its config and linux/arm64/v9 in the index",
    ),
    "the usual variant": (
        {"platform": {"os": "linux", "architecture": "aarch64", "variant": "8"}},
        "the image for arm64: no-proof",
    ),
    "without a platform": ({}, "the image for arm64: no-proof"),
    "what its config denies": ({"platform": {"os": "linux", "architecture": "s390x"}}, "linux/arm64 by its config"),
    "with annotations of null": ({"annotations": None}, "the image for arm64: no-proof"),
    "called an attestation": (
        {
            "platform": {"os": "unknown", "architecture": "unknown"},
            "annotations": {"vnd.docker.reference.type": "attestation-manifest"},
        },
        "linux/arm64 by its config",
    ),
}


@pytest.mark.parametrize(("entry", "why"), STRANGERS.values(), ids=STRANGERS)
def test_an_index_is_promoted_only_whole(on_disk: Site, entry: dict[str, Any], why: str) -> None:
    site, proven = on_disk, on_disk.image("one")
    assert site.publish(proven)[0] == 0
    stranger = push_image(site.repository, "stranger", architecture="arm64")
    proves = {"platform": {"os": "linux", "architecture": "x86_64"}}
    index = push_rows(site.repository, "both", (proven, proves), (stranger, entry))
    status, message = site.promote(index, "--to", "stable")
    assert (status, why in message) == (1, True), message
    assert "stable" not in site.repository.tags()


def test_what_a_builder_says_of_its_image_is_promoted_with_it(on_disk: Site) -> None:
    site, proven = on_disk, on_disk.image("one")
    assert site.publish(proven)[0] == 0
    empty = site.repository.push_blob(b"{}")
    layers = [structs.replace(empty, media_type="application/vnd.in-toto+json")]
    said = ImageManifest(schema_version=2, media_type=OCI_MANIFEST, config=empty, layers=layers)
    site.repository.push_manifest(msgspec.json.encode(said), OCI_MANIFEST, "said")
    note, entry = site.repository.manifest("said"), STRANGERS["called an attestation"][0]
    proves = {"platform": {"os": "linux", "architecture": "amd64"}}
    index = push_rows(site.repository, "both", (proven, proves), (note, entry))
    assert site.promote(index, "--to", "stable")[0] == 0


def test_an_alias_does_not_go_back_when_its_newest_promotion_is_overwritten(
    on_disk: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, first, second = on_disk, on_disk.image("first"), on_disk.image("second")
    for image in (first, second):
        site.publish(image)
    assert site.promote(first, "--to", "stable")[0] == 0
    site.later(monkeypatch, 2)
    assert site.promote(second, "--to", "stable")[0] == 0
    [newest] = [tag for tag in _listed(site.repository, second) if tag.endswith(".promotion")]
    _tag(site.repository, newest, first)
    push_rows(site.repository, fallback_tag(second.digest))
    _tag(site.repository, "stable", first)
    assert site.reasons(f"{site.name}:stable") == {"alias-not-promoted"}
    status, message = site.promote(first, "--to", "stable")
    assert (status, "cannot be read, and may be the newest" in message) == (1, True), message


def test_an_index_with_two_images_of_one_architecture_is_not_promoted(site: Site) -> None:
    index = push_index(site.repository, "both", amd64="one", amd64_v1="two")
    assert site.publish(site.image("one"))[0] == 0
    status, message = site.promote(index, "--to", "stable")
    assert (status, "two images of one architecture" in message) == (1, True), message
    assert "stable" not in site.repository.tags()


@pytest.mark.parametrize("back", [False, True])
def test_oras_takes_the_proofs_along_and_the_image_is_promoted_where_it_arrives(
    back: bool,  # noqa: FBT001 (a column)
    docker_registry: str,
    referrers_registry: str,
    tmp_path: Path,
) -> None:
    addresses = [referrers_registry, docker_registry] if back else [docker_registry, referrers_registry]
    here, there = (Site(address, tmp_path) for address in addresses)
    image = here.image("one")
    here.publish(image)
    command = [program("oras"), "cp", "-r", f"{here.name}@{image.digest}", there.name]
    subprocess.run([*command, "--from-plain-http", "--to-plain-http"], check=True, capture_output=True)
    assert there.promote(image, "--to", "stable")[0] == 0
    assert there.chosen(f"{there.name}:stable") == there.chosen() == image.digest
    assert there.publish(image, ago=60, failed=True)[0] == 0
    status, output = there.promote(image, "--to", "next")
    assert (status, "failed-since" in output, "next" in there.repository.tags()) == (1, True, False), output


@pytest.mark.parametrize("artifact", ["proof", "report"])
def test_a_flipped_byte_on_the_registrys_disk_is_tampering(on_disk: Site, docker_files: Path, artifact: str) -> None:
    image = on_disk.image("one", "one")
    _, output = on_disk.publish(image, "--json")
    [row] = json.loads(output)["published"]
    # A proof is in its own manifest, its report in a blob.
    layer = on_disk.repository.manifest(row[artifact]).image().layers[0]
    file = stored_blob(docker_files, row[artifact] if artifact == "proof" else layer.digest)
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    assert on_disk.reasons() == {"tampered"}


def _tag(repository: Repository, tag: str, image: StoredManifest) -> None:
    repository.push_manifest(image.content, OCI_MANIFEST, tag)


def _listed(repository: Repository, image: StoredManifest) -> list[str]:
    return [tag for tag in repository.tags() if tag.startswith(image.digest.replace(":", "-"))]


def test_a_key_that_others_can_read_is_named(on_disk: Site, capfd: pytest.CaptureFixture[str]) -> None:
    image, key = on_disk.image("one"), on_disk.folder / "release"
    for mode, noted in ((0o600, False), (0o640, True), (0o604, True)):
        key.chmod(mode)
        status, output = on_disk.publish(image)
        assert status == 0
        assert (f"run: chmod 600 {key}" in output + capfd.readouterr().err) is noted

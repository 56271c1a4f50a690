"""What a registry, a proof or a file of logins may hold to end a command badly, or to speak for it at a terminal."""

import json
import re
import threading
from pathlib import Path
from typing import Final

import pytest

from envcheck.cli.commands.share import local_tag
from envcheck.cli.shared import process
from envcheck.registry import repository as repositories
from envcheck.registry.attachments import attach
from envcheck.registry.choosing import ChosenImage
from envcheck.registry.envelope import BUNDLE_ANNOTATIONS, BUNDLE_TYPE
from envcheck.registry.judge import JudgedProof
from envcheck.registry.statement import Covers
from tests import proofs
from tests.http_server import Answer, Request
from tests.registry.oci.fakes import FakeRegistry
from tests.registry.site import Site

# Sets the terminal's title, erases the line, begins another, and turns what follows.
STEERS: Final = "\x1b]0;t\x07\x1b[2K\r\nholds   \u202e\x9b31m"
DEEP: Final = b'{"manifests":' * 5_000


def sober(output: str) -> bool:
    """Tell whether no line says what the hostile text wants, and no sign steers a terminal."""
    lines = output.splitlines()
    return not any(line.startswith("holds") for line in lines) and all(map(str.isprintable, lines))


def test_a_bundle_of_a_stranger_does_not_steer_the_terminal(lied: Site) -> None:
    image = lied.image("two", "two")
    content = json.dumps({"mediaType": BUNDLE_TYPE, STEERS: 1}).encode()
    attach(lied.repository, image.descriptor, BUNDLE_TYPE, content, BUNDLE_ANNOTATIONS)
    name = f"{lied.name}@{image.digest}"
    for words in (("proof", name, "--no-here"), ("pull", name, "--gpu", "H100", "--dry-run")):
        status, output = lied.run(*words, "--policy", lied.policy)
        assert (status, "unknown-format" in output, sober(output)) == (1, True, True), output


def test_a_proof_that_the_registry_took_and_does_not_list_does_not_hold(registry: FakeRegistry, tmp_path: Path) -> None:
    site = Site(registry.netloc, tmp_path)
    image = site.image("one", "one")

    def forgets(request: Request) -> Answer | None:
        if request.route.endswith("/tags/list"):
            return Answer(200, b'{"tags":["one"]}')
        listed = request.method == "GET" and "/manifests/sha256-" in request.route
        return Answer(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}') if listed else None

    registry.fault = forgets
    status, output = site.publish(image, "--policy", site.policy)
    assert (status, "no-proof: the registry took the proof, and does not list it" in output) == (1, True), output


def test_a_statement_of_an_allowed_key_does_not_steer_the_terminal_either(lied: Site) -> None:
    image = lied.image("two", "two")
    covers = Covers(gpu=STEERS, cc="9.0", gpus=1, driver="570.1", arch=STEERS, mig=False)
    for changes in ({"mode": "gpu", "covers": covers}, {"cell": STEERS, "target": STEERS}):
        lied.attach(image, **changes)
    policy = lied.write_policy("rejudge = false")
    name = f"{lied.name}@{image.digest}"
    _, output = lied.run("proof", name, "--policy", policy, "--gpu", "H100")
    assert len(output.splitlines()) == 4, output
    assert all(map(str.isprintable, output.splitlines())), output
    status, output = lied.run("pull", name, "--policy", policy, "--gpu", "H100", "--dry-run")
    assert (status, sober(output)) == (0, True), output


@pytest.mark.parametrize(
    ("place", "status", "ends"),
    [
        *((place, 200, 1) for place in ("/manifests/sha256:", "/blobs/", "/manifests/sha256-")),
        *((place, 400, 3) for place in ("/manifests/sha256:", "/blobs/", "/manifests/sha256-")),
        *(("/tags/list", status, 3) for status in (200, 400)),
        # No API is as good as one that cannot be read: proofs have tags of their own.
        *(("/referrers/", status, 0) for status in (200, 400)),
    ],
)
def test_an_answer_that_is_nested_thousands_deep_ends_nothing_badly(
    place: str, status: int, ends: int, lied: Site, registry: FakeRegistry
) -> None:
    image = lied.repository.manifest("2.13.0-cpu-py311-runtime")
    registry.fault = lambda request: Answer(status, DEEP) if place in request.path else None
    words = (f"{lied.name}@{image.digest}", "--policy", lied.policy)
    ended, message = lied.run("pull", *words, "--gpu", "H100", "--dry-run")
    assert ended == ends, message
    ended, message = lied.run("proof", *words, "--no-here")
    assert ended == ends, message


def test_a_list_of_tags_without_an_end_is_refused(
    lied: Site, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repositories, "_MOST_TAGS", 1000)

    def page(path: str) -> Answer:
        number = int(path.partition("last=")[2] or 0)
        tags = json.dumps({"tags": [f"t{number}-{each}" for each in range(300)]}).encode()
        return Answer(200, tags, {"Link": f'<?last={number + 1}>; rel="next"'})

    registry.fault = lambda request: page(request.path) if "/tags/list" in request.path else None
    before = len(registry.requests)
    status, message = lied.run("pull", "--from", lied.name, "--policy", lied.policy)
    assert (status, "more than 1000 tags" in message) == (3, True), message
    assert len(registry.requests) - before == 4


def test_a_pull_that_takes_long_says_what_it_does(
    lied: Site, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "SILENT", 0.01)
    registry.fault = lambda request: (threading.Event().wait(0.5 if "/tags/list" in request.path else 0), None)[1]
    status, said = lied.run("pull", "--from", lied.name, "--policy", lied.policy, "--gpu", "H100", "--dry-run")
    doing = f"  ... the images of {lied.name} are looked at; a CELL makes it fewer, "
    assert (status, re.search(rf"(?m)^{re.escape(doing)}\d+ s$", said) is not None) == (0, True), said


def test_what_no_tag_can_be_is_no_local_tag() -> None:
    digest = proofs.MANIFEST.replace(":", "-")
    for cell, target, tag in (
        ("torch2.13.0-cpu-py311", "runtime", "2.13.0-cpu-py311-runtime"),
        (None, "", "image-runtime"),
        ("torch$(id)", "runtime", digest),
        ("torch2.13.0-cpu-py311", "a b", digest),
    ):
        statement = proofs.stated("cpu", cell=cell, target=target)
        assert local_tag(ChosenImage(proofs.MANIFEST, JudgedProof("", statement, None, None), statement)) == tag

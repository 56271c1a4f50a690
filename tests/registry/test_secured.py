"""A registry as a site has it: over TLS by the site's CA, and for those who log in. It is a real one."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from envcheck.mirrors.profiles.load import load
from envcheck.registry import envelope
from envcheck.registry import statement as statements
from envcheck.registry.attachments import attach
from envcheck.registry.documents import parse_reference
from envcheck.registry.repository import open_repository
from envcheck.registry.statement import Sha256, Subject
from envcheck.signing import PrivateKey
from tests import proofs, registries
from tests.certificates import Certificate, signed
from tests.registries import cosign
from tests.registry.oci.fakes import opened, push_image
from tests.registry.site import Site

pytestmark = pytest.mark.tools
# The password below as docker-registry reads it (bcrypt).
PASSWORDS: Final = "gate:$2b$04$7q7vAkQAV0S.2WDNzQ0cx.B7uh8c7/9gHogPqse9C2.D5hrdsMBje\n"
PASSWORD: Final = "canary-password"  # noqa: S105 (of a test)


class SecuredRegistry(NamedTuple):
    """Its address and its certificate."""

    address: str
    certified: Certificate


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredRegistry]:
    at = tmp_path_factory.mktemp("secured")
    certified = signed(at, "127.0.0.1")
    (at / "passwords").write_text(PASSWORDS)
    with registries.docker_registry(at, certified, at / "passwords") as address:
        yield SecuredRegistry(address, certified)


LOGINS: Final[dict[str, Callable[[str, str], dict[str, object]]]] = {
    "docker login": lambda address, word: {"auths": {address: {"auth": word}}},
    "a credential helper": lambda address, _: {"credHelpers": {address: "canary"}},
}


def log_in(how: str, address: str, at: Path, monkeypatch: pytest.MonkeyPatch, password: str = PASSWORD) -> None:
    login = base64.b64encode(f"gate:{password}".encode()).decode()
    (at / "config.json").write_text(json.dumps(LOGINS[how](address, login)))
    helper = at / "docker-credential-canary"
    helper.write_text(f'#!/bin/sh\necho \'{{"Username": "gate", "Secret": "{password}"}}\'\n')
    helper.chmod(0o755)
    monkeypatch.setenv("DOCKER_CONFIG", str(at))
    monkeypatch.setenv("PATH", str(at), prepend=":")


@pytest.mark.parametrize("how", LOGINS)
def test_a_proof_is_published_and_pulled_over_tls_with_a_login(
    how: str, secured: SecuredRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(how, secured.address, tmp_path, monkeypatch)
    profile = tmp_path / "site.yaml"
    profile.write_text(f"name: site\nca: {secured.certified.ca}\n")
    site = Site(secured.address, tmp_path)
    name = f"https://{site.name}"
    site.repository = open_repository(parse_reference(name), load(str(profile)))
    image = site.image("one", "one")
    words = ("--policy", site.policy, "--mirror", profile)
    published = ("publish", f"{name}@{image.digest}", "--report", site.report(image), "--mirror", profile)
    messages = []
    for command in (
        (*published, "--key", site.folder / "release"),
        ("proof", f"{name}@{image.digest}", *words),
        ("pull", "--from", name, *words, "--dry-run"),
        ("promote", f"{name}@{image.digest}", "--to", "stable", "--key", site.folder / "release", *words),
        ("pull", f"{name}:stable", *words, "--dry-run"),
    ):
        status, output = site.run(*command)
        assert status == 0, output
        messages.append(output)
    log_in(how, secured.address, tmp_path, monkeypatch, "canary-of-another")
    status, output = site.run("pull", "--from", name, *words, "--dry-run")
    assert (status, "docker login" in output) == (3, True), output
    (tmp_path / "config.json").unlink()
    status, none = site.run("proof", f"{name}@{image.digest}", *words)
    assert status == 3, none
    assert not any("canary" in text for text in (*messages, output, none))
    log = (secured.certified.ca.parent / "registry.log").read_text()
    assert PASSWORD not in log


def verified(image: str, key: PrivateKey, home: Path) -> tuple[int, str]:
    (home / "key.pub").write_bytes(key.public.pem)
    words = ["--key", "key.pub", "--type", statements.PREDICATE_TYPE, "--insecure-ignore-tlog=true"]
    return cosign(home, "verify-attestation", *words, "--allow-http-registry", image)


@pytest.mark.parametrize("kind", ["key", "ecdsa_key"])
def test_cosign_verifies_a_proof_by_its_key_alone(
    real: str, kind: str, other_key: PrivateKey, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    signer: PrivateKey = request.getfixturevalue(kind)
    repository = opened(real, f"team/{kind.replace('_', '-')}")
    image = push_image(repository).descriptor
    subject = [Subject(name="x", digest=Sha256(sha256=image.digest.partition(":")[2]))]
    content = proofs.bundle(proofs.stated(subject=subject), signer)
    attach(repository, image, envelope.BUNDLE_TYPE, content, envelope.BUNDLE_ANNOTATIONS)
    name = f"{repository.reference.name}@{image.digest}"
    assert verified(name, signer, tmp_path)[0] == 0
    code, message = verified(name, other_key, tmp_path)
    assert code != 0
    assert "signature" in message

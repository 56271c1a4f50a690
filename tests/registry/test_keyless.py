"""Signatures by an identity of a CI: published through a Sigstore instance, verified by sigstore, refused when wrong.

The instance is made here (tests/sigstore_instance.py): the public one cannot be reached from the tests.
"""

import base64
import datetime as dt
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from envcheck.registry import statement as statements
from envcheck.registry.attachments import attach
from envcheck.registry.documents import StoredManifest
from envcheck.registry.envelope import (
    BUNDLE_ANNOTATIONS,
    BUNDLE_TYPE,
    EnvelopeContents,
    Identities,
    Identity,
    open_envelope,
)
from envcheck.registry.statement import Rejection
from tests import proofs
from tests.http_server import Server, Servers
from tests.registries import cosign
from tests.registry.site import NOW, Site
from tests.sigstore_instance import IDENTITY, ISSUER, SigstoreInstance, token

pytestmark = pytest.mark.tools


@pytest.fixture(scope="module", autouse=True)
def sigstore(keyless_python: Path) -> None:
    """Have the packages of the extra, after all that is installed here."""
    [packages] = keyless_python.parent.parent.glob("lib/python*/site-packages")
    if str(packages) not in sys.path:
        sys.path.append(str(packages))


@pytest.fixture(scope="module")
def instance() -> SigstoreInstance:
    return SigstoreInstance()


class KeylessSite(Site):
    """A repository whose policy allows one identity."""

    def __init__(self, address: str, folder: Path, instance: SigstoreInstance) -> None:
        super().__init__(address, folder)
        self.instance = instance
        (folder / "root.json").write_bytes(instance.trusted_root())
        self.allowed = self.identities()

    def identities(self, identity: str = IDENTITY, issuer: str = ISSUER, root: str = "root.json") -> Path:
        proof = f'identities = [{{identity = "{identity}", issuer = "{issuer}"}}]\ntrusted_root = "{root}"'
        return self.write_policy(proof, keys="")

    def payload(self, image: StoredManifest, **changes: Any) -> bytes:
        return msgspec.json.encode(self.stated(image, **changes))

    def put(self, image: StoredManifest, document: Any) -> None:
        """Attach a bundle, and the evidence of every statement here."""
        self.attach(image, by="other")
        attach(self.repository, image.descriptor, BUNDLE_TYPE, json.dumps(document).encode(), BUNDLE_ANNOTATIONS)


@pytest.fixture
def ci(docker_registry: str, tmp_path: Path, instance: SigstoreInstance) -> KeylessSite:
    return KeylessSite(docker_registry, tmp_path, instance)


@pytest.fixture
def service(servers: Servers, ci: KeylessSite, monkeypatch: pytest.MonkeyPatch) -> Server:
    server = servers.start(Server(ci.instance.answer))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "canary-of-the-job")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"{server.url}/token?api=1")
    monkeypatch.setenv("no_proxy", "*")
    (ci.folder / "config.json").write_bytes(ci.instance.trust_config(server.url))
    return server


def publish(ci: KeylessSite, image: StoredManifest, *options: object, **report: Any) -> tuple[int, str]:
    words = ("--report", ci.report(image, **report), "--keyless", "--trust-config", ci.folder / "config.json")
    return ci.run("publish", f"{ci.name}@{image.digest}", *words, *options)


def test_a_job_of_a_ci_publishes_and_a_node_pulls_by_its_identity(ci: KeylessSite, service: Server) -> None:
    image = ci.image("keyless")
    status, output = publish(ci, image)
    assert status == 0, output
    assert f"signed by {IDENTITY} ({ISSUER})" in output
    assert service.paths == ["/token?api=1&audience=sigstore", "/api/v2/signingCert", "/api/v1/log/entries"]
    assert "canary" not in output
    assert token(ISSUER) not in output
    request_count = len(service.requests)
    name = f"{ci.name}@{image.digest}"
    document = ci.pull(name, policy=ci.allowed)
    assert document["chosen"] == name
    status, output = ci.run("proof", name, "--policy", ci.allowed, "--no-here")
    assert (status, "holds" in output) == (0, True), output
    assert ci.reasons(name, policy=ci.policy) == {"wrong-key"}
    assert len(service.requests) == request_count, "nothing is asked to verify"


def test_stock_cosign_verifies_what_a_job_published(ci: KeylessSite, service: Server) -> None:
    image = ci.image("keyless-cosign")
    assert publish(ci, image)[0] == 0
    assert service.requests
    words = ["--trusted-root", str(ci.folder / "root.json"), "--certificate-oidc-issuer", ISSUER]
    words += ["--type", statements.PREDICATE_TYPE, "--allow-http-registry", f"{ci.name}@{image.digest}"]
    code, message = cosign(ci.folder, "verify-attestation", "--certificate-identity", IDENTITY, *words)
    assert code == 0, message
    code, message = cosign(ci.folder, "verify-attestation", "--certificate-identity", f"{IDENTITY}-2", *words)
    assert code != 0
    assert "no matching CertificateIdentity" in message


def test_a_service_that_does_not_sign_is_one_line_and_nothing_is_published(ci: KeylessSite, service: Server) -> None:
    image = ci.image("keyless-refused")
    ci.instance.answer, kept = SigstoreInstance().answer, ci.instance.answer  # type: ignore[method-assign]
    try:
        service.answering = ci.instance.answer
        status, output = publish(ci, image)
    finally:
        ci.instance.answer = kept  # type: ignore[method-assign]
    assert status == 3
    assert output.startswith("Sigstore did not sign: ")
    assert "canary" not in output
    assert not [tag for tag in ci.repository.tags() if image.digest.partition(":")[2] in tag]


def test_without_a_token_of_a_ci_it_says_what_the_job_lacks(ci: KeylessSite, monkeypatch: pytest.MonkeyPatch) -> None:
    (ci.folder / "config.json").write_bytes(ci.instance.trust_config("http://127.0.0.1:1"))
    image = ci.image("keyless-no-token")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    status, output = publish(ci, image)
    assert (status, "no CI here" in output, "id-token: write" in output) == (2, True, True), output
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", raising=False)
    status, output = publish(ci, image)
    assert (status, "id-token: write" in output) == (2, True), output


Forgery = Callable[[SigstoreInstance, bytes], dict[str, Any]]
AT: Final = (NOW - dt.timedelta(minutes=50)).replace(microsecond=0)


def honest(instance: SigstoreInstance, payload: bytes) -> dict[str, Any]:
    return instance.bundle(payload, at=AT)


def with_entries(document: dict[str, Any], entries: list[Any]) -> dict[str, Any]:
    return {**document, "verificationMaterial": {**document["verificationMaterial"], "tlogEntries": entries}}


def entry_of_another(instance: SigstoreInstance, payload: bytes) -> dict[str, Any]:
    other = honest(instance, payload)
    return with_entries(honest(instance, payload), other["verificationMaterial"]["tlogEntries"])


def another_payload(instance: SigstoreInstance, payload: bytes) -> dict[str, Any]:
    document = honest(instance, payload)
    other = payload.replace(b'"level":"', b'"level": "')
    document["dsseEnvelope"]["payload"] = base64.b64encode(other).decode()
    return document


FORGERIES: Final[dict[str, tuple[Forgery, str]]] = {
    "honest": (honest, "holds"),
    "in the log after the certificate had expired": (lambda i, p: i.bundle(p, at=AT, delay=601), "wrong-key"),
    "the entry of another bundle": (entry_of_another, "tampered"),
    "a payload that was changed after signing": (another_payload, "tampered"),
    "no entry": (lambda i, p: with_entries(honest(i, p), []), "unknown-format"),
    "an untrusted root": (lambda _, p: honest(SigstoreInstance(), p), "wrong-key"),
}


@pytest.mark.parametrize(("forgery", "word"), FORGERIES.values(), ids=FORGERIES)
def test_a_bundle_holds_only_if_certificate_log_and_payload_agree(
    instance: SigstoreInstance, forgery: Forgery, word: str
) -> None:
    allowed = Identities((Identity(IDENTITY, ISSUER),), instance.trusted_root())
    payload = msgspec.json.encode(proofs.stated("cpu"))
    content = json.dumps(forgery(instance, payload)).encode()
    opened = open_envelope(content, statements.PAYLOAD_TYPE, [], allowed)
    if word == "holds":
        assert opened == EnvelopeContents(payload, f"{IDENTITY} ({ISSUER})")
    else:
        assert isinstance(opened, Rejection)
        assert (opened.reason.value, "\n" in opened.detail, len(opened.detail) < 300) == (word, False, True)


def test_another_identity_or_issuer_does_not_count(ci: KeylessSite) -> None:
    image, name = ci.image("keyless-others"), f"{ci.name}@{{}}"
    ci.put(image, honest(ci.instance, ci.payload(image)))
    assert ci.chosen(name.format(image.digest), policy=ci.allowed) == image.digest
    for other in ({"identity": IDENTITY.replace("main", "other")}, {"issuer": "https://gitlab.example"}):
        assert ci.reasons(name.format(image.digest), policy=ci.identities(**other)) == {"wrong-key"}


WRONG: Final = {
    "a root that is not there": ('trusted_root = "none.json"', "No such file"),
    "no root": ("", "no trusted_root to verify them by"),
    "a root that is none": ('trusted_root = "release.pub"', "not a trusted root of Sigstore"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_a_policy_of_identities_needs_a_trusted_root(ci: KeylessSite, text: str, message: str) -> None:
    policy = ci.write_policy(f'identities = [{{identity = "x", issuer = "y"}}]\n{text}')
    status, output = ci.run("proof", f"{ci.name}:x", "--policy", policy, "--no-here")
    assert (status, message in output) == (2, True), output


def test_without_the_extra_the_policy_and_the_signature_name_it(
    ci: KeylessSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    status, output = ci.run("proof", f"{ci.name}:x", "--policy", ci.allowed, "--no-here")
    assert (status, "torch-envcheck[keyless]" in output) == (2, True), output
    status, output = publish(ci, ci.image("keyless-missing"))
    assert (status, "torch-envcheck[keyless]" in output) == (2, True), output

"""Stock cosign verifies envcheck's proofs: they need no envcheck to be checked, and no service of Sigstore's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from envcheck.registry import envelope
from envcheck.registry import statement as statements
from envcheck.registry.attachments import attach
from envcheck.registry.statement import Sha256, Subject
from envcheck.signing import PrivateKey
from tests import proofs, registries
from tests.registries import cosign
from tests.registry.oci.fakes import opened, push_image

pytestmark = pytest.mark.tools


@pytest.fixture(scope="module", params=["docker_registry", "referrers_registry"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return HOST:PORT of a registry without the referrers API, and of one that has it."""
    registries.program("cosign")
    with getattr(registries, request.param)(tmp_path_factory.mktemp("registry")) as serving:
        yield serving


def verified(image: str, key: PrivateKey, home: Path) -> tuple[int, str]:
    (home / "key.pub").write_bytes(key.public.pem)
    words = ["--key", "key.pub", "--type", statements.PREDICATE_TYPE, "--insecure-ignore-tlog=true"]
    return cosign(home, "verify-attestation", *words, "--allow-http-registry", image)


@pytest.mark.parametrize("kind", ["key", "ecdsa_key"])
def test_cosign_verifies_a_proof_by_its_key_alone(
    address: str, kind: str, other_key: PrivateKey, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    signer: PrivateKey = request.getfixturevalue(kind)
    repository = opened(address, f"team/{kind.replace('_', '-')}")
    image = push_image(repository).descriptor
    subject = [Subject(name="x", digest=Sha256(sha256=image.digest.partition(":")[2]))]
    content = proofs.bundle(proofs.stated(subject=subject), signer)
    kept = envelope.bundle_annotations(statements.PREDICATE_TYPE)
    attach(repository, image, envelope.BUNDLE_TYPE, [(envelope.BUNDLE_TYPE, content)], kept)
    name = f"{address}/team/{kind.replace('_', '-')}@{image.digest}"
    assert verified(name, signer, tmp_path)[0] == 0
    code, message = verified(name, other_key, tmp_path)
    assert code != 0
    assert "signature" in message

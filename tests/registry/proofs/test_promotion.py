"""An alias names what was promoted last by an allowed key; a tag that names anything else is not believed."""

import datetime as dt
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from envcheck.matrix.file.load import load
from envcheck.registry import attachments, choosing
from envcheck.registry import statement as statements
from envcheck.registry.choosing import Promotion, judge_gpus, read_promotion, refuse_alias
from envcheck.registry.envelope import sign
from envcheck.registry.judge import DEFAULT, NamedGpus, Policy, ProofTerms
from envcheck.registry.statement import Rejection
from envcheck.signing import PrivateKey
from tests import proofs
from tests.tables import each

A, B, C = (f"sha256:{sign * 64}" for sign in "abc")
ALIAS: Final = "2.8-cu128-py312"
NOW: Final = proofs.NOW


def promotion(digest: str, hours: float = -1, alias: str = ALIAS) -> Promotion:
    """Return the promotion to a digest, so many hours from now."""
    moment = statements.written(NOW + dt.timedelta(hours=hours))
    return Promotion(alias=alias, digest=digest, at=moment, proofs=[C])


@each(
    "promoted, why",
    [
        ([promotion(A)], ""),
        ([promotion(B, -2), promotion(A)], ""),
        ([promotion(A), promotion(B, -2)], ""),  # in whatever order a registry lists them
        ([promotion(A, 5 / 60)], ""),
        ([], f"nobody promoted {ALIAS}; "),
        ([promotion(A, alias="latest")], f"nobody promoted {ALIAS}; "),
        ([promotion(B)], f"was promoted to {B} at "),
        ([promotion(A, -2), promotion(B)], f"was promoted to {B} at "),  # a rollback by a writer of the registry
        ([promotion(A, 5.1 / 60)], "from the future"),
        ([promotion(A), promotion(B)], "in the same second"),
    ],
)
def test_an_alias_is_believed_where_its_newest_promotion_names_the_image(promoted: list[Promotion], why: str) -> None:
    refused = refuse_alias(promoted, ALIAS, A, NOW)
    if why:
        assert refused is not None
        assert (refused.reason.value, why in refused.detail) == ("alias-not-promoted", True), refused
    else:
        assert refused is None


@pytest.fixture
def policy(key: PrivateKey) -> Policy:
    return structs.replace(DEFAULT, keys=(key.public,))


def test_a_proof_is_asked_for_on_each_of_the_named_gpus(key: PrivateKey, policy: Policy) -> None:
    terms = ProofTerms(structs.replace(policy, rejudge=False), None, NOW, load())
    one = proofs.attached(proofs.stated(), key)
    eight = proofs.attached(proofs.h100x8(driver="580.65.06"), key)
    half = proofs.attached(proofs.h100x8(gpus=4), key)
    for listed, h200, h100, anywhere in (
        ([one, eight], "", "", ""),
        ([one], "", "wrong-gpu", ""),
        ([one, half], "", "too-few-gpus", ""),
        ([], "no-proof", "no-proof", "no-proof"),
    ):
        for gpus, word in ((NamedGpus("H200", 1), h200), (NamedGpus("H100", 8), h100), (NamedGpus("any", 0), anywhere)):
            refused = judge_gpus(gpus, {proofs.MANIFEST: listed}, terms).refused
            assert (refused.reason.value if refused else "") == word


def test_what_was_signed_as_a_promotion_is_read_and_nothing_else(
    key: PrivateKey, other_key: PrivateKey, policy: Policy
) -> None:
    payload = msgspec.json.encode(promotion(A))

    def word(content: bytes) -> str:
        result = read_promotion(content, policy)
        assert isinstance(result, Rejection)
        return result.reason.value

    assert read_promotion(sign(payload, attachments.PROMOTION_TYPE, key), policy) == promotion(A)
    assert word(sign(payload, attachments.PROMOTION_TYPE, other_key)) == "wrong-key"
    # A signature of a proof is none of a promotion, whatever the bytes.
    assert word(sign(payload, statements.PAYLOAD_TYPE, key)) == "unknown-format"
    for broken in (
        payload.replace(b"promotion/1", b"promotion/2"),
        payload.replace(b"09:02:00Z", b"09:02:00+02:00"),
        payload.replace(b'"proofs"', b'"more":1,"proofs"'),
        payload.replace(A.encode(), b"latest"),
        payload.replace(ALIAS.encode(), b""),
    ):
        assert broken != payload
        assert word(sign(broken, attachments.PROMOTION_TYPE, key)) == "unknown-format"


def test_an_unreadable_signed_promotion_does_not_let_an_older_one_count(
    key: PrivateKey, other_key: PrivateKey, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = msgspec.json.encode(promotion(A, alias=f"registry.example/torch:{ALIAS}"))
    newer = older.replace(b"promotion/1", b"promotion/2")
    repository: Any = SimpleNamespace(tags=list, reference=SimpleNamespace(name="registry.example/torch"))
    for by, told in ((other_key, ""), (key, "a signed promotion cannot be read, and may be the newest")):
        envelopes = [sign(older, attachments.PROMOTION_TYPE, key), sign(newer, attachments.PROMOTION_TYPE, by)]
        monkeypatch.setattr(attachments, "attached_promotions", lambda *_, kept=envelopes: (kept, []))
        refused = choosing.promoted(repository, ALIAS, A, ProofTerms(policy, None, NOW, load()))
        assert (refused.detail if refused else "").startswith(told)
        assert bool(refused) == bool(told)


@given(content=st.binary(max_size=500))
def test_any_bytes_are_a_promotion_or_a_refusal(content: bytes, key: PrivateKey) -> None:
    terms = structs.replace(DEFAULT, keys=(key.public,))
    assert isinstance(read_promotion(content, terms), Rejection)
    assert isinstance(read_promotion(sign(content, attachments.PROMOTION_TYPE, key), terms), Rejection)

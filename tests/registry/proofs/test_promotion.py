"""An alias names what was promoted last by enough keys; a tag that names anything else is not believed."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from envcheck.matrix.file.load import load
from envcheck.registry import promotions
from envcheck.registry import statement as statements
from envcheck.registry.envelope import leave_unsigned, sign
from envcheck.registry.judge import ListedProof, ProofTerms
from envcheck.registry.policy import DEFAULT, NamedGpus, Policy
from envcheck.registry.promotions import Promotion, SignedPromotion, in_force, judge_named, read_promotion, refuse_alias
from envcheck.registry.statement import Rejection
from envcheck.signing import PrivateKey
from tests import proofs
from tests.tables import each

A, B, C = (f"sha256:{sign * 64}" for sign in "abc")
ALIAS: Final = "2.8-cu128-py312"
NOW: Final = proofs.NOW


def signed(digest: str, hours: float = -1, signer: str = "one", alias: str = ALIAS) -> SignedPromotion:
    """Return the promotion to a digest, so many hours from now."""
    moment = statements.written(NOW + dt.timedelta(hours=hours))
    made = Promotion(alias=alias, source="registry.example/staging", digest=digest, at=moment, proofs=[C])
    return SignedPromotion(made, signer)


def refusal(*promotions: SignedPromotion, digest: str = A, signers: int = 1) -> str:
    refused = refuse_alias(promotions, ALIAS, digest, structs.replace(DEFAULT, signers=signers), NOW)
    assert refused is None or refused.reason.value == "alias-not-promoted"
    return refused.detail if refused else ""


def test_a_tag_that_was_moved_by_hand_is_not_believed() -> None:
    assert refusal().startswith(f"nobody promoted {ALIAS} (0 of 1 keys); ")
    assert f"was promoted to {B}, and the registry says {A}" in refusal(signed(B))
    assert f"was promoted to {B}" in refusal(signed(A, -2), signed(B, -1))  # a rollback by a writer of the registry
    assert "nobody promoted" in refusal(signed(A, alias="latest"))


def test_different_keys_are_counted() -> None:
    assert "(1 of 2 keys)" in refusal(signed(A), signed(A, -2), signers=2)
    assert refusal(signed(A), signed(A, -2, "two"), signers=2) == ""
    assert "(2 of 3 keys)" in refusal(signed(A), signed(A, -2, "two"), signers=3)


def test_an_alias_stays_while_the_next_promotion_still_lacks_a_key() -> None:
    first = [signed(A, -9, "one"), signed(A, -8, "two"), signed(B, -2, "one")]
    assert refusal(*first, signers=2) == ""
    assert f"was promoted to {B}" in refusal(*first, signed(B, -1, "two"), signers=2)


def test_old_signatures_do_not_bring_an_old_image_back() -> None:
    history = [signed(A, -9, "one"), signed(A, -8, "two"), signed(B, -7, "one"), signed(B, -6, "two")]
    assert f"was promoted to {B}" in refusal(*history, signed(A, -1, "one"), signers=2)
    assert refusal(*history, signed(A, -2, "one"), signed(A, -1, "two"), signers=2) == ""


@each("minutes, taken", [(5, True), (5.1, False)])
def test_both_sides_of_the_clock(minutes: float, taken: object) -> None:
    assert (refusal(signed(A, minutes / 60)) == "") is taken
    assert ("from the future" in refusal(signed(A, minutes / 60))) is not taken


def test_two_images_in_one_second_are_open() -> None:
    for digest in (A, B):
        assert "in the same second" in refusal(signed(A), signed(B), digest=digest)


@given(
    events=st.lists(st.tuples(st.sampled_from([A, B]), st.integers(-50, 0), st.sampled_from(["one", "two"]))),
    seed=st.randoms(use_true_random=False),
)
def test_the_order_in_which_a_registry_lists_is_of_no_matter(events: list[tuple[str, int, str]], seed: Any) -> None:
    promotions = [signed(*event) for event in events]
    shuffled = [*promotions]
    seed.shuffle(shuffled)
    for signers in (1, 2):
        assert in_force(promotions, ALIAS, signers) == in_force(shuffled, ALIAS, signers)


@pytest.fixture
def policy(key: PrivateKey) -> Policy:
    return structs.replace(DEFAULT, keys=(key.public,))


def test_a_proof_is_asked_for_on_each_of_the_named_gpus(key: PrivateKey, policy: Policy) -> None:
    expected = structs.replace(policy, promoted_on=(NamedGpus("H200", 1), NamedGpus("H100", 8)), rejudge=False)
    terms = ProofTerms(expected, None, NOW, load())
    one = proofs.attached(proofs.stated(), key)
    eight = proofs.attached(proofs.h100x8(driver="580.65.06"), key)

    def words(*listed: ListedProof, terms: ProofTerms = terms) -> list[tuple[str, str]]:
        results = judge_named(listed, proofs.MANIFEST, terms)
        return [(f"{one.gpus} {one.gpu}", r.refused.reason.value if r.refused else "") for one, r in results]

    assert words(one, eight) == [("1 H200", ""), ("8 H100", "")]
    assert words(one) == [("1 H200", ""), ("8 H100", "wrong-gpu")]
    assert words(eight) == [("1 H200", "wrong-gpu"), ("8 H100", "")]
    half = proofs.attached(proofs.h100x8(gpus=4), key)
    assert words(one, half) == [("1 H200", ""), ("8 H100", "too-few-gpus")]
    anywhere = structs.replace(terms, policy=policy)
    assert words(one, terms=anywhere) == [("0 any", "")]
    assert words(terms=anywhere) == [("0 any", "no-proof")]


def test_what_was_signed_is_read(key: PrivateKey, policy: Policy) -> None:
    made = signed(A).promotion
    assert json.loads(promotions.encode_promotion(made)) == {
        "schema": "envcheck/promotion/1",
        "alias": ALIAS,
        "from": "registry.example/staging",
        "digest": A,
        "at": "2026-11-21T09:02:00Z",
        "proofs": [C],
    }
    assert read_promotion(
        sign(promotions.encode_promotion(made), promotions.PAYLOAD_TYPE, key), policy
    ) == SignedPromotion(made, key.public.id)


def test_what_was_not_signed_as_a_promotion_is_refused(key: PrivateKey, other_key: PrivateKey, policy: Policy) -> None:
    payload = promotions.encode_promotion(signed(A).promotion)

    def word(content: bytes, terms: Policy = policy) -> str:
        result = read_promotion(content, terms)
        assert isinstance(result, Rejection)
        return result.reason.value

    assert word(sign(payload, promotions.PAYLOAD_TYPE, other_key)) == "wrong-key"
    assert word(leave_unsigned(payload, promotions.PAYLOAD_TYPE)) == "unsigned"
    assert word(leave_unsigned(payload, promotions.PAYLOAD_TYPE), structs.replace(policy, unsigned=True)) == "unsigned"
    # A signature of a proof is none of a promotion, whatever the bytes.
    assert word(sign(payload, statements.PAYLOAD_TYPE, key)) == "unknown-format"
    for broken in (
        payload.replace(b"promotion/1", b"promotion/2"),
        payload.replace(b"09:02:00Z", b"09:02:00+02:00"),
        payload.replace(b'"proofs"', b'"more":1,"proofs"'),
        payload.replace(b'"proofs"', b'"digest":"x","proofs"'),
        payload.replace(A.encode(), b"latest"),
        payload.replace(ALIAS.encode(), b""),
    ):
        assert broken != payload
        assert word(sign(broken, promotions.PAYLOAD_TYPE, key)) == "unknown-format"


@given(content=st.binary(max_size=500))
def test_any_bytes_are_a_promotion_or_a_refusal(content: bytes, key: PrivateKey) -> None:
    terms = structs.replace(DEFAULT, keys=(key.public,))
    assert isinstance(read_promotion(content, terms), Rejection)
    assert isinstance(read_promotion(sign(content, promotions.PAYLOAD_TYPE, key), terms), Rejection)

"""Envelopes around statements: DSSE signatures in a Sigstore bundle (v0.3).

A bundle has one signature and names its key by a hint, the key's id; `cosign verify-attestation --key` reads it. One
that an identity signed has a certificate instead.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from envcheck.registry.keyless import Identities
from envcheck.registry.statement import MalformedError, ProofRefusal, Rejection, canonical_base64, decode_json
from envcheck.signing import PrivateKey, PublicKey
from envcheck.struct_types import LightRecord, know_types

BUNDLE_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"


def bundle_annotations(predicate_type: str) -> dict[str, str]:
    """Return what Sigstore's clients look for in the manifest of a bundle."""
    return {"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": predicate_type}


class EnvelopeContents(LightRecord, frozen=True):
    """What was in an envelope, and the id of the key or the identity that signed it."""

    payload: bytes
    signer: str


class _Key(msgspec.Struct, forbid_unknown_fields=True):
    hint: str = ""


class _Certificate(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    raw_bytes: str


class _Material(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A key, or a certificate that sigstore reads. Logs and times of Sigstore's services may be there with a key."""

    public_key: _Key | None = None
    certificate: _Certificate | None = None
    tlog_entries: list[Any] = []
    timestamp_verification_data: dict[str, Any] | None = None


class _Signature(msgspec.Struct, forbid_unknown_fields=True):
    sig: str
    keyid: str = ""


class _Envelope(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    payload: str
    payload_type: str
    signatures: list[_Signature]


class _Bundle(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    media_type: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"]
    verification_material: _Material
    dsse_envelope: _Envelope


know_types(_Bundle)


def sign(payload: bytes, payload_type: str, key: PrivateKey) -> bytes:
    """Return the payload in a Sigstore bundle; with an ed25519 key the same bytes each time."""
    payload_text, signature = (
        base64.b64encode(content).decode() for content in (payload, key.sign(authenticated(payload, payload_type)))
    )
    envelope = {"payload": payload_text, "payloadType": payload_type, "signatures": [{"sig": signature}]}
    material = {"publicKey": {"hint": key.public.id}}
    return msgspec.json.encode({"mediaType": BUNDLE_TYPE, "verificationMaterial": material, "dsseEnvelope": envelope})


def authenticated(payload: bytes, payload_type: str) -> bytes:
    """Return what is signed: DSSE's pre-authentication encoding of the type and the payload."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def open_envelope(
    content: bytes, payload_type: str, keys: Sequence[PublicKey], identities: Identities | None = None
) -> EnvelopeContents | Rejection:
    """Return the payload of this type, signed by an allowed key or identity, or why not. It never raises."""
    try:
        bundle = decode_json(content, _Bundle)
        _expect(bundle.dsse_envelope.payload_type == payload_type, f"the payload's type is not {payload_type!r}")
        material = bundle.verification_material
        _expect((material.public_key is None) != (material.certificate is None), "neither a key nor a certificate")
        if material.certificate is None:
            return _verified(bundle, keys)
    except MalformedError as error:
        return Rejection(ProofRefusal.UNKNOWN_FORMAT, str(error))
    if identities is None:
        return Rejection(ProofRefusal.WRONG_KEY, "signed by an identity, and none is allowed here")
    signed = identities.open(content)
    if isinstance(signed, Rejection):
        return signed
    if signed.payload_type != payload_type:
        return Rejection(ProofRefusal.UNKNOWN_FORMAT, "sigstore reads another type of payload")
    return EnvelopeContents(signed.payload, str(signed.signer))


def _verified(bundle: _Bundle, keys: Sequence[PublicKey]) -> EnvelopeContents | Rejection:
    envelope, key = bundle.dsse_envelope, bundle.verification_material.public_key
    hint = key.hint if key else ""
    _expect(len(envelope.signatures) == 1, f"{len(envelope.signatures)} signatures instead of one")
    payload = canonical_base64(envelope.payload, "the payload")
    signature = canonical_base64(envelope.signatures[0].sig, "the signature")
    # A bundle without a hint may be by any of the keys; one with a hint is by that key or by none.
    tried = [key for key in keys if hint in ("", key.id)]
    signed = authenticated(payload, envelope.payload_type)
    signer = next((key for key in tried if key.verifies(signed, signature)), None)
    if signer is not None:
        return EnvelopeContents(payload, signer.id)
    if hint and tried:
        return Rejection(ProofRefusal.TAMPERED, f"the signature is not that of key {hint} for this content")
    return Rejection(ProofRefusal.WRONG_KEY, f"signed by key {hint[:80] or 'without an id'}, which is not allowed here")


def _expect(holds: bool, otherwise: str) -> None:  # noqa: FBT001 (a condition)
    if not holds:
        raise MalformedError(otherwise)

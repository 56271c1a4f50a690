"""Envelopes around statements: DSSE signatures in a Sigstore bundle (v0.3), and a form of its own without a signature.

A bundle has one signature and names its key by a hint, the key's id; `cosign verify-attestation --key` reads it. One
that an identity signed has a certificate instead.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from envcheck.registry import statement
from envcheck.registry.keyless import CertifiedMaterial, Identities
from envcheck.registry.statement import ProofRefusal, Rejection
from envcheck.signing import PrivateKey, PublicKey
from envcheck.struct_types import LightRecord, know_types

BUNDLE_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
UNSIGNED_TYPE: Final = "application/vnd.envcheck.unsigned.v1+json"


def bundle_annotations(predicate_type: str) -> dict[str, str]:
    """Return what Sigstore's clients look for in the manifest of a bundle."""
    return {"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": predicate_type}


class EnvelopeContents(LightRecord, frozen=True):
    """What was in an envelope, and the id of the key or the identity that signed it; None where nobody did."""

    payload: bytes
    signer: str | None


class _PublicKeyHint(msgspec.Struct, forbid_unknown_fields=True):
    hint: str = ""


class _VerificationMaterial(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Logs and times of Sigstore's services may be there; what counts here is the key."""

    public_key: _PublicKeyHint
    tlog_entries: list[Any] = []
    timestamp_verification_data: dict[str, Any] | None = None


class _Signature(msgspec.Struct, forbid_unknown_fields=True):
    sig: str
    keyid: str = ""


class _DsseEnvelope(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    payload: str
    payload_type: str
    signatures: list[_Signature]


class _Bundle(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    media_type: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"]
    verification_material: _VerificationMaterial
    dsse_envelope: _DsseEnvelope


class _CertifiedBundle(_Bundle, forbid_unknown_fields=True, rename="camel"):
    verification_material: CertifiedMaterial  # type: ignore[assignment]


class _UnsignedStatement(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    media_type: Literal["application/vnd.envcheck.unsigned.v1+json"]
    payload_type: str
    payload: str


class _AnyMaterial(msgspec.Struct):
    certificate: Any = msgspec.UNSET


class _Shape(msgspec.Struct, rename="camel"):
    """What tells which of the three a document is to be."""

    media_type: Any = None
    verification_material: _AnyMaterial = msgspec.field(default_factory=_AnyMaterial)


know_types(_Bundle, _CertifiedBundle, _UnsignedStatement, _Shape)


def sign(payload: bytes, payload_type: str, key: PrivateKey) -> bytes:
    """Return the payload in a Sigstore bundle; with an ed25519 key the same bytes each time."""
    signature = key.sign(authenticated(payload, payload_type))
    document = {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {"publicKey": {"hint": key.public.id}},
        "dsseEnvelope": {
            "payload": _text(payload),
            "payloadType": payload_type,
            "signatures": [{"sig": _text(signature)}],
        },
    }
    return msgspec.json.encode(document)


def leave_unsigned(payload: bytes, payload_type: str) -> bytes:
    """Return the payload in the form for sites without keys. Whoever can write to the registry can make one."""
    return msgspec.json.encode({"mediaType": UNSIGNED_TYPE, "payloadType": payload_type, "payload": _text(payload)})


def authenticated(payload: bytes, payload_type: str) -> bytes:
    """Return what is signed: DSSE's pre-authentication encoding of the type and the payload."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def open_envelope(
    content: bytes, payload_type: str, keys: Sequence[PublicKey], identities: Identities | None = None
) -> EnvelopeContents | Rejection:
    """Return the payload of this type, signed by a key, an identity or nobody, or why not. It never raises."""
    try:
        shape = statement.decode_json(content, _Shape)
        if shape.verification_material.certificate is not msgspec.UNSET:
            statement.decode_json(content, _CertifiedBundle)
            return _certified(content, payload_type, identities)
        if shape.media_type == UNSIGNED_TYPE:
            unsigned = statement.decode_json(content, _UnsignedStatement)
            _expect_type(unsigned.payload_type, payload_type)
            return EnvelopeContents(statement.canonical_base64(unsigned.payload, "the payload"), None)
        return _verified(statement.decode_json(content, _Bundle), payload_type, keys)
    except statement.MalformedError as error:
        return Rejection(ProofRefusal.UNKNOWN_FORMAT, str(error))


def _certified(content: bytes, payload_type: str, identities: Identities | None) -> EnvelopeContents | Rejection:
    if identities is None:
        return Rejection(ProofRefusal.WRONG_KEY, "signed by an identity, and none is allowed here")
    signed = identities.open(content)
    if isinstance(signed, Rejection):
        return signed
    _expect_type(signed.payload_type, payload_type)
    return EnvelopeContents(signed.payload, str(signed.signer))


def _verified(bundle: _Bundle, payload_type: str, keys: Sequence[PublicKey]) -> EnvelopeContents | Rejection:
    envelope, hint = bundle.dsse_envelope, bundle.verification_material.public_key.hint
    _expect_type(envelope.payload_type, payload_type)
    if len(envelope.signatures) != 1:
        message = f"{len(envelope.signatures)} signatures instead of one"
        raise statement.MalformedError(message)
    payload = statement.canonical_base64(envelope.payload, "the payload")
    signature = statement.canonical_base64(envelope.signatures[0].sig, "the signature")
    # A bundle without a hint may be by any of the keys; one with a hint is by that key or by none.
    tried = [key for key in keys if hint in ("", key.id)]
    signed = authenticated(payload, payload_type)
    signer = next((key for key in tried if key.verifies(signed, signature)), None)
    if signer is not None:
        return EnvelopeContents(payload, signer.id)
    if hint and tried:
        return Rejection(ProofRefusal.TAMPERED, f"the signature is not that of key {hint} for this content")
    return Rejection(ProofRefusal.WRONG_KEY, f"signed by key {hint[:80] or 'without an id'}, which is not allowed here")


def _expect_type(stated: str, expected: str) -> None:
    if stated != expected:
        message = f"the payload's type is {stated[:100]!r}, not {expected!r}"
        raise statement.MalformedError(message)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")

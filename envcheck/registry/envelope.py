"""Envelopes around statements: DSSE signatures in a Sigstore bundle (v0.3), by a key or by the identity of a CI job.

A bundle has one signature and names its key by a hint, the key's id; `cosign verify-attestation --key` reads it. One
that an identity signed has a certificate instead, and an entry in a public log; sigstore, the extra `keyless`, reads
it. No service is asked to verify: the policy names a file with the keys of the certificate authority and logs.
"""

import dataclasses
import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from envcheck import safe_files
from envcheck.counting import printable
from envcheck.errors import ConfigError, UnavailableError, refuse
from envcheck.registry.statement import PREDICATE_TYPE, MalformedError, ProofRefusal, Rejection, decode_json, expect
from envcheck.signing import PrivateKey, PublicKey, certified_identity
from envcheck.struct_types import LightRecord, know_types

BUNDLE_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
# What Sigstore's clients look for in the manifest of a bundle.
BUNDLE_ANNOTATIONS: Final = {
    "dev.sigstore.bundle.content": "dsse-envelope",
    "dev.sigstore.bundle.predicateType": PREDICATE_TYPE,
}
INSTALL: Final = "install it: pip install 'torch-envcheck[keyless]'"
_MOST: Final = 1 << 20
_MOST_SHOWN: Final = 200
_PERMISSION: Final = "run it in a job of a CI with an OIDC token (GitHub: permissions: id-token: write), or pass --key"


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
    sig: bytes
    keyid: str = ""


class _Envelope(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    payload: bytes
    payload_type: str
    signatures: list[_Signature]


class _Bundle(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    media_type: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"]
    verification_material: _Material
    dsse_envelope: _Envelope


know_types(_Bundle)


def sign(payload: bytes, payload_type: str, key: PrivateKey) -> bytes:
    """Return the payload in a Sigstore bundle; with an ed25519 key the same bytes each time."""
    signature = key.sign(authenticated(payload, payload_type))
    envelope = {"payload": payload, "payloadType": payload_type, "signatures": [{"sig": signature}]}
    material = {"publicKey": {"hint": key.public.id}}
    return msgspec.json.encode({"mediaType": BUNDLE_TYPE, "verificationMaterial": material, "dsseEnvelope": envelope})


def authenticated(payload: bytes, payload_type: str) -> bytes:
    """Return what is signed: DSSE's pre-authentication encoding of the type and the payload."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def open_envelope(
    content: bytes, payload_type: str, keys: Sequence[PublicKey], identities: "Identities | None" = None
) -> EnvelopeContents | Rejection:
    """Return the payload of this type, signed by an allowed key or identity, or why not. It never raises."""
    try:
        bundle = decode_json(content, _Bundle)
        expect(bundle.dsse_envelope.payload_type == payload_type, f"the payload's type is not {payload_type!r}")
        material = bundle.verification_material
        expect((material.public_key is None) != (material.certificate is None), "neither a key nor a certificate")
        if material.certificate is None:
            return _verified(bundle, keys)
    except MalformedError as error:
        return Rejection(ProofRefusal.UNKNOWN_FORMAT, str(error))
    if identities is None:
        return Rejection(ProofRefusal.WRONG_KEY, "signed by an identity, and none is allowed here")
    return identities.open(content, payload_type)


def _verified(bundle: _Bundle, keys: Sequence[PublicKey]) -> EnvelopeContents | Rejection:
    envelope, key = bundle.dsse_envelope, bundle.verification_material.public_key
    hint = key.hint if key else ""
    expect(len(envelope.signatures) == 1, f"{len(envelope.signatures)} signatures instead of one")
    # A bundle without a hint may be by any of the keys; one with a hint is by that key or by none.
    tried = [key for key in keys if hint in ("", key.id)]
    signed = authenticated(envelope.payload, envelope.payload_type)
    signer = next((key for key in tried if key.verifies(signed, envelope.signatures[0].sig)), None)
    if signer is not None:
        return EnvelopeContents(envelope.payload, signer.id)
    if hint and tried:
        return Rejection(ProofRefusal.TAMPERED, f"the signature is not that of key {hint} for this content")
    return Rejection(ProofRefusal.WRONG_KEY, f"signed by key {hint[:80] or 'without an id'}, which is not allowed here")


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A certificate's subject, such as the URL of a workflow, and the OIDC issuer that stated it."""

    identity: Annotated[str, msgspec.Meta(min_length=1)]
    issuer: Annotated[str, msgspec.Meta(min_length=1)]

    def __str__(self) -> str:
        return printable(f"{self.identity} ({self.issuer})")[:_MOST_SHOWN]


know_types(Identity)


@dataclasses.dataclass(frozen=True)
class Identities:
    """Whose proofs count, and Sigstore's trusted root (JSON) that their certificates and log entries must lead to."""

    allowed: tuple[Identity, ...]
    trusted_root: bytes = dataclasses.field(repr=False)

    def check(self) -> None:
        """Raise ConfigError if sigstore is not installed or does not accept the trusted root."""
        _require_sigstore()
        try:
            _ = self._verifier
        except Exception as error:
            message = f"not a trusted root of Sigstore: {_reason(error)}"
            raise ConfigError(message, fix="see docs/publish.md on how to make the file") from error

    def open(self, bundle: bytes, payload_type: str) -> EnvelopeContents | Rejection:
        """Return what an allowed identity signed, or why it does not count. It never raises."""
        from sigstore import errors, models  # noqa: PLC0415 (an extra, and a second to import)
        from sigstore.verify import policy  # noqa: PLC0415

        try:
            read = models.Bundle.from_json(bundle)
            signer = Identity(*certified_identity(read.signing_certificate))
            if signer not in self.allowed:
                return Rejection(ProofRefusal.WRONG_KEY, f"signed by {signer}, an identity that is not allowed here")
            must_be = policy.Identity(identity=signer.identity, issuer=signer.issuer)
            signed_type, payload = self._verifier.verify_dsse(read, must_be)
            expect(signed_type == payload_type, f"sigstore reads a payload of {signed_type}")
        except errors.CertValidationError as error:
            why = f"its certificate was not valid then, or is not of the trusted root: {_reason(error)}"
            return Rejection(ProofRefusal.WRONG_KEY, why)
        except errors.VerificationError as error:
            return Rejection(ProofRefusal.TAMPERED, _reason(error))
        except Exception as error:  # noqa: BLE001 (others wrote the bundle, and no error of reading it is a pass)
            return Rejection(ProofRefusal.UNKNOWN_FORMAT, f"sigstore cannot read it: {_reason(error)}")
        return EnvelopeContents(payload, str(signer))

    @functools.cached_property
    def _verifier(self) -> Any:
        from sigstore.models import TrustedRoot  # noqa: PLC0415
        from sigstore.verify import Verifier  # noqa: PLC0415
        from sigstore_models.trustroot.v1 import TrustedRoot as TrustedRootDocument  # noqa: PLC0415

        return Verifier(trusted_root=TrustedRoot(TrustedRootDocument.from_json(self.trusted_root)))


class KeylessSigner:
    """Signs statements as one identity, with one key and certificate, which last for ten minutes at most."""

    def __init__(self, trust_config: Path | None) -> None:
        """Get the token of this CI job and a certificate, by Sigstore's ClientTrustConfig or of the public instance."""
        _require_sigstore()
        from sigstore.models import ClientTrustConfig  # noqa: PLC0415
        from sigstore.sign import SigningContext  # noqa: PLC0415

        given = None if trust_config is None else _trust_config(trust_config)
        token = _token()
        try:
            config = given or ClientTrustConfig.production()
            with SigningContext.from_trust_config(config).signer(token) as signer:
                self._signer: Any = signer
            self._root = config.trusted_root
        except Exception as error:
            raise _not_signed(error) from error
        self.identity: Identity | None = None

    def sign(self, payload: bytes) -> bytes:
        """Return the in-toto statement in a bundle that a reader will accept, once the log has it."""
        from sigstore.dsse import Statement  # noqa: PLC0415
        from sigstore.verify import Verifier, policy  # noqa: PLC0415

        try:
            bundle = self._signer.sign_dsse(Statement(payload))
            Verifier(trusted_root=self._root).verify_dsse(bundle, policy.UnsafeNoOp())
            self.identity = Identity(*certified_identity(bundle.signing_certificate))
            written: str = bundle.to_json()
        except Exception as error:
            raise _not_signed(error) from error
        return written.encode()


def _token() -> Any:
    from sigstore.oidc import IdentityError, IdentityToken, detect_credential  # noqa: PLC0415

    try:
        raw = detect_credential()
        if raw is not None:
            return IdentityToken(raw)
        why = "no CI here gives an OIDC token to sign with"
    except IdentityError as error:
        why = f"the CI gives no OIDC token: {_reason(error)}"
    raise ConfigError(why, fix=_PERMISSION)


def _trust_config(path: Path) -> Any:
    from sigstore.models import ClientTrustConfig  # noqa: PLC0415

    try:
        config = ClientTrustConfig.from_json(safe_files.read_whole(path, most=_MOST).decode())
        config.signing_config.get_fulcio()
    except Exception as error:
        message = f"{path}: not a client trust configuration of Sigstore: {_reason(error)}"
        raise ConfigError(message, fix="see docs/publish.md") from error
    return config


def _require_sigstore() -> None:
    if importlib.util.find_spec("sigstore") is None:
        refuse("signatures by an identity need sigstore, which is not installed", INSTALL)


def _not_signed(error: Exception) -> UnavailableError:
    fix = "try again; nothing was published for this report"
    return UnavailableError(f"Sigstore did not sign: {_reason(error)}", fix=fix)


def _reason(error: Exception) -> str:
    return printable(" ".join(str(error).split()) or type(error).__name__)[:_MOST_SHOWN]

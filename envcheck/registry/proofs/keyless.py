"""Proofs signed by an identity instead of a key: Sigstore bundles with a certificate and an entry in a public log.

This is the extra `keyless`. With `registry/keyless_signing.py` it is the one home of `sigstore`, which is imported when
such a bundle is met. No service is asked: the policy names a file with the keys of the certificate authority and logs.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from typing import Any, Final

import msgspec

from envcheck.errors import ConfigError
from envcheck.printable import printable
from envcheck.registry.proofs.refusals import ProofRefusal, Rejection
from envcheck.signing import certified_identity
from envcheck.struct_types import LightRecord, know_types

INSTALL: Final = "install it: pip install 'torch-envcheck[keyless]'"
_MOST_SHOWN: Final = 200


class Identity(LightRecord, frozen=True):
    """A certificate's subject, such as the URL of a workflow, and the OIDC issuer that stated it."""

    identity: str
    issuer: str

    def __str__(self) -> str:
        """Return both, as messages show them."""
        return printable(f"{self.identity} ({self.issuer})")[:_MOST_SHOWN]


class SignedByIdentity(LightRecord, frozen=True):
    """What an identity signed, and the payload's type."""

    payload: bytes
    payload_type: str
    signer: Identity


class _Certificate(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    raw_bytes: str


class CertifiedMaterial(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """How a bundle of an identity is verified: what sigstore reads in it is not read here."""

    certificate: _Certificate
    tlog_entries: list[Any]
    timestamp_verification_data: dict[str, Any] | None = None


know_types(CertifiedMaterial)


def require_sigstore() -> None:
    """Raise ConfigError if the extra is not installed."""
    if importlib.util.find_spec("sigstore") is None:
        message = "signatures by an identity need sigstore, which is not installed"
        raise ConfigError(message, fix=INSTALL)


@dataclasses.dataclass(frozen=True)
class Identities:
    """Whose proofs count, and Sigstore's trusted root (JSON) that their certificates and log entries must lead to."""

    allowed: tuple[Identity, ...]
    trusted_root: bytes = dataclasses.field(repr=False)

    def check(self) -> None:
        """Raise ConfigError if sigstore is not installed or does not accept the trusted root."""
        require_sigstore()
        try:
            _ = self._verifier
        except Exception as error:
            message = f"not a trusted root of Sigstore: {reason(error)}"
            raise ConfigError(message, fix="see docs/publish.md on how to make the file") from error

    def open(self, bundle: bytes) -> SignedByIdentity | Rejection:
        """Return what an allowed identity signed, or why it does not count. It never raises."""
        from sigstore import errors, models  # noqa: PLC0415 (an extra, and a second to import)
        from sigstore.verify import policy  # noqa: PLC0415

        try:
            read = models.Bundle.from_json(bundle)
            signer = Identity(*certified_identity(read.signing_certificate))
            if signer not in self.allowed:
                return Rejection(ProofRefusal.WRONG_KEY, f"signed by {signer}, an identity that is not allowed here")
            must_be = policy.Identity(identity=signer.identity, issuer=signer.issuer)
            payload_type, payload = self._verifier.verify_dsse(read, must_be)
        except models.InvalidBundle as error:
            return Rejection(ProofRefusal.UNKNOWN_FORMAT, reason(error))
        except errors.CertValidationError as error:
            return Rejection(
                ProofRefusal.WRONG_KEY,
                f"its certificate was not valid then, or is not of the trusted root: {reason(error)}",
            )
        except errors.VerificationError as error:
            return Rejection(ProofRefusal.TAMPERED, reason(error))
        except Exception as error:  # noqa: BLE001 (others wrote the bundle, and no error of reading it is a pass)
            return Rejection(ProofRefusal.UNKNOWN_FORMAT, f"sigstore cannot read it: {reason(error)}")
        return SignedByIdentity(payload, payload_type, signer)

    @functools.cached_property
    def _verifier(self) -> Any:
        from sigstore.models import TrustedRoot  # noqa: PLC0415
        from sigstore.verify import Verifier  # noqa: PLC0415
        from sigstore_models.trustroot.v1 import TrustedRoot as TrustedRootDocument  # noqa: PLC0415

        return Verifier(trusted_root=TrustedRoot(TrustedRootDocument.from_json(self.trusted_root)))


def reason(error: Exception) -> str:
    """Return an error of sigstore as one short line."""
    return printable(" ".join(str(error).split()) or type(error).__name__)[:_MOST_SHOWN]

"""Proofs signed by an identity instead of a key: Sigstore bundles with a certificate and an entry in a public log.

This is the extra `keyless`. With `registry/keyless.py` it is the one home of `sigstore`, which is imported when
such a bundle is met. No service is asked: the policy names a file with the keys of the certificate authority and logs.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from pathlib import Path
from typing import Any, Final

from envcheck import safe_files
from envcheck.counting import printable
from envcheck.errors import ConfigError, UnavailableError
from envcheck.registry.statement import ProofRefusal, Rejection
from envcheck.signing import certified_identity
from envcheck.struct_types import LightRecord

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


_MOST: Final = 1 << 20
_PERMISSION: Final = "run it in a job of a CI with an OIDC token (GitHub: permissions: id-token: write), or pass --key"


class KeylessSigner:
    """Signs statements as one identity, with one key and certificate, which last for ten minutes at most."""

    def __init__(self, trust_config: Path | None) -> None:
        """Read `trust_config`, Sigstore's ClientTrustConfig in JSON; None for the public instance. Ask no service.

        Raises ConfigError where the file is wrong, or the extra is not installed.
        """
        require_sigstore()
        self._config = None if trust_config is None else _trust_config(trust_config)
        self.identity: Identity | None = None

    def authenticate(self) -> None:
        """Get the token and the certificate, which is valid for ten minutes at most.

        Raises ConfigError where no CI gives a token, UnavailableError where a service does not answer.
        """
        from sigstore.models import ClientTrustConfig  # noqa: PLC0415 (an extra, and a second to import)
        from sigstore.sign import SigningContext  # noqa: PLC0415

        token = _token()
        try:
            config = self._config or ClientTrustConfig.production()
            with SigningContext.from_trust_config(config).signer(token) as signer:
                self._signer: Any = signer
            self._root = config.trusted_root
        except Exception as error:
            raise _not_signed(error) from error

    def sign(self, payload: bytes) -> bytes:
        """Return the in-toto statement in a Sigstore bundle that a reader will accept, once the log has it.

        Call `authenticate` before. Raises UnavailableError.
        """
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
    """Return the token of the CI that runs this."""
    from sigstore.oidc import IdentityError, IdentityToken, detect_credential  # noqa: PLC0415

    try:
        raw = detect_credential()
        if raw is None:
            message = "no CI here gives an OIDC token to sign with"
            raise ConfigError(message, fix=_PERMISSION)
        return IdentityToken(raw)
    except IdentityError as error:
        message = f"the CI gives no OIDC token: {reason(error)}"
        raise ConfigError(message, fix=_PERMISSION) from error


def _trust_config(path: Path) -> Any:
    from sigstore.models import ClientTrustConfig  # noqa: PLC0415

    try:
        config = ClientTrustConfig.from_json(safe_files.read_whole(path, most=_MOST).decode())
        config.signing_config.get_fulcio()
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise ConfigError(message, fix="pass the client trust configuration of a Sigstore instance") from error
    except Exception as error:
        message = f"{path}: not a client trust configuration of Sigstore: {reason(error)}"
        raise ConfigError(message, fix="see docs/publish.md") from error
    return config


def _not_signed(error: Exception) -> UnavailableError:
    return UnavailableError(
        f"Sigstore did not sign: {reason(error)}", fix="try again; nothing was published for this report"
    )

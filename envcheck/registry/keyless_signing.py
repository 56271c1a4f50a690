"""Sign as the identity of a job of a CI: a certificate of Fulcio for a key of the moment, an entry in Rekor's log.

These are requests of sigstore-python itself: to the CI for its token, to Fulcio and to Rekor, and to Sigstore's TUF
repository unless a trust configuration is given. With `proofs/keyless.py` this is the one home of `sigstore`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from envcheck import safe_files
from envcheck.errors import ConfigError, UnavailableError
from envcheck.registry.proofs.keyless import Identity, reason, require_sigstore
from envcheck.signing import certified_identity

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

"""What a site asks of a proof: envcheck-policy.toml, or the default where there is no file."""

import datetime as dt
import sys
from pathlib import Path
from typing import Annotated, Final, Literal, NoReturn

import msgspec

from envcheck import safe_files
from envcheck.errors import ConfigError
from envcheck.registry.envelope import Identities, Identity
from envcheck.registry.statement import Level
from envcheck.signing import PublicKey, load_public
from envcheck.struct_types import LightRecord, know_types

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST: Final = 1 << 20  # bytes of a file
_FIX: Final = "docs/publish.md lists the settings of [proof] and [promote], with what to write"
_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes"}


class NamedGpus(LightRecord, frozen=True):
    """GPUs that a promotion needs a proof for: "H100 x8"."""

    gpu: str
    gpus: int


class Policy(LightRecord, frozen=True):
    """What a proof must be. `required` checks must have passed; `keys` and `identities` are those whose proofs count.

    `promoted_on` are the GPUs that a promotion needs a proof for each.
    """

    level: Level = "standard"
    max_age: dt.timedelta = dt.timedelta(days=30)
    keys: tuple[PublicKey, ...] = ()
    identities: Identities | None = None
    required: tuple[str, ...] = ()
    warnings: Literal["allow", "refuse"] = "allow"
    rejudge: bool = True
    mode: Literal["gpu", "cpu"] = "gpu"
    promoted_on: tuple[NamedGpus, ...] = ()


DEFAULT: Final = Policy()


class _ProofTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    level: Level = DEFAULT.level
    max_age: Annotated[str, msgspec.Meta(pattern=r"(?a)\A[1-9]\d{0,4}[dhm]\Z")] = "30d"
    keys: list[str] = []
    identities: list[Identity] = []
    trusted_root: str | None = None
    required: list[Annotated[str, msgspec.Meta(pattern=r"\S")]] = []
    warnings: Literal["allow", "refuse"] = DEFAULT.warnings
    rejudge: bool = DEFAULT.rejudge
    mode: Literal["gpu", "cpu"] = DEFAULT.mode


class _PromoteTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    gpus: list[Annotated[str, msgspec.Meta(pattern=r"(?a)\A\S(.*\S)? x[1-9]\d{0,5}\Z")]] = []


class _PolicyFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    proof: _ProofTable = msgspec.field(default_factory=_ProofTable)
    promote: _PromoteTable = msgspec.field(default_factory=_PromoteTable)


know_types(_PolicyFile)


def read(path: Path) -> Policy:
    """Return the policy in a file; the paths of its keys begin at the file. Raises ConfigError with the setting."""
    try:
        tables = msgspec.convert(tomllib.loads(safe_files.read_whole(path, most=_MOST).decode()), _PolicyFile)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise ConfigError(message, fix="give a TOML file that you may read") from error
    except (ValueError, RecursionError) as error:  # of msgspec and tomllib, which name the place; not UTF-8
        why = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())[:200]
        message = f"{path}: {why}"
        raise ConfigError(message, fix=_FIX) from error
    proof, promote = tables.proof, tables.promote
    keys, identities = tuple(_key(name, path) for name in proof.keys), _identities(proof, path)
    if not keys and identities is None:
        _refuse(path, "proof.keys", "no key: no proof would hold", "name public keys or identities")
    if promote.gpus and proof.mode == "cpu":
        why = "a run on a CPU proves nothing of GPUs"
        _refuse(path, "promote.gpus", why, 'leave them out, or set mode = "gpu" in [proof]')
    return Policy(
        level=proof.level,
        max_age=dt.timedelta(**{_UNITS[proof.max_age[-1]]: int(proof.max_age[:-1])}),
        keys=keys,
        identities=identities,
        required=tuple(proof.required),
        warnings=proof.warnings,
        rejudge=proof.rejudge,
        mode=proof.mode,
        promoted_on=tuple(NamedGpus(gpu, int(n)) for gpu, _, n in (text.rpartition(" x") for text in promote.gpus)),
    )


def _refuse(path: Path, setting: str, why: str, fix: str) -> NoReturn:
    message = f"{path}: {setting}: {why}"
    raise ConfigError(message, fix=fix)


def _key(name: str, path: Path) -> PublicKey:
    try:
        return load_public(path.parent / name)
    except (ConfigError, ValueError) as error:  # ValueError: a NUL in the path
        why = error.message if isinstance(error, ConfigError) else "not the name of a file"
        _refuse(path, "proof.keys", why, "name public keys, relative to this file")


def _identities(proof: _ProofTable, path: Path) -> Identities | None:
    """Return the identities, whose certificates are verified by the trusted root alone."""
    if not proof.identities and proof.trusted_root is None:
        return None
    if not proof.identities:
        _refuse(
            path, "proof.trusted_root", "no identity that it would verify", "name the identities too, or leave it out"
        )
    if proof.trusted_root is None:
        _refuse(
            path,
            "proof.identities",
            "no trusted_root to verify them by",
            "name Sigstore's trusted_root.json, relative to this file",
        )
    root = path.parent / proof.trusted_root
    try:
        identities = Identities(tuple(proof.identities), safe_files.read_whole(root, most=_MOST))
        identities.check()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = f"cannot read {root}: {getattr(error, 'strerror', None) or 'not the name of a file'}"
        _refuse(path, "proof.trusted_root", why, "name Sigstore's trusted_root.json, relative to this file")
    except ConfigError as error:
        _refuse(path, "proof.trusted_root", error.message, error.fix)
    return identities

"""What a site asks of a proof: envcheck-policy.toml, or the default where there is no file."""

from __future__ import annotations

import datetime as dt
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn

import msgspec

from envcheck import safe_files
from envcheck.counting import counted
from envcheck.errors import ConfigError
from envcheck.registry.keyless import Identities, Identity
from envcheck.registry.statement import Level
from envcheck.signing import PublicKey, load_public
from envcheck.struct_types import LightRecord, know_types

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME: Final = "envcheck-policy.toml"
_MOST: Final = 1 << 20  # bytes of a file
_FIX: Final = (
    "the settings of [proof] are level, max_age, keys, identities, trusted_root, required, warnings, rejudge, mode and "
    "unsigned, "
    "those of [promote] gpus, from and signers"
)
_WRITE: Final = {
    "level": 'write "static", "quick", "standard" or "full"',
    "max_age": 'write "30d", "12h" or "90m"',
    "keys": 'write a list: ["release.pub"]',
    "identities": 'write a list: [{identity = "https://...", issuer = "https://..."}]',
    "trusted_root": 'write a file: "trusted_root.json"',
    "required": 'write a list: ["all-reduce"]; `envcheck checks` lists the names',
    "warnings": 'write "allow" or "refuse"',
    "rejudge": "write true or false",
    "mode": 'write "gpu" or "cpu"',
    "unsigned": "write true or false",
    "gpus": 'write a list: ["H100 x8"]',
    "from": 'write a repository: "registry.example/staging"',
    "signers": "write how many keys must sign: 2",
}
_AGE: Final = re.compile(r"([1-9]\d{0,4})([dhm])", re.ASCII)
_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes"}
_GPUS: Final = re.compile(r"(?P<gpu>\S(?:.*\S)?) x(?P<gpus>[1-9]\d{0,5})", re.ASCII)
_REPOSITORY: Final = re.compile(r"[^\s/@:]+(:\d+)?(/[a-z0-9._-]+)+", re.ASCII)
_PLACE: Final = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")


class NamedGpus(LightRecord, frozen=True):
    """GPUs that a promotion needs a proof for: "H100 x8"."""

    gpu: str
    gpus: int


class Policy(LightRecord, frozen=True):
    """What a proof must be. `required` checks must have passed; `unsigned` takes statements that nobody signed.

    `keys` and `identities` are those whose proofs count.

    `promoted_on` are the GPUs that a promotion needs a proof for each, `promoted_from` the repository it comes from,
    `signers` how many different keys must sign it.
    """

    level: Level = "standard"
    max_age: dt.timedelta = dt.timedelta(days=30)
    keys: tuple[PublicKey, ...] = ()
    identities: Identities | None = None
    required: tuple[str, ...] = ()
    warnings: Literal["allow", "refuse"] = "allow"
    rejudge: bool = True
    mode: Literal["gpu", "cpu"] = "gpu"
    unsigned: bool = False
    promoted_on: tuple[NamedGpus, ...] = ()
    promoted_from: str | None = None
    signers: int = 1


DEFAULT: Final = Policy()


class _IdentityTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    identity: Annotated[str, msgspec.Meta(min_length=1)]
    issuer: Annotated[str, msgspec.Meta(min_length=1)]


class _ProofTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    level: Level = DEFAULT.level
    max_age: str = "30d"
    keys: list[str] = []
    identities: list[_IdentityTable] = []
    trusted_root: str | None = None
    required: list[str] = []
    warnings: Literal["allow", "refuse"] = DEFAULT.warnings
    rejudge: bool = DEFAULT.rejudge
    mode: Literal["gpu", "cpu"] = DEFAULT.mode
    unsigned: bool = DEFAULT.unsigned


class _PromoteTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    gpus: list[str] = []
    source: str | None = msgspec.field(name="from", default=None)
    signers: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1


class _PolicyFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    proof: _ProofTable = msgspec.field(default_factory=_ProofTable)
    promote: _PromoteTable = msgspec.field(default_factory=_PromoteTable)


know_types(_PolicyFile)


def read(path: Path) -> Policy:
    """Return the policy in a file; the paths of its keys begin at the file. Raises ConfigError with line and key."""
    try:
        text = safe_files.read_whole(path, most=_MOST).decode()
        document = tomllib.loads(text)
        tables = msgspec.convert(document, _PolicyFile)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise ConfigError(message, fix="give a TOML file that you may read") from error
    except UnicodeError as error:
        message = f"{path} is not UTF-8 text"
        raise ConfigError(message, fix=_FIX) from error
    except RecursionError as error:
        message = f"{path}: nested deeper than any setting"
        raise ConfigError(message, fix="close the brackets") from error
    except msgspec.ValidationError as error:
        where, name = _line(text, document, str(error))
        message = f"{path}{where}"
        raise ConfigError(message, fix=_WRITE.get(name, _FIX)) from error
    except ValueError as error:  # tomllib's own, which names the line; a number of thousands of digits
        message = f"{path}: {' '.join(str(error).split())[:200]}"
        raise ConfigError(message, fix=_FIX) from error
    return _policy(tables, _Place(path, text))


class _Place:
    """Where a setting stands, for errors."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self._text = path, text

    def refuse(self, table: str, name: str, why: str, fix: str) -> NoReturn:
        """Raise the error about one setting."""
        line = _line_of(self._text, table, name)
        message = f"{self.path}{f':{line}' if line else ''}: {table}.{name}: {why}"
        raise ConfigError(message, fix=fix)


def _policy(tables: _PolicyFile, place: _Place) -> Policy:
    proof, promote = tables.proof, tables.promote
    keys = tuple(_key(name, place) for name in proof.keys)
    if len({key.id for key in keys}) != len(keys):
        # Two files of one key would count as two signers.
        place.refuse("proof", "keys", "one key is there twice", "name each key once")
    identities = _identities(proof, place)
    if not keys and identities is None and not proof.unsigned:
        why = "no key, and unsigned proofs are refused: no proof would hold"
        place.refuse("proof", "keys", why, "name public keys or identities, or set unsigned = true")
    if promote.signers > len(keys) > 0:
        why = f"{promote.signers} signers, and only {counted(len(keys), 'key')}"
        place.refuse("promote", "signers", why, "name more keys in proof.keys, or ask for fewer signers")
    if promote.gpus and proof.mode == "cpu":
        why = "a run on a CPU proves nothing of GPUs"
        place.refuse("promote", "gpus", why, 'leave them out, or set mode = "gpu" in [proof]')
    empty = [name for name in proof.required if not name.strip()]
    if empty:
        place.refuse("proof", "required", "the name of a check is empty", "`envcheck checks` lists them")
    return Policy(
        level=proof.level,
        max_age=_age(proof.max_age, place),
        keys=keys,
        identities=identities,
        required=tuple(proof.required),
        warnings=proof.warnings,
        rejudge=proof.rejudge,
        mode=proof.mode,
        unsigned=proof.unsigned,
        promoted_on=tuple(_gpus(text, place) for text in promote.gpus),
        promoted_from=None if promote.source is None else _repository(promote.source, place),
        signers=promote.signers,
    )


def _key(name: str, place: _Place) -> PublicKey:
    try:
        return load_public(place.path.parent / name)
    except (ConfigError, ValueError) as error:  # ValueError: a NUL in the path
        why = error.message if isinstance(error, ConfigError) else "not the name of a file"
        place.refuse("proof", "keys", why, "name public keys, relative to this file")


def _identities(proof: _ProofTable, place: _Place) -> Identities | None:
    """Return the identities, whose certificates are verified by the trusted root alone."""
    if not proof.identities and proof.trusted_root is None:
        return None
    if not proof.identities:
        place.refuse("proof", "trusted_root", "no identity that it would verify", _WRITE["identities"])
    if proof.trusted_root is None:
        place.refuse("proof", "identities", "no trusted_root to verify them by", _WRITE["trusted_root"])
    path = place.path.parent / proof.trusted_root
    try:
        identities = Identities(
            tuple(Identity(one.identity, one.issuer) for one in proof.identities),
            safe_files.read_whole(path, most=_MOST),
        )
        identities.check()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = f"cannot read {path}: {getattr(error, 'strerror', None) or 'not the name of a file'}"
        place.refuse("proof", "trusted_root", why, "name Sigstore's trusted_root.json, relative to this file")
    except ConfigError as error:
        place.refuse("proof", "trusted_root", error.message, error.fix)
    return identities


def _age(text: str, place: _Place) -> dt.timedelta:
    match = _AGE.fullmatch(text)
    if match is None:
        place.refuse("proof", "max_age", f"{text[:40]!r} is not an age", _WRITE["max_age"])
    return dt.timedelta(**{_UNITS[match[2]]: int(match[1])})


def age_text(age: dt.timedelta) -> str:
    """Return an age as a policy writes it: "30d"."""
    minutes = int(age.total_seconds()) // 60
    unit, size = next((unit, size) for unit, size in (("d", 1440), ("h", 60), ("m", 1)) if minutes % size == 0)
    return f"{minutes // size}{unit}"


def _repository(text: str, place: _Place) -> str:
    """Return a repository as promotions name it; another text would be that of no promotion."""
    if _REPOSITORY.fullmatch(text) is None:
        why = f"{text[:60]!r} is no repository, as REGISTRY/NAME without http://, tag and digest"
        place.refuse("promote", "from", why, _WRITE["from"])
    return text


def _gpus(text: str, place: _Place) -> NamedGpus:
    match = _GPUS.fullmatch(text)
    if match is None:
        place.refuse("promote", "gpus", f"{text[:60]!r} names no GPUs", 'write "H100 x8": model and count')
    return NamedGpus(match["gpu"], int(match["gpus"]))


def _line(text: str, document: dict[str, Any], error: str) -> tuple[str, str]:
    """Return ":LINE: KEY: WHY" of msgspec's error, which ends with the path of the value, and the setting's name."""
    match = _PLACE.search(error)
    path = match["path"] if match else ""
    why = error[: match.start()] if match else error
    table, _, name = re.sub(r"\[\.*\d*\]", "", path).partition(".")
    unknown = re.search(r"unknown field `([^`]*)`", why)
    if unknown:
        why, table, name = "there is no such setting", table or unknown[1], unknown[1] if table else ""
    line = _line_of(text, table, name) if table in document else None
    where = ".".join(part for part in (table, name) if part)
    return f"{f':{line}' if line else ''}: {f'{where}: ' if where else ''}{why[:1].lower()}{why[1:]}", name


def _line_of(text: str, table: str, name: str) -> int | None:
    """Return the line of a setting, that of its table where it has none; None where it cannot be found."""
    header, inside = None, False
    for number, line in enumerate(text.splitlines(), 1):
        head = re.match(r"\s*\[\s*([^\]]*?)\s*\]", line)
        if head:
            inside = head[1].strip("\"'") == table
            header = number if inside and header is None else header
        elif inside and name and re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*[.=]", line):
            return number
        elif header is None and re.match(rf"\s*{re.escape(table)}\s*[.=]", line):
            header = number
    return header

"""Read matrix.yaml, through a cache, and its like: errors name the file, the line, the key path and what to do."""

from __future__ import annotations

import contextlib
import re
from _blake2 import blake2b  # hashlib loads OpenSSL first, which takes 3 ms of the start
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from envcheck.data import data_path, xdg
from envcheck.errors import ConfigError, refuse
from envcheck.matrix.facts import model
from envcheck.matrix.facts.model import Matrix
from envcheck.safe_files import put, read_whole

if TYPE_CHECKING:
    from envcheck.yaml_lines import YamlDocument

_Row = TypeVar("_Row")
_AT: Final = r"(?s)(?P<what>.*?)(?: - at `(?P<key>key in )?(?P<path>[^`]*)`)?"
_MATRIX: Final = "matrix.yaml"
_DIGEST_BYTES: Final = 32
_FIXES: Final = (
    ("Expected `str`, got `float`", "put it in quotes: unquoted, YAML reads 3.10 as the number 3.1"),
    ("Expected `str`, got `int`", "put it in quotes: versions are strings"),
    ("unknown field", "correct its spelling or remove it; `envcheck schema matrix` lists what is known"),
    ("required field `source`", "say where the fact comes from: source: [key of `sources`]"),
    ("missing required field", "add it; `envcheck schema matrix` says what belongs there"),
    ("of length", "name at least one key of `sources`"),
    ("matching regex", 'write it like its neighbours: "12.8", "570.26", "3.12", cu128, cpu'),
    ("Invalid enum value", "use one of the values that `envcheck schema matrix` lists"),
)


def load(path: Path | None = None) -> Matrix:
    """Return the matrix in `path`, or the shipped one. Raises ConfigError."""
    name = str(path) if path else "matrix.yaml"
    try:
        raw = read_whole(path or data_path("matrix.yaml"))
    except OSError as error:
        refuse(f"{name}: {error.strerror or 'cannot be read'}", "give a readable file with --matrix")
    return cached(raw, Matrix, [model.__file__], lambda: loads(raw, name))


def cached(raw: bytes, row: type[_Row], readers: Iterable[str], read: Callable[[], _Row]) -> _Row:
    """Return what `read` makes of `raw`, read once: without its YAML, which takes longer than the rest of a command.

    $XDG_CACHE_HOME/envcheck keeps it by the digest of the text and of the files that read it, after its own digest.
    """
    parts = [msgspec.__version__.encode(), *(Path(file).read_bytes() for file in (*readers, __file__)), raw]
    digest = _digest(b"".join(parts)).hex()
    try:
        path = xdg("XDG_CACHE_HOME", ".cache") / "envcheck" / f"{row.__name__.lower()}-{digest}.msgpack"
    except RuntimeError:  # there is no home
        return read()
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        entry = path.read_bytes()
        if _digest(entry[_DIGEST_BYTES:]) == entry[:_DIGEST_BYTES]:
            return msgspec.msgpack.decode(entry[_DIGEST_BYTES:], type=row)
    value = read()
    kept = msgspec.msgpack.encode(value)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        put(path, _digest(kept) + kept, 0o600, durable=False)
    return value


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()


def loads(raw: bytes, name: str = "matrix.yaml") -> Matrix:
    """Return the matrix in the YAML text `raw`. `name` is what errors call the file. Raises ConfigError."""
    matrix, document = typed(raw, name, Matrix)
    _refuse_duplicates(matrix, document)
    return matrix


def typed(raw: bytes, name: str, row: type[_Row], like: str = _MATRIX) -> tuple[_Row, YamlDocument]:
    """Return the YAML text `raw` as a `row`, and the document that knows its lines. Raises ConfigError.

    `like` is the shipped file of that kind, which errors point to.
    """
    from envcheck.yaml_lines import parse  # noqa: PLC0415 (a matrix that was read before needs no YAML)

    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        refuse(f"{name}:{line}: not UTF-8 text", "save the file as UTF-8")
    document = parse(text, name, like)
    try:
        return msgspec.convert(document.data, row), document
    except msgspec.ValidationError as error:
        raise _located(error, document, like) from error


def _located(error: msgspec.ValidationError, document: YamlDocument, like: str) -> ConfigError:
    parts = re.fullmatch(_AT, str(error))
    problem, path = (parts["what"], parts["path"] or "$") if parts else (str(error), "$")
    unknown = re.search(r"unknown field `([^`]+)`", problem)
    line = document.line(f"{path}.{unknown[1]}" if unknown else path)
    fix = next((fix for part, fix in _FIXES if part in problem), "correct the value")
    if like != _MATRIX:  # `schema matrix` describes no other file
        fix = fix.replace("`envcheck schema matrix`", f"the shipped {like}")
    return ConfigError(f"{document.name}:{line}: {path}: {problem}", fix=fix)


def refuse_duplicates(document: YamlDocument, path: str, names: Iterable[str]) -> None:
    """Raise ConfigError, with its line, for the first name of the table at `path` that appears twice."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            at = f"{path}[{index}]"
            refuse(
                f"{document.name}:{document.line(at)}: {at}: {name} appears twice", "merge the two rows or remove one"
            )
        seen.add(name)


def _refuse_duplicates(matrix: Matrix, document: YamlDocument) -> None:
    names: dict[str, list[str]] = {
        "$.cuda.families": [row.major for row in matrix.cuda.families],
        "$.cuda.minors": [row.cuda for row in matrix.cuda.minors],
        "$.cuda.capabilities": [row.cc for row in matrix.cuda.capabilities],
        "$.cuda.code": [row.sm for row in matrix.cuda.code],
        "$.cuda.base_images": [row.image for row in matrix.cuda.base_images],
        "$.drivers": [row.branch for row in matrix.drivers],
        "$.gpus": [row.name for row in matrix.gpus],
        "$.bases": [row.python for row in matrix.bases],
        "$.images": [" ".join(map(str, row.cells())) for row in matrix.images],
        "$.torch": [row.torch for row in matrix.torch],
    }
    for at, release in enumerate(matrix.torch):
        names[f"$.torch[{at}].variants"] = [row.variant for row in release.variants]
        for position, variant in enumerate(release.variants):
            names[f"$.torch[{at}].variants[{position}].builds"] = [row.arch for row in variant.builds]
    for path, each in names.items():
        refuse_duplicates(document, path, each)

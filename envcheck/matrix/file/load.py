"""Read matrix.yaml and its like: every error names the file, the line, the key path and what to do."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from envcheck.data import data_path
from envcheck.errors import ConfigError
from envcheck.matrix.facts.model import Matrix
from envcheck.safe_files import read_whole

_Row = TypeVar("_Row")
_DEEPEST: Final = 32
_SEGMENT: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")
_SCALARS: Final[dict[str, Callable[[str], Any]]] = {
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:float": float,
    "tag:yaml.org,2002:bool": lambda text: text.lower() in ("true", "yes", "on"),
    "tag:yaml.org,2002:null": lambda _: None,
}
_AT: Final = re.compile(r"(?P<what>.*?)(?: - at `(?P<key>key in )?(?P<path>[^`]*)`)?", re.DOTALL)
_MATRIX: Final = "matrix.yaml"
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
        message = f"{name}: {error.strerror or 'cannot be read'}"
        raise ConfigError(message, fix="give a readable file with --matrix") from error
    return loads(raw, name)


def loads(raw: bytes, name: str = "matrix.yaml") -> Matrix:
    """Return the matrix in the YAML text `raw`. `name` is what errors call the file. Raises ConfigError."""
    matrix, document = typed(raw, name, Matrix)
    _refuse_duplicates(matrix, document)
    return matrix


def typed(raw: bytes, name: str, row: type[_Row], like: str = _MATRIX) -> tuple[_Row, YamlDocument]:
    """Return the YAML text `raw` as a `row`, and the document that knows its lines. Raises ConfigError.

    `like` is the shipped file of that kind, which errors point to.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        message = f"{name}:{line}: not UTF-8 text"
        raise ConfigError(message, fix="save the file as UTF-8") from error
    document = parse(text, name, like)
    try:
        return msgspec.convert(document.data, row), document
    except msgspec.ValidationError as error:
        raise _located(error, document, like) from error


def _located(error: msgspec.ValidationError, document: YamlDocument, like: str) -> ConfigError:
    parts = _AT.fullmatch(str(error))
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
            message = f"{document.name}:{document.line(at)}: {at}: {name} appears twice"
            raise ConfigError(message, fix="merge the two rows or remove one")
        seen.add(name)


def _refuse_duplicates(matrix: Matrix, document: YamlDocument) -> None:
    unique = functools.partial(refuse_duplicates, document)
    unique("$.cuda.families", (row.major for row in matrix.cuda.families))
    unique("$.cuda.minors", (row.cuda for row in matrix.cuda.minors))
    unique("$.cuda.capabilities", (row.cc for row in matrix.cuda.capabilities))
    unique("$.cuda.code", (row.sm for row in matrix.cuda.code))
    unique("$.cuda.base_images", (row.image for row in matrix.cuda.base_images))
    unique("$.drivers", (row.branch for row in matrix.drivers))
    unique("$.gpus", (row.name for row in matrix.gpus))
    unique("$.bases", (row.python for row in matrix.bases))
    unique("$.images", (" ".join(map(str, row.cells())) for row in matrix.images))
    unique("$.torch", (row.torch for row in matrix.torch))
    for at, release in enumerate(matrix.torch):
        unique(f"$.torch[{at}].variants", (row.variant for row in release.variants))
        for position, variant in enumerate(release.variants):
            unique(f"$.torch[{at}].variants[{position}].builds", (row.arch for row in variant.builds))


class YamlDocument:
    """A parsed file: its `data`, and the line of each key path."""

    def __init__(self, root: yaml.Node, name: str) -> None:
        self._root = root
        self.name = name
        self.data = _plain(root, name)

    def line(self, path: str) -> int:
        """Return the 1-based line of a key path such as `$.torch[3].variants[0].cuda`, or of its nearest parent."""
        node = self._root
        for name, index in (segment.groups() for segment in _SEGMENT.finditer(path)):
            child = _child(node, name, index)
            if child is None:
                break
            node = child
        return int(node.start_mark.line) + 1


def parse(text: str, name: str, like: str = "matrix.yaml") -> YamlDocument:
    """Return the document in `text`. Errors call the file `name`, the shipped one `like`. Raises ConfigError."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _refuse_shape(yaml.parse(text, Loader=loader), name)
        root = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        message = f"{name}:{line}: not YAML: {error.problem}"
        raise ConfigError(message, fix="correct the line") from error
    except yaml.YAMLError as error:
        message = f"{name}: not YAML: {_one_line(error)}"
        raise ConfigError(message, fix="save the file as plain UTF-8 text") from error
    if root is None:
        message = f"{name}: the file is empty"
        raise ConfigError(message, fix=f"give a file like the shipped {like}")
    return YamlDocument(root, name)


def _refuse_shape(events: Iterable[yaml.Event], name: str) -> None:
    """Refuse aliases, which can be recursive and have no line of their own, and nesting deeper than any fact needs."""
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent):
            message = f"{name}:{line}: the alias *{event.anchor}: aliases are not read here"
            raise ConfigError(message, fix="write the value out")
        if depth > _DEEPEST:
            message = f"{name}:{line}: nested more than {_DEEPEST} deep"
            raise ConfigError(message, fix="close the brackets, or correct the indentation")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _child(node: yaml.Node, name: str | None, index: str | None) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode) and name is not None:
        return next((value for key, value in node.value if key.value == name), None)
    if isinstance(node, yaml.SequenceNode) and index is not None and int(index) < len(node.value):
        item = node.value[int(index)]
        return item if isinstance(item, yaml.Node) else None
    return None


def _plain(node: yaml.Node, name: str) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, name)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, name) for item in node.value]
    convert = _SCALARS.get(node.tag, str)
    try:
        return convert(node.value)
    except ValueError:
        return str(node.value)


def _mapping(node: yaml.MappingNode, name: str) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.tag != "tag:yaml.org,2002:str":
            message = f"{name}:{line}: the key {key.value} is not a string"
            raise ConfigError(message, fix=f'write it as "{key.value}"')
        if key.value in mapping:
            message = f"{name}:{line}: the key {key.value} appears twice"
            raise ConfigError(message, fix="remove one of the two")
        mapping[key.value] = _plain(value, name)
    return mapping

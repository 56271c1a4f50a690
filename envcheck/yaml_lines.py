"""A YAML file's data, with the line of each key path."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import yaml

from envcheck.errors import refuse

_DEEPEST: Final = 32
_SEGMENT: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")
_SCALARS: Final[dict[str, Callable[[str], Any]]] = {
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:float": float,
    "tag:yaml.org,2002:bool": lambda text: text.lower() in ("true", "yes", "on"),
    "tag:yaml.org,2002:null": lambda _: None,
}


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
        refuse_shape(yaml.parse(text, Loader=loader), name)
        root = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        refuse(f"{name}:{line}: not YAML: {error.problem}", "correct the line")
    except yaml.YAMLError as error:
        refuse(f"{name}: not YAML: {' '.join(str(error).split())}", "save the file as plain UTF-8 text")
    if root is None:
        refuse(f"{name}: the file is empty", f"give a file like the shipped {like}")
    return YamlDocument(root, name)


def refuse_shape(events: Iterable[yaml.Event], name: str) -> None:
    """Refuse aliases, which can be recursive and have no line of their own, and nesting deeper than any fact needs.

    No message repeats an alias: a secret can begin with a *.
    """
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent):
            fix = "write the value out, or quote a text that begins with *"
            refuse(f"{name}:{line}: YAML aliases are not supported", fix)
        if depth > _DEEPEST:
            refuse(f"{name}:{line}: nested more than {_DEEPEST} deep", "close the brackets, or correct the indentation")


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
            refuse(f"{name}:{line}: the key {key.value} is not a string", f'write it as "{key.value}"')
        if key.value in mapping:
            refuse(f"{name}:{line}: the key {key.value} appears twice", "remove one of the two")
        mapping[key.value] = _plain(value, name)
    return mapping

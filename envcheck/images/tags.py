"""The names of an image: the full tag, which its labels must deserve, and aliases that only move forward."""

import re
from collections.abc import Mapping
from typing import Final

from envcheck.errors import PromiseError, refuse
from envcheck.images.spec import LABEL_PREFIX, ImageSpec
from envcheck.matrix.facts.model import key

REPOSITORY: Final = "envcheck/torch"
# The grammar of distribution/reference (its regexp.go): [HOST[:PORT]/]PATH[:TAG].
_HOST: Final = r"(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9-]+(?=:\d)|\[[0-9a-fA-F:]+\])(?::\d+)?"
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME: Final = re.compile(
    rf"(?P<repository>(?:{_HOST}/)?{_PART}(?:/{_PART})*)(?::(?P<tag>\w[\w.-]{{0,127}}))?", re.ASCII
)
_LONGEST: Final = 255


def parse(name: str) -> tuple[str, str | None]:
    """Return the repository and the tag, None where there is none, of a name as docker takes it."""
    match = _NAME.fullmatch(name)
    if match is None or len(match["repository"]) > _LONGEST:
        refuse(f"{name!r} is not a valid image name", "give REPOSITORY:TAG in lower case, e.g. me/torch:mine")
    return match["repository"], match["tag"]


def aliases(repository: str, spec: ImageSpec) -> list[str]:
    """Return the moving references: newest patch of the minor, newest torch; for `runtime` also without the target.

    The first of a runtime's is the full tag without its target, which moves only when the image is rebuilt. An image
    with a user's own packages has none.
    """
    if spec.on_top:
        return []
    axes = f"{spec.cell.variant}-py{spec.cell.python.replace('.', '')}"
    minor = ".".join(spec.cell.torch.split(".")[:2])
    stems = [f"{minor}-{axes}", axes]
    names = [f"{stem}-{spec.target}" for stem in stems]
    if spec.target == "runtime":
        names += [f"{spec.cell.torch}-{axes}", *stems]
    return [f"{repository}:{name}" for name in names]


def held_back(alias_labels: Mapping[str, str] | None, spec: ImageSpec) -> str | None:
    """Return why an alias stays with the image it names now, given that image's labels; None when it may move."""
    if alias_labels is None:
        return None
    theirs = alias_labels.get(f"{LABEL_PREFIX}torch", "").partition("+")[0]
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})+", theirs):  # a label may say anything
        return "it names an image that is not envcheck's"
    if key(theirs) > key(spec.cell.torch):
        return f"it names torch {theirs}, which is newer"
    return None


def broken_labels(spec: ImageSpec, labels: Mapping[str, str]) -> list[str]:
    """Return a line for each promise that the labels break; an absent label breaks its promise."""
    stated = ((name, promised, labels.get(f"{LABEL_PREFIX}{name}")) for name, promised in spec.promises.items())
    return [
        f"{LABEL_PREFIX}{name} is {'absent' if label is None else label}, expected {promised}"
        for name, promised, label in stated
        if label != promised
    ]


def require_labels(spec: ImageSpec, labels: Mapping[str, str], image: str, key: str | None = None) -> None:
    """Raise PromiseError naming every label of `image` that differs from the spec's promises, or from its key.

    An image of other steps or another base has the same promises: its key tells it apart.
    """
    stated = labels.get(f"{LABEL_PREFIX}key")
    other = [f"{LABEL_PREFIX}key is {stated or 'absent'}, expected {key}"] if key not in {None, stated} else []
    broken = [*broken_labels(spec, labels), *other]
    if broken:
        refuse(f"{image} is not {spec.tag}: {'; '.join(broken)}", "build it again from this checkout", PromiseError)

"""What other programs read of finished images: Apptainer, bake, compose, conda, devcontainers, GitHub Actions.

A format is a function and its row in `FORMATS`.
"""

import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from envcheck.data import rendered
from envcheck.errors import ConfigError, refuse
from envcheck.images import tags
from envcheck.images.dockerfile import base_reference
from envcheck.images.plan import PLATFORMS
from envcheck.images.spec import ARCH, LABEL_PREFIX, ImageSpec, no_lock
from envcheck.matrix.facts.model import PYTORCH, HostArch

# Worker processes of a DataLoader pass tensors through /dev/shm, of which a container has 64 MB by default.
SHM: Final = "8g"
# Where JupyterLab and sshd listen once they were asked to.
_PORTS: Final = (8888, 2222)
# A name without a registry's host is an image of the local engine.
_HOST: Final = re.compile(r"(?:localhost|[^/]*[.:][^/]*)/")


class CellFormat(NamedTuple):
    """How targets of cells are written in one format.

    `one` says that a file is of one target of one cell; `lockless` that cells without a lock may be left out.
    """

    render: Callable[[Sequence[ImageSpec], str], str]
    one: bool = False
    lockless: bool = False


def written(name: str, specs: Sequence[ImageSpec], repository: str) -> str:
    """Return the text of the format, or raise ConfigError where it cannot hold these specs."""
    cell_format = FORMATS[name]
    unlocked = next((spec for spec in specs if not spec.locks), None)
    if unlocked is not None and not cell_format.lockless:
        raise no_lock(unlocked.cell, unlocked.arch)
    if cell_format.one and len(specs) != 1:
        chosen = ", ".join(f"{spec.cell} {spec.target}" for spec in specs[:3])
        message = f"--format {name} is of one target of one cell, and {len(specs)} are selected ({chosen} …)"
        raise ConfigError(message, fix="name one cell, and its --target")
    return cell_format.render([spec for spec in specs if spec.locks], repository)


def apptainer(specs: Sequence[ImageSpec], repository: str) -> str:
    """Return the definition of one image."""
    (spec,) = specs
    context = {
        "agent": "docker" if _HOST.match(repository) else "docker-daemon",
        "image": f"{repository}:{spec.tag}",
        "labels": {f"{LABEL_PREFIX}{name}": value for name, value in sorted(spec.promises.items())},
        "title": spec.title,
        "file": f"{spec.cell}-{spec.target}",
        "nv": " --nv" if spec.cuda else "",
    }
    return rendered("formats/apptainer.def.j2", context)


def bake(specs: Sequence[ImageSpec], repository: str) -> str:
    """Return the JSON; its variables are what a machine may set in the environment of bake."""
    document = {
        "variable": {
            "REPOSITORY": {"default": repository},
            "REVISION": {"default": "unknown"},
            "SOURCE_DATE_EPOCH": {"default": "0"},
            "NETWORK": {"default": "default"},
        },
        "group": _groups(specs),
        "target": {name: _target(spec) for name, spec in _named(specs).items()},
    }
    return json.dumps(document, indent=1) + "\n"


def bake_of_checkout(specs: Sequence[ImageSpec]) -> str:
    """Return the JSON for a clone, whose Dockerfiles are those of amd64; bake given no name builds none of them."""
    document = json.loads(bake([spec for spec in specs if spec.arch == ARCH], tags.REPOSITORY))
    document["group"].pop("default")
    for target in document["target"].values():
        target |= {"context": ".", "dockerfile": f"images/{target['context']}/Dockerfile"}
    return json.dumps(document, indent=1) + "\n"


def _groups(specs: Sequence[ImageSpec]) -> dict[str, dict[str, list[str]]]:
    """Return the groups of each platform: all of it, one of each cell, one of each kind of target.

    What bake builds when given no name is of one platform: no builder need have the other.
    """
    members: dict[str, list[str]] = {"default": []}
    for name, spec in _named(specs).items():
        suffix = _suffix(spec)
        everything = suffix.removeprefix("-") or "default"
        for group in (everything, _plain(f"{spec.cell}{suffix}"), f"{spec.target}{suffix}"):
            members.setdefault(group, []).append(name)
    members["default"] = members["default"] or list(_named(specs))
    return {group: {"targets": names} for group, names in members.items()}


def _named(specs: Sequence[ImageSpec]) -> dict[str, ImageSpec]:
    return {_plain(f"{spec.cell}-{spec.target}{_suffix(spec)}"): spec for spec in specs}


def _suffix(spec: ImageSpec) -> str:
    """Return what tells the names of this platform from those of amd64."""
    return "" if spec.arch == ARCH else f"-{PLATFORMS[spec.arch].rpartition('/')[2]}"


def _plain(name: str) -> str:
    """Return a name as bake takes it: without dots, which it reads as a path into a target."""
    return name.replace(".", "_")


def _target(spec: ImageSpec) -> dict[str, Any]:
    return {
        "context": f"{spec.cell}{_suffix(spec)}",
        "dockerfile": "Dockerfile",
        "target": spec.target,
        "platforms": [PLATFORMS[spec.arch]],
        "args": {"BASE": base_reference(spec), "REVISION": "${REVISION}", "SOURCE_DATE_EPOCH": "${SOURCE_DATE_EPOCH}"},
        # No option of bake sets it: `host` is for a mirror on the builder's own loopback.
        "network": "${NETWORK}",
        "tags": [f"${{REPOSITORY}}:{spec.tag}{_suffix(spec)}"],
    }


def _of_one(template: str, specs: Sequence[ImageSpec], repository: str) -> str:
    (spec,) = specs
    context = {
        "cell": str(spec.cell),
        "target": spec.target,
        "title": spec.title,
        "image": f"{repository}:{spec.tag}",
        "gpus": spec.cuda is not None,
        "ports": _PORTS if spec.target == "jupyter" else (),
        "shm": SHM,
    }
    return rendered(f"formats/{template}", context)


_SASS: Final = re.compile(r"sm_([0-9]+)([0-9])[a-z]?")


def conda(specs: Sequence[ImageSpec], _repository: str) -> str:
    """Return the environment of one target of a cell."""
    (spec,) = specs
    names = spec.promises["arch-list"].split()
    codes = [(int(match[1]), int(match[2])) for name in names if (match := _SASS.fullmatch(name))]
    context = {
        "cell": str(spec.cell),
        "name": str(spec.cell) if spec.target == "runtime" else f"{spec.cell}-{spec.target}",
        "target": spec.target,
        "title": spec.title,
        "python": spec.cell.python,
        "cuda": spec.cuda,
        "cuda_major": spec.cuda.partition(".")[0] if spec.cuda else None,
        # The lowest that the wheel has code for, "7.5"; None for none and for unknown.
        "capability": "{}.{}".format(*min(codes)) if codes else None,
        "driver": spec.promises["driver-floor"],
        "indexes": sorted({lock.index for lock in spec.locks} - {"pypi"}),
        "index_root": f"{PYTORCH}/whl",
        # pip is conda's own package there: what installs the rest does not replace itself on the way.
        "pins": [pin for lock in spec.locks for pin in lock.pins if pin.name != "pip"],
    }
    return rendered("formats/conda.yml.j2", context)


# A matrix of more jobs fails its whole workflow (docs.github.com, "Usage limits": 256 jobs a workflow run).
MOST_JOBS: Final = 256
# GitHub's own machines; a machine of one's own is chosen in the workflow.
_RUNNERS: Final[dict[HostArch, str]] = {"x86_64": "ubuntu-24.04", "aarch64": "ubuntu-24.04-arm"}


def github(specs: Sequence[ImageSpec], repository: str) -> str:
    """Return the matrix on one line, as a step's output needs it. No spec gives an empty `include`."""
    if len(specs) > MOST_JOBS:
        refuse(f"{len(specs)} jobs, and GitHub takes {MOST_JOBS} in one matrix", "select fewer, as by --platform")
    return json.dumps({"include": [_job(spec, repository) for spec in specs]}, separators=(",", ":")) + "\n"


def _job(spec: ImageSpec, repository: str) -> dict[str, Any]:
    return {
        "cell": str(spec.cell),
        "target": spec.target,
        "platform": PLATFORMS[spec.arch],
        "runner": _RUNNERS[spec.arch],
        "tag": f"{repository}:{spec.tag}",
        "torch": spec.cell.torch,
        "variant": spec.cell.variant,
        "python": spec.cell.python,
    }


FORMATS: Final = {
    "apptainer": CellFormat(apptainer, one=True),
    "bake": CellFormat(bake),
    "compose": CellFormat(functools.partial(_of_one, "compose.yaml.j2"), one=True),
    "conda": CellFormat(conda, one=True),
    "devcontainer": CellFormat(functools.partial(_of_one, "devcontainer.json.j2"), one=True),
    "github": CellFormat(github, lockless=True),
}

"""Propose rows for driver branches, CUDA minors and nvidia/cuda images that NVIDIA publishes and the matrix lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urljoin

import msgspec
from canonical import canonical

from envcheck.matrix.facts.model import BaseImage, CudaMinor, DriverBranch, Matrix, branch, key
from envcheck.mirrors.index import unavailable
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.registry.documents import parse_reference
from envcheck.registry.repository import Repository

DRIVERS: Final = "https://developer.download.nvidia.com/compute/nvidia-driver/redist/"
IMAGES: Final = "docker.io/nvidia/cuda"
_LISTED: Final = re.compile(r"redistrib_(\d+(?:\.\d+)+)\.json")
_CUDA: Final = re.compile(r"\d+\.\d")
_TAG: Final = re.compile(r"(?P<image>(?P<cuda>\d+\.\d)\.\d+)-base-ubuntu\d\d\.\d\d")
_DEMAND: Final = re.compile(r"brand=(?P<brand>\w+),driver>=(?P<branch>\d+)")
_MOST: Final = 4 << 20


class SeenDriver(NamedTuple):
    """The oldest driver of a branch that the index lists, and the CUDA that its file names."""

    version: str
    cuda: str | None


class SeenImage(NamedTuple):
    """A release of nvidia/cuda, and its NVIDIA_REQUIRE_CUDA."""

    image: str
    cuda: str
    demand: str


class NvidiaProposal(NamedTuple):
    """The matrix with the proposed rows, a line for each, and what was not proposed, with the reason."""

    matrix: Matrix
    rows: list[str]
    left_out: list[str]


def read_drivers(client: Client, url: str, matrix: Matrix) -> list[SeenDriver]:
    """Return the branches of the driver index that are newer than all of the matrix. Raises UnavailableError."""
    newest = max((key(row.branch) for row in matrix.drivers), default=())
    first: dict[str, str] = {}
    for version in sorted(_LISTED.findall(_read(client, url)), key=key, reverse=True):
        first[branch(version)] = version
    if not first:
        raise unavailable(url, "it lists no driver")
    new = sorted((version for name, version in first.items() if key(name) > newest), key=key)
    return [SeenDriver(version, _cuda(client, urljoin(url, f"redistrib_{version}.json"))) for version in new]


def _cuda(client: Client, url: str) -> str | None:
    try:
        document = json.loads(_read(client, url))
    except ValueError as error:
        raise unavailable(url, "it is no JSON") from error
    variants = sorted({cuda for cuda in _values(document, "cuda_variant") if _CUDA.fullmatch(cuda)}, key=key)
    return variants[-1] if variants else None


def _values(document: Any, name: str) -> Iterator[str]:
    """Yield each text under a name, at any depth: files of other releases have it as a list."""
    for each, value in document.items() if isinstance(document, dict) else enumerate(document):
        if each == name:
            yield from [value] if isinstance(value, str) else map(str, value)
        elif isinstance(value, (dict, list)):
            yield from _values(value, name)


def _read(client: Client, url: str) -> str:
    try:
        with client.get(url) as answer:
            answer.demand_ok()
            return answer.text(_MOST).decode("utf-8", "replace")
    except NetworkError as error:
        raise unavailable(url, str(error)) from error


def read_images(reference: str, client: Client, matrix: Matrix) -> list[SeenImage]:
    """Return the newest release of each CUDA that the matrix has no image of, or an older one."""
    repository = Repository(client, parse_reference(reference))
    known = {row.cuda: row.image for row in sorted(matrix.cuda.base_images, key=lambda row: key(row.image))}
    newest: dict[str, re.Match[str]] = {}
    for tag in sorted(filter(None, map(_TAG.fullmatch, repository.tags())), key=lambda tag: key(tag["image"])):
        newest[tag["cuda"]] = tag
    oldest = min(map(key, known), default=())
    new = [tag for cuda, tag in newest.items() if key(cuda) >= oldest and key(tag["image"]) > key(known.get(cuda, "0"))]
    return [SeenImage(tag["image"], tag["cuda"], _demand(repository, tag.string)) for tag in new]


def _demand(repository: Repository, tag: str) -> str:
    manifest = repository.manifest(tag)
    if manifest.is_index:
        images = manifest.index().manifests
        amd64 = (each for each in images if each.platform and each.platform.architecture == "amd64")
        manifest = repository.manifest(next(amd64, images[0]))
    config = json.loads(repository.blob(manifest.image().config, _MOST))
    environment = dict(line.partition("=")[::2] for line in config.get("config", {}).get("Env") or [])
    return str(environment.get("NVIDIA_REQUIRE_CUDA", ""))


def propose(
    matrix: Matrix, drivers: Iterable[SeenDriver], images: Iterable[SeenImage], source: Mapping[str, str]
) -> NvidiaProposal:
    """Return the matrix with an unverified row for each; `source` is the key and the text that the rows name."""
    proof, left_out, rows = [*source], list[str](), list[str]()
    branches, minors, bases = [*matrix.drivers], [*matrix.cuda.minors], [*matrix.cuda.base_images]
    for driver in drivers:
        if driver.cuda is None:
            left_out.append(f"driver {driver.version}: its file names no CUDA")
            continue
        name = branch(driver.version)
        branches.append(DriverBranch(branch=name, cuda=driver.cuda, verified=False, source=proof))
        rows.append(f"driver branch {name}: CUDA {driver.cuda}, first seen as {driver.version}")
        if driver.cuda not in {row.cuda for row in minors}:
            minors.append(CudaMinor(cuda=driver.cuda, native_driver=name, verified=False, source=proof))
            rows.append(f"CUDA {driver.cuda}: native driver {name}")
    for image in images:
        if image.cuda not in {row.cuda for row in minors} or not image.demand:
            why = "it sets no NVIDIA_REQUIRE_CUDA" if not image.demand else f"CUDA {image.cuda} has no driver here"
            left_out.append(f"nvidia/cuda:{image.image}: {why}")
            continue
        bases.append(_row(image, proof))
        rows.append(f"nvidia/cuda:{image.image}: {image.demand.split(' ')[0]}, {len(image.demand.split()) - 1} more")
    if not rows:
        return NvidiaProposal(matrix, [], left_out)
    cuda = msgspec.structs.replace(matrix.cuda, minors=minors, base_images=bases)
    changed = msgspec.structs.replace(matrix, sources={**matrix.sources, **source}, drivers=branches, cuda=cuda)
    return NvidiaProposal(canonical(changed), rows, left_out)


def _row(image: SeenImage, proof: list[str]) -> BaseImage:
    accepted: dict[str, set[str]] = {}
    for each in _DEMAND.finditer(image.demand):
        accepted.setdefault(each["brand"], set()).add(each["branch"])
    data_centre, geforce = (sorted(accepted.get(brand, set()), key=key) for brand in ("tesla", "geforce"))
    return BaseImage(
        image=image.image,
        cuda=image.cuda,
        datacenter_branches=data_centre,
        geforce_branches=geforce,
        verified=False,
        source=proof,
    )


def markdown(proposal: NvidiaProposal, text: str) -> str:
    """Return the page of a pull request."""
    lines = [
        f"# Drivers, CUDA and base images of NVIDIA\n\nEvidence: {text}.\n",
        *(f"- {row}" for row in proposal.rows),
    ]
    return "\n".join([*lines, *(f"- not proposed: {line}" for line in proposal.left_out), ""])

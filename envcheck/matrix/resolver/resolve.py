"""Decide what can run: resolve a query to the best cell, the reasons, and the nearest legal alternatives."""

import re
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from envcheck.errors import refuse
from envcheck.matrix.facts.lookup import Device, Facts, OtherAccelerator, find_gpu, other_accelerator
from envcheck.matrix.facts.model import PYTORCH, BaseImage, Cell, HostArch, Matrix, branch, key
from envcheck.matrix.resolver.candidates import Alternative, Candidate, alternatives, candidates, thresholds
from envcheck.matrix.resolver.query import (
    Query,
    host_arch,
    requested_devices,
    several_gpus,
    validate,
    whole_driver,
)
from envcheck.matrix.resolver.verdict import LEGAL, MINOR, NO_WHEEL, OK, Verdict

__all__ = ["Query", "Resolution", "resolve"]

_NIGHTLY: Final = re.compile(r"(?:==)?(?P<version>nightly|\d+\.\d+(\.\d+)?\.dev\d+)", re.ASCII)
# 12.8, 12.8.1, a whole tag, or a whole reference: nvcr.io/nvidia/cuda:12.8.1-cudnn-devel-ubuntu22.04@sha256:...
_BASE: Final = r"(?a)(?:(?:\S*/)?cuda:)?(?P<image>(?P<minor>\d{1,2}\.\d)(\.\d+)?)(?:-[\w.-]+)?(?:@\S+)?"


class RankedCell(msgspec.Struct, frozen=True, kw_only=True):
    """A legal cell."""

    cell: str
    verdict: str
    verified: bool


class RejectedCombination(msgspec.Struct, frozen=True, kw_only=True):
    """A torch and variant that cannot run, and why."""

    torch: str
    variant: str
    verdict: str
    reason: str


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a query. `cell` is None when nothing is legal; `verdict` is then that of the closest candidate.

    `verified` is false when the result depends on a fact with one weak source; `weak` names these facts. `published` is
    the best published cell that runs there, or None: the one that `envcheck build` builds. `buildable` is the best cell
    that `envcheck build CELL` takes: it makes the lock of an unpublished one first. `install` are the requirements for
    pip, and `index` the path below a PyTorch index that has them ("" for the client's own default
    index). `pip` is the whole command, with the URL of that index; empty unless the caller fills it in.
    """

    schema: Literal["envcheck/resolution/1"] = "envcheck/resolution/1"
    query: Query = msgspec.field(name="wanted")
    verdict: str
    cell: str | None
    reasons: list[str]
    alternatives: list[Alternative]
    verified: bool
    arch: HostArch
    weak: list[str] = []
    published: str | None = None
    buildable: str | None = None
    install: list[str] = []
    index: str = ""
    pip: str = ""
    notes: list[str] = []
    read_here: dict[str, str] = {}
    ranked: list[RankedCell] = []
    rejected: list[RejectedCombination] = []

    @property
    def legal(self) -> bool:
        """Whether any candidate of the query can run."""
        return self.verdict in LEGAL


def resolve(
    matrix: Matrix,
    query: Query,
    *,
    base_cuda: str | None = None,
    read_here: dict[str, str] | None = None,
    notes: list[str] | None = None,
) -> Resolution:
    """Return what can run. `base_cuda` adds a note on what an nvidia/cuda base of that CUDA or tag refuses.

    `read_here` (axes that were read off this node) and `notes` come from the caller and are part of the result.
    Raises ConfigError for an invalid query (an unknown GPU, a malformed version).
    """
    facts = Facts(matrix)
    query, taken = whole_driver(facts, query)
    notes = [*(notes or []), *taken]
    nightly = _NIGHTLY.fullmatch(query.torch or "")
    query = query.replace(torch=None) if nightly else query
    validate(facts, query)
    unknown = [name for name in query.gpus if find_gpu(matrix, name) is None]
    others = {name: other for name in unknown if (other := other_accelerator(name)) is not None}
    if others and len(others) == len({*query.gpus}) and not query.cc and query.variant != "cpu":
        return _without_wheels(facts, query, others)
    asked = "aarch64" if {others[n].arch if n in others else "" for n in query.gpus} == {"aarch64"} else None
    query = query.replace(arch=query.arch or asked, gpus=[name for name in query.gpus if name not in others])
    notes += [f"{n} is {o.kind}: {o.advice if query.cc else 'CUDA wheels leave it alone'}" for n, o in others.items()]
    devices = requested_devices(facts, query)
    arch = host_arch(query, devices)
    ranking = candidates(facts, query, devices, arch) or [_no_release(matrix, query)]
    best = ranking[0]
    notes += [_nightly(nightly["version"], best)] if nightly else []
    offers = alternatives(facts, query, devices, arch, ranking)
    release = matrix.release(best.torch)
    companions = [("torchvision", release.torchvision), ("torchaudio", release.torchaudio)] if release else []
    images = _images(facts, query, devices, arch, ranking, read_here or {})
    base = [what_base_refuses(facts, base_cuda, query.driver, devices)] if base_cuda is not None else []
    return Resolution(
        query=query,
        verdict=best.verdict.name,
        cell=str(best.cells()[0]) if best.legal else None,
        reasons=_reasons(ranking),
        alternatives=offers,
        verified=best.verdict.verified,
        arch=arch,
        weak=list(best.verdict.weak),
        published=next((str(cell) for cell in images if arch in matrix.archs(cell)), None),
        buildable=next((str(cell) for cell in images), None),
        install=[f"torch=={best.torch}", *(f"{name}=={its}" for name, its in companions if its)] if best.legal else [],
        index=f"whl/{best.variant}" if release and (not best.pypi or arch in release.pypi_unverified) else "",
        notes=[*notes, *several_gpus(facts, query), *sentences(facts, query, devices, arch, best, offers), *base],
        read_here=read_here or {},
        ranked=[
            RankedCell(cell=str(cell), verdict=row.verdict.name, verified=row.verdict.verified)
            for row in ranking
            if row.legal
            for cell in row.cells()
        ],
        rejected=[_rejected(row) for row in ranking if not row.legal],
    )


def _rejected(row: Candidate) -> RejectedCombination:
    verdict = row.verdict
    return RejectedCombination(torch=row.torch, variant=row.variant, verdict=verdict.name, reason=verdict.reason)


def _nightly(version: str, best: Candidate) -> str:
    wish = "torch" if version == "nightly" else f"torch=={version}"
    command = f"pip install --pre {wish} --index-url {PYTORCH}/whl/nightly/{best.variant}"
    return f"the matrix has no nightly of torch: this is the answer for {best.torch}; a nightly of its CUDA: {command}"


def _without_wheels(facts: Facts, query: Query, others: dict[str, OtherAccelerator]) -> Resolution:
    """Return the resolution for accelerators that no CUDA wheel runs on: only the cpu variant is left."""
    arch = query.arch or next(iter(others.values())).arch
    cpu = [row for row in candidates(facts, query.replace(variant="cpu", cuda=None, gpus=[]), [], arch) if row.legal]
    offer = Alternative(cell=str(cpu[0].cells()[0]), change="without the GPU: cpu", verdict=OK) if cpu else None
    return Resolution(
        query=query,
        verdict=NO_WHEEL,
        cell=None,
        reasons=[f"{name} is {other.kind}: no CUDA wheel runs on it; {other.advice}" for name, other in others.items()],
        alternatives=[offer] if offer else [],
        verified=True,
        arch=arch,
    )


def _images(
    facts: Facts,
    query: Query,
    devices: list[Device],
    arch: HostArch,
    ranking: list[Candidate],
    read_here: dict[str, str],
) -> list[Cell]:
    """Return the legal cells of images, best first; they bring their Python, so that one read off this node is free."""
    rankings = [ranking]
    if "python" in read_here:
        rankings.append(candidates(facts, query.replace(python=None), devices, arch))
    legal = (cell for rows in rankings for row in rows if row.legal for cell in row.cells())
    return [cell for cell in legal if facts.matrix.base(cell.python) is not None]


def _no_release(matrix: Matrix, query: Query) -> Candidate:
    releases = sorted((release.torch for release in matrix.torch), key=key)
    reason = f"the matrix has no torch {query.torch}: it has {releases[0]} - {releases[-1]}"
    verdict = Verdict(NO_WHEEL, reason, ("the list of torch releases",))
    return Candidate(query.torch or "", query.variant or "", [], verdict)


def _reasons(ranking: list[Candidate]) -> list[str]:
    best = ranking[0]
    if best.legal:
        return best.verdict.reason.split("; ")
    same = [row for row in ranking if row.torch == best.torch]
    return [f"{row.variant}: {row.verdict.reason}" if len(same) > 1 else row.verdict.reason for row in same]


def sentences(
    facts: Facts,
    query: Query,
    devices: list[Device],
    arch: HostArch,
    best: Candidate,
    offers: list[Alternative],
) -> list[str]:
    """Return the notes, one sentence each."""
    lines = [f"host architecture not given: {arch}"] if query.arch is None and not devices else []
    other = [device for device in devices if device.gpu is not None and device.gpu.host_arch != arch]
    listed = "but the matrix lists {0.label} only in {0.gpu.host_arch} hosts"
    lines += [f"{arch} was requested, {listed.format(device)}" for device in other]
    lines += _capabilities(facts, query)
    if query.driver is None and best.legal and best.cuda is not None:
        lines += _driver(facts, query, devices, arch, best)
    lines += _first_of_branch(facts, devices, offers)
    return lines


def _capabilities(facts: Facts, query: Query) -> Iterator[str]:
    if query.cc and not query.gpus and query.driver:
        yield "only the compute capability is known, so cuda-compat (data-centre GPUs only) is not used"
    for cc in query.cc:
        row = facts.capability(cc)
        if row is None or row.cc != cc:
            near = (
                f": judged as {row.architecture}, after {row.cc}"
                if row
                else ", because it is newer than all GPUs of the matrix"
            )
            yield f"the matrix has no fact about compute capability {cc}{near}"


def _driver(facts: Facts, query: Query, devices: list[Device], arch: HostArch, best: Candidate) -> Iterator[str]:
    """Say the lowest driver under which every GPU and the CUDA work, and the newest branch that is allowed."""
    pinned = query.replace(torch=best.torch, variant=best.variant, cuda=None)
    newest = facts.newest_branch(devices)
    until = f", R{newest} at most" if newest else ""
    for version in thresholds(facts, devices):
        (candidate,) = candidates(facts, pinned.replace(driver=version), devices, arch)
        if candidate.verdict.name in (OK, MINOR):
            yield f"driver not given: needs >= {version}{until}"
            return


def _first_of_branch(facts: Facts, devices: list[Device], offers: list[Alternative]) -> Iterator[str]:
    """Explain an offered driver that is newer than CUDA alone needs."""
    of_cuda = {row.floor for row in facts.families.values()} | {row.native_driver for row in facts.minors.values()}
    versions = {row.change.rpartition("driver >= ")[2] for row in offers} - of_cuda
    for device in devices:
        listed = device.gpu.first_driver.values() if device.gpu is not None else []
        for version in sorted(versions.intersection(listed), key=key):
            yield f"driver {version} is the first of R{branch(version)} that drives {device.label}"


def what_base_refuses(facts: Facts, cuda: str, driver: str | None, devices: list[Device]) -> str:
    """Return a sentence: whether nvidia/cuda of that CUDA or tag starts under `driver`; None: under which drivers.

    Raises ConfigError for a CUDA minor whose images are not in the matrix, and for another image.
    """
    image, name = _image(facts, cuda)
    if driver is None:
        return f"{name} starts under drivers of CUDA >= {image.cuda}, and {_exceptions(image)}"
    row = facts.branch(driver)
    if row is not None and key(row.cuda) >= key(image.cuda):
        return f"{name} starts: driver {driver} is of CUDA {row.cuda} >= {image.cuda}"
    of = f"driver {driver} is of CUDA {row.cuda} < {image.cuda}" if row else f"the CUDA of driver {driver} is not known"
    kinds = {device.datacenter for device in devices} or {None}
    lists = [image.datacenter_branches if datacenter else image.geforce_branches for datacenter in kinds]
    if all(branch(driver) in branches for branches in lists):
        return f"{name} starts: {of}, but it accepts R{branch(driver)} with such GPUs"
    refuses = "refuses" if image.complete or image.datacenter_branches else "may refuse"
    doubt = "" if image.complete else " (the end of its list is not known)"
    accepts = f"{_exceptions(image)}{doubt}; NVIDIA_DISABLE_REQUIRE=1 overrides"
    return f"{name} {refuses} to start: {of}, and it accepts {accepts}"


def _image(facts: Facts, tag: str) -> tuple[BaseImage, str]:
    """Return the row of a CUDA or tag, the newest of its minor where it has none of its own, and the image's name."""
    given = re.fullmatch(_BASE, tag.strip())
    if given is None:
        refuse(f"--base-cuda {tag!r} is no tag of nvidia/cuda", "write 12.8, or nvidia/cuda:12.8.1-base-ubuntu24.04")
    images = sorted(facts.matrix.cuda.base_images, key=lambda row: key(row.image))
    of_minor = [row for row in images if row.cuda == given["minor"]]
    if not of_minor:
        minors = ", ".join(dict.fromkeys(row.cuda for row in images))
        refuse(f"what nvidia/cuda of CUDA {given['minor']} demands is not in the matrix", f"use one of {minors}")
    row = next((row for row in of_minor if row.image == given["image"]), of_minor[-1])
    judged = "" if given["image"] in (row.image, row.cuda) else f"{given['image']}, judged as "
    return row, f"nvidia/cuda:{judged}{row.image}"


def _exceptions(image: BaseImage) -> str:
    def listed(branches: list[str]) -> str:
        return ", ".join(f"R{name}" for name in sorted(branches, key=key)) or "no older branch"

    if not image.complete and not image.datacenter_branches:
        return "no older branch that is known"
    return f"{listed(image.datacenter_branches)} with data-centre GPUs, {listed(image.geforce_branches)} with others"

"""Notes beside a resolution: what it leaves open and what it assumes."""

from __future__ import annotations

from collections.abc import Iterator

from envcheck.matrix.facts.lookup import Device, Facts
from envcheck.matrix.facts.model import HostArch
from envcheck.matrix.facts.nvidia_bases import what_base_refuses
from envcheck.matrix.facts.versions import branch, key
from envcheck.matrix.resolver.alternatives import Alternative, thresholds
from envcheck.matrix.resolver.candidates import Candidate, candidates
from envcheck.matrix.resolver.query import Query
from envcheck.matrix.resolver.verdict import MINOR, OK


def notes(
    facts: Facts,
    query: Query,
    devices: list[Device],
    arch: HostArch,
    best: Candidate,
    offers: list[Alternative],
    base_cuda: str | None,
) -> list[str]:
    """Return the notes, one sentence each; `base_cuda` adds what an nvidia/cuda base of that CUDA minor refuses."""
    sentences = [*_arch(query, devices, arch), *_capabilities(facts, query)]
    if query.driver is None and best.legal and best.cuda is not None:
        sentences += _driver(facts, query, devices, arch, best)
    sentences += _first_of_branch(facts, devices, offers)
    if base_cuda is not None:
        sentences.append(what_base_refuses(facts, base_cuda, query.driver, devices))
    return sentences


def _arch(query: Query, devices: list[Device], arch: HostArch) -> Iterator[str]:
    if query.arch is None and not devices:
        yield f"host architecture not given: {arch}"
    for device in devices:
        if device.gpu is not None and device.gpu.host_arch != arch:
            yield f"{arch} was requested, but the matrix lists {device.label} only in {device.gpu.host_arch} hosts"


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

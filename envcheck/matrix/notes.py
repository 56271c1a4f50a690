"""What an answer leaves open or takes for granted, said beside it."""

from __future__ import annotations

from collections.abc import Iterator

from envcheck.matrix.alternatives import Alternative, thresholds
from envcheck.matrix.bases import what_base_refuses
from envcheck.matrix.candidates import Candidate, candidates
from envcheck.matrix.facts import Device, Facts
from envcheck.matrix.model import HostArch
from envcheck.matrix.verdict import MINOR, OK
from envcheck.matrix.versions import branch, key
from envcheck.matrix.wanted import Wanted


def notes(
    facts: Facts,
    wanted: Wanted,
    asked: list[Device],
    arch: HostArch,
    best: Candidate,
    offered: list[Alternative],
    base_cuda: str | None,
) -> list[str]:
    """Return them; `base_cuda` adds what an nvidia/cuda base of that CUDA minor would refuse."""
    found = [*_arch(wanted, asked, arch), *_capabilities(facts, wanted)]
    if wanted.driver is None and best.legal and best.cuda is not None:
        found += _driver(facts, wanted, asked, arch, best)
    found += _first_of_branch(facts, asked, offered)
    if base_cuda is not None:
        found.append(what_base_refuses(facts, base_cuda, wanted.driver, asked))
    return found


def _arch(wanted: Wanted, asked: list[Device], arch: HostArch) -> Iterator[str]:
    if wanted.arch is None and not asked:
        yield f"host architecture not given: {arch}"
    for device in asked:
        if device.gpu is not None and device.gpu.host_arch != arch:
            yield f"{arch} was asked for, but the matrix knows {device.label} in {device.gpu.host_arch} hosts only"


def _capabilities(facts: Facts, wanted: Wanted) -> Iterator[str]:
    if wanted.cc and not wanted.gpus and wanted.driver:
        yield "only the compute capability is known, so cuda-compat (data-centre GPUs) is not counted on"
    for cc in wanted.cc:
        row = facts.capability(cc)
        if row is None or row.cc != cc:
            near = f": judged as {row.architecture}, after {row.cc}" if row else ", and it is newer than all it knows"
            yield f"no fact of the matrix is about compute capability {cc}{near}"


def _driver(facts: Facts, wanted: Wanted, asked: list[Device], arch: HostArch, best: Candidate) -> Iterator[str]:
    """Say the lowest driver for the answer that every GPU and the CUDA agree on, and how new it may be."""
    pinned = wanted.but(torch=best.torch, variant=best.variant, cuda=None)
    newest = facts.newest_branch(asked)
    until = f", R{newest} at most" if newest else ""
    for version in thresholds(facts, asked):
        (found,) = candidates(facts, pinned.but(driver=version), asked, arch)
        if found.answer.verdict in (OK, MINOR):
            yield f"driver not given: needs >= {version}{until}"
            return


def _first_of_branch(facts: Facts, asked: list[Device], offered: list[Alternative]) -> Iterator[str]:
    """Explain an offered driver that is above what CUDA alone needs."""
    of_cuda = {row.floor for row in facts.families.values()} | {row.native_driver for row in facts.minors.values()}
    versions = {row.change.rpartition("driver >= ")[2] for row in offered} - of_cuda
    for device in asked:
        listed = device.gpu.first_driver.values() if device.gpu is not None else []
        for version in sorted(versions.intersection(listed), key=key):
            yield f"driver {version} is the first of R{branch(version)} that drives {device.label}"

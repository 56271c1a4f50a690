"""Decide what can run: a question in, the best cell, why, and the nearest things that can run instead, out."""

from __future__ import annotations

from typing import Literal

import msgspec

from envcheck.matrix.alternatives import Alternative, alternatives
from envcheck.matrix.candidates import Candidate, candidates
from envcheck.matrix.facts import Facts
from envcheck.matrix.gpus import find_gpu, suggest
from envcheck.matrix.model import HostArch, Matrix, TorchRelease
from envcheck.matrix.notes import notes as noted
from envcheck.matrix.verdict import LEGAL, NO_WHEEL, Answer, driver_verdict, runs_on
from envcheck.matrix.versions import key
from envcheck.matrix.wanted import Wanted, devices, host_arch, refuse_nonsense

__all__ = [
    "Alternative",
    "Answer",
    "Ranked",
    "Rejected",
    "Resolution",
    "Wanted",
    "driver_verdict",
    "find_gpu",
    "resolve",
    "runs_on",
    "suggest",
]


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """A legal cell."""

    cell: str
    verdict: str
    verified: bool


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A torch and variant that cannot run, and why."""

    torch: str
    variant: str
    verdict: str
    reason: str


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `cell` is None when nothing is legal; `verdict` is then that of what came closest.

    `verified` is false when a fact it rests on has one weak source. `install` is what pip is to be asked for, and
    `index` the path below a PyTorch index that has it ("" for the client's own default index).
    """

    schema: Literal["envcheck/resolution/1"] = "envcheck/resolution/1"
    wanted: Wanted
    verdict: str
    cell: str | None
    reasons: list[str]
    alternatives: list[Alternative]
    verified: bool
    arch: HostArch
    install: list[str] = []
    index: str = ""
    notes: list[str] = []
    read_here: dict[str, str] = {}
    ranked: list[Ranked] = []
    rejected: list[Rejected] = []

    @property
    def legal(self) -> bool:
        """Whether anything that was asked for can run."""
        return self.verdict in LEGAL


def resolve(
    matrix: Matrix,
    wanted: Wanted,
    *,
    base_cuda: str | None = None,
    read_here: dict[str, str] | None = None,
    notes: list[str] | None = None,
) -> Resolution:
    """Return what can run. `base_cuda` also asks what an nvidia/cuda base of that CUDA minor would refuse.

    `read_here` and `notes` are what the caller already knows to say; they are handed through.
    Raises ConfigError for a question that makes no sense (an unknown GPU, a version that is none).
    """
    facts = Facts(matrix)
    refuse_nonsense(facts, wanted)
    asked = devices(facts, wanted)
    arch = host_arch(wanted, asked)
    found = candidates(facts, wanted, asked, arch) or [_no_release(matrix, wanted)]
    best = found[0]
    offered = alternatives(facts, wanted, asked, arch, best)
    release = matrix.release(best.torch)
    return Resolution(
        wanted=wanted,
        verdict=best.answer.verdict,
        cell=str(best.cells()[0]) if best.legal else None,
        reasons=_reasons(found),
        alternatives=offered,
        verified=best.answer.verified,
        arch=arch,
        install=_install(matrix, best) if best.legal else [],
        index="" if release is None or _default_index(release, best, arch) else f"whl/{best.variant}",
        notes=[*(notes or []), *noted(facts, wanted, asked, arch, best, offered, base_cuda)],
        read_here=read_here or {},
        ranked=[
            Ranked(cell=str(cell), verdict=row.answer.verdict, verified=row.answer.verified)
            for row in found
            if row.legal
            for cell in row.cells()
        ],
        rejected=[
            Rejected(torch=row.torch, variant=row.variant, verdict=row.answer.verdict, reason=row.answer.reason)
            for row in found
            if not row.legal
        ],
    )


def _no_release(matrix: Matrix, wanted: Wanted) -> Candidate:
    known = sorted((release.torch for release in matrix.torch), key=key)
    reason = f"no torch of the matrix is {wanted.torch}: it has {known[0]} - {known[-1]}"
    return Candidate(wanted.torch or "", wanted.variant or "", [], Answer(NO_WHEEL, reason, verified=False))


def _reasons(found: list[Candidate]) -> list[str]:
    best = found[0]
    if best.legal:
        return best.answer.reason.split("; ")
    same = [row for row in found if row.torch == best.torch]
    return [f"{row.variant}: {row.answer.reason}" if len(same) > 1 else row.answer.reason for row in same]


def _default_index(release: TorchRelease, best: Candidate, arch: HostArch) -> bool:
    return best.pypi and arch not in release.pypi_unverified


def _install(matrix: Matrix, best: Candidate) -> list[str]:
    release = matrix.release(best.torch)
    companions = {"torchvision": release.torchvision, "torchaudio": release.torchaudio} if release else {}
    return [f"torch=={best.torch}", *(f"{name}=={version}" for name, version in companions.items() if version)]

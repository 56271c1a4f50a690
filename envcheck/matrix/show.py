"""Facts as rows to look at: one a torch and variant, judged for a GPU or driver where one is given."""

from __future__ import annotations

import msgspec

from envcheck.matrix.candidates import candidates
from envcheck.matrix.facts import Facts
from envcheck.matrix.model import Build, HostArch, Matrix
from envcheck.matrix.versions import key
from envcheck.matrix.wanted import Wanted, devices, host_arch, refuse_nonsense


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One torch and variant on one host architecture. `verdict` is None when no machine was asked about."""

    torch: str
    variant: str
    cuda: str | None
    arch: HostArch
    pypi: bool
    python: list[str]
    sass: list[str] | None
    ptx: list[str]
    cudnn: str | None
    nccl: str | None
    triton: str | None
    torchvision: str | None
    torchaudio: str | None
    verdict: str | None
    verified: bool
    source: list[str]


def rows(matrix: Matrix, wanted: Wanted) -> list[Row]:
    """Return what meets `wanted`, newest torch first. Raises ConfigError for a question that makes no sense."""
    facts = Facts(matrix)
    refuse_nonsense(facts, wanted)
    asked = devices(facts, wanted)
    arch = host_arch(wanted, asked)
    judged = bool(asked or wanted.driver)
    found = []
    for candidate in candidates(facts, wanted, asked, arch):
        release = matrix.release(candidate.torch)
        variant = release.variant(candidate.variant) if release else None
        build = next((build for build in variant.builds if build.arch == arch), None) if variant else None
        if release is None or variant is None or build is None or wanted.python not in (None, *build.python):
            continue
        found.append(
            Row(
                torch=release.torch,
                variant=variant.variant,
                cuda=variant.cuda,
                arch=arch,
                pypi=candidate.pypi,
                python=build.python,
                sass=build.sass,
                ptx=build.ptx,
                cudnn=variant.cudnn,
                nccl=variant.nccl,
                triton=variant.triton,
                torchvision=release.torchvision,
                torchaudio=release.torchaudio,
                verdict=candidate.answer.verdict if judged else None,
                verified=candidate.answer.verified,
                source=_sources(build, variant.source),
            )
        )
    return sorted(found, key=lambda row: (key(row.torch), key(row.cuda or "0")), reverse=True)


def _sources(build: Build, source: list[str]) -> list[str]:
    return sorted({*build.source, *source})

"""Build the rows of `envcheck matrix show`: one for each torch and variant, judged if a GPU or driver is given."""

from __future__ import annotations

import msgspec

from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.facts.model import Build, HostArch, Matrix
from envcheck.matrix.facts.versions import key
from envcheck.matrix.resolver.candidates import candidates
from envcheck.matrix.resolver.query import Query, host_arch, requested_devices, validate


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One torch and variant on one host architecture. `verdict` is None when the query names no GPU or driver."""

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


def rows(matrix: Matrix, query: Query) -> list[TableRow]:
    """Return the rows that match `query`, newest torch first. Raises ConfigError for an invalid query."""
    facts = Facts(matrix)
    validate(facts, query)
    devices = requested_devices(facts, query)
    arch = host_arch(query, devices)
    judged = bool(devices or query.driver)
    table = []
    for candidate in candidates(facts, query, devices, arch):
        release = matrix.release(candidate.torch)
        variant = release.variant(candidate.variant) if release else None
        build = next((build for build in variant.builds if build.arch == arch), None) if variant else None
        if release is None or variant is None or build is None or query.python not in (None, *build.python):
            continue
        table.append(
            TableRow(
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
                verdict=candidate.verdict.name if judged else None,
                verified=candidate.verdict.verified,
                source=_sources(build, variant.source),
            )
        )
    return sorted(table, key=lambda row: (key(row.torch), key(row.cuda or "0")), reverse=True)


def _sources(build: Build, source: list[str]) -> list[str]:
    return sorted({*build.source, *source})

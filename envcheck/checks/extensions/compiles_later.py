"""Warn of extensions that compile when they are first used, where no nvcc of torch's CUDA is there for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from packaging.version import InvalidVersion, Version

from envcheck.checks import Limit, Outcome, View, skipped, warned
from envcheck.checks.env.support.extensions.nvcc import PRECOMPILED
from envcheck.checks.extensions.remedies import facts
from envcheck.matrix.facts.lookup import nvcc_in_wheels

SOURCE: Final = "torch.utils.cpp_extension: nvcc must be of the CUDA major that torch was built with"


def findings(view: View, measured: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Outcome]:
    """Give a warning for an extension without compiled code of its own that the facts say compiles at first use."""
    name, installed, compiler = str(row["name"]), measured.get("installed") or {}, measured.get("nvcc")
    what = _compiles(name, str(row.get("version")))
    if (
        not what
        or compiler is None
        or row.get("libraries")
        or any(one in installed for one in PRECOMPILED.get(name, ()))
    ):
        return
    cuda, text = str(view.environment.get("cuda") or ""), f"{name} {row.get('version')}: {what}"
    if not cuda:
        yield skipped(f"{text}; torch is for the CPU", code="extensions.cpu-torch", culprit=name)
        return
    major = cuda.partition(".")[0]
    if compiler.get("cuda", "").partition(".")[0] == major:
        return
    why = compiler.get("why") or f"{compiler['path']} is of CUDA {compiler['cuda']}, and torch is for CUDA {cuda}"
    fix = f"use the target `devel`, or install nvcc {cuda}" if nvcc_in_wheels(cuda) else f"install nvcc {cuda}"
    limit, value = Limit(f"CUDA {major}", "", SOURCE, "equal"), compiler.get("cuda") or "none"
    yield warned(f"{text}; {why}", fix=fix, code="extensions.jit", culprit=name, value=value, limit=limit)


def _compiles(name: str, version: str) -> str:
    """Return what a release compiles at first use, "" where the facts name nothing.

    A release that is not on record does as the newest older one on record does, or as the oldest one.
    """
    extension = facts().find(name)
    try:
        releases = sorted((Version(one.version), one.jit or "") for one in extension.releases) if extension else []
        older = [jit for release, jit in releases if release <= Version(version)]
    except InvalidVersion:
        return ""
    return older[-1] if older else releases[0][1] if releases else ""

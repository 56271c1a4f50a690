"""What the check `extensions-loaded` measured, as types: what does not fit them was not measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class LoaderText(msgspec.Struct, frozen=True):
    """What a loader or an import said, and what it names: a symbol (as in the source), a library or a version.

    `brought` is whether the environment has the library that the loader did not find by itself. `dependency` is the
    version of another package that has no longer what was asked of it.
    """

    text: str
    type: str = ""
    symbol: str = ""
    readable: str = ""
    torchs: bool = False
    library: str = ""
    version: str = ""
    invalid: str = ""
    brought: bool = False
    dependency: str = ""


class MeasuredOperation(msgspec.Struct, frozen=True):
    """One operation on one device. `on` is where the result was; `off` is None where it is no number."""

    name: str
    device: str
    on: str
    count: list[int]
    off: float | None
    tolerance: float


class Trial(msgspec.Struct, frozen=True):
    """One extension's process. `code` is its exit code, negative for a signal, None when its time was up.

    `mapped` are the libraries that its process held, `alone` those that load by themselves, `refused` the others.
    """

    code: int | None
    limit: float
    step: str
    done: bool
    seconds: float = 0.0
    imported: bool = False
    error: LoaderText | None = None
    mapped: list[str] = msgspec.field(default_factory=list)
    alone: list[str] = msgspec.field(default_factory=list)
    refused: dict[str, LoaderText] = msgspec.field(default_factory=dict)
    operation: list[MeasuredOperation] | None = None


class BuiltFor(msgspec.Struct, frozen=True):
    """Which torch and CUDA the package says that it was built for, and where it says so."""

    torch: str | None = None
    cuda: str | None = None
    source: str = ""


class TriedExtension(msgspec.Struct, frozen=True):
    """An installed extension. `trial` is None where no time was left; `operation`: one is known for it."""

    name: str
    version: str
    libraries: int
    gpu_code: bool
    operation: bool
    trial: Trial | None
    built: BuiltFor = BuiltFor()

    @property
    def shown(self) -> str:
        """Return name and version, and what it was built for where that is known."""
        parts = [
            f"{word} {version}" for word, version in (("torch", self.built.torch), ("CUDA", self.built.cuda)) if version
        ]
        return f"{self.name} {self.version}" + (f" (built for {' and '.join(parts)})" if parts else "")


class MeasuredTrials(msgspec.Struct, frozen=True):
    """All extensions of one environment."""

    gpu: bool
    extensions: list[TriedExtension]


def measured_trials(measured: Mapping[str, Any]) -> MeasuredTrials | None:
    """Return what was measured; None if it is not of this form."""
    try:
        return msgspec.convert(measured, MeasuredTrials)
    except msgspec.ValidationError:
        return None

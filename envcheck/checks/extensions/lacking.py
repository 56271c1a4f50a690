"""What an extension lacks, by what the loader or an exception named, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from envcheck.binaries import native_library
from envcheck.checks.extensions.judged import LAZY
from envcheck.checks.extensions.measured_trials import LoaderText, Trial

# The most telling first: a symbol that is missing says more than a library of which one of several versions would do.
_TELLING: Final = (
    "extensions-loaded.torch-abi",
    "extensions-loaded.symbol",
    "extensions-loaded.glibc",
    "extensions-loaded.cuda-major",
    "extensions-loaded.import",
    "extensions-loaded.missing-library",
    "extensions-loaded.cpu-torch",
    "extensions-loaded.cpu-only",
)
# What an environment should have for a library that a package goes on without. Others may be optional.
NEEDED: Final = {_TELLING[0], _TELLING[2], _TELLING[3], _TELLING[6]}
_FFMPEG: Final = re.compile(r"lib(?:avutil|avcodec|avformat|avdevice|avfilter|swscale|swresample)\.so\.\d+")


class Lack(NamedTuple):
    """What is lacking, the code of the outcome, and what to do: "" where it is no fault of the environment."""

    text: str
    code: str
    fix: str


class TriedWhere(NamedTuple):
    """Where an extension was tried. `cuda` is whether torch is for CUDA; `fitting` returns which release fits."""

    extension: str
    gpu: bool
    cuda: bool
    fitting: Callable[[], str]


def lack(place: TriedWhere, error: LoaderText, own: Iterable[str]) -> Lack | None:
    """Return what an error says is lacking, None if it names nothing. `own` are the extension's own libraries."""
    if error.symbol:
        whose = "which this torch does not define" if error.torchs else "which no library defines"
        code = "extensions-loaded.torch-abi" if error.torchs else "extensions-loaded.symbol"
        return Lack(f"needs {error.readable or error.symbol}, {whose}", code, place.fitting())
    if error.version:
        fix = f"use a base with {error.version.replace('_', ' ')} or newer, or a wheel with an older manylinux tag"
        return Lack(f"needs {error.version}, which this system does not have", "extensions-loaded.glibc", fix)
    if error.invalid:
        text = f"{error.invalid} is no library of this machine"
        return Lack(text, "extensions-loaded.import", f"install {place.extension} again")
    # A library of its own that lacks another is refused itself, and says why.
    if not error.library or error.library in {path.rpartition("/")[2] for path in own}:
        return None
    return _library(place, error.library)


def _library(place: TriedWhere, library: str) -> Lack:
    text = f"needs {library}, which the loader does not find"
    if native_library.is_drivers(library):
        if not place.gpu:
            return Lack(text, "extensions-loaded.cpu-only", "")
        return Lack(text, "extensions-loaded.missing-library", "install the libraries of this GPU's driver")
    if native_library.is_nvidias(library) or native_library.is_torch_library(library):
        if place.extension in LAZY and not place.cuda:
            text += ": torch is for the CPU, and it runs without its native part"
            return Lack(text, "extensions-loaded.cpu-torch", "")
        fix = f"the wheel was built for another CUDA than torch: {place.fitting()}"
        return Lack(text, "extensions-loaded.cuda-major", fix)
    if _FFMPEG.fullmatch(library):
        fix = "install FFmpeg with its shared libraries (Debian: ffmpeg)"
        return Lack(f"{text}: that is FFmpeg's", "extensions-loaded.missing-library", fix)
    fix = f"install what brings {library}, or put its directory on LD_LIBRARY_PATH"
    return Lack(text, "extensions-loaded.missing-library", fix)


def most_telling(place: TriedWhere, trial: Trial) -> Lack | None:
    """Return why a library was refused, where an import failed and its text names nothing."""
    if trial.imported or trial.mapped:
        return None
    named = [(path, lack(place, why, own(trial))) for path, why in trial.refused.items()]
    reasons = [one._replace(text=f"{path} {one.text}") for path, one in named if one is not None]
    return min(reasons, key=lambda one: (_TELLING.index(one.code), "FFmpeg" in one.text), default=None)


def own(trial: Trial) -> list[str]:
    """Return the libraries of the extension itself that its trial has seen."""
    return [*trial.mapped, *trial.alone, *trial.refused]

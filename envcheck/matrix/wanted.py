"""What is asked of the resolver, and whether it can be asked at all."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from envcheck.errors import ConfigError
from envcheck.matrix.facts import READ_CC, Device, Facts
from envcheck.matrix.model import HostArch, TorchRelease
from envcheck.matrix.versions import key

_PLAIN: Final = re.compile(r"(?:==)?(?P<version>\d+(?:\.\d+)*)(?P<wild>\.\*)?")
_PYTHON: Final = re.compile(r"3\.\d+t?")
_DRIVER: Final = re.compile(r"\d{3,4}(\.\d+){1,3}")
_CC: Final = re.compile(r"\d{1,2}\.\d")
_PATCH: Final = re.compile(r"^(\d+\.\d+)\.\d+$")
_FULL: Final = 3


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The axes of a question; None or empty leaves an axis free. `torch` is a PEP 440 requirement."""

    torch: str | None = None
    variant: str | None = None
    cuda: str | None = None
    python: str | None = None
    driver: str | None = None
    gpus: list[str] = []
    cc: list[str] = []
    arch: HostArch | None = None

    def but(self, **changes: str | list[str] | None) -> Wanted:
        """Return the same question with some axes changed."""
        return msgspec.structs.replace(self, **changes)


def spoken(words: Wanted) -> Wanted:
    """Return the question that people's words mean: torch "2.8.0+cu128", Python "3.12.4", CUDA "12.8.1", arch "arm64".

    Raises ConfigError where the local part of a torch version contradicts the variant.
    """
    torch, _, local = (words.torch or "").partition("+")
    if local and words.variant not in (None, local):
        message = f"--torch says +{local}, --variant says {words.variant}"
        raise ConfigError(message, fix="give one of the two")
    return words.but(
        torch=torch or None,
        variant=words.variant or local or None,
        cuda=_PATCH.sub(r"\1", words.cuda) if words.cuda else None,
        python=_PATCH.sub(r"\1", words.python) if words.python else None,
    )


def refuse_nonsense(facts: Facts, wanted: Wanted) -> None:
    """Raise ConfigError for a version that is none, an unknown variant or CUDA, or two that contradict each other.

    A compute capability above all that are known is a newer GPU; another one that no fact is near is a mistake.
    """
    _refuse_bad_form(wanted)
    known = [row.cc for row in facts.capabilities]
    for cc in wanted.cc:
        if facts.capability(cc) is None and key(cc) < key(known[-1]):
            message = f"--cc {cc}: no fact of the matrix is near it, but of {', '.join(known)}"
            raise ConfigError(message, fix=f"read it with {READ_CC}")
    variants = {v.variant: v.cuda for release in facts.matrix.torch for v in release.variants}
    if wanted.variant is not None and wanted.variant not in variants:
        message = f"no torch of the matrix was ever built as {wanted.variant!r}"
        raise ConfigError(message, fix=f"use one of {', '.join(sorted(variants))}")
    if wanted.cuda is not None:
        facts.minor(wanted.cuda)
    if wanted.variant is not None and wanted.cuda is not None and variants[wanted.variant] != wanted.cuda:
        what = f"CUDA {variants[wanted.variant]}" if variants[wanted.variant] else "no CUDA at all"
        message = f"--variant {wanted.variant} has {what}, --cuda says {wanted.cuda}"
        raise ConfigError(message, fix="give one of the two")


def _refuse_bad_form(wanted: Wanted) -> None:
    if wanted.python is not None and not _PYTHON.fullmatch(wanted.python):
        message = f"--python {wanted.python} is no Python version"
        raise ConfigError(message, fix="write it as 3.12 (or 3.13t)")
    if wanted.driver is not None and not _DRIVER.fullmatch(wanted.driver):
        message = f"--driver {wanted.driver} is no driver version"
        raise ConfigError(message, fix="give it whole, as nvidia-smi prints it: 570.124.06")
    for cc in wanted.cc:
        if not _CC.fullmatch(cc):
            message = f"--cc {cc} is no compute capability"
            raise ConfigError(message, fix="write it as 9.0")


def devices(facts: Facts, wanted: Wanted) -> list[Device]:
    """Return the GPUs asked for, each model once. Raises ConfigError for one that is not in the matrix."""
    found = [facts.device(name) for name in wanted.gpus] + [facts.device_of(cc) for cc in wanted.cc]
    return list({device.label: device for device in found}.values())


def host_arch(wanted: Wanted, asked: list[Device]) -> HostArch:
    """Return the host architecture: the one given, that of the GPUs, or x86_64. Raises ConfigError for a mix."""
    if wanted.arch is not None:
        return wanted.arch
    archs = {device.gpu.host_arch: device.label for device in asked if device.gpu is not None}
    if len(archs) > 1:
        message = f"{' and '.join(archs.values())} are on different host architectures ({', '.join(archs)})"
        raise ConfigError(message, fix="ask for one node at a time, or say --arch")
    return next(iter(archs), "x86_64")


def matching(releases: list[TorchRelease], requirement: str | None) -> list[TorchRelease]:
    """Return the releases that meet a PEP 440 requirement, newest first; "2.8" means 2.8.*. Raises ConfigError."""
    newest_first = sorted(releases, key=lambda release: key(release.torch), reverse=True)
    if requirement is None:
        return newest_first
    fits = _predicate(requirement.removeprefix("torch").strip())
    return [release for release in newest_first if fits(release.torch)]


def _predicate(requirement: str) -> Callable[[str], bool]:
    plain = _PLAIN.fullmatch(requirement)
    if plain is not None:
        want = key(plain["version"])
        width = len(want) if plain["wild"] or len(want) < _FULL else None
        return lambda version: key(version)[:width] == want
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # noqa: PLC0415 (most questions do not need it)

    try:
        wanted = SpecifierSet(requirement)
    except InvalidSpecifier as error:
        message = f"--torch {requirement!r} is no version requirement"
        raise ConfigError(message, fix='write 2.8, 2.8.0, "2.8.*" or ">=2.6,<2.9"') from error
    return wanted.contains

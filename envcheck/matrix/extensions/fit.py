"""Judge one release of an extension for one cell: the wheel that fits, or the first thing that fails."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from envcheck.matrix.extensions.file import Channel, ExtensionRelease, ExtensionWheel, SourceBuild
from envcheck.matrix.facts.lookup import Device, Facts, nvcc_in_wheels, ptx_runs, sass_runs
from envcheck.matrix.facts.model import Cell, HostArch, key, python_key

OK: Final = "ok"
NO_PYTHON: Final = "no-python"
NO_HOST: Final = "no-host"
TORCH_PINNED: Final = "torch-pinned"
TORCH_ABI: Final = "torch-abi"
CUDA_MAJOR: Final = "cuda-major"
NO_GPU_CODE: Final = "no-gpu-code"
PINS_CONFLICT: Final = "pins-conflict"
SOURCE_ONLY: Final = "source-only"
JIT: Final = "jit"
THIRD_PARTY: Final = "third-party-wheel"
NOT_KNOWN: Final = "not-known"

# The order in which a release is refused. Whatever is later came closer to fitting.
ORDER: Final = (
    NO_PYTHON,
    NO_HOST,
    TORCH_PINNED,
    TORCH_ABI,
    CUDA_MAJOR,
    NO_GPU_CODE,
    PINS_CONFLICT,
    THIRD_PARTY,
    NOT_KNOWN,
    SOURCE_ONLY,
    JIT,
    OK,
)
# What can be installed: as a wheel, as a wheel that compiles later, or by a build.
INSTALLABLE: Final = frozenset({OK, JIT, SOURCE_ONLY})
# What a torch that is given rules out.
REFUSED: Final = frozenset({TORCH_PINNED, TORCH_ABI, CUDA_MAJOR, NO_GPU_CODE, PINS_CONFLICT})

_CHANNELS: Final[tuple[Channel, ...]] = ("pypi", "pytorch", "project", "third-party")


class CellOnHost(NamedTuple):
    """A cell on a machine. `native` is whether its driver compiles PTX of the cell's CUDA; `glibc` is the base's."""

    cell: Cell
    arch: HostArch
    cuda: str | None
    native: bool
    glibc: str | None
    triton: str | None
    devices: tuple[Device, ...]

    @property
    def minor(self) -> str:
        """The torch minor, e.g. 2.9."""
        return ".".join(self.cell.torch.split(".")[:2])


class Fit(NamedTuple):
    """The judgement on a release: a word of ORDER, why, and the wheel it is about. `weak` names unverified facts.

    `others_unknown` says that of other releases it is not known whether they fit.
    """

    release: ExtensionRelease
    word: str
    reason: str
    wheel: ExtensionWheel | None = None
    tag: str = ""
    weak: tuple[str, ...] = ()
    file: str | None = None
    others_unknown: bool = False

    @property
    def rank(self) -> int:
        """0: wheels of the index or the project; 1: weakly sourced; 2: compiles at use; 3: build; 4: another author."""
        if self.wheel is not None and self.wheel.channel == "third-party":
            return 4
        if self.word == SOURCE_ONLY:
            return 3
        if self.word == JIT:
            return 2
        return int(self.wheel is not None and self.wheel.channel == "project" and not self.wheel.verified)


def fit(facts: Facts, name: str, release: ExtensionRelease, place: CellOnHost, *, third_party: bool) -> Fit:
    """Return the judgement on a release: its best wheel, else its source, else what came closest."""
    label = f"{name} {release.version}"
    refused = _whole_release(label, release, place)
    if refused is not None:
        return refused
    fits = [
        _wheel(facts, label, release, wheel, place, third_party=third_party)
        for wheel in release.wheels
        if wheel.arch in ("any", place.arch)
    ]
    best = max(fits, key=_closeness, default=None)
    if best is not None and best.word == OK:
        return _compiles_later(facts, label, best, place) if release.jit else best
    return (
        _from_source(facts, label, release, place) or best or Fit(release, NOT_KNOWN, f"{name} has no wheel on record")
    )


def _closeness(each: Fit) -> tuple[int, ...]:
    wheel = each.wheel
    channel = -_CHANNELS.index(wheel.channel) if wheel else 0
    return (ORDER.index(each.word), -each.rank, channel, -len(each.weak))


def _whole_release(label: str, release: ExtensionRelease, place: CellOnHost) -> Fit | None:
    """Refuse what no wheel of the release can change: the Python, the host and the pin of torch, in this order."""
    python = place.cell.python
    # The newest patch release of that Python: it meets "!=3.14.1".
    if release.requires_python and not meets(f"{python.removesuffix('t')}.99", release.requires_python):
        return Fit(release, NO_PYTHON, f"{label} requires Python {release.requires_python}")
    if release.wheels and release.built_from is None:
        mine = [wheel for wheel in release.wheels if wheel.arch in ("any", place.arch)]
        tags = [tag for wheel in mine or release.wheels for tag in wheel.tags]
        if not any(best_tag(wheel.tags, python) for wheel in mine or release.wheels):
            return Fit(release, NO_PYTHON, f"{label} has wheels for {', '.join(dict.fromkeys(tags))}")
        if not mine:
            return Fit(release, NO_HOST, f"{label} has no wheel for {place.arch}")
        hosts = [_host(label, release, wheel, place) for wheel in mine]
        if all(hosts):
            return max((refused for refused in hosts if refused is not None), key=_closeness)
    torch = release.requires.get("torch", "")
    if not meets(place.cell.torch, torch):
        return Fit(release, TORCH_PINNED, f"{label} requires torch{torch}")
    return None


def _wheel(
    facts: Facts, label: str, release: ExtensionRelease, wheel: ExtensionWheel, place: CellOnHost, *, third_party: bool
) -> Fit:
    refused = _host(label, release, wheel, place) or _bound(facts, label, release, wheel, place)
    if refused is not None:
        return refused
    if wheel.channel == "third-party" and not third_party:
        return Fit(release, THIRD_PARTY, f"only another author's wheel of {label} fits", wheel)
    tag = best_tag(wheel.tags, place.cell.python) or ""
    return Fit(release, OK, _binds(wheel), wheel, tag, _weak(label, release, wheel), _file(wheel, tag, place))


def _host(label: str, release: ExtensionRelease, wheel: ExtensionWheel, place: CellOnHost) -> Fit | None:
    if best_tag(wheel.tags, place.cell.python) is None:
        return Fit(release, NO_PYTHON, f"{label} has wheels for {', '.join(wheel.tags)}", wheel)
    if wheel.glibc and place.glibc and key(wheel.glibc) > key(place.glibc):
        return Fit(release, NO_HOST, f"{label} needs glibc {wheel.glibc}, the base has {place.glibc}", wheel)
    return None


def _bound(facts: Facts, label: str, release: ExtensionRelease, wheel: ExtensionWheel, place: CellOnHost) -> Fit | None:
    torch = _torch(label, release, wheel, place)
    if torch is not None and torch.word == TORCH_ABI:
        return torch
    if wheel.variants and place.cell.variant not in wheel.variants:
        reason = f"this wheel of {label} is for {', '.join(wheel.variants)}"
        return Fit(release, CUDA_MAJOR, reason, wheel)
    if wheel.cuda and (place.cuda is None or place.cuda.split(".")[0] not in wheel.cuda):
        has = f"CUDA {place.cuda}" if place.cuda else "no CUDA"
        reason = f"{label} needs the libraries of CUDA {' or '.join(wheel.cuda)}, {place.cell.variant} has {has}"
        return Fit(release, CUDA_MAJOR, reason, wheel)
    if torch is not None:
        return torch
    if wheel.cuda is None or wheel.sass is None:
        return Fit(release, NOT_KNOWN, f"the libraries of this wheel of {label} were never read", wheel)
    return _code(facts, label, release, wheel, place)


def _torch(label: str, release: ExtensionRelease, wheel: ExtensionWheel, place: CellOnHost) -> Fit | None:
    """Refuse a wheel that was built for another torch, or of which it is not known for which."""
    torch = place.cell.torch
    if wheel.torch and place.minor not in wheel.torch:
        reason = f"{label} has wheels for torch {', '.join(wheel.torch)}"
        return Fit(release, TORCH_ABI, reason, wheel)
    if wheel.built_for and not meets(torch, wheel.built_for):
        return Fit(release, TORCH_ABI, f"{label} is built for torch {wheel.built_for}", wheel)
    if wheel.abi == "none":
        return None
    if wheel.abi == "stable":
        least = wheel.built_for or release.requires.get("torch")
        return None if least else Fit(release, NOT_KNOWN, f"the lowest torch for {label} is not known", wheel)
    if wheel.abi is None:
        return Fit(release, NOT_KNOWN, f"the libraries of this wheel of {label} were never read", wheel)
    return _strings(label, release, wheel, place)


def _strings(label: str, release: ExtensionRelease, wheel: ExtensionWheel, place: CellOnHost) -> Fit | None:
    """Refuse C++ symbols with the other string ABI, and those of which it is not known for which torch they are."""
    if wheel.cxx11abi and has_new_strings(place.cell.torch, place.cell.variant, place.arch) not in wheel.cxx11abi:
        kind, torch = "new" if wheel.cxx11abi[0] else "old", f"{place.cell.torch}+{place.cell.variant}"
        return Fit(release, TORCH_ABI, f"{label} has the {kind} C++ strings, torch {torch} has the others", wheel)
    built_for, required = wheel.built_for or "", release.requires.get("torch", "")
    exact = any(sign in f"{built_for} {required}" for sign in ("==", "~="))
    # An open range of METADATA does not say for which torch a wheel was built.
    if not (wheel.torch or exact or ">" in built_for or (">" in required and "<" in required)):
        reason = f"{label} has C++ symbols of libtorch, and for which torch it was built is not known"
        return Fit(release, NOT_KNOWN, reason, wheel)
    return None


def _code(facts: Facts, label: str, release: ExtensionRelease, wheel: ExtensionWheel, place: CellOnHost) -> Fit | None:
    for device in place.devices:
        sass = any(sass_runs(facts, sm, device.cc, place.cuda or "0") for sm in wheel.sass or [])
        ptx = place.native and any(ptx_runs(code, device.cc) for code in wheel.ptx)
        if (wheel.sass or wheel.ptx) and not sass and not ptx:
            code = ", ".join([*(wheel.sass or []), *(f"{each}+PTX" for each in wheel.ptx)])
            old = " (its driver compiles no PTX of that CUDA)" if wheel.ptx and not place.native else ""
            reason = f"{label} has code for {code}: none runs on {device.label} ({device.cc}){old}"
            return Fit(release, NO_GPU_CODE, reason, wheel)
    return None


def _from_source(facts: Facts, label: str, release: ExtensionRelease, place: CellOnHost) -> Fit | None:
    source = release.built_from
    if source is None:
        return None
    if release.jit:
        return _compiles_later(facts, label, Fit(release, OK, "", weak=() if release.verified else (label,)), place)
    if place.cuda is None and not source.cpu:
        return Fit(release, CUDA_MAJOR, f"{label} is built with nvcc, and {place.cell.variant} has no CUDA")
    if source.torch and not meets(place.cell.torch, source.torch):
        return Fit(release, TORCH_ABI, f"{label} builds with torch {source.torch} only")
    if refused := _built_code(facts, label, release, source, place):
        return refused
    takes = f"; {source.takes}" if source.takes else ""
    compiler = f"nvcc {place.cuda} ({source.needs}{takes})" if place.cuda else "g++, for the CPU"
    where = "`devel`" if place.cuda is None or nvcc_in_wheels(place.cuda) else "an image on top of `devel`"
    reason = f"no wheel of {label} fits: build it in {where} with {compiler}"
    return Fit(release, SOURCE_ONLY, reason, weak=() if release.verified and source.verified else (label,))


def _built_code(
    facts: Facts, label: str, release: ExtensionRelease, source: SourceBuild, place: CellOnHost
) -> Fit | None:
    """Refuse a build for a GPU that the cell's nvcc does not compile for, or that the release has no kernels for."""
    for device in place.devices if place.cuda else ():
        gpu = device.label if device.cc in device.label else f"{device.label} ({device.cc})"
        if not facts.nvcc_compiles(device.cc, place.cuda or "0"):
            return Fit(release, NO_GPU_CODE, f"nvcc {place.cuda} is not known to compile {label} for {gpu}")
        if source.sass and not any(sass_runs(facts, sm, device.cc, place.cuda or "0") for sm in source.sass):
            return Fit(release, NO_GPU_CODE, f"{label} builds code for {', '.join(source.sass)}: none runs on {gpu}")
    return None


def _compiles_later(facts: Facts, label: str, each: Fit, place: CellOnHost) -> Fit:
    """Return the judgement on a release that installs, but is compiled by nvcc when it is first used."""
    release = each.release
    if place.cuda is None:
        return Fit(
            release, CUDA_MAJOR, f"{label} compiles with nvcc at first use, and {place.cell.variant} has no CUDA"
        )
    for device in place.devices:
        if not facts.nvcc_compiles(device.cc, place.cuda):
            return Fit(release, NO_GPU_CODE, f"nvcc {place.cuda} is not known to compile {label} for {device.label}")
    where = "the target `devel` has it, `runtime` does not"
    if not nvcc_in_wheels(place.cuda):
        where = f"no target has it, so add NVIDIA's nvcc {place.cuda} to an image on top of `devel`"
    reason = f"{release.jit}. nvcc must be of CUDA {place.cuda.partition('.')[0]}, as torch is: {where}"
    return each._replace(word=JIT, reason=reason)


def _file(wheel: ExtensionWheel, tag: str, place: CellOnHost) -> str | None:
    """Return the name of the wheel's file; None where it is not known."""
    if wheel.file is None:
        return None
    strings = "TRUE" if has_new_strings(place.cell.torch, place.cell.variant, place.arch) else "FALSE"
    return wheel.file.replace("{tag}", tag).replace("{torch}", place.minor).replace("{abi}", strings)


def has_new_strings(torch: str, variant: str, arch: str) -> bool:
    """Return whether a wheel of torch has the new C++ string ABI.

    Those of the Python index since 2.7 (read off xformers, vllm); of 2.6 those for CUDA 12.6 and for aarch64, as its
    release notes say (Dao-AILab/flash-attention#1644).
    """
    return key(torch) >= key("2.7") or (torch.startswith("2.6.") and (variant == "cu126" or arch == "aarch64"))


def _binds(wheel: ExtensionWheel) -> str:
    torch = {"none": "no symbol of torch", "stable": "torch's stable ABI"}.get(wheel.abi or "", "libtorch C++ symbols")
    cuda = f"CUDA {' or '.join(wheel.cuda)}" if wheel.cuda else "no CUDA library"
    return f"{torch}, {cuda}"


def _weak(label: str, release: ExtensionRelease, wheel: ExtensionWheel) -> tuple[str, ...]:
    parts = {
        f"the release {label}": release.verified,
        f"the wheel of {label}": wheel.verified,
        f"the torch that {label} was built for": wheel.built_for_verified,
        f"the GPU code of {label}": wheel.code_verified,
    }
    return tuple(text for text, verified in parts.items() if not verified)


def best_tag(tags: Sequence[str], python: str) -> str | None:
    """Return the best of a wheel's tags that a Python ("3.12", "3.13t") takes, or None. abi3 is never free-threaded."""
    plain = python.removesuffix("t").replace(".", "")
    exact = f"cp{plain}-cp{plain}{'t' if python.endswith('t') else ''}"
    if exact in tags:
        return exact
    return next((tag for tag in tags if _takes(tag, python)), None)


def _takes(tag: str, python: str) -> bool:
    interpreter, abi = tag.split("-")
    digits = interpreter[2:]
    least = f"{digits[0]}.{digits[1:] or '0'}"
    if abi == "abi3":
        return not python.endswith("t") and python_key(least) <= python_key(python)
    return abi == "none" and interpreter.startswith("py") and python_key(least) <= python_key(python)


_specifiers: Final = lru_cache(maxsize=4096)(SpecifierSet)


@lru_cache(maxsize=8192)
def meets(version: str, specifier: str) -> bool:
    """Return whether a version, pre-releases too, meets a specifier; "" is met by all."""
    return _specifiers(specifier).contains(version, prereleases=True)


@lru_cache(maxsize=4096)
def satisfiable(specifiers: frozenset[str]) -> bool:
    """Return whether some version meets all of the specifiers.

    Only the versions that specifiers name, and their neighbours, need a trial: what is met changes nowhere else.
    """
    named = [specifier for specifier in specifiers if specifier]
    return not named or any(all(meets(version, each) for each in named) for version in _trials(named))


def _trials(specifiers: list[str]) -> Iterator[str]:
    """Yield every version that a specifier names, the next one after it in each field, and its last post-release."""
    yield "0"
    for clause in _specifiers(",".join(specifiers)):
        with contextlib.suppress(InvalidVersion):  # "===" takes any text
            named = Version(clause.version.removesuffix(".*"))
            yield str(named)
            fields = [*named.release, 0]
            for at in range(len(fields)):
                yield ".".join(map(str, [*fields[:at], fields[at] + 1]))
            yield f"{named.base_version}.post99999"
            yield f"{named.base_version}a0"

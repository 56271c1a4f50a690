"""The query for the resolver: normalize it, validate it, and find its GPUs, host architecture and releases."""

import contextlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import msgspec

from envcheck.errors import ConfigError, refuse, refuse_all
from envcheck.matrix.facts.lookup import READ_CC, Device, Facts, find_gpu, listed_names, other_accelerator
from envcheck.matrix.facts.model import HostArch, TorchRelease, key

# Python refuses to read numbers of thousands of digits.
_LONGEST: Final = 500
_PLAIN: Final = re.compile(r"(?:==)?(?P<version>\d+(?:\.\d+)*)(?P<wild>\.\*)?", re.ASCII)
_PYTHON: Final = re.compile(r"3\.\d+t?", re.ASCII)
DRIVER_VERSION: Final = re.compile(r"\d{3,4}(\.\d+){1,3}", re.ASCII)
# Tegra's drivers have no version of their own: every NVIDIA Thor of JetPack 7 says 580.00 (vllm-project/vllm#34470).
_BRANCH: Final = re.compile(r"(?P<branch>\d{3,4})(\.00)?", re.ASCII)
# The header of nvidia-smi; from R610 on it says KMD Version and CUDA UMD Version (sgl-project/sglang#27487).
_HEADER: Final = r"(?ai)(?:Driver|KMD) Version\s*:\s*([\d.]+)|NVRM version:.*Module.*?\s([\d.]+)(?:\s|\Z)"
# A package of Ubuntu or Debian, its version, NVIDIA's installer, or a branch as NVIDIA's pages write it.
_PACKAGED: Final = (
    r"(?ai)(?:\d:|[a-z -]{0,40}(?:nvidia|driver)[a-z -]{0,40}[- ](?:(?:x86_|aarch)64-)?|[rv])?"
    r"(?:(\d{3}(?:\.\d+)+)(?:(?:-| \(?|\.run)[-+.~)\w]*)?|(\d{3})(?:-(?:server|open|headless|dkms))*)"
)
# Windows' own form: 31.0.15.3598 is 535.98.
_OF_WINDOWS: Final = r"(?a)\A\d\d\.\d+\.\d?(\d)\.(\d\d)(\d\d)\Z"
_CUDA_OF_DRIVER: Final = re.compile(r"(1\d)(\.\d)?", re.ASCII)
_VARIANT: Final = re.compile(r"cpu|cu(?:\d{3}|9\d)", re.ASCII)
_CUDA: Final = re.compile(r"\d{1,2}\.\d", re.ASCII)
_CC: Final = re.compile(r"\d{1,2}\.\d", re.ASCII)
_PATCH: Final = re.compile(r"^(\d+\.\d+)\.\d+$", re.ASCII)
# As nvcc, torch's collect_env, CUDA's directories and packages, conda and wheels write them.
_CUDA_WORDS: Final = (
    r"(?ais)\A(?:.*\b(?:release|build PyTorch:|runtime version:) |v|(?:.*[/-])?cuda[-_ ]?(?:toolkit[-=])?=?)"
    r"(\d+)[.-](\d)\b.*"
)
# As torch's messages, nvcc and get_device_capability() write it: sm_120, compute_120, 120, (12, 0).
_CC_WORDS: Final = r"(?ai)\A\(?(?:sm_?|compute_)?(?!1\d\Z)(\d{1,2}?)[., ]{0,2}(\d)[af]?\)?\Z"
# Of a free-threaded Python, 3.13.0t, only 3.13t may be made: it has wheels of its own.
_PYTHON_WORDS: Final = (
    r"(?ais)\A(?:(?:c?python|py|cp)(?: version:)?[ =-]*3\.?|3\.)(\d+t?)(?:\.(?:\d(?!\d*t|.*free.thread)|x\Z|\*).*)?\Z"
)
_TORCH_WORDS: Final = r"(?i)\A(?:(?:py)?torch(?: version:|-)?|v(?=\d))\s*"
_RELEASE_FIELDS: Final = 3
_VERSIONS: Final = ("torch", "variant", "cuda", "python", "driver")


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """The axes of a query; None or empty leaves an axis free. `torch` is a PEP 440 requirement."""

    torch: str | None = None
    variant: str | None = None
    cuda: str | None = None
    python: str | None = None
    driver: str | None = None
    gpus: list[str] = []
    cc: list[str] = []
    arch: HostArch | None = None

    def replace(self, **changes: str | list[str] | None) -> "Query":
        """Return the same query with some axes changed."""
        return msgspec.structs.replace(self, **changes)


def normalized(query: Query) -> Query:
    """Return the query with each axis in the matrix's form, from torch "2.8.0+cu128", Python "3.12.4", CUDA "12.8.1".

    Blanks around a value, as a copied line has them, are no part of it, and of nvidia-smi's header the driver counts.
    A CUDA that is the name of a variant ("cu128", "cpu") is one. Raises ConfigError where the local part of a
    torch version contradicts the variant.
    """
    versions = {name: getattr(query, name) for name in _VERSIONS}
    stripped = {name: value.strip() for name, value in versions.items() if value is not None}
    gpus = [name for text in query.gpus for name in listed_names(text)]
    query = query.replace(**stripped, gpus=gpus, cc=[re.sub(_CC_WORDS, r"\1.\2", value.strip()) for value in query.cc])
    if ".nv" in (query.torch or ""):
        refuse(f"--torch {query.torch} is NVIDIA's own, in its containers alone", "give its release, e.g. 2.10")
    if query.variant is None and query.cuda is not None and _VARIANT.fullmatch(query.cuda.lower()):
        query = query.replace(variant=query.cuda.lower(), cuda=None)
    driver = query.driver and re.sub(_OF_WINDOWS, r"\1\2.\3", query.driver)
    header = None
    if driver and not DRIVER_VERSION.fullmatch(driver):
        header = re.search(_HEADER, driver) or re.fullmatch(_PACKAGED, driver)
    python = query.python and re.sub(_PYTHON_WORDS, r"3.\1", query.python)
    cuda = query.cuda and _PATCH.sub(r"\1", re.sub(_CUDA_WORDS, r"\1.\2", query.cuda))
    torch, _, local = re.sub(_TORCH_WORDS, "", query.torch or "").partition("+")
    local = local.removesuffix(".with.pypi.cudnn")  # PyPI's own build of torch 2.0 says so
    if local and query.variant not in (None, local):
        refuse(f"--torch says +{local}, --cuda says {query.variant}", "give one of the two")
    return query.replace(
        torch=None if torch.lower() in {"latest", "newest", "stable"} else torch or None,
        variant=query.variant or local or None,
        cuda=cuda,
        python=python,
        driver=header[header.lastindex or 0] if header else driver,
    )


def whole_driver(facts: Facts, query: Query) -> tuple[Query, list[str]]:
    """Return the query with a driver instead of a branch ("550"), and a note that says which one it was taken for.

    That is the first driver of the branch that came with a CUDA toolkit, and drives the query's GPUs: what fits it
    fits every later one. Where none is known it is X.0, which is below every driver of the branch.
    """
    given = _BRANCH.fullmatch(query.driver or "")
    if given is None:
        return query, []
    name = given["branch"]
    row = facts.branch(name)
    minor = facts.minors.get(row.cuda) if row else None
    first = minor.native_driver if minor and minor.native_driver.startswith(f"{name}.") else f"{name}.0"
    which = "the first that came with a CUDA toolkit" if first != f"{name}.0" else "below every driver of the branch"
    with contextlib.suppress(ConfigError):  # a GPU without facts is refused elsewhere
        for gpu in filter(None, (device.gpu for device in requested_devices(facts, query))):
            if key(gpu.first_driver.get(name, first)) > key(first):
                first, which = gpu.first_driver[name], f"the first that drives {gpu.name}"
    what = "a branch" if name == query.driver else "Tegra's form of a branch"
    note = f"--driver {query.driver} is {what}: taken as {first}, {which}; give the whole version for a closer answer"
    return query.replace(driver=first), [note]


def validate(facts: Facts, query: Query) -> None:
    """Raise ConfigError for a malformed version or variant, and for a variant and CUDA that contradict each other.

    A well-formed variant that no torch was built for is valid: its verdict is `no-wheel`.
    A compute capability above all in the matrix is a newer GPU; any other one must be near one of the matrix.
    """
    refuse_all(_wrong(facts, query))
    variants = {v.variant: v.cuda for release in facts.matrix.torch for v in release.variants}
    if query.variant in variants and query.cuda not in (None, variants[query.variant]):
        cuda = f"CUDA {variants[query.variant]}" if variants[query.variant] else "no CUDA at all"
        refuse(f"{query.variant} has {cuda}, --cuda says {query.cuda}", "give one of the two")


def _wrong(facts: Facts, query: Query) -> Iterator[ConfigError]:
    """Yield what is wrong with each axis by itself."""
    cuda = query.variant if query.variant and not _VARIANT.fullmatch(query.variant) else query.cuda
    if cuda is not None and not _CUDA.fullmatch(cuda):
        message = f"--cuda {cuda!r} is neither a CUDA version nor a variant"
        yield ConfigError(message, fix="write it as 12.8, cu128 or cpu; ROCm and XPU wheels are not in the matrix")
    if query.python is not None and not _PYTHON.fullmatch(query.python):
        yield ConfigError(f"--python {query.python} is not a Python version", fix="write it as 3.12 (or 3.13t)")
    if query.driver is not None and _CUDA_OF_DRIVER.fullmatch(query.driver):
        branches = " or ".join(row.branch for row in facts.drivers if row.cuda == query.driver)
        message = f"--driver {query.driver}: that is nvidia-smi's CUDA version, not the driver's"
        branch = f", or the branch that has this CUDA, {branches}" if branches else ""
        fix = f"give its Driver Version (KMD Version), e.g. 550.54.14{branch}; --cuda is for the wheel's"
        yield ConfigError(message, fix=fix)
    elif query.driver is not None and not DRIVER_VERSION.fullmatch(query.driver):
        message = f"--driver {query.driver} is not a driver version"
        yield ConfigError(message, fix="write it as nvidia-smi prints it, 570.124.06, or as a branch, 570")
    capabilities = [row.cc for row in facts.capabilities]
    for cc in query.cc:
        if not _CC.fullmatch(cc):
            yield ConfigError(f"--cc {cc} is not a compute capability", fix="write it as 9.0")
        elif facts.capability(cc) is None and key(cc) < key(capabilities[-1]):
            message = f"--cc {cc}: the matrix has no fact about it or its neighbours; it has {', '.join(capabilities)}"
            yield ConfigError(message, fix=f"read it with {READ_CC}")
    named = [name for name in query.gpus if find_gpu(facts.matrix, name) or other_accelerator(name) is None]
    reads: list[Callable[[], object]] = [partial(facts.device, name) for name in named]
    reads.append(partial(matching, [], query.torch))
    for read in reads:
        try:
            read()
        except ConfigError as error:  # noqa: PERF203 (calls are few)
            yield error


def requested_devices(facts: Facts, query: Query) -> list[Device]:
    """Return NVIDIA's GPUs of the query, each model once. Raises ConfigError for one that is not in the matrix."""
    named = [name for name in query.gpus if find_gpu(facts.matrix, name) or other_accelerator(name) is None]
    devices = [facts.device(name) for name in named] + [facts.device_of(cc) for cc in query.cc]
    return list({device.label: device for device in devices}.values())


def several_gpus(facts: Facts, query: Query) -> list[str]:
    """Return a note where a GPU's name and another compute capability are given: that is a node of both."""
    named = {facts.device(name).cc for name in query.gpus}
    others = [cc for cc in query.cc if named and cc not in named]
    names = f"--gpu {', '.join(query.gpus)} has compute capability {', '.join(sorted(named))}"
    fix = "leave one of the two out if you mean one GPU"
    return [f"{names}: --cc {cc} is taken as another GPU of the same node; {fix}" for cc in others]


def host_arch(query: Query, devices: list[Device]) -> HostArch:
    """Return the query's host architecture, else that of the GPUs, else x86_64. Raises ConfigError for a mix."""
    if query.arch is not None:
        return query.arch
    archs = {device.gpu.host_arch: device.label for device in devices if device.gpu is not None}
    if len(archs) > 1:
        refuse(
            f"{' and '.join(archs.values())} are on different host architectures ({', '.join(archs)})",
            "resolve for one node at a time, or pass --arch",
        )
    return next(iter(archs), "x86_64")


def matching(releases: list[TorchRelease], requirement: str | None) -> list[TorchRelease]:
    """Return the releases that meet a PEP 440 requirement, newest first; "2.8" means 2.8.*. Raises ConfigError."""
    newest_first = sorted(releases, key=lambda release: key(release.torch), reverse=True)
    if requirement is None:
        return newest_first
    fits = _predicate(requirement.removeprefix("torch").strip())
    return [release for release in newest_first if fits(release.torch)]


def _predicate(requirement: str) -> Callable[[str], bool]:
    what = f"--torch {requirement[:_LONGEST]!r} is not a version requirement"
    fix = 'write 2.8, 2.8.0, "2.8.*" or ">=2.6,<2.9"'
    if len(requirement) > _LONGEST:
        refuse(what, fix)
    plain = _PLAIN.fullmatch(requirement)
    if plain is not None:
        prefix = key(plain["version"])
        width = len(prefix) if plain["wild"] or len(prefix) < _RELEASE_FIELDS else None
        return lambda version: key(version)[:width] == prefix
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # noqa: PLC0415 (most queries do not need it)

    try:
        specifiers = SpecifierSet(requirement)
    except InvalidSpecifier:
        refuse(what, fix)
    return specifiers.contains

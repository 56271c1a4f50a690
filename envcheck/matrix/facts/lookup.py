"""Index the matrix by the keys that the resolver looks up, and find a GPU by the names people and NVML give it."""

import re
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from envcheck.errors import refuse
from envcheck.matrix.facts.model import (
    Capability,
    CodeTarget,
    CudaFamily,
    CudaMinor,
    DriverBranch,
    GpuModel,
    HostArch,
    Matrix,
    branch,
    key,
)

READ_CC: Final = "`nvidia-smi --query-gpu=compute_cap --format=csv,noheader`"
# NVIDIA's wheels of CUDA 13 and later hold nvcc with all that it starts; those of 11 and 12 lack cicc and cudafe++.
_WHEELS_WITH_NVCC: Final = 13
_SM: Final = re.compile(r"(?:sm_|compute_)?(?:(?P<dotted>\d+\.\d)|(?P<digits>\d{2,3}))(?P<exact>[a-z]?)")


class Device(NamedTuple):
    """A GPU to resolve for. `architecture` and `datacenter` are None when only its compute capability is known."""

    label: str
    cc: str
    architecture: str | None
    datacenter: bool | None
    gpu: GpuModel | None
    verified: bool


class Facts:
    """The lookups that verdicts use."""

    def __init__(self, matrix: Matrix) -> None:
        cuda = matrix.cuda
        self.matrix = matrix
        self.minors: dict[str, CudaMinor] = {row.cuda: row for row in cuda.minors}
        self.families: dict[str, CudaFamily] = {row.major: row for row in cuda.families}
        self.code: dict[str, CodeTarget] = {row.sm: row for row in cuda.code}
        self.capabilities: list[Capability] = sorted(cuda.capabilities, key=lambda row: key(row.cc))
        self.drivers: list[DriverBranch] = sorted(matrix.drivers, key=lambda row: key(row.branch))

    def capability(self, cc: str) -> Capability | None:
        """Return the row of `cc`, or of the nearest one below it in the same major, or None."""
        below = [row for row in self.capabilities if key(row.cc) <= key(cc) and key(row.cc)[0] == key(cc)[0]]
        return below[-1] if below else None

    @cached_property
    def _built(self) -> dict[str, str]:
        """For each capability, the oldest CUDA of a well-sourced wheel that has code for it."""
        oldest: dict[str, str] = {}
        for variant in (variant for release in self.matrix.torch for variant in release.variants if variant.cuda):
            for build in (build for build in variant.builds if build.sass_verified):
                for sm in build.sass or []:
                    oldest[sm] = min(variant.cuda or "", oldest.get(sm, variant.cuda or ""), key=key)
        return oldest

    @cached_property
    def _oldest_code(self) -> dict[str, str]:
        """For each CUDA major, the oldest capability that a wheel of it has code for."""
        oldest: dict[str, str] = {}
        for variant in (variant for release in self.matrix.torch for variant in release.variants if variant.cuda):
            major = (variant.cuda or "").partition(".")[0]
            for sm in (sm for build in variant.builds for sm in build.sass or []):
                oldest[major] = min(sm, oldest.get(major, sm), key=key)
        return oldest

    def nvcc_compiles(self, cc: str, cuda: str) -> bool:
        """Return whether nvcc of `cuda` compiles for `cc`: it is new enough, and its major's wheels go back as far."""
        row = self.capability(cc)
        if row is None or key(row.min_cuda) > key(cuda):
            return False
        return key(cc) >= key(self._oldest_code.get(cuda.partition(".")[0], cc))

    def can_build(self, row: Capability, cuda: str) -> bool:
        """Return whether a well-sourced row or wheel shows that `cuda` can build for the capability."""
        return row.verified or (row.cc in self._built and key(cuda) >= key(self._built[row.cc]))

    def dropped_by(self, architecture: str | None) -> DriverBranch | None:
        """Return the first branch that no longer drives `architecture`, or None."""
        return next((row for row in self.drivers if architecture in row.drops), None)

    def newest_branch(self, devices: list[Device]) -> str | None:
        """Return the newest driver branch that still drives every GPU, or None when no branch dropped any of them."""
        dropping = [row.branch for device in devices if (row := self.dropped_by(device.architecture)) is not None]
        older = [row.branch for row in self.drivers if dropping and key(row.branch) < min(map(key, dropping))]
        return older[-1] if older else None

    def branch(self, driver: str) -> DriverBranch | None:
        """Return the branch of `driver`, or None when it is not in the matrix."""
        return next((row for row in self.drivers if row.branch == branch(driver)), None)

    def minor(self, cuda: str) -> CudaMinor:
        """Return the row of a CUDA minor. Raises ConfigError when there is none."""
        if cuda not in self.minors:
            minors = ", ".join(sorted(self.minors, key=key))
            refuse(f"CUDA {cuda} is not in the matrix", f"use one of {minors}")
        return self.minors[cuda]

    def family(self, cuda: str) -> CudaFamily:
        """Return the family row of a CUDA minor. Raises ConfigError when there is none."""
        major = cuda.split(".", maxsplit=1)[0]
        if major not in self.families:
            refuse(f"CUDA {major}.x has no driver floor in the matrix", "add it to cuda.families")
        return self.families[major]

    def device(self, name: str) -> Device:
        """Return the GPU called `name`. Raises ConfigError, with near misses, when there is none."""
        gpu = find_gpu(self.matrix, name)
        if gpu is None:
            hint = hint_of(self.matrix, name)
            if re.search(r"(?i)NVIDIA Corporation Device [0-9a-f]{4}", name):
                hint = "lspci's PCI database does not list this GPU: run `update-pciids`, or use nvidia-smi's name"
            refuse(f"no GPU named {name!r} in the matrix", f"{hint} (or give --cc; {READ_CC} prints it)")
        return Device(gpu.name, gpu.cc, gpu.architecture, gpu.datacenter or is_vgpu(name), gpu, gpu.verified)

    def device_of(self, cc: str) -> Device:
        """Return a GPU of which only the compute capability is known."""
        row = self.capability(cc)
        listed = row is not None and row.cc == cc
        return Device(f"compute capability {cc}", cc, row.architecture if row else None, None, None, listed)


def nvcc_in_wheels(cuda: str) -> bool:
    """Return whether NVIDIA's wheels of a CUDA ("12.8"), of which the target devel is made, hold an nvcc."""
    return key(cuda)[0] >= _WHEELS_WITH_NVCC


def sass_runs(facts: Facts, sm: str, cc: str, cuda: str) -> bool:
    """Return whether SASS `sm` ("sm_90", "9.0", "sm_90a") of a build with `cuda` runs on a device of `cc`."""
    name = _SM.fullmatch(sm)
    if name is None:
        return False
    target = _dotted(name)
    row = None if name["exact"] else facts.code.get(target)
    if row is None:
        return target == cc
    if row.only:
        return cc in row.only
    lifted = row.excluded_below_cuda is not None and key(cuda) >= key(row.excluded_below_cuda)
    if cc in row.excluded and not lifted:
        return False
    return (row.at_least is None or key(cc) >= key(row.at_least)) and (row.below is None or key(cc) < key(row.below))


def ptx_runs(ptx: str, cc: str) -> bool:
    """Return whether a new enough driver can compile PTX `ptx` ("12.0", "compute_120") for a device of `cc`."""
    name = _SM.fullmatch(ptx)
    return name is not None and not name["exact"] and key(cc) >= key(_dotted(name))


def _dotted(name: re.Match[str]) -> str:
    return name["dotted"] or f"{name['digits'][:-1]}.{name['digits'][-1]}"


# The glibc of each base by its suite. Their packages libc6: 2.35-0ubuntu3, 2.36-9, 2.39-0ubuntu8 and 2.41-12.
GLIBC: Final = {"jammy": "2.35", "bookworm": "2.36", "noble": "2.39", "trixie": "2.41"}


def glibc(matrix: Matrix, python: str) -> str | None:
    """Return the glibc of the base with this Python; without such a base that of the oldest one. None: not known."""
    base = matrix.base(python)
    if base is not None:
        return GLIBC.get(base.suite)
    return min((GLIBC[each.suite] for each in matrix.bases if each.suite in GLIBC), key=key, default=None)


# NVML writes the maker and brand before a model's name, and memory, form factor, MIG slice or vGPU profile ("L40S-48Q")
# after it.
_MAKER: Final = frozenset(
    {"NVIDIA", "TESLA", "GEFORCE", "GRAPHICS", "DEVICE", "GRID", "GPU", "GENERATION", "DGX", "HGX", "STATION"}
)
_FORM: Final = re.compile(r"\d+(\.\d+)?GB?|G?HBM\d\w*|GDDR\d\w*|SXM\d*|PCI-?E?|NVL\d*|OAM|AC|LC|HGX|DGX|MIG|MEGA")
# A vGPU's slices and profile ("A100D-3-40C").
_VGPU: Final = re.compile(r"(?:-\d)?-\d{1,3}[ABCQ](?:ME)?(?![\w-])", re.IGNORECASE)
# Beside a name: what product pages, people and torch's warning add, columns of nvidia-smi's CSV, a vGPU's profile.
_ASIDE: Final = re.compile(
    r"[\u00ae\u2122]|\((?:R|TM|\d+ ?GB)\)|\bTensor Core\b|\b\d+ GB\b|(?:, (?:\d+ MiB|\d+\.[\d.]+))+$"
    rf"| with CUDA capability.*|{_VGPU.pattern}",
    re.IGNORECASE,
)

# lspci puts the product into the last square brackets, after the chip: "NVIDIA Corporation GA102GL [A10] (rev a1)";
# with -nn the vendor and device ids follow in brackets of their own.
_BRACKETS: Final = re.compile(r"\[([^\]]+)\]")
# A class is "[0302]"; B200 is no id of four hexadecimal digits.
_PCI_ID: Final = r"0\d{3}|[0-9a-fA-F]{4}:[0-9a-fA-F]{4}"
# People and schedulers count: 4xA100, "8 x H100", "2 RTX 3090", a100:4; nvidia-smi's CSV begins with an index.
_COUNT: Final = re.compile(
    r"^\s*(?:\d{1,3} ?[xX*\u00d7] ?(?=\D|\d{4})|\d{1,2},? (?!(?i:GB)|\d))|(?:(?:(?<=\d)|\s)[xX*\u00d7] ?|:)\d{1,3}\s*$"
)
# `nvidia-smi -L` puts the index before the name and the UUID behind it; so do collect_env and ComfyUI.
_LISTED: Final = re.compile(
    r"(?:[\w *-]+:\W*)?(?:GPU \d+:|cuda:\d+) (?P<name>.+?)(?: \(UUID: [^)]*\)| : \w+)?", re.IGNORECASE
)
# A row of the table of `nvidia-smi`: index, name, persistence mode (on Windows the driver's model).
_ROW: Final = re.compile(r"\| *\d+ +(?P<name>\S.*?) +(?:On|Off|N/A|WDDM|TCC|MCDM) *\|.*")
# It cuts long names: "RTX PRO 6000 Blac...".
_CUT: Final = re.compile(r"( [A-Za-z]*)?\.{3}$")

# A GeForce series is the first two of four digits.
_GEFORCE: Final = 4

# Apple's chips; NVIDIA's boards of 2015 are "Tesla M4" and "Tesla M6".
_APPLE: Final = re.compile(r"\s*M[1-9]\s*", re.IGNORECASE)


class _Named(msgspec.Struct, frozen=True):
    name: str
    cc: str
    datacenter: bool = False
    host_arch: HostArch = "x86_64"
    aliases: tuple[str, ...] = ()
    verified: bool = True


class _Names(msgspec.Struct, frozen=True):
    gpus: list[_Named]


@cache
def _further() -> dict[str, _Named]:
    path = Path(__file__).parents[1] / "gpu_names.json"
    rows = msgspec.json.decode(path.read_bytes(), type=_Names).gpus
    return {_key(alias): row for row in reversed(rows) for alias in (row.name, *row.aliases)}


def find_gpu(matrix: Matrix, name: str) -> GpuModel | None:
    """Return the GPU that `name` means, or None; never a guess.

    `name` is as people write it ("H100", "4090", "4xA100"), or as NVML, `nvidia-smi` or lspci print it. A GPU that the
    matrix has no row for comes without drivers: they are those of its compute capability.
    """
    if _APPLE.fullmatch(name):
        return None
    product = product_name(name)
    model, cut = _key(_CUT.sub("", product)), _CUT.search(product)
    known = _own_names(matrix)
    if cut or model not in known:  # to read the 500 further names takes a tenth of the start of `envcheck resolve`
        known = {**_further(), **known}
    if model not in known:  # no name of its own: a laptop's slower clock, or a brand that the Ampere boards left behind
        model = re.sub(r"(WITH)?MAXQ(DESIGN)?$|^QUADRO(?=(RTX)?A\d)", "", model)
    short = {f"RTX{model}", f"GTX{model}"} if re.match(r"\d|PRO|A\d{4}", model) else set()
    found = [known[key] for key in (model, *sorted(short)) if key in known][:1]
    if cut and re.search(r"\d", model):
        start = re.sub("(?:NVIDIA|TESLA|GEFORCE) ", "", _CUT.sub("", product).upper())
        # A form factor's start tells them apart: no "A800 40GB Active" begins with A800-SXM.
        longer = start if _FORM.fullmatch(re.split(r"[\s-]", start)[-1]) else ""
        begun = {key: row for key, row in known.items() if key.startswith(model)}
        found = [row for key, row in begun.items() if key == model or row.name.upper().startswith(longer)]
        alike = len({(row.cc, row.datacenter) for row in found}) == 1
        found = sorted(found, key=lambda row: len(row.name))[:1] if alike else []
    return _row(matrix, found[0]) if found else None


def is_vgpu(name: str) -> bool:
    """Return whether a name is that of a shared board ("GRID T4-16Q", "NVIDIA L40S-48C"): all are for data centres."""
    return name.startswith("GRID ") or _VGPU.search(name) is not None


def is_cut(name: str) -> bool:
    """Return whether `nvidia-smi` cut a name, which is then no identity."""
    return _CUT.search(product_name(name)) is not None


def same_gpu(matrix: Matrix, one: str, other: str) -> bool:
    """Return whether two names mean one model; by the letter for shares of a board and unknown ones."""
    models = find_gpu(matrix, one), find_gpu(matrix, other)
    by_letter = not all(models) or _VGPU.search(one) or _VGPU.search(other)
    return one == other if by_letter else models[0] == models[1]


def _own_names(matrix: Matrix) -> dict[str, GpuModel | _Named]:
    return {_key(alias): gpu for gpu in reversed(matrix.gpus) for alias in (gpu.name, *gpu.aliases)}


def all_gpus(matrix: Matrix) -> list[GpuModel]:
    """Return the GPUs that the matrix has a row for, and those that are known by name."""
    further = {row.name: _row(matrix, row) for row in _further().values()}
    return list({gpu.name: gpu for gpu in (*matrix.gpus, *further.values())}.values())


def _row(matrix: Matrix, named: GpuModel | _Named) -> GpuModel:
    row = next((gpu for gpu in matrix.gpus if gpu.name == named.name), None)
    alike = [gpu for gpu in matrix.gpus if gpu.cc == named.cc]
    drivers = [gpu.min_driver or min(gpu.first_driver.values(), key=key, default="") for gpu in alike]
    return row or GpuModel(
        name=named.name,
        architecture=next((row.architecture for row in matrix.cuda.capabilities if row.cc == named.cc), "unknown"),
        cc=named.cc,
        memory_gb=[],
        datacenter=named.datacenter,
        host_arch=named.host_arch,
        min_driver=min(filter(None, drivers), key=key, default=None),
        driver_verified=False,
        verified=named.verified,
        source=["gpu_names.json"],
    )


def product_name(name: str) -> str:
    """Return the product in a line of lspci, `nvidia-smi -L` or `nvidia-smi`, or a name without its count."""
    listed = _LISTED.fullmatch(name.strip()) or _ROW.fullmatch(name.strip())
    if listed is not None:
        return _ASIDE.sub("", listed["name"])
    brackets = [text for text in _BRACKETS.findall(name) if not re.fullmatch(_PCI_ID, text)]
    lspci = brackets and "NVIDIA" in name.upper()
    return _ASIDE.sub("", re.sub(r"\s+Rev\. \w+$", "", brackets[-1]) if lspci else _COUNT.sub("", name)).strip()


def listed_names(text: str) -> list[str]:
    """Return the names in what was pasted: GPUs' rows of nvidia-smi's table or of -L, else one a line."""
    if not text.isascii():
        from unicodedata import normalize  # noqa: PLC0415 (few names need its tables)

        text = normalize("NFKC", text.replace("\u2122", " "))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    rows = [line for line in lines if _LISTED.fullmatch(line) or _ROW.fullmatch(line)]
    return rows or [line for line in lines if line.split(",")[0] not in {"", "name", "index"}] or [text.strip()]


def suggest(matrix: Matrix, name: str) -> list[str]:
    """Return up to five names of one generation that `name` may have been meant to be, nearest first."""
    import difflib  # noqa: PLC0415 (only for a name that is wrong)

    names = {key: row.name for key, row in {**_further(), **_own_names(matrix)}.items()}
    model = _key(_CUT.sub("", product_name(name)))
    near = sorted((alias for alias in names if model and model in alias), key=len)[:3]
    near += difflib.get_close_matches(model, names, n=12, cutoff=0.65)
    return list(dict.fromkeys(names[alias] for alias in near if _one_generation(model, alias)))[:5]


def hint_of(matrix: Matrix, name: str) -> str:
    """Return what to do about a name that no GPU has."""
    near = " or ".join(suggest(matrix, name))
    return f"did you mean {near}?" if near else "`envcheck matrix show --list-gpus` lists them"


def _one_generation(model: str, alias: str) -> bool:
    """Return whether two keys have one number of four digits, or the same letters and a series."""
    numbers = [re.search(r"([A-Z]*)(\d+)", name) for name in (model, alias)]
    if numbers[0] is None or numbers[1] is None:
        return True
    (letters, one), (others, other) = (found.groups() for found in numbers if found)
    if len(one) == len(other) == _GEFORCE:
        return one == other or (letters == others and one[:2] == other[:2])
    return letters == others and (one.startswith(other) or other.startswith(one))


@lru_cache(maxsize=4096)
def _key(name: str) -> str:
    words = [word for word in re.split(r"[\s_/-]+", name.upper()) if word]
    if "MIG" in words[1:]:
        words = words[: words.index("MIG")]
    if "MOBILE" in words:  # lspci's word for NVML's "Laptop GPU"
        words = ["LAPTOP" if word == "MOBILE" else word for word in words if word not in {"MAX", "Q"}]
    first, *tail = [word for word in words if word not in _MAKER] or [""]
    return "".join([first, *(word for word in tail if not _FORM.fullmatch(word))])


class OtherAccelerator(msgspec.Struct, frozen=True):
    """The kind of accelerator, where PyTorch for it comes from, and the architecture of its usual host.

    `pattern` finds it in a name that people, NVML or lspci give, whatever its case.
    """

    pattern: str
    kind: str
    advice: str
    arch: HostArch = "x86_64"


def other_accelerator(name: str) -> OtherAccelerator | None:
    """Return what a name that is not in the matrix is, if it is no discrete NVIDIA GPU; or None."""
    path = Path(__file__).parents[1] / "other_accelerators.json"
    jetson, *others = msgspec.json.decode(path.read_bytes(), type=list[OtherAccelerator])
    known = [jetson] if re.search(r"(?i)\b(NVIDIA|TESLA|QUADRO|GEFORCE)\b", name) else [jetson, *others]
    return next((one for one in known if re.search(one.pattern, name, re.IGNORECASE)), None)


def driver_floor(matrix: Matrix, cuda: str | None) -> str:
    """Return the oldest driver any minor of this CUDA major runs on."""
    if cuda is None:
        return "none"
    major = cuda.partition(".")[0]
    return next((family.floor for family in matrix.cuda.families if family.major == major), "unknown")

"""Judge what a file pins: torch against its index, the packages beside it, the base, the Python and a node."""

import contextlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from envcheck.errors import ConfigError, refuse
from envcheck.matrix.extensions.answer import resolve_with
from envcheck.matrix.extensions.file import Extensions
from envcheck.matrix.extensions.fit import REFUSED, has_new_strings, meets
from envcheck.matrix.extensions.joint import WantedExtension
from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.facts.model import PYTORCH, Cell, HostArch, Matrix, TorchRelease, key
from envcheck.matrix.resolver.query import Query, host_arch, requested_devices
from envcheck.matrix.resolver.resolve import Resolution, resolve, what_base_refuses
from envcheck.matrix.resolver.verdict import TOO_NEW

# The last release on PyTorch's conda channel (pytorch/pytorch#138506).
_LAST_CONDA: Final = "2.5.1"
# More than any lock has; each is held against those beside it.
_MOST: Final = 5_000
# Compiled packages whose projects keep a page of wheels for each torch, and what its URL says.
_PAGES: Final = {"detectron2": "detectron2", "mmcv": "mmcv", "mmcv-full": "mmcv"} | dict.fromkeys(
    ("pyg-lib", "torch-cluster", "torch-scatter", "torch-sparse", "torch-spline-conv"), r"pyg\.|geometric"
)
# From these on, METADATA names no one torch (torchvision 0.29.1: torch>=2.14.0, torchaudio 2.11.0: none).
_FREE: Final = {"torchvision": "0.29.1", "torchaudio": "2.11.0"}
# What torch's wheels pin themselves, by the fact.
_LIBRARIES = {f"nvidia-{of}-cu{major}": of for of in ("cudnn", "nccl") for major in (11, 12, 13)} | {"triton": "triton"}
_PYTHONS: Final = tuple(f"3.{minor}" for minor in range(8, 16))
_OF_VARIANT: Final = re.compile(r"/(?:whl|pytorch-wheels)/(?P<variant>cpu|cu\d{2,3})\b")
_PYTHON_INDEX: Final = re.compile(r"https?://(?:pypi\.[^/]+|[^/]+/(?:repository/)?pypi(?:/web)?)/simple/?")
_OUTSIDE: Final = re.compile(r"rocm|xpu|nightly|/test/|dev\d")
# It needs the package cuda-compat, which images of NVIDIA have.
_COMPAT: Final = "forward-compat-required"
# flash-attn 2.8 builds for torch 2.6 with its CUDA 12.6, whatever the name says (Dao-AILab/flash-attention#1783).
_NEW_STRINGS: Final = re.compile(r"cxx11abiTRUE|flash_attn-2\.8\.[^/]*cu12torch2\.6cxx11abiFALSE")
_OLD_STRINGS: Final = re.compile(r"flash_attn-2\.[0-7]\.[^/]*cu12torch2\.6cxx11abiFALSE")
_UNUSED: Final = "uv takes a source for what the file itself requires, and {0} is not: the Python index has it"
_CUDA_BASE: Final = re.compile(r"(?:\S+/)?nvidia/cuda:(?P<cuda>\d+\.\d+)\S*")

Level = Literal["unreal", "outdated"]


class Index(NamedTuple):
    """An index that an installer is given. `url` is "" where it is not known; `extra` comes beside the first."""

    url: str
    extra: bool = False

    @property
    def variant(self) -> str | None:
        """The variant whose wheels are there."""
        found = _OF_VARIANT.search(self.url)
        return found["variant"] if found else None

    @property
    def of_a_site(self) -> bool:
        """Whether nobody outside knows what is there."""
        return self.variant is None and _PYTHON_INDEX.fullmatch(self.url) is None


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A requirement at a line: `specifier` without a local version, which is `local` ("cu121").

    Pins of one `group` are installed together. `channels` are those of conda, None for pip and uv. `sure`: there is
    no other index than `indexes`. `own_line`: in requirements, where options of pip have lines of their own.
    `extra`: the list of a pyproject.toml that it stands in.
    """

    line: int
    text: str
    name: str
    specifier: str = ""
    local: str = ""
    indexes: tuple[Index, ...] = ()
    group: int = 0
    channels: tuple[str, ...] | None = None
    sure: bool = False
    own_line: bool = False
    marker: str = ""
    extra: str = ""

    @property
    def exact(self) -> str | None:
        """The one version that it allows; 2.8 is 2.8.0."""
        if not re.fullmatch(r"==[0-9]+(\.[0-9]+)+", self.specifier):
            return None
        version = self.specifier[2:]
        return version + ".0" * (2 - version.count("."))


class PinnedFile(NamedTuple):
    """What a file asks for: `bases` are images, `python` is a specifier, `unused` are uv's sources of nothing."""

    pins: tuple[Pin, ...] = ()
    bases: tuple[tuple[int, str], ...] = ()
    python: str = ""
    unused: dict[str, int] | None = None


class PinFinding(NamedTuple):
    """What cannot work at a line (`unreal`) or gives another thing than it says (`outdated`); what to write instead."""

    line: int
    id: str
    level: Level
    what: str
    fix: str


def judge(matrix: Matrix, extensions: Extensions, file: PinnedFile, query: Query) -> list[PinFinding]:
    """Return the findings for the node of `query`, by line. Raises ConfigError for a query or too many pins."""
    if len(file.pins) + len(file.bases) > _MOST:
        refuse(f"more than {_MOST:,} requirements and images in one file", "give the file that names torch")
    rules = _Judge(matrix, extensions, file, query)
    by_name = dict.fromkeys(_FREE, rules.companion) | dict.fromkeys([*_LIBRARIES, "numpy"], rules.library)
    by_name["torch"] = rules.torch
    found = [finding for line, image in file.bases for finding in rules.base(line, image)]
    found += [finding for pin in file.pins for finding in by_name.get(pin.name, rules.extension)(pin)]
    unused = (file.unused or {}).items()
    found += [PinFinding(at, "P103", "outdated", _UNUSED.format(n), f'require "{n}"') for n, at in unused]
    unreal = {finding.line for finding in found if finding.id == "P101"}  # its fix names the index too
    return sorted({finding for finding in found if finding.id != "P102" or finding.line not in unreal})


def not_on_record(matrix: Matrix, extensions: Extensions, file: PinnedFile) -> list[str]:
    """Return torch and the native extensions without an exact version, or with one that has no facts: not judged."""
    rows = ((pin, extensions.find(pin.name)) for pin in file.pins if pin.name not in {*_FREE, *_LIBRARIES})
    native = [(pin, row.releases, re.fullmatch(r"==[^,*]+", pin.specifier)) for pin, row in rows if row]
    texts = [f"{p.text} (not on record)" for p, of, v in native if v and not any(meets(r.version, v[0]) for r in of)]
    texts += [f"{pin.text} (no exact version)" for pin, _, exact in native if not exact and not pin.local]
    known = sorted((row.torch for row in matrix.torch), key=key)
    torches = [pin for pin in file.pins if pin.name == "torch" and not any(meets(row, pin.specifier) for row in known)]
    outside = [pin.text for pin in torches if not (pin.exact and key(known[0]) < key(pin.exact) < key(known[-1]))]
    return [*dict.fromkeys([f"{text} (on record: {known[0]} - {known[-1]})" for text in outside] + texts)]


def machine_arch(matrix: Matrix, query: Query) -> HostArch:
    """Return the architecture that a file is judged for. Raises ConfigError for a GPU that is not in the matrix."""
    return host_arch(query, requested_devices(Facts(matrix), query))


class _Judge:
    def __init__(self, matrix: Matrix, extensions: Extensions, file: PinnedFile, query: Query) -> None:
        self.matrix, self.extensions, self.file, self.facts = matrix, extensions, file, Facts(matrix)
        self.query = query.replace(torch=None, variant=None, cuda=None)
        self.devices = requested_devices(self.facts, query)
        self.arch = host_arch(query, self.devices)
        self.newest_first = sorted(matrix.torch, key=lambda row: key(row.torch), reverse=True)
        # The lists with a CUDA build that runs there: of a project's extras, one is for each kind of machine.
        torches = [(pin.extra, self.answer(pin)) for pin in file.pins if pin.name == "torch" and pin.channels is None]
        legal = {extra for extra, each in torches if each and each.legal and each.query.variant != "cpu"}
        self.runs = legal - {"", "dependencies", "requires"}

    def torch(self, pin: Pin) -> Iterator[PinFinding]:
        if pin.channels is not None:
            yield from self._conda(pin)
            return
        if not _is_outside(pin):
            yield from self._index(pin)
        answer, bases = self.answer(pin), self.file.bases
        variant = (answer.query.variant if answer else None) or ""
        exists = any(row.variant(variant) for row in self.newest_first if meets(row.torch, pin.specifier))
        other = exists and pin.extra not in {"", "dependencies"} and self.runs - {pin.extra}
        if answer is not None and not answer.legal and not other:
            took = "" if pin.exact else f"it is torch {answer.query.torch} today: ".replace("==", "")
            weak = "" if answer.verified else " (not confirmed by a second source)"
            fix = self._instead(pin, answer)
            yield PinFinding(pin.line, "P101", "unreal", f"{took}{answer.reasons[0]}{weak}", fix)
        elif answer is not None and answer.verdict == _COMPAT and not any("nvidia/" in base for _, base in bases):
            yield PinFinding(pin.line, "P101", "unreal", answer.reasons[-1], self._instead(pin, answer))
        elif answer is not None and self.devices and answer.query.variant == "cpu" and not (pin.local or pin.indexes):
            best = Cell.parse(self.resolved(f"{answer.query.torch}", variant=None).cell or "")
            fix = f"write --index-url {PYTORCH}/whl/{best.variant}" if best else "take another torch"
            what = f"the Python index has no CUDA wheel of {pin.text} for {self.arch}: this one runs on the CPU"
            yield PinFinding(pin.line, "P108", "unreal", what, fix)
        elif pin.exact and self.matrix.release(pin.exact) is None:
            older = [row.torch for row in self.newest_first if key(row.torch) < key(pin.exact)]
            if older and len(older) < len(self.newest_first):
                yield PinFinding(pin.line, "P101", "unreal", f"there is no {pin.text}", f"write torch=={older[0]}")

    def answer(self, pin: Pin) -> Resolution | None:
        """Return what the resolver says to the wheel that pip takes; None where that is not known."""
        releases = [row for row in self.newest_first if meets(row.torch, pin.specifier)]
        only = next((index.variant for index in pin.indexes if index.variant and not index.extra), None)
        release = next((row for row in releases if only is None or row.variant(only)), next(iter(releases), None))
        if release is None or _is_outside(pin):
            return None
        named = [index for index in pin.indexes if not index.extra or release.variant(index.variant or "")]
        variant = pin.local or next((index.variant for index in named if index.variant), None)
        if variant is None and any(index.of_a_site for index in pin.indexes):
            return None
        facts = release.variant(variant := variant or release.pypi.get(self.arch) or "")
        unread = facts and any(build.arch == self.arch and build.sass is None for build in facts.builds)
        if facts and (self.arch in facts.unseen or (self.devices and unread)):
            return None  # nobody has seen it: aarch64's of cu129 runs on a GB10 (pollen-robotics/microduck_rl#2)
        return self.resolved(f"=={release.torch}", variant=variant)

    def resolved(self, torch: str | None, **axes: str | None) -> Resolution:
        """Return the answer for a Python that the file allows and that has a wheel, else for the first it allows."""
        given: list[str | None] = [
            name for name in _PYTHONS if self.file.python and meets(f"{name}.99", self.file.python)
        ]
        if self.query.python and (not given or self.query.python in given):
            given = [self.query.python]
        queries = [self.query.replace(torch=torch, python=python, **axes) for python in given or [None]]
        answers = (resolve(self.matrix, query) for query in queries)
        return next((each for each in answers if each.legal), None) or resolve(self.matrix, queries[0])

    def _index(self, pin: Pin) -> Iterator[PinFinding]:
        variants = [index.variant for index in pin.indexes if index.variant]
        release = self.matrix.release(pin.exact or "")
        if pin.local and pin.local not in variants and not any(index.of_a_site for index in pin.indexes):
            named = f"this is the one of {variants[0]}" if variants else "it is not named"
            what = f"only PyTorch's index of {pin.local} has +{pin.local} wheels, and {named}"
            level: Level = "unreal" if pin.sure or pin.indexes else "outdated"
            yield PinFinding(pin.line, "P102", level, what, f"write {pin.text}{_from(pin, pin.local)}")
        extra = variants and not pin.local and all(index.extra for index in pin.indexes)
        if release and extra and not any(map(release.variant, variants)):
            took = f"torch {release.torch}+{release.pypi.get(self.arch, 'cpu')} of the Python index"
            what = f"the index of {variants[0]} has no torch {release.torch}: pip takes {took}"
            with_it = next((row.torch for row in self.newest_first if row.variant(variants[0])), release.torch)
            fix = f"write torch=={with_it}{_from(pin, variants[0])}, or leave the index out"
            yield PinFinding(pin.line, "P103", "outdated", what, fix)

    def _instead(self, pin: Pin, answer: Resolution) -> str:
        """Return what runs there as it is, first with the torch that was asked for; then the nearest alternatives."""
        best = (self.resolved(torch, variant=None) for torch in (pin.specifier or None, None))
        runs = next((each.cell for each in best if each.verdict != _COMPAT and each.cell), "")
        cells = {runs: "runs as it is"} if self.query.driver or self.devices else {}
        offers: dict[str, str] = {}
        for name, change in (cells | {offer.cell: offer.change for offer in answer.alternatives}).items():
            cell = Cell.parse(name)
            release = self.matrix.release(cell.torch) if cell else None
            if cell and release:
                named = [index.variant for index in pin.indexes if index.variant]
                plain = not (pin.local or named) and release.pypi.get(self.arch) == cell.variant
                right = pin.exact == cell.torch and (plain or ([cell.variant] == named and pin.local in {"", *named}))
                text = f"write torch=={cell.torch}" + ("" if plain else f"+{cell.variant}{_from(pin, cell.variant)}")
                driver = change.partition(": driver >= ")[2] if right else ""
                keep = f"the file is right; install driver >= {driver}"
                offers.setdefault(text, keep if driver else f"{text} ({change})")
        node = {"gpu": self.query.gpus, "cc": self.query.cc, "driver": [self.query.driver or ""]}
        words = (word for name, values in node.items() for one in values if one for word in (f"--{name}", one))
        why = f"no torch runs there: `{shlex.join(['envcheck', 'resolve', *words])}` says what could"
        return "; or ".join([*offers.values()][:2]) or why

    def beside(self, pin: Pin) -> Pin | None:
        """Return the torch that is installed with a pin: of its extra or group, else the only one of the file."""
        every = [other for other in self.file.pins if other.name == "torch"]
        mine = [other for other in every if pin.extra and other.extra == pin.extra]
        torches = [other for other in mine or every if other.exact]
        near = [other for other in torches if other.group == pin.group] or torches
        return near[0] if len({(other.exact, other.local) for other in near}) == 1 else None

    def library(self, pin: Pin) -> Iterator[PinFinding]:
        torch = self.beside(pin)
        answer = self.answer(torch) if torch else None
        release = self.matrix.release(torch.exact or "") if torch else None
        if torch is None or answer is None or release is None:
            return
        if len({sum(line <= each.line for line, _ in self.file.bases) for each in (torch, pin)}) > 1:
            return  # they are in different stages
        if pin.name == "numpy":
            # torch 2.3 is the first for NumPy 2 (securefederatedai/openfederatedlearning#999).
            if key(release.torch) < key("2.3.0") and re.search(r"(==|~=|>=?)2", pin.specifier):
                what = f'torch {release.torch} is built for NumPy 1: with NumPy 2, "Numpy is not available"'
                yield PinFinding(pin.line, "P109", "unreal", what, "write numpy<2")
            return
        variant, locked = release.variant(answer.query.variant or ""), pin.sure and not pin.group
        cuda = re.search(r"-cu(\d+)$", pin.name)
        if pin.channels is not None or torch.channels is not None or variant is None or variant.cuda is None:
            return  # the builds of conda have libraries of their own
        wanted = getattr(variant, _LIBRARIES[pin.name]) if variant.libraries_verified else None
        if cuda and cuda[1] != variant.cuda.partition(".")[0]:
            if wanted and pin.exact and key(pin.exact)[0] == key(wanted)[0]:
                # GoogleCloudPlatform/scientific-computing-examples#157: torch loaded the older NCCL.
                what = f"{pin.name} and torch's own of {variant.variant} have the same files: one overwrites the other"
                yield PinFinding(pin.line, "P109", "outdated", what, "leave it out: torch brings its own")
            return
        # A lock's overrides are meant so; one command with both is refused.
        if wanted and pin.exact and torch.group == pin.group and not locked and not meets(pin.exact, f"=={wanted}.*"):
            what = f"torch {torch.exact}+{answer.query.variant} requires {pin.name} {wanted}: pip takes no other"
            yield PinFinding(pin.line, "P109", "unreal", what, "leave it out: torch brings it")

    def companion(self, pin: Pin) -> Iterator[PinFinding]:
        torch = self.beside(pin)
        release = self.matrix.release(torch.exact or "") if torch else None
        wanted: str | None = getattr(release, pin.name, None)
        version = pin.exact or pin.specifier.removeprefix("==").removesuffix(".*")
        if torch is None or release is None or not re.fullmatch(r"[0-9]+\.[0-9.]+", version) or wanted is None:
            return
        what = ""
        if self._of_another(pin.name, version, release, wanted):
            what = f"{pin.name} {version} is for another torch than {release.torch}"
        elif pin.local and torch.local and pin.local != torch.local:
            what = f"{pin.name} of {pin.local} loads another CUDA than torch of {torch.local}"
        if what:
            local = f"+{torch.local}" if release.variant(torch.local) else ""
            yield PinFinding(pin.line, "P104", "unreal", what, f"write {pin.name}=={wanted}{local}")

    def _of_another(self, name: str, version: str, release: TorchRelease, wanted: str) -> bool:
        if key(version) >= key(_FREE[name]) and key(release.torch) >= key("2.9.0"):
            return False
        known = version in {getattr(row, name) for row in self.matrix.torch}
        return version != wanted and (known or key(version)[:2] != key(wanted)[:2])

    def extension(self, pin: Pin) -> Iterator[PinFinding]:
        extension, torch = self.extensions.find(pin.name), self.beside(pin)
        # pt28cu128, torch2.4cxx11abiTRUE, pt2.5.1cu124, torch250cu124; a page's torch-2.4.0+cu121.html, cu118/torch2.0
        pages = " ".join(each.url for each in pin.indexes if re.search(_PAGES.get(pin.name, "(?!)"), each.url))
        built = re.findall(r"((?:torch|pt)-?(\d)\.?(\d+))", pin.local or pages)
        major, minor, micro = (torch.exact if torch and torch.exact else "..").split(".")[:3]
        beside, tag = self.answer(torch) if torch else None, re.search(r"-cp3(\d+)-cp", pin.text)
        variant, python = (beside.query.variant if beside else None) or "", self.query.python
        allowed = f"=={python.removesuffix('t')}.*" if python else self.file.python
        said = ("", "")
        if torch and major and built and not {(major, minor), (major, minor + micro)} & {one[1:] for one in built}:
            what = f"this wheel is built for {built[0][0]}: the torch beside it lacks symbols that it needs"
            said = (what, f"take the project's wheel for {torch.text}")
        elif torch and torch.exact and built and self._other_strings(pin, torch, variant):
            what = f"this wheel and this torch {torch.exact} have different C++ strings"
            strings = "TRUE" if has_new_strings(torch.exact, variant, self.arch) else "FALSE (flash-attn 2.7 for 2.6)"
            said = (what, f"take the project's wheel with cxx11abi{strings}; of conda-forge its own package")
        elif tag and allowed and not any(meets(f"3.{tag[1]}.{patch}", allowed) for patch in range(100)):
            what = f"this wheel is for Python 3.{tag[1]}, and here it is {allowed.strip('=.*')}"
            said = (what, "take the project's wheel for this Python")
        if said[0]:
            yield PinFinding(pin.line, "P105", "unreal", *said)
        one = re.fullmatch(r"==[^,*]+", pin.specifier) and pin.channels is None
        plain = beside if extension and one else None
        if plain is None or extension is None or not plain.legal:
            return
        joint = resolve_with(self.matrix, self.extensions, plain, [WantedExtension(extension, pin.specifier)])
        for refused in joint.refused:
            if refused.word in REFUSED and not refused.not_known:
                other = resolve_with(self.matrix, self.extensions, plain, [WantedExtension(extension)])
                fits = next((f"write {each.name}=={each.version}" for each in other.extensions), "")
                fix = fits or f"take a torch that {pin.text} is for, or leave it out"
                yield PinFinding(pin.line, "P105", "unreal", refused.reason, fix)

    def _other_strings(self, pin: Pin, torch: Pin, variant: str) -> bool:
        """Return whether a project's wheel has other C++ strings than torch: conda-forge's torch has the new ones."""
        # For torch 2.5 and older they have the old ones, unless their name says TRUE.
        new, old, exact = _NEW_STRINGS.search(pin.text), _OLD_STRINGS.search(pin.text), torch.exact or ""
        if torch.channels is None:
            one = pin.extra or len({other.indexes for other in self.file.pins if other.name == "torch"}) == 1
            return bool(one and variant and (old if has_new_strings(exact, variant, self.arch) else new))
        return (
            not new
            and key(exact) < key("2.6")
            and {"conda-forge"} == set(torch.channels) - {"nvidia", "defaults", "nodefaults"}
        )

    def _conda(self, pin: Pin) -> Iterator[PinFinding]:
        releases = [row for row in self.newest_first if meets(row.torch, pin.specifier)]
        held = [row.torch for row in releases if key(row.torch) <= key(_LAST_CONDA)]
        names, channels = {other.name for other in self.file.pins}, pin.channels or ()
        # Beside conda-forge's releases pytorch-cuda binds no build: that for the CPU is taken (esa/AnomalyMatch#11).
        mixed = "conda-forge" in channels and (held or "pytorch-cuda" not in names)
        ended = "pytorch" in channels and not mixed
        if releases and ended and not (held and pin.specifier):
            what = f"PyTorch's conda channel ends with {_LAST_CONDA}"
            fix = f"write torch=={releases[0].torch} below `- pip:`, or take it from the channel conda-forge alone"
            yield PinFinding(pin.line, "P106", "outdated" if held else "unreal", what, fix)
        # Its builds have the CUDA and the code of the wheels; only that channel has the package pytorch-cuda.
        own = "cpuonly" not in names and "cpu" not in pin.text and (ended or "pytorch-cuda" in names)
        answer = (
            self.resolved(",".join(filter(None, [pin.specifier, f"<={_LAST_CONDA}"])), variant=None)
            if own and held and self.devices
            else None
        )
        if answer is not None and answer.verdict == TOO_NEW:
            yield PinFinding(pin.line, "P101", "unreal", answer.reasons[0], self._instead(pin, answer))

    def base(self, line: int, image: str) -> Iterator[PinFinding]:
        cuda = _CUDA_BASE.fullmatch(image)
        with contextlib.suppress(ConfigError):  # a CUDA without facts is not judged
            driver = self.query.driver
            sentence = what_base_refuses(self.facts, cuda["cuda"], driver, self.devices) if cuda and driver else ""
            if " refuses to start: " in sentence:
                fix = "write FROM ubuntu:24.04 or python:3.12-slim: torch's wheels bring their CUDA"
                yield PinFinding(line, "P107", "unreal", sentence, fix)


def _is_outside(pin: Pin) -> bool:
    """Return whether the matrix has no facts about a wheel: for other devices, of another day, of somebody's own."""
    return not re.fullmatch(r"(cpu|cu[0-9]{2,3})?", pin.local) or any(
        _OUTSIDE.search(text) for text in (pin.text, *(index.url for index in pin.indexes))
    )


def _from(pin: Pin, variant: str) -> str:
    """Return the option with the pin's own PyTorch index, without its login, for a variant; or with PyTorch's."""
    found = next((found for index in pin.indexes if (found := _OF_VARIANT.search(index.url))), None)
    above = re.sub(r"//.*@", "//", found.string[: found.start("variant")]) if found else f"{PYTORCH}/whl/"
    extra = "" if any(index.variant and not index.extra for index in pin.indexes) else "extra-"
    option = f", and above it the line --{extra}index-url" if pin.own_line else " --index-url"
    return f"{option} {above}{variant}"

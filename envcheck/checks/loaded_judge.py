"""Judge what came of importing installed extensions and of their smallest operations."""

import re
import signal
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from envcheck.binaries import native_library
from envcheck.checks import Limit, Outcome, Ranks, View, failed, passed, skipped, undecided, warned, worst
from envcheck.checks.extensions.trials import GONE, choice
from envcheck.checks.installed_judge import LAZY, fitting_release

LIMIT = Limit(0, "misfits", "an import, dlopen(3) and a result that torch confirms", "equal")
# What packages say on a machine without a GPU or its driver.
_NO_GPU = re.compile(
    r"libcuda\.so|libnvidia-ml\.so|NVIDIA driver|no CUDA GPUs|no CUDA-capable device|No CUDA runtime is found|"
    r"CUDA driver|cudaErrorNoDevice|cudaErrorInsufficientDriver|Torch not compiled with CUDA",
    re.IGNORECASE,
)
# CUDA does not work in a process that was forked from one which used it: that is no fault of the extension.
_FORKED = re.compile(r"CUDA in forked subprocess|CUDA error: initialization error", re.IGNORECASE)
_NO_KERNEL = re.compile(r"no kernel image is available", re.IGNORECASE)
_LOG = "the check's log has what it printed"
# deepspeed raises at import where it finds no nvcc, and transformers and trl with it: hiyouga/LlamaFactory#9270.
_NVCC = "install nvcc of torch's CUDA and set CUDA_HOME to it (a devel image has it), or a newer release"


class Lack(NamedTuple):
    """What is lacking, the code of the outcome, and what to do: "" where it is no fault of the environment."""

    text: str
    code: str
    fix: str


class LoaderText(msgspec.Struct, frozen=True):
    """What a loader or an import said, and what it names; `brought`: the environment has the library it names.

    `dependency` is the version of another package that has no longer what was asked of it.
    """

    text: str
    type: str = ""
    symbol: str = ""
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


class TriedExtension(msgspec.Struct, frozen=True):
    """An installed extension. `trial` is None where no time was left; `operation`: one is known for it."""

    name: str
    version: str
    libraries: int
    gpu_code: bool
    operation: bool
    trial: Trial | None

    @property
    def shown(self) -> str:
        """Return name and version."""
        return f"{self.name} {self.version}"


class MeasuredTrials(msgspec.Struct, frozen=True):
    """All extensions of one environment."""

    gpu: bool
    extensions: list[TriedExtension]


def judge(view: View, ranks: Ranks) -> Outcome:
    """Return the outcome of the check `extensions-loaded`."""
    raw = ranks[0] if ranks else {}
    try:
        measured = msgspec.convert(raw, MeasuredTrials)
    except msgspec.ValidationError:
        return undecided("no extension was tried", code="extensions-loaded.unmeasured")
    if not measured.extensions:
        return skipped("no extension with native code for torch or CUDA is installed", code="extensions-loaded.none")
    judges = [_ExtensionJudge(view, raw, extension, gpu=measured.gpu) for extension in measured.extensions]
    names = ", ".join(extension.shown for extension in measured.extensions)
    sound = passed(f"{names}: loaded and right", value=0, limit=LIMIT)
    return worst([finding for one in judges for finding in one.findings()], sound)


class _ExtensionJudge:
    """Judges one extension; `measured` says which interpreter it was tried in."""

    def __init__(self, view: View, measured: Mapping[str, Any], extension: TriedExtension, *, gpu: bool) -> None:
        self.view, self.extension, self.gpu = view, extension, gpu
        self.measured = {**measured, "torch": view.environment.get("torch")}
        self.cuda = bool(view.environment.get("cuda"))

    def findings(self) -> list[Outcome]:
        """Return what is wrong, or why it is no pass."""
        trial = self.extension.trial
        if trial is None:
            return [self._undecided("not tried: no time was left", "extensions-loaded.not-looked-at")]
        if not trial.done:
            return [self._ended(trial)]
        if trial.error is not None:
            return [self._raised(trial, trial.error)]
        return [*self._refused(trial), *self._wrong(trial)] or [*self._without_proof(trial)]

    def _ended(self, trial: Trial) -> Outcome:
        if trial.code is None:
            text = f"{trial.step or 'its start'} did not end within {trial.limit:g} s"
            return self._undecided(text, "extensions-loaded.hang")
        if not trial.step:
            text = f"its process ended with exit code {trial.code} at once"
            return self._undecided(text, "extensions-loaded.not-looked-at")
        how = signal.Signals(-trial.code).name if -trial.code in set(signal.Signals) else f"exit code {trial.code}"
        text = f"{trial.step} ended the process: {how}"
        return self._failed(text, f"{self._fitting()}; {_LOG}", "extensions-loaded.crash")

    def _raised(self, trial: Trial, error: LoaderText) -> Outcome:
        lacking = self._lack(error, trial) or self._most_telling(trial)
        if lacking is not None:
            return self._lacks(lacking._replace(text=f"{trial.step}: {lacking.text}"))
        gone = self._gone(trial, error)
        if gone is not None:
            return gone
        if _FORKED.search(error.text):
            text = f"{trial.step}: CUDA was in use before its process began, so it could not be tried"
            return self._undecided(text, "extensions-loaded.not-looked-at")
        if not self.gpu and _NO_GPU.search(error.text):
            return self._skipped(f"{trial.step} needs a GPU: {_first(error.text)}", "extensions-loaded.cpu-only")
        text = f"{trial.step}: {error.type or 'an exception'}: {_first(error.text)}"
        if _NO_KERNEL.search(error.text):
            fix = f"install a {self.extension.name} with code for this GPU"
            return self._failed(text, fix, "extensions-loaded.no-gpu-code")
        code = "extensions-loaded.operation" if trial.imported else "extensions-loaded.import"
        return self._failed(text, f"{_NVCC if 'CUDA_HOME' in error.text else self._fitting()}; {_LOG}", code)

    def _gone(self, trial: Trial, error: LoaderText) -> Outcome | None:
        found = GONE.search(error.text)
        module = (found[1] or found[4]) if found else ""
        name = module.partition(".")[0]
        if not found or name == "torch" or self.extension.name.replace("-", "_").startswith(name):
            return None
        text = f"{self.extension.shown}: {trial.step}: {f'{name} {error.dependency}'.strip()} has no {module}."
        fix = f"install an older {name}, or a newer {self.extension.name}"
        verdict, code = (warned if trial.imported else failed), "extensions-loaded.dependency"
        about: dict[str, Any] = {"value": 1, "limit": LIMIT}
        return verdict(text + (found[2] or found[3]), fix=fix, code=code, culprit=name, **about)

    def _refused(self, trial: Trial) -> Iterator[Outcome]:
        held = {choice(path) for path in (*trial.mapped, *trial.alone)}
        reported: set[str] = set()
        for path, why in trial.refused.items():
            lacking = self._lack(why, trial)
            # cupy loads what the environment brings before its own; TensorRT is optional for onnxruntime.
            counts = lacking is not None and lacking.code in NEEDED and not why.brought
            if choice(path) in held or (not counts and (held or reported)):
                continue
            unknown = Lack(f"cannot be loaded: {_first(why.text)}", "extensions-loaded.fallback", self._fitting())
            lacking = lacking or unknown
            if lacking.code not in reported:
                reported.add(lacking.code)
                yield self._lacks(lacking._replace(text=f"imports, and goes on without {path}: {lacking.text}"))

    def _wrong(self, trial: Trial) -> Iterator[Outcome]:
        ran = trial.operation or []
        if ran and self.extension.libraries and not trial.mapped and not trial.refused:
            text = f"{ran[0].name} ran, and none of its {self.extension.libraries} libraries was loaded"
            yield self._failed(text, self._fitting(), "extensions-loaded.fallback")
        for result in ran:
            problem = _problem(result)
            if problem:
                text = f"{result.name} on {result.device} {problem}"
                yield self._failed(text, self._fitting(), "extensions-loaded.operation")
            elif result.on not in ("", result.device):
                text = f"{result.name} on {result.device} computed on {result.on}"
                yield self._failed(text, self._fitting(), "extensions-loaded.fallback")

    def _without_proof(self, trial: Trial) -> Iterator[Outcome]:
        ran = "".join(f", and {result.name} is right on the CPU" for result in trial.operation or [])
        if self.extension.gpu_code and not self.gpu:
            yield self._skipped(f"it loads{ran}; no GPU to run it on", "extensions-loaded.cpu-only")
        elif self.gpu and trial.operation is None and (self.extension.gpu_code or self.extension.operation):
            text = "it loads; no operation of it is known to run on the GPU"
            yield self._skipped(text, "extensions-loaded.no-operation")
        elif not self.extension.libraries and not trial.operation:
            text = "it imports, and has no library of its own that could be loaded"
            yield self._skipped(text, "extensions-loaded.no-operation")

    def _lack(self, error: LoaderText, trial: Trial) -> Lack | None:
        if error.symbol:
            whose = "which this torch does not define" if error.torchs else "which no library defines"
            code = "extensions-loaded.torch-abi" if error.torchs else "extensions-loaded.symbol"
            return Lack(f"needs {error.symbol}, {whose}", code, self._fitting())
        if error.version:
            fix = f"use a base with {error.version.replace('_', ' ')} or newer, or a wheel with an older manylinux tag"
            return Lack(f"needs {error.version}, which this system does not have", "extensions-loaded.glibc", fix)
        if error.invalid:
            text = f"{error.invalid} is no library of this machine"
            return Lack(text, "extensions-loaded.import", f"install {self.extension.name} again")
        # A library of its own that lacks another is refused itself, and says why.
        own = {path.rpartition("/")[2] for path in (*trial.mapped, *trial.alone, *trial.refused)}
        return (
            self._library(error.library, brought=error.brought) if error.library and error.library not in own else None
        )

    def _library(self, library: str, *, brought: bool) -> Lack:
        text, driver = f"needs {library}, which the loader does not find", native_library.is_drivers(library)
        if driver and not self.gpu:
            return Lack(text, "extensions-loaded.cpu-only", "")
        if not driver and (native_library.is_nvidias(library) or native_library.is_torch_library(library)):
            if self.extension.name in LAZY and not self.cuda:
                text += ": torch is for the CPU, and it runs without its native part"
                return Lack(text, "extensions-loaded.cpu-torch", "")
            if brought:  # bitsandbytes-foundation/bitsandbytes#1905
                fix = f"the environment has it: put its directory on LD_LIBRARY_PATH, or {self._fitting()}"
                return Lack(text, "extensions-loaded.missing-library", fix)
            fix = f"the wheel was built for another CUDA than torch: {self._fitting()}"
            return Lack(text, "extensions-loaded.cuda-major", fix)
        fix = f"install what brings {library}, or put its directory on LD_LIBRARY_PATH"
        if driver:
            fix = "install the libraries of this GPU's driver"
        elif _FFMPEG.fullmatch(library):
            fix = fix.replace("what", "FFmpeg with its shared libraries (Debian: ffmpeg) that")
            text += ": that is FFmpeg's"
        return Lack(text, "extensions-loaded.missing-library", fix)

    def _most_telling(self, trial: Trial) -> Lack | None:
        if trial.imported or trial.mapped:
            return None
        named = [(path, self._lack(why, trial)) for path, why in trial.refused.items()]
        reasons = [one._replace(text=f"{path} {one.text}") for path, one in named if one is not None]
        return min(reasons, key=lambda one: (_TELLING.index(one.code), "FFmpeg" in one.text), default=None)

    def _fitting(self) -> str:
        return fitting_release(self.view, self.measured, self.extension.name, self.extension.version)

    def _lacks(self, lacking: Lack) -> Outcome:
        if not lacking.fix:
            return self._skipped(lacking.text, lacking.code)
        return self._failed(lacking.text, lacking.fix, lacking.code)

    def _failed(self, what: str, fix: str, code: str) -> Outcome:
        text, name = f"{self.extension.shown}: {what}", self.extension.name
        return failed(text, fix=fix, code=code, culprit=name, value=1, limit=LIMIT)

    def _skipped(self, what: str, code: str) -> Outcome:
        return skipped(f"{self.extension.shown}: {what}", code=code, culprit=self.extension.name)

    def _undecided(self, what: str, code: str) -> Outcome:
        fix = f"{_LOG}; try the import by hand with `python -X faulthandler`"
        return undecided(f"{self.extension.shown}: {what}", fix=fix, code=code, culprit=self.extension.name)


def _problem(result: MeasuredOperation) -> str:
    count, right = result.count if len(result.count) == 2 else (0, 1)  # noqa: PLR2004 (of the result and expected)
    if count != right or not right:
        return f"returned {count} numbers instead of {right}"
    if result.off is None:
        return "is wrong: no numbers"
    return "" if result.off <= result.tolerance else f"is wrong: {result.off:.2g} off, over {result.tolerance:g}"


def _first(text: str) -> str:
    return next((line.strip()[:300] for line in text.splitlines() if line.strip()), "without a text")


# The most telling first: a symbol that is missing says more than a library of which one of several versions would do.
_TELLING = (
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
NEEDED = {_TELLING[0], _TELLING[2], _TELLING[3], _TELLING[6]}
_FFMPEG = re.compile(r"lib(?:avutil|avcodec|avformat|avdevice|avfilter|swscale|swresample)\.so\.\d+")

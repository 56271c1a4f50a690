"""What the target's Python and torch say of themselves.

python "3.11.2", executable, prefix        always
packages {"torch": "2.13.0", ...}          installed distributions, by normalised name: all of them in an environment
                                           that envcheck made, elsewhere only torch's family and NVIDIA's
threads 8                                  the threads that OpenMP starts: of OMP_NUM_THREADS, at most one a core
error, import_trials {…}                   why torch cannot be imported, and what was tried: then nothing below is there
torch "2.13.0+cpu", cuda "12.8" | None, cudnn "9.10.2" | None, nccl "2.27.5" | None, hip, git_version,
arch_list ["sm_80", ...]                   what it was built with; build_facts_error when even asking crashed
device_count, devices [{index, name, capability "9.0", uuid, memory (bytes)}], device_error
                                           what CUDA shows; device_facts_error when asking crashed or hung
libcuda "/usr/…/libcuda.so.570.124.06"     the driver library that was loaded, cuda-compat's or the driver's own; and
cuinit 0                                   what cuInit returned (CUresult); neither where there is no libcuda

What is tried once torch cannot be imported, so that a file, a variable or a package can be blamed:

unlike ["/…/libtorch_cpu.so: 5 bytes, and …"]  libraries of torch's family that are not as large as they were installed
works_without ["LD_LIBRARY_PATH"]              variables without which the import works in a fresh process
taken ["/opt/x/libgomp.so.1 (4.5), not …"]     libraries that a failing import finds elsewhere than one that works
modules ["/opt/x/typing_extensions.py"]        what a failing import took from PYTHONPATH
last "/…/libtorch_cpu.so"                      the library that the loader was in when the import died of a signal

ld.so says with LD_DEBUG=libs,files where it looks and what it loads (man ld.so); another loader says nothing.
"""

from __future__ import annotations

import csv
import ctypes
import importlib
import importlib.machinery
import importlib.metadata
import locale
import mmap
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from envcheck.checks.support import package_files, progress_file
from envcheck.node import subprocesses
from envcheck.runner.worker import process_limits

# Where an environment made by envcheck says so: beside its Python, or in its image.
_OURS = ("{prefix}/envcheck-promises.json", "/etc/envcheck/promises.json")
_FAMILY = re.compile(r"(pytorch-)?(torch|triton)(-\w+)?|torch(vision|audio|text|data|ao|codec)|nvidia-.+")
VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH")
LOCALE = {"LC_ALL": "C.UTF-8"}
_TOGETHER = 120.0  # seconds for all trials; an import took at most plan["import_timeout"] before
_SHOWN = 10
_END = 4096
_CODE = """
import os, sys
print("process:%d" % os.getpid(), file=sys.stderr, flush=True)
try:
    import torch
finally:
    places = tuple(os.path.join(p, "") for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)
    files = [str(getattr(m, "__file__", None)) for m in list(sys.modules.values())]
    print("\\n".join("from:" + f for f in files if places and f.startswith(places)), file=sys.stderr)
"""
# What is asked for, a place where it may be, and a file that is read or initialised.
_SAID = [
    re.compile(text) for text in (r"find library=(\S+)", r"trying file=(\S+)", r"(?:init: |trying file=|\tfile=)(/\S+)")
]
_OVER = re.compile("opening file=|transferring control|calling fini")  # that loading came to its end
_VERSIONS = {
    "libstdc++": rb"GLIBCXX_(\d+(?:\.\d+)*)\0",
    "libgomp": rb"GOMP_(\d+(?:\.\d+)*)\0",
    "libgcc_s": rb"GCC_(\d+(?:\.\d+)*)\0",
    "libnccl": rb"NCCL version (\d+(?:\.\d+)*)",
}


def python_facts() -> dict[str, Any]:
    """Return what is known before torch is imported."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "packages": _packages(),
        "device_count": 0,
        "devices": [],
    }


def _packages() -> dict[str, str]:
    """Return the installed versions; names of a stranger's own packages are nobody's business."""
    built_by_envcheck = any(os.path.exists(place.format(prefix=sys.prefix)) for place in _OURS)  # noqa: PTH110 (no Path is made here)
    versions = {}
    for distribution in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        # The first of a name on sys.path is the one that is imported.
        if name and name not in versions and (built_by_envcheck or _FAMILY.fullmatch(name)):
            versions[name] = distribution.version
    return dict(sorted(versions.items()))


def cuda_is_up() -> bool:
    """Return whether importing torch has already initialised CUDA, which no fork survives."""
    torch = sys.modules.get("torch")
    return bool(torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized())


def dotted_cudnn(number: int | None) -> str | None:
    """Return 91002 as "9.10.2"; before 9, 8902 was 8.9.2."""
    if number is None:
        return None
    major = 10000 if number >= 10000 else 1000  # noqa: PLR2004 (where cuDNN changed its formula)
    return f"{number // major}.{number % major // 100}.{number % 100}"


def dotted_nccl(number: Any) -> str | None:
    """Return (2, 27, 5) or the 2.x integer form as "2.27.5"."""
    if isinstance(number, int):
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return ".".join(str(part) for part in number[:3]) if number else None


def build_facts(_rank: object = None) -> dict[str, Any]:
    """Return what torch was built with; needs no device."""
    torch = importlib.import_module("torch")
    with_cuda = torch.version.cuda is not None
    distributed = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    # torch.cuda.get_arch_list() is empty without a device; the flags it is made from are not.
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)() if with_cuda else None  # noqa: SLF001
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "git_version": getattr(torch.version, "git_version", None),
        "cudnn": dotted_cudnn(torch.backends.cudnn.version()) if with_cuda else None,
        "nccl": dotted_nccl(torch.cuda.nccl.version()) if with_cuda and distributed else None,
        "arch_list": flags.split() if flags else [],
    }


def device_facts(_rank: object = None) -> dict[str, Any]:
    """Return what CUDA shows this process, or in `device_error` why it shows nothing."""
    torch = importlib.import_module("torch")
    driver = driver_facts()
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError, AttributeError) as error:
        return {"device_error": (str(error).strip() or repr(error)).splitlines()[0], **driver}
    count = torch.cuda.device_count()
    return {"device_count": count, "devices": [_device(torch, index) for index in range(count)], **driver}


def driver_facts() -> dict[str, Any]:
    """Initialise the driver and return which libcuda the loader took, and what it said; only for a child that ends."""
    try:
        code = ctypes.CDLL("libcuda.so.1").cuInit(0)
    except (OSError, AttributeError):
        return {}
    with open("/proc/self/maps", errors="replace", encoding="utf-8") as maps:  # noqa: PTH123 (no Path is made here)
        paths = [line.split(maxsplit=5)[-1].strip() for line in maps]
    mapped = next((path for path in paths if os.path.basename(path).startswith("libcuda.so")), None)  # noqa: PTH119 (as above)
    return {"cuinit": code, "libcuda": mapped}


def _device(torch: Any, index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", "") or "")
    return {
        "index": index,
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        # NVML writes GPU-1a2b..., torch (from 2.4 on) the bare UUID.
        "uuid": f"GPU-{uuid}" if uuid and not uuid.startswith(("GPU-", "MIG-")) else uuid or None,
        "memory": properties.total_memory,
    }


class Trial(NamedTuple):
    """One import in a fresh process: its wait status, the libraries by name, and the last that the loader named."""

    status: int
    libraries: dict[str, str]
    last: str
    modules: list[str]


def refuse_torch(why: str) -> None:
    """Have `import torch` raise in this process and its forks, where it would end them; its place can be asked."""

    def execute(_module: Any) -> None:
        raise ImportError(why)

    def find_spec(name: str, path: Any = None, _target: Any = None) -> Any:
        spec: Any = importlib.machinery.PathFinder.find_spec(name, path) if name == "torch" else None
        if spec is not None:
            spec.loader = SimpleNamespace(create_module=lambda _: None, exec_module=execute)
        return spec

    sys.meta_path.insert(0, SimpleNamespace(find_spec=find_spec))


def lost_import(status: int, log: Path, timeout: float) -> str:
    """Say how a process ended while it imported torch: `status` is its exit code, or the negated signal."""
    if status == -signal.SIGALRM:
        return f"importing torch took longer than {timeout:g} s"
    # A process may have made its log of any length.
    end = progress_file.content(log, _END, max(0, log.stat().st_size - _END)) if log.exists() else None
    last = process_limits.telling_line((end or b"").lstrip(b"\0").decode(errors="replace"))
    manner = f"{process_limits.ended(status)} while importing torch"
    return process_limits.explained(f"the worker {manner}{': ' if last else ''}{last}")


def try_imports(error: str, directory: Path) -> dict[str, Any]:
    """Return what can be blamed for an import of torch that failed with `error`; `directory` takes what is written."""
    unlike = [*_unlike()][:_SHOWN]
    # An import that the kernel ends for time or memory ends so again, and takes its time.
    if unlike or any(word in error for word in ("SIGKILL", "SIGALRM", "SIGXCPU", "took longer")):
        return {"unlike": unlike}
    until = time.monotonic() + _TOGETHER
    failing = _trial(dict(os.environ), directory, until)
    found: dict[str, Any] = {"unlike": [], "works_without": [], "taken": [], "modules": failing.modules[:_SHOWN]}
    set_here = [name for name in VARIABLES if os.environ.get(name)]
    clean = _trial({**_less(*set_here), **LOCALE}, directory, until)
    if failing.status and not clean.status:
        alone = {name: _less(name) for name in set_here}
        if not locale.getpreferredencoding(do_setlocale=False).upper().startswith("UTF"):
            alone["LC_ALL"] = {**os.environ, **LOCALE}
        works = [name for name in alone if len(alone) == 1 or not _trial(alone[name], directory, until).status]
        pairs = [(path, clean.libraries.get(name, path)) for name, path in sorted(failing.libraries.items())]
        taken = [(path, own) for path, own in pairs if os.path.realpath(path) != os.path.realpath(own)]
        found["works_without"] = works or set_here
        found["taken"] = [f"{path} ({version(path)}), not {own} ({version(own)})" for path, own in taken][:_SHOWN]
    return {**found, "last": failing.last if failing.status < 0 else ""}


def _less(*names: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in names}


def _unlike() -> Iterator[str]:
    """Yield the libraries of torch's family that are gone or of another size than RECORD has; conda changes some."""
    for package in [p for p in package_files.packages() if not package_files.OVERLAID.match(p.name)]:
        where = Path(package.where)
        record = where / "RECORD"
        text = record.read_text(encoding="utf-8") if package.ledger == "RECORD" and record.exists() else ""
        for row in csv.reader(text.splitlines()):
            if len(row) > 2 and ".so" in row[0] and row[2].isdecimal():  # noqa: PLR2004 (path, hash, size)
                path = Path(os.path.normpath(where.parent / row[0]))
                actual = path.stat().st_size if path.exists() else 0
                if actual != int(row[2]):
                    yield f"{path}: {actual} bytes, and was installed with {row[2]}"


def _trial(variables: Mapping[str, str], directory: Path, until: float) -> Trial:
    """Import torch in a fresh process; one for which no time is left has failed."""
    spoken = {"LD_DEBUG": "libs,files", "LD_DEBUG_OUTPUT": str(directory / "loader")}
    command = [sys.executable, "-B", "-c", _CODE]
    done = subprocesses.run(command, max(until - time.monotonic(), 1.0), 0.0, {**variables, **spoken})
    process = re.search(r"^process:(\d+)$", done.errors, re.MULTILINE)
    log = directory / f"loader.{process[1] if process else ''}"
    said = log.read_text(errors="replace") if log.exists() else ""
    return Trial(1 if done.code is None else done.code, *_read(said), re.findall(r"(?m)^from:(.+)$", done.errors))


def _read(log: str) -> tuple[dict[str, str], str]:
    """Return where each library was found, by the name that was asked for, and the one that was being loaded last."""
    libraries: dict[str, str] = {}
    name, last = "", ""
    for line in log.splitlines():
        asked, tried, loaded = (pattern.search(line) for pattern in _SAID)
        name = asked[1] if asked else name
        last = "" if _OVER.search(line) else last
        last = loaded[1] if loaded and os.path.exists(loaded[1]) else last  # noqa: PTH110 (thousands of lines)
        if tried:
            libraries[name] = tried[1]
    return {name: path for name, path in libraries.items() if os.path.exists(path)}, last  # noqa: PTH110 (as above)


def version(path: str) -> str:
    """Return what a library's file says of its version: in its name, else in its text; else its size."""
    real = os.path.realpath(path)
    name, _, numbers = os.path.basename(real).partition(".so.")  # noqa: PTH119 (no Path is made here)
    if "." in numbers:
        return numbers
    size = os.path.getsize(real)  # noqa: PTH202 (as above)
    pattern = _VERSIONS.get(name)
    if pattern and size:
        with open(real, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:  # noqa: PTH123 (as above)
            found = {str(match, "ascii") for match in re.findall(pattern, text)}
        newest = max(([int(part) for part in one.split(".")] for one in found), default=[])
        if newest:
            return ".".join(map(str, newest))
    return f"{size} bytes"

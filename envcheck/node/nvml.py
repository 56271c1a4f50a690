"""GPUs as NVML shows them. Every query stands alone: what a GPU or driver does not support is a reason, not an end.

NVML is asked in a process of its own: where the driver is wedged a call never returns, nothing ends who made it, and a
thread of envcheck's would hold up its exit. The queries follow one another, as NVML serves one at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from envcheck.node import command, peers
from envcheck.node.lanes import Reading
from envcheck.node.queries import IDENTITY, QUERIES, Query, text
from envcheck.node.snapshot import Gpu, Signal, Snapshot, from_json, to_json

SOURCE: Final = "NVML"
# Where persistence mode is off the driver sets up each GPU anew, in seconds apiece, when it is first asked.
# https://docs.nvidia.com/deploy/driver-persistence/index.html
TIMEOUT: Final = 60.0
SILENT: Final = "NVML gave no answer"
NAMES: Final = ("driver.version", "driver.cuda", "nvml.version", "nvml.latency", "gpu.count", "gpu.p2p")
ASKED: Final = {"all": QUERIES, "identity": IDENTITY}
_PR_SET_PDEATHSIG: Final = 1
Signals = dict[str, Signal]
_ROOT: Final = Path(__file__).resolve().parents[2]
# Without the working directory on its path: a json.py that lies there is not ours.
_CODE: Final = """
import sys
sys.path[:] = [place for place in sys.path if place]
from envcheck.node.nvml import main
main(sys.argv[1], int(sys.argv[2]))
"""


def ask(what: str, timeout: float = TIMEOUT) -> Reading:
    """Ask NVML for "all" or the "identity" of the GPUs; after `timeout` seconds that it said nothing is the reason."""
    # An empty entry would be the working directory again.
    places = [str(_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    python, environment = Path(sys.executable), {"PYTHONPATH": os.pathsep.join(places)}
    try:
        said = command.output(python, "-c", _CODE, what, str(os.getpid()), timeout=timeout, environment=environment)
        snapshot = from_json(json.loads(said))
    except TimeoutError:
        return unread(f"{SILENT} in {timeout:g} s")
    except OSError as error:
        return unread(f"asking NVML: {error.strerror}")
    except ValueError as error:
        return unread(f"asking NVML: {error}")
    return Reading({name: snapshot.signal(name) for name in NAMES}, snapshot.gpus)


def read(nvml: Any, queries: tuple[Query, ...] = QUERIES) -> Reading:
    """Ask NVML (the `pynvml` module). `nvml.latency` is what the asking took: seconds mean a wedged driver."""
    began = time.perf_counter()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return unread(f"NVML: {error}")
    try:
        signals, gpus = _system(nvml), _gpus(nvml, queries)
        if queries is QUERIES:
            signals["gpu.p2p"] = _ask(nvml, functools.partial(peers.pairs, nvml))
    finally:
        with contextlib.suppress(nvml.NVMLError):  # what was read stands
            nvml.nvmlShutdown()
    signals["nvml.latency"] = Signal(time.perf_counter() - began, unit="s", source=SOURCE)
    return Reading(signals, gpus)


def unread(reason: str) -> Reading:
    """Return that nothing could be asked, and why."""
    return Reading({name: Signal(reason=reason, source=SOURCE) for name in NAMES}, [])


def _system(nvml: Any) -> Signals:
    return {
        "driver.version": _ask(nvml, lambda: text(nvml.nvmlSystemGetDriverVersion())),
        "driver.cuda": _ask(nvml, lambda: _cuda(nvml.nvmlSystemGetCudaDriverVersion_v2())),
        "nvml.version": _ask(nvml, lambda: text(nvml.nvmlSystemGetNVMLVersion())),
        "gpu.count": _ask(nvml, nvml.nvmlDeviceGetCount),
    }


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _gpus(nvml: Any, queries: tuple[Query, ...]) -> list[Gpu]:
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError:  # gpu.count says why
        return []
    return [_gpu(nvml, index, queries) for index in range(count)]


def _gpu(nvml: Any, index: int, queries: tuple[Query, ...]) -> Gpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        lost = Signal(reason=f"NVML: {error}", source=SOURCE)
        return Gpu(f"lost-{index}", {"index": Signal(index), **{query.name: lost for query in queries}})
    signals = {query.name: _ask(nvml, functools.partial(query.read, nvml, handle), query.unit) for query in queries}
    return Gpu(signals["uuid"].value or f"unnamed-{index}", {"index": Signal(index, source=SOURCE), **signals})


def _ask(nvml: Any, read_one: Callable[[], Any], unit: str | None = None) -> Signal:
    try:
        value = read_one()
    except nvml.NVMLError as error:
        return Signal(reason=f"NVML: {error}", unit=unit, source=SOURCE)
    except (AttributeError, TypeError, ValueError, LookupError) as error:  # an nvidia-ml-py that is older, or other
        return Signal(reason=f"nvidia-ml-py: {error}", unit=unit, source=SOURCE)
    return (
        Signal(reason="NVML: no answer", unit=unit, source=SOURCE)
        if value is None
        else Signal(value, None, unit, SOURCE)
    )


def load_nvml() -> Any:
    """Import nvidia-ml-py, which only a machine with the library has use for."""
    return importlib.import_module("pynvml")


def main(what: str, parent: int) -> None:
    """Print what NVML says, as the JSON of a Snapshot: what `ask` reads. It ends with the process that asked."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    try:
        reading = read(load_nvml(), ASKED[what])
    except ImportError as error:
        reading = unread(f"nvidia-ml-py: {error}")
    json.dump(to_json(Snapshot("", reading.signals, list(reading.gpus))), sys.stdout)

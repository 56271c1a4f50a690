"""A site's demands on what a node says of itself, each as a check of the run."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, undecided
from envcheck.checks.node.support import infiniband_ports
from envcheck.counting import counted
from envcheck.matrix.facts.gpu_names import find_gpu
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.facts.versions import key
from envcheck.matrix.file.load import load
from envcheck.node.snapshot import Signal
from envcheck.runner.planning.discover import CheckModule
from envcheck.runner.requirements.file import PROFILES, DriverDemand, GpuDemand, HostDemand, NetworkDemand, Requirements

_GIB: Final = 1 << 30
_FIX: Final = "compare the node with what was ordered; correct the file if it asks for too much"
Signals = list[Signal]


def checks(requirements: Requirements) -> list[CheckModule]:
    """Return a check for each demand, to be run with the others."""
    gpu, driver, host, source = requirements.gpu, requirements.driver, requirements.host, requirements.name
    modules = []

    def add(name: str, promise: str, judge: Callable[[View], Outcome]) -> None:
        check = Check(promise=promise, level="static", seconds=0.01)
        modules.append(CheckModule(f"require-{name}", "node", check, judge, f"Asked for by {source}.", "", PROFILES))

    if gpu:
        add("gpus", f"{counted(gpu.count, 'GPU')} at least", functools.partial(_count, source, gpu.count))
    if gpu and gpu.model:
        add("model", f"every GPU is a {gpu.model}", functools.partial(_model, source, gpu.model))
    for name, quantity, limit, signals in _bounds(requirements):
        add(name, quantity, functools.partial(_least, quantity, limit, signals))
    if host and host.hugepages:
        add("hugepages", f"transparent huge pages: {host.hugepages}", functools.partial(_pages, source, host.hugepages))
    if requirements.network:
        add(
            "network-ports",
            f"{counted(requirements.network.ports, 'port')} in use",
            functools.partial(_network, source, requirements.network),
        )
    if driver and (driver.min or driver.below):
        add("driver", f"driver from {driver.min or 'any'}", functools.partial(_driver, source, driver))
    return modules


def _bounds(requirements: Requirements) -> Iterator[tuple[str, str, Limit, Callable[[View], Signals]]]:
    """Yield what has to be at least so much: by name, in words, with its limit, and where it is read."""
    gpu, host = requirements.gpu or GpuDemand(), requirements.host or HostDemand()
    for name, signal, unit, least in (
        ("gpu-memory", "memory_total", "B", gpu.memory_gib and gpu.memory_gib * _GIB),
        ("pcie-gen", "pcie_gen_max", "", gpu.pcie_gen),
        ("pcie-width", "pcie_width", "lanes", gpu.pcie_width),
        ("nvlinks", "nvlinks_active", "links", gpu.nvlinks),
    ):
        if least is not None:
            yield (
                name,
                f"{signal} of every GPU",
                Limit(least, unit, requirements.name),
                functools.partial(_each, signal),
            )
    for name, signal, unit, least in (
        ("ram", "host.memory_total", "B", host.ram_gib and host.ram_gib * _GIB),
        ("cpus", "host.cpus", "CPUs", host.cpus),
        ("disk", "disk.cwd.free", "B", host.disk_gib and host.disk_gib * _GIB),
        ("shm", "shm.total", "B", host.shm_gib and host.shm_gib * _GIB),
        ("open-files", "limits.nofile", "files", host.open_files),
    ):
        if least is not None:
            yield name, signal, Limit(least, unit, requirements.name), _one(signal)


def _each(signal: str, view: View) -> Signals:
    return [gpu.signal(signal) for gpu in view.snapshot.gpus] or [_no_gpu(view)]


def _one(signal: str) -> Callable[[View], Signals]:
    return lambda view: [view.snapshot.signal(signal)]


def _no_gpu(view: View) -> Signal:
    driver = view.snapshot.signal("driver.version")
    return Signal(reason=f"no GPU: {driver.reason or 'NVML shows none'}", why=driver.why or "unsupported")


def _least(quantity: str, limit: Limit, signals: Callable[[View], Signals], view: View) -> Outcome:
    """Fail where the least of what was read is too little; what was not read is an error."""
    read_off = signals(view)
    unread = [signal.reason for signal in read_off if signal.value is None]
    if unread:
        return undecided(f"undetermined: {unread[0]}", fix=_FIX, code="require.unread")
    odd = [signal.value for signal in read_off if not _number(signal.value)]
    if odd and odd != ["unlimited"]:
        return undecided(
            f"{quantity} has an unexpected type or value: {str(odd[0])[:40]}", fix=_FIX, code="require.unexpected-value"
        )
    if odd:
        return passed(f"{quantity}: unlimited, for {limit.source}", value="unlimited", unit=limit.unit, limit=limit)
    least = min(signal.value for signal in read_off)
    verdict = passed if least >= limit.value else functools.partial(failed, fix=_FIX, code="require.not-met")
    return verdict(f"{quantity}, for {limit.source}", value=least, unit=limit.unit, limit=limit)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def _pages(source: str, setting: str, view: View) -> Outcome:
    mode, limit = view.snapshot.signal("host.hugepages"), Limit(setting, "", source, "equal")
    if mode.value is None:
        return undecided(f"undetermined: {mode.reason}", fix=_FIX, code="require.unread")
    summary = f"transparent huge pages: {mode.value}"
    if mode.value != setting:
        fix = f"echo {setting} > /sys/kernel/mm/transparent_hugepage/enabled, as root"
        return failed(summary, fix=fix, value=mode.value, limit=limit, code="require.not-met")
    return passed(summary, value=mode.value, limit=limit)


def _network(source: str, demand: NetworkDemand, view: View) -> Outcome:
    """Count the active ports that are fast enough; no such device is none of them."""
    signal, limit = view.snapshot.signal("ib.ports"), Limit(demand.ports, "ports", source)
    ports = infiniband_ports.ports(view)
    if isinstance(ports, Outcome) and signal.value != []:
        return undecided(f"undetermined: {ports.summary}", fix=_FIX, code="require.unread")
    up = [] if isinstance(ports, Outcome) else [port for port in ports if infiniband_ports.active(port)]
    fast = [port for port in up if (port.get("rate") or 0) >= (demand.gbit_s or 0)]
    summary = counted(len(fast), "active port") + (f" of {demand.gbit_s:g} Gb/s or more" if demand.gbit_s else "")
    verdict = passed if len(fast) >= demand.ports else functools.partial(failed, fix=_FIX, code="require.not-met")
    return verdict(f"{summary}, for {source}", value=len(fast), unit="ports", limit=limit)


def _count(source: str, count: int, view: View) -> Outcome:
    gpus, limit = len(view.snapshot.gpus), Limit(count, "GPUs", source)
    if not gpus >= count:
        why = counted(gpus, "GPU") if gpus else str(_no_gpu(view).reason)
        return failed(why, fix=_FIX, value=gpus, unit="GPUs", limit=limit, code="require.not-met")
    return passed(counted(gpus, "GPU"), value=gpus, unit="GPUs", limit=limit)


def _model(source: str, model: str, view: View) -> Outcome:
    matrix = view.matrix if isinstance(view.matrix, Matrix) else load()
    model_row, limit = find_gpu(matrix, model), Limit(model, "", source, "equal")
    names = [gpu.signal("name") for gpu in view.snapshot.gpus] or [_no_gpu(view)]
    unread = [signal.reason for signal in names if signal.value is None]
    if unread:
        return undecided(f"undetermined: {unread[0]}", fix=_FIX, code="require.unread")
    others = sorted({str(signal.value) for signal in names if find_gpu(matrix, str(signal.value)) != model_row})
    if others:
        return failed(
            f"not a {model}: {', '.join(others)}", fix=_FIX, value=others, limit=limit, code="require.not-met"
        )
    return passed(f"{len(names)} x {model}", value=model, limit=limit)


def _driver(source: str, demand: DriverDemand, view: View) -> Outcome:
    driver = view.snapshot.signal("driver.version")
    if driver.value is None:
        return undecided(f"undetermined: {driver.reason}", fix=_FIX, code="require.unread")
    version, span = key(str(driver.value)), f"{demand.min or ''}..{demand.below or ''}"
    limit = Limit(span, "driver version", source, "equal")
    low = demand.min is not None and version < key(demand.min)
    high = demand.below is not None and version >= key(demand.below)
    if low or high:
        return failed(
            f"driver {driver.value} is outside {span}",
            fix=_FIX,
            value=driver.value,
            limit=limit,
            code="require.not-met",
        )
    return passed(f"driver {driver.value}", value=driver.value, limit=limit)

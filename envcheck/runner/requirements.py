"""What a site demands of a node, written down in TOML, and each demand as a check of the run.

What the node says of itself is judged as a check of the node is. What has to be measured (`runner/demands.py`) is
judged by what the check that measures it came to: a measure that did not run is an error, never a pass.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, undecided
from envcheck.checks.node import _ports
from envcheck.errors import ConfigError
from envcheck.matrix.gpus import find_gpu, suggest
from envcheck.matrix.load import load
from envcheck.matrix.model import Matrix
from envcheck.matrix.versions import key
from envcheck.node.snapshot import Signal
from envcheck.runner import demands
from envcheck.runner.discover import Found

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROFILES: Final = Path(__file__).with_name("profiles")
_GIB: Final = 1 << 30
_FIX: Final = "compare the node with what was ordered; correct the file if it asks for too much"
Signals = list[Signal]
Some = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(gt=0)]


class GpuDemand(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """At least so many GPUs, each of them of this model and with at least so much of everything.

    `pcie_gb_s` is the slower of the two ways between host and GPU, `hbm_gb_s` a copy on the card, `bf16_tflops` a large
    matrix product, `peer_gb_s` the slowest pair of GPUs, `all_reduce_gb_s` the bus bandwidth over all of them.
    """

    count: Count = 1
    model: str | None = None
    memory_gib: Some | None = None
    pcie_gen: Count | None = None
    pcie_width: Count | None = None
    nvlinks: Count | None = None
    pcie_gb_s: Some | None = None
    hbm_gb_s: Some | None = None
    bf16_tflops: Some | None = None
    peer_gb_s: Some | None = None
    all_reduce_gb_s: Some | None = None


class DriverDemand(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A driver of at least `min`, and lower than `below`."""

    min: str | None = None
    below: str | None = None


class HostDemand(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """At least so much RAM, so many CPUs, so much free disk in the working directory and read so fast.

    `hugepages` is what the kernel's transparent huge pages have to be set to.
    """

    ram_gib: Some | None = None
    cpus: Count | None = None
    disk_gib: Some | None = None
    disk_read_gb_s: Some | None = None
    shm_gib: Some | None = None
    open_files: Count | None = None
    hugepages: Literal["always", "madvise", "never"] | None = None


class NetworkDemand(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """At least so many active InfiniBand or RoCE ports, each at so many Gb/s; the smallest all-reduce between nodes."""

    ports: Count = 1
    gbit_s: Some | None = None
    latency_us: Some | None = None


class Requirements(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A whole file."""

    name: str = "requirements"
    gpu: GpuDemand | None = None
    driver: DriverDemand | None = None
    host: HostDemand | None = None
    network: NetworkDemand | None = None


def read(given: str, matrix: Matrix | None = None) -> Requirements:
    """Read a file, or a shipped profile by its name. Raises ConfigError on what is no such thing."""
    path = Path(given) if Path(given).exists() else PROFILES / f"{given}.toml"
    if not path.is_file():
        names = ", ".join(sorted(p.stem for p in PROFILES.glob("*.toml")))
        message = f"no requirements at {given}"
        raise ConfigError(message, fix=f"give a TOML file, or one of {names}")
    try:
        wanted = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Requirements)
    except (OSError, UnicodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        message = f"{path}: {error}"
        raise ConfigError(message, fix=f"see {PROFILES / 'hgx-h100.toml'} for all that can be asked") from error
    _something(wanted, path)
    _finite(msgspec.to_builtins(wanted), path)
    _versions(wanted.driver, path)
    model = wanted.gpu.model if wanted.gpu else None
    known = matrix or load()
    if model and find_gpu(known, model) is None:
        message = f"{path}: gpu.model {model} is not known"
        near = suggest(known, model)
        raise ConfigError(message, fix=f"did you mean {' or '.join(near)}?" if near else "see `envcheck matrix show`")
    return wanted


def _finite(wanted: dict[str, Any], path: Path) -> None:
    tables = [(table, values) for table, values in wanted.items() if isinstance(values, dict)]
    endless = [f"{t}.{k}" for t, vs in tables for k, v in vs.items() if isinstance(v, float) and not math.isfinite(v)]
    if endless:
        message = f"{path}: {', '.join(endless)} is no number"
        raise ConfigError(message, fix="give a finite one, or leave it out")


def _versions(driver: DriverDemand | None, path: Path) -> None:
    given = [version for version in (driver.min, driver.below) if version] if driver else []
    try:
        keys = [key(version) for version in given]
    except ValueError as error:
        message = f"{path}: driver {' or '.join(given)} is no version"
        raise ConfigError(message, fix='write it as NVIDIA does, in quotes: "570.124.06"') from error
    if driver and driver.min and driver.below and keys[0] >= keys[1]:
        message = f"{path}: no driver is from {driver.min} and below {driver.below}"
        raise ConfigError(message, fix="give a `below` that is above `min`")


def _something(wanted: Requirements, path: Path) -> None:
    """Refuse a file that demands nothing: it would let every node pass."""
    tables = (wanted.gpu, wanted.driver, wanted.host, wanted.network)
    if all(table is None or table == type(table)() for table in tables):
        message = f"{path} demands nothing"
        raise ConfigError(message, fix=f"see {PROFILES / 'hgx-h100.toml'} for all that can be asked")
    if wanted.gpu and wanted.gpu.model is not None and not wanted.gpu.model.strip():
        message = f"{path}: gpu.model is empty"
        raise ConfigError(message, fix="name the model, or leave it out")


def checks(wanted: Requirements) -> list[Found]:
    """Return a check for each demand, to be run with the others."""
    gpu, driver, host, source = wanted.gpu, wanted.driver, wanted.host, wanted.name
    found = []

    def add(name: str, promise: str, judge: Callable[[View], Outcome]) -> None:
        check = Check(promise=promise, level="static", seconds=0.01)
        found.append(Found(f"require-{name}", "node", check, judge, f"Asked for by {source}.", "", PROFILES))

    if gpu:
        add("gpus", f"{gpu.count} GPUs at least", functools.partial(_count, source, gpu.count))
    if gpu and gpu.model:
        add("model", f"every GPU is a {gpu.model}", functools.partial(_model, source, gpu.model))
    for name, what, limit, signals in _bounds(wanted):
        add(name, what, functools.partial(_least, what, limit, signals))
    if host and host.hugepages:
        add("hugepages", f"transparent huge pages: {host.hugepages}", functools.partial(_pages, source, host.hugepages))
    if wanted.network:
        add(
            "network-ports", f"{wanted.network.ports} ports in use", functools.partial(_network, source, wanted.network)
        )
    if driver and (driver.min or driver.below):
        add("driver", f"driver from {driver.min or 'any'}", functools.partial(_driver, source, driver))
    return found


def _bounds(wanted: Requirements) -> Iterator[tuple[str, str, Limit, Callable[[View], Signals]]]:
    """Yield what has to be at least so much: by name, in words, with its limit, and where it is read."""
    gpu, host = wanted.gpu or GpuDemand(), wanted.host or HostDemand()
    for name, signal, unit, least in (
        ("gpu-memory", "memory_total", "B", gpu.memory_gib and gpu.memory_gib * _GIB),
        ("pcie-gen", "pcie_gen_max", "", gpu.pcie_gen),
        ("pcie-width", "pcie_width", "lanes", gpu.pcie_width),
        ("nvlinks", "nvlinks_active", "links", gpu.nvlinks),
    ):
        if least is not None:
            yield name, f"{signal} of every GPU", Limit(least, unit, wanted.name), functools.partial(_each, signal)
    for name, signal, unit, least in (
        ("ram", "host.memory_total", "B", host.ram_gib and host.ram_gib * _GIB),
        ("cpus", "host.cpus", "CPUs", host.cpus),
        ("disk", "disk.cwd.free", "B", host.disk_gib and host.disk_gib * _GIB),
        ("shm", "shm.total", "B", host.shm_gib and host.shm_gib * _GIB),
        ("open-files", "limits.nofile", "files", host.open_files),
    ):
        if least is not None:
            yield name, signal, Limit(least, unit, wanted.name), _one(signal)


def measured(wanted: Requirements) -> list[demands.Demand]:
    """Return the demands on what the run's checks measure; they are judged when those are done."""
    asked = {
        "pcie-speed": wanted.gpu and wanted.gpu.pcie_gb_s,
        "hbm-speed": wanted.gpu and wanted.gpu.hbm_gb_s,
        "bf16": wanted.gpu and wanted.gpu.bf16_tflops,
        "peer-speed": wanted.gpu and wanted.gpu.peer_gb_s,
        "all-reduce-speed": wanted.gpu and wanted.gpu.all_reduce_gb_s,
        "disk-read": wanted.host and wanted.host.disk_read_gb_s,
        "network-latency": wanted.network and wanted.network.latency_us,
    }
    return [demands.demand(name, bound, wanted.name) for name, bound in asked.items() if bound]


def _each(signal: str, view: View) -> Signals:
    return [gpu.signal(signal) for gpu in view.snapshot.gpus] or [_no_gpu(view)]


def _one(signal: str) -> Callable[[View], Signals]:
    return lambda view: [view.snapshot.signal(signal)]


def _no_gpu(view: View) -> Signal:
    return Signal(reason=f"no GPU: {view.snapshot.signal('driver.version').reason or 'NVML shows none'}")


def _least(what: str, limit: Limit, signals: Callable[[View], Signals], view: View) -> Outcome:
    """Fail where the least of what was read is too little; what was not read is an error."""
    read_off = signals(view)
    unread = [signal.reason for signal in read_off if signal.value is None]
    if unread:
        return undecided(f"cannot be told: {unread[0]}", fix=_FIX)
    odd = [signal.value for signal in read_off if not _number(signal.value)]
    if odd and odd != ["unlimited"]:
        return undecided(f"{what} is nonsense: {str(odd[0])[:40]}", fix=_FIX)
    if odd:
        return passed(f"{what}: unlimited, for {limit.source}", value="unlimited", unit=limit.unit, limit=limit)
    least = min(signal.value for signal in read_off)
    verdict = passed if least >= limit.value else functools.partial(failed, fix=_FIX)
    return verdict(f"{what}, for {limit.source}", value=least, unit=limit.unit, limit=limit)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def _pages(source: str, wanted: str, view: View) -> Outcome:
    mode, limit = view.snapshot.signal("host.hugepages"), Limit(wanted, "", source, "equal")
    if mode.value is None:
        return undecided(f"cannot be told: {mode.reason}", fix=_FIX)
    told = f"transparent huge pages: {mode.value}"
    if mode.value != wanted:
        fix = f"echo {wanted} > /sys/kernel/mm/transparent_hugepage/enabled, as root"
        return failed(told, fix=fix, value=mode.value, limit=limit)
    return passed(told, value=mode.value, limit=limit)


def _network(source: str, wanted: NetworkDemand, view: View) -> Outcome:
    """Count the active ports that are fast enough; no such device is none of them."""
    signal, limit = view.snapshot.signal("ib.ports"), Limit(wanted.ports, "ports", source)
    found = _ports.ports(view)
    if isinstance(found, Outcome) and signal.value != []:
        return undecided(f"cannot be told: {found.summary}", fix=_FIX)
    up = [] if isinstance(found, Outcome) else [port for port in found if _ports.active(port)]
    fast = [port for port in up if (port.get("rate") or 0) >= (wanted.gbit_s or 0)]
    told = f"{len(fast)} active port(s)" + (f" of {wanted.gbit_s:g} Gb/s or more" if wanted.gbit_s else "")
    verdict = passed if len(fast) >= wanted.ports else functools.partial(failed, fix=_FIX)
    return verdict(f"{told}, for {source}", value=len(fast), unit="ports", limit=limit)


def _count(source: str, count: int, view: View) -> Outcome:
    seen, limit = len(view.snapshot.gpus), Limit(count, "GPUs", source)
    if not seen >= count:
        why = f"{seen} GPU(s)" if seen else str(_no_gpu(view).reason)
        return failed(why, fix=_FIX, value=seen, unit="GPUs", limit=limit)
    return passed(f"{seen} GPU(s)", value=seen, unit="GPUs", limit=limit)


def _model(source: str, model: str, view: View) -> Outcome:
    matrix = view.matrix if isinstance(view.matrix, Matrix) else load()
    wanted, limit = find_gpu(matrix, model), Limit(model, "", source, "equal")
    names = [gpu.signal("name") for gpu in view.snapshot.gpus] or [_no_gpu(view)]
    unread = [signal.reason for signal in names if signal.value is None]
    if unread:
        return undecided(f"cannot be told: {unread[0]}", fix=_FIX)
    others = sorted({str(signal.value) for signal in names if find_gpu(matrix, str(signal.value)) != wanted})
    if others:
        return failed(f"not a {model}: {', '.join(others)}", fix=_FIX, value=others, limit=limit)
    return passed(f"{len(names)} x {model}", value=model, limit=limit)


def _driver(source: str, wanted: DriverDemand, view: View) -> Outcome:
    driver = view.snapshot.signal("driver.version")
    if driver.value is None:
        return undecided(f"cannot be told: {driver.reason}", fix=_FIX)
    mine, span = key(str(driver.value)), f"{wanted.min or ''}..{wanted.below or ''}"
    limit = Limit(span, "driver version", source, "equal")
    low = wanted.min is not None and mine < key(wanted.min)
    high = wanted.below is not None and mine >= key(wanted.below)
    if low or high:
        return failed(f"driver {driver.value} is outside {span}", fix=_FIX, value=driver.value, limit=limit)
    return passed(f"driver {driver.value}", value=driver.value, limit=limit)

"""What a site demands of a node, written down in TOML: of what the node says of itself, and of what checks measure.

A demand on the snapshot is a check of the run. A demand on a measurement is in no plan: it is compared with the result
of the check that measures it, and one that did not run, was skipped or broke is an error, never a pass.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from envcheck import safe_files
from envcheck.checks import ERROR, FAIL, SKIP, Check, Limit, Outcome, View, failed, passed, undecided
from envcheck.checks.readings import infiniband_ports
from envcheck.counting import counted
from envcheck.errors import ConfigError
from envcheck.matrix.facts.lookup import find_gpu, suggest
from envcheck.matrix.facts.model import Matrix, key
from envcheck.matrix.file.load import load
from envcheck.node.snapshot import Signal
from envcheck.runner.outcomes import fields
from envcheck.runner.planning import CheckModule
from envcheck.runner.schema import OutcomeRow

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST: Final = 1 << 20  # bytes of a file
PROFILES: Final = Path(__file__).with_name("profiles")
Some = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(gt=0)]
_GIB: Final = 1 << 30
_NODE_FIX: Final = "compare the node with what was ordered; correct the file if it asks for too much"
Signals = list[Signal]
_MEASURED_FIX: Final = "compare the node with what was ordered; see also the check {of}"
_RUN: Final = "run it with a level that has the check {of}, or with --only {of}"
Values = Callable[[OutcomeRow], Iterable[Any]]


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


def read(source: str, matrix: Matrix | None = None) -> Requirements:
    """Read a file, or a shipped profile by its name. Raises ConfigError if it is not a requirements file."""
    path = Path(source) if Path(source).exists() else PROFILES / f"{source}.toml"
    if not path.is_file():
        names = ", ".join(sorted(p.stem for p in PROFILES.glob("*.toml")))
        message = f"no requirements at {source}"
        raise ConfigError(message, fix=f"give a TOML file, or one of {names}")
    try:
        text = safe_files.read_whole(path, most=_MOST).decode()
        requirements = msgspec.convert(tomllib.loads(text), Requirements)
    except RecursionError as error:
        message = f"{path}: nested deeper than any setting"
        raise ConfigError(message, fix="close the brackets") from error
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise ConfigError(message, fix="give a TOML file that you may read") from error
    except UnicodeError as error:
        message = f"{path} is not UTF-8 text"
        raise ConfigError(message, fix=f"see {PROFILES / 'hgx-h100.toml'} for all settings") from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        message = f"{path}: {error}"
        raise ConfigError(message, fix=f"see {PROFILES / 'hgx-h100.toml'} for all settings") from error
    _something(requirements, path)
    _finite(msgspec.to_builtins(requirements), path)
    _versions(requirements.driver, path)
    model = requirements.gpu.model if requirements.gpu else None
    facts = matrix or load()
    if model and find_gpu(facts, model) is None:
        message = f"{path}: gpu.model {model} is not known"
        near = suggest(facts, model)
        raise ConfigError(message, fix=f"did you mean {' or '.join(near)}?" if near else "see `envcheck matrix show`")
    return requirements


def _finite(content: dict[str, Any], path: Path) -> None:
    tables = [(table, values) for table, values in content.items() if isinstance(values, dict)]
    endless = [f"{t}.{k}" for t, vs in tables for k, v in vs.items() if isinstance(v, float) and not math.isfinite(v)]
    if endless:
        message = f"{path}: {', '.join(endless)} is not a number"
        raise ConfigError(message, fix="give a finite one, or leave it out")


def _versions(driver: DriverDemand | None, path: Path) -> None:
    versions = [version for version in (driver.min, driver.below) if version] if driver else []
    try:
        keys = [key(version) for version in versions]
    except ValueError as error:
        message = f"{path}: driver {' or '.join(versions)} is not a version"
        raise ConfigError(message, fix='write it as NVIDIA does, in quotes: "570.124.06"') from error
    if driver and driver.min and driver.below and keys[0] >= keys[1]:
        message = f"{path}: no driver is at least {driver.min} and below {driver.below}"
        raise ConfigError(message, fix="give a `below` that is above `min`")


def _something(requirements: Requirements, path: Path) -> None:
    """Refuse a file without requirements: it would let every node pass."""
    tables = (requirements.gpu, requirements.driver, requirements.host, requirements.network)
    if all(table is None or table == type(table)() for table in tables):
        message = f"{path} contains no requirements"
        raise ConfigError(message, fix=f"see {PROFILES / 'hgx-h100.toml'} for all settings")
    if requirements.gpu and requirements.gpu.model is not None and not requirements.gpu.model.strip():
        message = f"{path}: gpu.model is empty"
        raise ConfigError(message, fix="name the model, or leave it out")


def measured_demands(requirements: Requirements) -> list[Demand]:
    """Return the demands on what the run's checks measure; they are judged when those are done."""
    bounds = {
        "pcie-speed": requirements.gpu and requirements.gpu.pcie_gb_s,
        "hbm-speed": requirements.gpu and requirements.gpu.hbm_gb_s,
        "bf16": requirements.gpu and requirements.gpu.bf16_tflops,
        "peer-speed": requirements.gpu and requirements.gpu.peer_gb_s,
        "all-reduce-speed": requirements.gpu and requirements.gpu.all_reduce_gb_s,
        "disk-read": requirements.host and requirements.host.disk_read_gb_s,
        "network-latency": requirements.network and requirements.network.latency_us,
    }
    return [demand(name, bound, requirements.name) for name, bound in bounds.items() if bound]


def node_checks(requirements: Requirements) -> list[CheckModule]:
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
        return undecided(f"undetermined: {unread[0]}", fix=_NODE_FIX, code="require.unread")
    odd = [signal.value for signal in read_off if not _size(signal.value)]
    if odd and odd != ["unlimited"]:
        return undecided(
            f"{quantity} has an unexpected type or value: {str(odd[0])[:40]}",
            fix=_NODE_FIX,
            code="require.unexpected-value",
        )
    if odd:
        return passed(f"{quantity}: unlimited, for {limit.source}", value="unlimited", unit=limit.unit, limit=limit)
    least = min(signal.value for signal in read_off)
    verdict = passed if least >= limit.value else functools.partial(failed, fix=_NODE_FIX, code="require.not-met")
    return verdict(f"{quantity}, for {limit.source}", value=least, unit=limit.unit, limit=limit)


def _size(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def _pages(source: str, setting: str, view: View) -> Outcome:
    mode, limit = view.snapshot.signal("host.hugepages"), Limit(setting, "", source, "equal")
    if mode.value is None:
        return undecided(f"undetermined: {mode.reason}", fix=_NODE_FIX, code="require.unread")
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
        return undecided(f"undetermined: {ports.summary}", fix=_NODE_FIX, code="require.unread")
    up = [] if isinstance(ports, Outcome) else [port for port in ports if infiniband_ports.active(port)]
    fast = [port for port in up if (port.get("rate") or 0) >= (demand.gbit_s or 0)]
    summary = counted(len(fast), "active port") + (f" of {demand.gbit_s:g} Gb/s or more" if demand.gbit_s else "")
    verdict = passed if len(fast) >= demand.ports else functools.partial(failed, fix=_NODE_FIX, code="require.not-met")
    return verdict(f"{summary}, for {source}", value=len(fast), unit="ports", limit=limit)


def _count(source: str, count: int, view: View) -> Outcome:
    gpus, limit = len(view.snapshot.gpus), Limit(count, "GPUs", source)
    if not gpus >= count:
        why = counted(gpus, "GPU") if gpus else str(_no_gpu(view).reason)
        return failed(why, fix=_NODE_FIX, value=gpus, unit="GPUs", limit=limit, code="require.not-met")
    return passed(counted(gpus, "GPU"), value=gpus, unit="GPUs", limit=limit)


def _model(source: str, model: str, view: View) -> Outcome:
    matrix = view.matrix if isinstance(view.matrix, Matrix) else load()
    model_row, limit = find_gpu(matrix, model), Limit(model, "", source, "equal")
    names = [gpu.signal("name") for gpu in view.snapshot.gpus] or [_no_gpu(view)]
    unread = [signal.reason for signal in names if signal.value is None]
    if unread:
        return undecided(f"undetermined: {unread[0]}", fix=_NODE_FIX, code="require.unread")
    others = sorted({str(signal.value) for signal in names if find_gpu(matrix, str(signal.value)) != model_row})
    if others:
        return failed(
            f"not a {model}: {', '.join(others)}", fix=_NODE_FIX, value=others, limit=limit, code="require.not-met"
        )
    return passed(f"{len(names)} x {model}", value=model, limit=limit)


def _driver(source: str, demand: DriverDemand, view: View) -> Outcome:
    driver = view.snapshot.signal("driver.version")
    if driver.value is None:
        return undecided(f"undetermined: {driver.reason}", fix=_NODE_FIX, code="require.unread")
    version, span = key(str(driver.value)), f"{demand.min or ''}..{demand.below or ''}"
    limit = Limit(span, "driver version", source, "equal")
    low = demand.min is not None and version < key(demand.min)
    high = demand.below is not None and version >= key(demand.below)
    if low or high:
        return failed(
            f"driver {driver.value} is outside {span}",
            fix=_NODE_FIX,
            value=driver.value,
            limit=limit,
            code="require.not-met",
        )
    return passed(f"driver {driver.value}", value=driver.value, limit=limit)


class Demand(NamedTuple):
    """A bound on what a check measures. `values` reads all that have to meet it off that check's outcome."""

    id: str
    of: str
    what: str
    limit: Limit
    values: Values


def _of_ranks(*names: str) -> Values:
    """Read these of every rank's `values`; one that a rank does not have is None."""
    return lambda row: [_table(rank, "values").get(name) for rank in row.ranks for name in names]


def _pairs(row: OutcomeRow) -> list[Any]:
    """Read every ordered pair's figure off the matrix; one that cannot be reached is None."""
    matrix = _table(row.ranks[0] if row.ranks else None, "matrix", list)
    lines = [(at, line) for at, line in enumerate(matrix) if isinstance(line, list)]
    return [value for at, line in lines for to, value in enumerate(line) if to != at]


def _on_gpus(row: OutcomeRow) -> list[Any]:
    """Return the outcome's value where every rank computed on a GPU: gloo's is no answer to a demand of GPUs."""
    return [row.value] if row.ranks and all(_table(rank, "").get("is_cuda") is True for rank in row.ranks) else []


def _latency(row: OutcomeRow) -> list[Any]:
    """Return the median of the smallest all-reduce of each rank, in microseconds, where it went to another node."""
    if len({str(_table(rank, "").get("host")) for rank in row.ranks}) < 2:  # noqa: PLR2004 (two nodes)
        return []
    tables = [_table(_table(rank, "latency"), "all-reduce", list) for rank in row.ranks]
    first: list[Any] = [small[0].get("p50") if small and isinstance(small[0], dict) else None for small in tables]
    return [seconds * 1e6 if _number(seconds) else seconds for seconds in first]


_KNOWN: Final[Mapping[str, tuple[str, str, str, str, Values]]] = {
    "pcie-speed": (
        "memory-bandwidth",
        "slower way between host and GPU",
        "GB/s",
        "at least",
        _of_ranks("host to GPU", "GPU to host"),
    ),
    "hbm-speed": ("memory-bandwidth", "copy on the card", "GB/s", "at least", _of_ranks("HBM copy")),
    "bf16": ("gemm-throughput", "matrix product in bfloat16", "TFLOP/s", "at least", _of_ranks("bfloat16")),
    "peer-speed": ("peer-bandwidth", "slowest pair of GPUs", "GB/s", "at least", _pairs),
    "all-reduce-speed": ("all-reduce-bandwidth", "bus bandwidth of all-reduce", "GB/s", "at least", _on_gpus),
    "disk-read": ("disk-read", "reading the disk", "GB/s", "at least", lambda row: [row.value]),
    "network-latency": ("all-reduce-bandwidth", "smallest all-reduce between nodes", "us", "at most", _latency),
}


def demand(name: str, bound: float, source: str) -> Demand:
    """Return a demand by its name; `source` is the site's."""
    of, quantity, unit, kind, values = _KNOWN[name]
    return Demand(f"require-{name}", of, quantity, Limit(bound, unit, source, kind), values)


def demand_names() -> dict[str, str]:
    """Return which check each demand is measured by."""
    return {name: row[0] for name, row in _KNOWN.items()}


def hold_demands(demands: Iterable[Demand], outcomes: Mapping[str, OutcomeRow]) -> dict[str, OutcomeRow]:
    """Return each demand's outcome, by id."""
    return {demanded.id: _row(demanded, judge_demand(demanded, outcomes.get(demanded.of))) for demanded in demands}


def judge_demand(required: Demand, row: OutcomeRow | None) -> Outcome:
    """Judge the worst of what was measured; anything but a finite positive number was not."""
    lacking = _lacking(required, row)
    if row is None or lacking is not None:
        return undecided(lacking or "", fix=_RUN.format(of=required.of), code="require.unmeasured")
    values = list(required.values(row))
    if not values or not all(_number(value) and value > 0 for value in values):
        why = f"{required.of} measured no {required.what}"
        return undecided(
            f"undetermined: {why} ({str(values)[:60]})", fix=_RUN.format(of=required.of), code="require.unmeasured"
        )
    most = required.limit.kind == "at most"
    worst = max(values) if most else min(values)
    met = worst <= required.limit.value if most else worst >= required.limit.value
    summary = f"{required.what}: {worst:.4g} {required.limit.unit}, for {required.limit.source}"
    shown = {"value": worst, "unit": required.limit.unit, "limit": required.limit}
    return (
        passed(summary, **shown)
        if met
        else failed(summary, fix=_MEASURED_FIX.format(of=required.of), code="require.not-met", **shown)
    )


def _lacking(required: Demand, row: OutcomeRow | None) -> str | None:
    if row is None:
        return f"undetermined: the check {required.of}, which measures it, was not run"
    if row.status in (SKIP, ERROR):
        return f"undetermined: {required.of} came to {row.status}: {row.summary}"
    if row.status == FAIL and not row.remeasure:
        # A measurement whose data was wrong is no evidence of a speed.
        return f"undetermined: {required.of} failed, and not by its speed alone: {row.summary}"
    return None


def _row(required: Demand, outcome: Outcome) -> OutcomeRow:
    return OutcomeRow(id=required.id, kind="env", **fields(outcome))


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _table(holder: Any, key: str, kind: type = dict) -> Any:
    """Return what a measurement holds under a key (itself for ""), empty where it is not of its kind."""
    value = holder if not key else holder.get(key) if isinstance(holder, dict) else None
    return value if isinstance(value, kind) else kind()

"""What a site demands of a node, written down in TOML: of what the node says of itself, and of what checks measure.

A demand on the snapshot is a check of the run. A demand on a measurement is in no plan: it is compared with the result
of the check that measures it, and one that did not run, was skipped or broke is an error, never a pass.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from envcheck import safe_files
from envcheck.checks import ERROR, FAIL, SKIP, Check, Limit, Outcome, View, failed, passed, undecided, worst
from envcheck.checks.env import disk_read
from envcheck.checks.node import infiniband
from envcheck.checks.support import process_group
from envcheck.counting import counted
from envcheck.errors import refuse
from envcheck.matrix.facts.lookup import find_gpu, hint_of, is_cut, same_gpu
from envcheck.matrix.facts.model import Matrix, key
from envcheck.matrix.file.load import load
from envcheck.node import signal_source
from envcheck.node.signal_source import Source
from envcheck.node.snapshot import Signal, Snapshot
from envcheck.runner.outcomes import row_of
from envcheck.runner.planning import CheckModule
from envcheck.runner.schema import OutcomeRow

_MOST: Final = 1 << 20  # bytes of a file
PROFILES: Final = Path(__file__).with_name("profiles")
_ALL_SETTINGS: Final = f"see {PROFILES / 'hgx-h100.toml'} for all settings"
Some = Annotated[float, msgspec.Meta(gt=0, le=1e12)]  # TOML has `inf` too
Count = Annotated[int, msgspec.Meta(gt=0)]
_GIB: Final = 1 << 30
_NODE_FIX: Final = "compare the node with what was ordered; correct the file if it asks for too much"
_MOUNT_FIX: Final = "mount what was ordered (`findmnt`, /etc/fstab), or correct the file"
# disk-read writes for 20 s and reads for 20 s at most; the rest is for a server that is slow to answer.
_MOUNT_SECONDS: Final = 60.0
# Where what was read of a mount has the bytes and the seconds of each way.
_WAYS: Final = {"read": ("read", "seconds"), "write": ("written", "writing")}
_MOUNTED: Final = signal_source.fields(point=signal_source.string, kind=signal_source.string)
_MEASURED_FIX: Final = "compare the node with what was ordered; see also the check {of}"
_RUN: Final = "run it with a level that has the check {of}, or with --only {of}"
Values = Callable[[OutcomeRow], Iterable[Any]]


class _Table(msgspec.Struct, forbid_unknown_fields=True, kw_only=True): ...


class GpuDemand(_Table):
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


class DriverDemand(_Table):
    """A driver of at least `min`, and lower than `below`."""

    min: str | None = None
    below: str | None = None


class HostDemand(_Table):
    """At least so much; `hugepages` is what the kernel's transparent huge pages have to be set to."""

    ram_gib: Some | None = None
    cpus: Count | None = None
    disk_gib: Some | None = None
    disk_read_gb_s: Some | None = None
    shm_gib: Some | None = None
    open_files: Count | None = None
    hugepages: Literal["always", "madvise", "never"] | None = None


class NetworkDemand(_Table):
    """At least so many active InfiniBand or RoCE ports, each at so many Gb/s; the smallest all-reduce between nodes."""

    ports: Count = 1
    gbit_s: Some | None = None
    latency_us: Some | None = None


class MountDemand(_Table):
    """A file system that is mounted at `path` or above it, of this type (as in /proc/mounts) and at least so fast.

    Where a speed is demanded, a file of at most 1 GiB is written there, synced, and read past the page cache.
    """

    path: str
    type: str | None = None
    read_gb_s: Some | None = None
    write_gb_s: Some | None = None


class Requirements(_Table):
    """A whole file."""

    name: str = "requirements"
    gpu: GpuDemand | None = None
    driver: DriverDemand | None = None
    host: HostDemand | None = None
    network: NetworkDemand | None = None
    mounts: list[MountDemand] = msgspec.field(default_factory=list)


def read(source: str, matrix: Matrix | None = None) -> Requirements:
    """Read a file, or a shipped profile by its name. Raises ConfigError if it is not a requirements file."""
    path = Path(source) if Path(source).exists() else PROFILES / f"{source}.toml"
    if not path.is_file():
        names = ", ".join(sorted(p.stem for p in PROFILES.glob("*.toml")))
        refuse(f"no requirements at {source}", f"give a TOML file, or one of {names}")
    try:
        text = safe_files.read_whole(path, most=_MOST).decode()
        requirements = msgspec.toml.decode(text, type=Requirements)
    except ImportError:
        refuse("this image's Python 3.10 reads no TOML", "run `envcheck run --image` with --requirements on the host")
    except OSError as error:
        refuse(f"cannot read {path}: {error.strerror}", "give a TOML file that you may read")
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        refuse(f"{path} is not UTF-8 text" if isinstance(error, UnicodeError) else f"{path}: {error}", _ALL_SETTINGS)
    for problem, fix in _problems(requirements, matrix or load()):
        refuse(f"{path}{problem}", fix)
    return requirements


def _problems(requirements: Requirements, matrix: Matrix) -> Iterator[tuple[str, str]]:
    tables = {name: getattr(requirements, name) for name in ("gpu", "driver", "host", "network")}
    mounts = requirements.mounts
    if not mounts and all(table is None or table == type(table)() for table in tables.values()):
        yield " contains no requirements", _ALL_SETTINGS  # it would let every node pass
    for mount in mounts:
        if not mount.path.startswith("/"):
            yield f": mounts: {mount.path!r} is no absolute path", 'write it from the root on: path = "/data"'
    driver = requirements.driver or DriverDemand()
    versions = [version for version in (driver.min, driver.below) if version]
    try:
        keys = [key(version) for version in versions]
        if keys[1:] and keys[0] >= keys[1]:
            yield f": no driver is at least {driver.min} and below {driver.below}", "give a `below` that is above `min`"
    except ValueError:
        fix = 'write it as NVIDIA does, in quotes: "570.124.06"'
        yield f": driver {' or '.join(versions)} is not a version", fix
    model = requirements.gpu.model if requirements.gpu else None
    if model is not None and not model.strip():
        yield ": gpu.model is empty", "name the model, or leave it out"
    elif model is not None and (is_cut(model) or not find_gpu(matrix, model)):
        yield f": gpu.model {model} is not known", hint_of(matrix, model)


def node_checks(requirements: Requirements) -> list[CheckModule]:
    """Return a check for each demand, to be run with the others."""
    return [
        CheckModule(
            *(f"require-{name}", "node", Check(promise=promise, level="static", seconds=seconds), judge),
            *(f"Asked for by {requirements.name}.", "", PROFILES),
        )
        for name, promise, judge in _on_node(requirements)
        for seconds in [5.0 if name.startswith("mount-") else 0.01]
    ]


def _on_node(requirements: Requirements) -> Iterator[tuple[str, str, Callable[[View], Outcome]]]:
    gpu, driver, host, network = requirements.gpu, requirements.driver, requirements.host, requirements.network
    source, bound = requirements.name, functools.partial
    if gpu:
        yield "gpus", f"{counted(gpu.count, 'GPU')} at least", bound(_count, source, gpu.count)
    if gpu and gpu.model:
        yield "model", f"every GPU is a {gpu.model}", bound(_read, "name", bound(_model, source, gpu.model))
    of_gpus, of_host = gpu or GpuDemand(), host or HostDemand()
    for name, signal, unit, least in (
        ("gpu-memory", "memory_total", "B", of_gpus.memory_gib and of_gpus.memory_gib * _GIB),
        ("pcie-gen", "pcie_gen_max", "", of_gpus.pcie_gen),
        ("pcie-width", "pcie_width", "lanes", of_gpus.pcie_width),
        ("nvlinks", "nvlinks_active", "links", of_gpus.nvlinks),
        ("ram", "host.memory_total", "B", of_host.ram_gib and of_host.ram_gib * _GIB),
        ("cpus", "host.cpus", "CPUs", of_host.cpus),
        ("disk", "disk.cwd.free", "B", of_host.disk_gib and of_host.disk_gib * _GIB),
        ("shm", "shm.total", "B", of_host.shm_gib and of_host.shm_gib * _GIB),
        ("open-files", "limits.nofile", "files", of_host.open_files),
    ):
        if least is not None:
            quantity = signal if "." in signal else f"{signal} of every GPU"
            yield name, quantity, bound(_read, signal, bound(_least, quantity, Limit(least, unit, source)))
    if host and host.hugepages:
        pages = bound(_read, "host.hugepages", bound(_pages, source, host.hugepages))
        yield "hugepages", f"transparent huge pages: {host.hugepages}", pages
    for number, mount in enumerate(requirements.mounts):
        yield f"mount-{number}", f"what is mounted at {mount.path}", bound(_mount, source, mount, number)
    if network:
        yield "network-ports", f"{counted(network.ports, 'port')} in use", bound(_network, source, network)
    if driver and (driver.min or driver.below):
        versions = bound(_read, "driver.version", bound(_driver, source, driver))
        yield "driver", f"driver from {driver.min or 'any'}", versions


def _read(signal: str, judge: Callable[[list[Any], View], Outcome], view: View) -> Outcome:
    """Judge the values of a node's signal, whose name has a point, or of each GPU's; an error where one is unread."""
    of_gpus = [gpu.signal(signal) for gpu in view.snapshot.gpus] or [_no_gpu(view)]
    signals = [view.snapshot.signal(signal)] if "." in signal else of_gpus
    unread = [one.reason for one in signals if one.value is None]
    return _unread(unread[0]) if unread else judge([one.value for one in signals], view)


def _no_gpu(view: View) -> Signal:
    driver = view.snapshot.signal("driver.version")
    return Signal(reason=f"no GPU: {driver.reason or 'NVML shows none'}", why=driver.why or "unsupported")


def _unread(why: str | None) -> Outcome:
    return undecided(f"undetermined: {why}", fix=_NODE_FIX, code="require.unread")


def _held(summary: str, limit: Limit, value: Any, *, met: bool, fix: str = _NODE_FIX) -> Outcome:
    told = {"value": value, "unit": limit.unit, "limit": limit}
    return passed(summary, **told) if met else failed(summary, fix=fix, code="require.not-met", **told)


def _least(quantity: str, limit: Limit, values: list[Any], _: View) -> Outcome:
    odd = [value for value in values if not (process_group.finite(value) and value >= 0)]
    if odd == ["unlimited"]:
        return _held(f"{quantity}: unlimited, for {limit.source}", limit, "unlimited", met=True)
    if odd:
        why = f"{quantity} has an unexpected type or value: {str(odd[0])[:40]}"
        return undecided(why, fix=_NODE_FIX, code="require.unexpected-value")
    return _held(f"{quantity}, for {limit.source}", limit, min(values), met=min(values) >= limit.value)


def _pages(source: str, setting: str, mode: list[Any], _: View) -> Outcome:
    fix = f"echo {setting} > /sys/kernel/mm/transparent_hugepage/enabled, as root"
    limit = Limit(setting, "", source, "equal")
    return _held(f"transparent huge pages: {mode[0]}", limit, mode[0], met=mode == [setting], fix=fix)


def _network(source: str, demand: NetworkDemand, view: View) -> Outcome:
    """Count the active ports that are fast enough; no such device is none of them."""
    ports = infiniband.ports(view)
    if isinstance(ports, Outcome) and view.snapshot.signal("ib.ports").value != []:
        return _unread(ports.summary)
    up = [] if isinstance(ports, Outcome) else [port for port in ports if infiniband.active(port)]
    fast = [port for port in up if (port.get("rate") or 0) >= (demand.gbit_s or 0)]
    summary = counted(len(fast), "active port") + (f" of {demand.gbit_s:g} Gb/s or more" if demand.gbit_s else "")
    limit = Limit(demand.ports, "ports", source)
    return _held(f"{summary}, for {source}", limit, len(fast), met=len(fast) >= demand.ports)


def with_mounts(mounts: Iterable[MountDemand], collect: Callable[[], Snapshot]) -> Snapshot:
    """Return the snapshot with a signal for each mount that is demanded; they are measured one after the other."""
    snapshot = collect()
    for number, mount in enumerate(mounts):
        name = f"mount.{number}"
        signal = _asked(name, mount)
        wanted = {way: getattr(mount, f"{way}_gb_s") or 0.0 for way in _WAYS}
        # The worker starts meanwhile, and may have been in the way.
        if any(0 < _speed(signal.value, way) < wanted[way] for way in wanted):
            signal = dataclasses.replace(signal, value=_faster(signal.value, _asked(name, mount).value))
        snapshot = dataclasses.replace(snapshot, signals={**snapshot.signals, name: signal})
    return snapshot


def _asked(name: str, mount: MountDemand) -> Signal:
    (task,) = signal_source.each({name: Source(_MOUNTED, functools.partial(_read_mount, mount), mount.path)})
    return signal_source.read([task._replace(timeout=_MOUNT_SECONDS)]).signals[name]


def _speed(found: Any, way: str) -> float:
    """Return GB/s, 0 where nothing was measured."""
    taken = [_table(found, "").get(one) for one in _WAYS[way]]
    return taken[0] / taken[1] / 1e9 if all(map(process_group.positive, taken)) else 0.0


def _faster(first: dict[str, Any], again: Any) -> dict[str, Any]:
    """Return what was found first, with each speed from where it is faster; other bytes stay other bytes."""
    found, again = dict(first), _table(again, "")
    for way, names in _WAYS.items():
        if _speed(again, way) > _speed(first, way):
            found.update({name: again.get(name) for name in (*names, *(["direct"] if way == "read" else []))})
    return {**found, "same": False} if again.get("same") is False else found


def _read_mount(mount: MountDemand) -> dict[str, Any]:
    Path(mount.path).stat()  # what is not there is no part of the file system above it
    point, kind = disk_read.mounted(mount.path)
    speeds = disk_read.measured_at(mount.path) if mount.read_gb_s or mount.write_gb_s else {}
    return {"point": point, "kind": kind, **speeds}


def _mount(source: str, demand: MountDemand, number: int, view: View) -> Outcome:
    """Judge a mount's type, its bytes and its speeds; a path on the root file system has nothing mounted."""
    signal = view.snapshot.signal(f"mount.{number}")
    found, path = _table(signal.value, ""), demand.path
    kind, point = found.get("kind"), found.get("point")
    if not isinstance(kind, str):
        return _unread(signal.reason or f"{path}: read as {str(signal.value)[:40]}")
    wanted = Limit(demand.type or "a mount", "", source, "equal")
    on_root = point == "/" and path != "/"
    what = f"{path}: {'nothing is mounted there, it lies on the root file system, ' if on_root else ''}{kind}"
    findings = [_held(what, wanted, kind, met=not on_root and demand.type in (None, kind), fix=_MOUNT_FIX)]
    if found.get("same") is False:
        fix = "look at `dmesg`, and at the file system's servers"
        findings.append(failed(f"{path} gave back other bytes than were written", fix=fix, code="require.mount-data"))
    for way in _WAYS:
        least, speed = getattr(demand, f"{way}_gb_s"), _speed(found, way)
        if least is None:
            continue
        unmeasured = f"no {way} was measured: it is memory, or too little is free ({found.get('free')} B)"
        why, speed = "" if speed else unmeasured, round(speed, 4)
        # What is too slow out of memory is too slow off the disk.
        sure = found.get("direct") is True and speed <= disk_read.CEILING
        if way == "read" and speed >= least and not sure:
            why = f"{speed:g} GB/s may have come out of memory (no O_DIRECT)"
        if why:
            findings.append(undecided(f"{path}: {why}", fix=_MOUNT_FIX, code="require.unmeasured"))
            continue
        limit = Limit(least, "GB/s", source)
        findings.append(_held(f"{path} ({kind}): {way} {speed:g} GB/s", limit, speed, met=speed >= least))
    return worst(findings, otherwise=findings[0])


def _count(source: str, count: int, view: View) -> Outcome:
    gpus = len(view.snapshot.gpus)
    summary = counted(gpus, "GPU") if gpus else str(_no_gpu(view).reason)
    return _held(summary, Limit(count, "GPUs", source), gpus, met=gpus >= count)


def _model(source: str, model: str, names: list[Any], view: View) -> Outcome:
    matrix = view.matrix if isinstance(view.matrix, Matrix) else load()
    others = sorted({str(name) for name in names if not same_gpu(matrix, str(name), model)})
    summary = f"not a {model}: {', '.join(others)}" if others else f"{len(names)} x {model}"
    return _held(summary, Limit(model, "", source, "equal"), others or model, met=not others)


def _driver(source: str, demand: DriverDemand, driver: list[Any], _: View) -> Outcome:
    version, span = key(str(driver[0])), f"{demand.min or ''}..{demand.below or ''}"
    met = not (demand.min and version < key(demand.min)) and not (demand.below and version >= key(demand.below))
    summary = f"driver {driver[0]}{'' if met else f' is outside {span}'}"
    return _held(summary, Limit(span, "driver version", source, "equal"), driver[0], met=met)


def _of_ranks(*names: str) -> Values:
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
    return [seconds * 1e6 if process_group.finite(seconds) else seconds for seconds in first]


class Demand(NamedTuple):
    """A bound on what a check measures: the field of a file that sets it, and how it is read off that check's row."""

    id: str
    table: str
    field: str
    of: str
    what: str
    values: Values
    limit: Limit


# The limit's value and source are those of a file.
_GB, _TFLOPS, _MICRO = Limit(0, "GB/s", ""), Limit(0, "TFLOP/s", ""), Limit(0, "us", "", "at most")
_PCIE, _HBM, _BF16 = _of_ranks("host to GPU", "GPU to host"), _of_ranks("HBM copy"), _of_ranks("bfloat16")
_MEMORY, _BUS = "memory-bandwidth", "all-reduce-bandwidth"
MEASURED: Final = (
    Demand("require-pcie-speed", "gpu", "pcie_gb_s", _MEMORY, "slower way between host and GPU", _PCIE, _GB),
    Demand("require-hbm-speed", "gpu", "hbm_gb_s", _MEMORY, "copy on the card", _HBM, _GB),
    Demand("require-bf16", "gpu", "bf16_tflops", "gemm-throughput", "matrix product in bfloat16", _BF16, _TFLOPS),
    Demand("require-peer-speed", "gpu", "peer_gb_s", "peer-bandwidth", "slowest pair of GPUs", _pairs, _GB),
    Demand("require-all-reduce-speed", "gpu", "all_reduce_gb_s", _BUS, "bus bandwidth of all-reduce", _on_gpus, _GB),
    Demand("require-disk-read", "host", "disk_read_gb_s", "disk-read", "reading the disk", lambda r: [r.value], _GB),
    Demand(
        "require-network-latency", "network", "latency_us", _BUS, "smallest all-reduce between nodes", _latency, _MICRO
    ),
)


def measured_demands(requirements: Requirements) -> list[Demand]:
    """Return the demands on what the run's checks measure; they are judged when those are done."""
    return [
        one._replace(limit=dataclasses.replace(one.limit, value=bound, source=requirements.name))
        for one in MEASURED
        if (bound := getattr(getattr(requirements, one.table), one.field, None))
    ]


def hold_demands(demands: Iterable[Demand], outcomes: Mapping[str, OutcomeRow]) -> dict[str, OutcomeRow]:
    """Return each demand's outcome, by id."""
    return {one.id: row_of(one.id, _judged(one, outcomes.get(one.of))) for one in demands}


def _judged(required: Demand, row: OutcomeRow | None) -> Outcome:
    lacking, values = _lacking(required, row), list(required.values(row)) if row else []
    if not lacking and (not values or not all(map(process_group.positive, values))):
        lacking = f"{required.of} measured no {required.what} ({str(values)[:60]})"
    if lacking:
        return undecided(f"undetermined: {lacking}", fix=_RUN.format(of=required.of), code="require.unmeasured")
    limit, most = required.limit, required.limit.kind == "at most"
    worst = max(values) if most else min(values)
    met = worst <= limit.value if most else worst >= limit.value
    summary = f"{required.what}: {worst:.4g} {limit.unit}, for {limit.source}"
    return _held(summary, limit, worst, met=met, fix=_MEASURED_FIX.format(of=required.of))


def _lacking(required: Demand, row: OutcomeRow | None) -> str:
    if row is None:
        return f"the check {required.of}, which measures it, was not run"
    if row.status in (SKIP, ERROR):
        return f"{required.of} came to {row.status}: {row.summary}"
    if row.status == FAIL and not row.remeasure:
        # A measurement whose data was wrong is no evidence of a speed.
        return f"{required.of} failed, and not by its speed alone: {row.summary}"
    return ""


def _table(holder: Any, key: str, kind: type = dict) -> Any:
    """Return what a measurement holds under a key (itself for ""), empty where it is not of its kind."""
    value = holder if not key else holder.get(key) if isinstance(holder, dict) else None
    return value if isinstance(value, kind) else kind()

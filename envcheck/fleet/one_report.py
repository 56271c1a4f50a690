"""Read of one report what a fleet needs. What contradicts itself, as a pass beside a check that failed, is no pass."""

import bisect
import contextlib
import datetime as dt
import hashlib
import itertools
import math
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from envcheck.errors import ConfigError, refuse
from envcheck.reports.phrases import number
from envcheck.reports.redact import UNKEYED
from envcheck.runner.schema import GroupFacts, Status, VerdictStatus


class _ReadValue(msgspec.Struct):
    value: Any = None


_Signals = dict[str, _ReadValue | None]


class _PlacePart(msgspec.Struct):
    node: str = ""
    node_rank: int = 0
    nodes: int = 1


class _HostPart(msgspec.Struct):
    name: str = ""
    arch: str = ""
    place: _PlacePart = msgspec.field(default_factory=_PlacePart)


class _GpuPart(msgspec.Struct):
    uuid: str
    signals: _Signals = {}


class _SnapshotPart(msgspec.Struct):
    signals: _Signals = {}
    gpus: list[_GpuPart] = []


class _DetailsPart(msgspec.Struct):
    device: Any = None


class _OutcomePart(msgspec.Struct):
    id: str
    status: Status
    summary: str = ""
    value: Any = None
    unit: str = ""
    code: str = ""
    culprit: str = ""
    details: _DetailsPart = msgspec.field(default_factory=_DetailsPart)


class _TargetPart(msgspec.Struct):
    image_id: str | None = None


class _VerdictPart(msgspec.Struct):
    status: VerdictStatus
    sentence: str = ""
    exit_code: int = 0


class _GroupPart(GroupFacts, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """As the others here it is read whatever a later version adds."""


class _ReportPart(msgspec.Struct):
    schema: Literal["envcheck/report/1"]
    started: str
    ended: str
    host: _HostPart
    verdict: _VerdictPart
    outcomes: list[_OutcomePart]
    snapshot: _SnapshotPart
    boot: str = ""
    target: _TargetPart = msgspec.field(default_factory=_TargetPart)
    environment: dict[str, Any] = {}
    promises: dict[str, str] = {}
    group: _GroupPart | None = None


class _SchemaPart(msgspec.Struct):
    schema: str


_DOCUMENT: Final = msgspec.json.Decoder(_ReportPart)
_MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_SCHEMA: Final = "envcheck/report/1"
# Worst last, as `max` finds it.
BY_SEVERITY: Final = ("skip", "pass", "warn", "error", "fail")
_REDACTED_HOST: Final = re.compile(r"host-[0-9]{1,6}")
_LONGEST_TEXT: Final = 300
_LONGEST_NAME: Final = 253
_FIX: Final = "run `envcheck run` on this node again"
# How the beginning of a report is told from other files, where its end is missing.
_FIRST: Final = b'{"schema":"envcheck/report/'
_NAMED: Final = re.compile(rb'"schema"\s*:\s*"envcheck/report/')
# Of a report as envcheck prints it.
_FIRST_LINE: Final = re.compile(rb"^\{\r?$", re.MULTILINE)
_LAST_LINE: Final = re.compile(rb"^\}\r?$", re.MULTILINE)
# The code of what could not be told of a node, because another one of its group disturbed it.
OTHER_NODE: Final = "group.other-node"
# Any of the ranks may have its node in brackets: "rank 2 (n1), 4".
_RANKS: Final = re.compile(r"\branks? ([0-9]{1,18}(?: \([^()]*\))?(?:(?:, | and )[0-9]{1,18}(?: \([^()]*\))?)*)")
# The check of which a pass says no more than that the nodes met.
FORMED: Final = "group-formed"


class CheckValue(msgspec.Struct, frozen=True, gc=False):
    """What a check came to on a node; `value` None for what is no number, `gpu` the UUID that it is about, or ""."""

    check: str
    status: Status
    value: float | None
    unit: str
    code: str
    culprit: str
    gpu: str
    summary: str


class NotAReportError(Exception):
    """A file in which no run is."""


class NodeReport(NamedTuple):
    """What a fleet needs of one report. `status` is what the node may count as, with `why` for people.

    `group` is the key of the group that it was written in, empty for none, and `member` the node's name there.
    `excusable`: but for what another node disturbed, it would have passed, and something was measured.
    The report of a whole group is of no node (""); `blamed` says which of its nodes are to blame, and why.
    """

    digest: bytes
    node: str
    started: float | None
    ended: float | None
    status: VerdictStatus
    why: str
    gpu: str
    gpus: tuple[str, ...]
    cell: str
    driver: str
    arch: str
    checks: tuple[CheckValue, ...]
    configuration: dict[str, str]
    group: bytes
    member: str
    excusable: bool
    blamed: tuple[tuple[str, str], ...]

    @property
    def last(self) -> float | None:
        """Return when it ended, or began where it did not end."""
        return self.started if self.ended is None else self.ended


def read(content: bytes, stem: str) -> NodeReport:
    """Return what a fleet needs. Raise NotAReportError for what no run wrote, ConfigError for a broken report."""
    document, content = _decoded(content.removeprefix(b"\xef\xbb\xbf"))
    try:
        return _reading(document, _digest(content), stem)
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        # Whatever one report holds, the others are read.
        refuse(f"is a report that holds what no run writes ({type(error).__name__})", _FIX)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _decoded(content: bytes) -> tuple[_ReportPart, bytes]:
    try:
        return _DOCUMENT.decode(content), content
    except _MALFORMED as error:
        shown = _in_log(content)
        if shown == content:
            raise _unreadable(content, error) from error
    return _decoded(shown)


def _in_log(content: bytes) -> bytes:
    """Return the report in what a pod printed, which may have lines before and after it. Of two reports none is it."""
    first = _FIRST_LINE.search(content)
    if first is None:
        return content
    last = _LAST_LINE.search(content, first.end())
    more = last is None or _FIRST_LINE.search(content, last.end())
    return content[first.start() : None if more or last is None else last.end()]


def _unreadable(content: bytes, error: Exception) -> Exception:
    """Return why a document without a readable report is none, in words of the reader and not of the parser."""
    # What a file holds that was never written to its end, on a disk that lost power.
    if not content.strip(b" \t\r\n\0"):
        return ConfigError("is empty", fix=_FIX)
    try:
        schema = msgspec.json.decode(content, type=_SchemaPart).schema
    except _MALFORMED:
        head = content[:4096]
        if _NAMED.search(head) or _FIRST.startswith(b"".join(head.split())):
            return ConfigError("is a report that is cut off or damaged", fix=_FIX)
        valid = isinstance(error, msgspec.ValidationError)
        return NotAReportError("is not a report of envcheck" if valid else "is not JSON")
    if schema == _SCHEMA:
        place = re.search(r" at `.{1,80}`", str(error))
        return ConfigError(f"is a report with a missing or wrong field{place[0] if place else ''}", fix=_FIX)
    if schema.startswith("envcheck/report/"):
        fix = "use the envcheck of one version on all nodes"
        return ConfigError(f"has the schema {schema[:40]!r}, not {_SCHEMA}", fix=fix)
    ours = schema.startswith("envcheck/")
    return NotAReportError(f"is a document {schema[:40]}, not of one node" if ours else "is not a report of envcheck")


def _reading(document: _ReportPart, digest: bytes, stem: str) -> NodeReport:
    checks = (*map(_check, document.outcomes),)
    status, why = _status(document, checks)
    host, gpus, signals = document.host, document.snapshot.gpus, document.snapshot.signals
    group = document.group
    whole = group is not None and not group.node
    named = "" if _alone(document, host.place.node or host.name) else _node(host)
    models = {_string(_value(gpu.signals, "name")) for gpu in gpus}
    return NodeReport(
        digest=digest,
        node="" if whole else named or node_of_file(stem),
        started=moment(document.started),
        ended=moment(document.ended),
        status=status,
        why=why,
        gpu=sys.intern(" + ".join(sorted(filter(None, models)))),
        gpus=tuple(gpu.uuid[:_LONGEST_TEXT] for gpu in gpus),
        cell=sys.intern(_cell(document)),
        driver=_string(_value(signals, "driver.version")),
        arch=sys.intern(host.arch[:_LONGEST_TEXT]),
        checks=checks,
        configuration=_configuration(document),
        group=_digest(msgspec.json.encode([group.run, group.nodes])) if group else b"",
        member=group.node if group else "",
        excusable=group is not None and not _doubt(document, [check for check in checks if check.check != FORMED]),
        blamed=_blamed(document, group) if group and whole else (),
    )


def _blamed(document: _ReportPart, group: GroupFacts) -> tuple[tuple[str, str], ...]:
    why: dict[str, list[str]] = {}
    # host-2 of one report is not that of another.
    for outcome in () if _alone(document, *group.nodes) else document.outcomes:
        for node in nodes_of(outcome.culprit, group) if outcome.status in ("fail", "error") else ():
            why.setdefault(group.nodes[node], []).append(f"{outcome.id}: {outcome.summary[:_LONGEST_TEXT]}")
    return tuple((node, "; ".join(reasons)) for node, reasons in why.items())


def nodes_of(culprit: str, group: GroupFacts) -> set[int]:
    """Return the nodes that a culprit names, by its ranks or by their names; none where it names neither."""
    lists = [re.sub(r"\([^()]*\)", "", listed) for listed in _RANKS.findall(culprit)]
    ranks = [int(number) for listed in lists for number in re.findall(r"[0-9]+", listed)]
    named = {node for rank in ranks if (node := node_in(rank, group)) is not None}
    if named:
        return named
    words = set(re.split(r"[\s,()]+", culprit))
    return {number for number, name in enumerate(group.nodes) if name in words}


def node_in(rank: int, group: GroupFacts) -> int | None:
    """Return the number of the node that a rank of the group is on."""
    node = bisect.bisect([*itertools.accumulate(group.ranks)], rank)
    return node if node < len(group.ranks) else None


def node_of_file(stem: str) -> str:
    """Return the node that a file's name says: n17.json and envcheck-report-n17.json are of n17."""
    return stem.removeprefix("envcheck-report-")


def moment(text: str) -> float | None:
    """Return a time as seconds since 1970; None for what is not one. Without a zone it is UTC."""
    try:
        time = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
        return (time if time.tzinfo else time.replace(tzinfo=dt.timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None


def _node(host: _HostPart) -> str:
    """Return the node's name as the launcher has it, else the host's; with its number where all are localhost."""
    name = host.place.node or (host.name if host.name not in ("", "localhost", "localhost.localdomain") else "")
    if not name and host.place.nodes > 1:
        return f"node-{host.place.node_rank}"
    return name if len(name) <= _LONGEST_NAME else f"{name[:60]}…"


def _alone(document: _ReportPart, *names: str) -> bool:
    """Tell whether `envcheck report redact` without a key wrote it: then every report's first host is host-1."""
    if not any(map(_REDACTED_HOST.fullmatch, names)):
        return False
    gpus = document.snapshot.gpus
    return all(gpu.uuid.startswith(UNKEYED) for gpu in gpus) if gpus else document.boot.startswith("boot-")


def _check(outcome: _OutcomePart) -> CheckValue:
    """Return an outcome; what ten thousand reports have alike is in memory once."""
    culprit = outcome.culprit[:_LONGEST_TEXT]
    named = re.search(r"\b(?:GPU|MIG)-[0-9a-fA-F-]{36}", culprit)
    return CheckValue(
        check=sys.intern(outcome.id[:_LONGEST_TEXT]),
        status=outcome.status,
        value=None if outcome.status == "skip" else number(outcome.value),
        unit=sys.intern(outcome.unit[:_LONGEST_TEXT]),
        code=sys.intern(outcome.code[:_LONGEST_TEXT]),
        culprit=culprit,
        gpu=named[0] if named else _string(outcome.details.device),
        summary="" if outcome.status in ("pass", "skip") else outcome.summary[:_LONGEST_TEXT],
    )


def _status(document: _ReportPart, checks: Sequence[CheckValue]) -> tuple[VerdictStatus, str]:
    """Return what the node may count as, and why: a failure stays one, and a pass needs everything to agree with it."""
    kinds: tuple[VerdictStatus, ...] = ("fail", "error")
    for status in kinds:
        named = [check.check for check in checks if check.status == status]
        if document.verdict.status == status or named:
            return status, ", ".join(named) or document.verdict.sentence[:_LONGEST_TEXT]
    doubt = _doubt(document, checks)
    if document.verdict.exit_code:
        doubt = f"the verdict is pass, and its exit code {document.verdict.exit_code}"
    return ("error", doubt) if doubt else ("pass", "")


def _doubt(document: _ReportPart, checks: Sequence[CheckValue]) -> str:
    """Return why a report without a failure is no pass, whatever its verdict; "" where it is one."""
    if not document.ended:
        return "the run did not reach its end"
    started, ended = moment(document.started), moment(document.ended)
    if started is None or ended is None or ended < started:
        return f"its times cannot be: {document.started[:40]!r} to {document.ended[:40]!r}"
    odd = [o.id for o in document.outcomes if o.status in ("pass", "warn") and _not_finite(o.value)]
    if odd:
        return f"passed with a value that is not a number: {', '.join(odd)}"
    return "" if any(check.status == "pass" for check in checks) else "the verdict is pass, and no check passed"


def _not_finite(value: Any) -> bool:
    """Tell whether a value is a number that is none: reports write those as text, "nan" or "inf"."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        return not math.isfinite(float(value))
    return isinstance(value, int)


def _cell(document: _ReportPart) -> str:
    """Return the cell that the image promises, else torch and Python as they are."""
    promised = document.promises.get("cell")
    if promised:
        return promised[:_LONGEST_TEXT]
    torch, python = (_string(document.environment.get(name)) for name in ("torch", "python"))
    version, _, local = torch.partition("+")
    parts = [f"torch{version}" if version else "", local, f"py{''.join(python.split('.')[:2])}" if python else ""]
    return "-".join(filter(None, parts))


def _string(value: Any) -> str:
    return sys.intern(value[:_LONGEST_TEXT]) if isinstance(value, str) else ""


# What drift is looked for in is what somebody sets or installs; temperatures, free memory and uptimes differ rightly.
_HOST_SIGNALS: Final = (
    *("host.kernel", "host.os", "host.cpus", "host.cpu", "host.memory_total", "host.numa_nodes", "host.hugepages"),
    *("pci.iommu", "driver.version", "driver.kernel_flavour", "driver.libcuda", "gpu.count", "limits.memlock"),
    *("limits.nofile", "shm.total", "container.runtime", "clock.synchronized"),
)
_GPU_SIGNALS: Final = (
    *("vbios", "memory_total", "power_limit", "clock_sm_max", "ecc_mode", "mig_mode", "compute_mode", "persistence"),
    *("nvlinks_active", "pcie_gen_max", "pcie_width_max"),
)
# Variables that steer the software under test; any other may rightly differ, as a job's number does.
_STEERING: Final = ("NCCL_", "CUDA_", "UCX_", "FI_", "TORCH_", "PYTORCH_", "OMP_", "NVIDIA_")
# Values of the launcher's or the job's own, which differ on every node.
_OWN: Final = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "TORCHELASTIC_RUN_ID")


def _configuration(document: _ReportPart) -> dict[str, str]:
    """Return the configuration by signal, as text; what was not read is not there, and no drift."""
    host = document.snapshot.signals
    held = {name: _value(host, name) for name in _HOST_SIGNALS}
    # Memory as the kernel counts it differs by a few pages between nodes of one kind.
    for name in ("host.memory_total", "shm.total"):
        amount = number(held[name])
        if amount is not None:
            held[name] = f"{amount / (1 << 30):.0f} GiB"
    for name in _GPU_SIGNALS:
        values = {_text(value) for gpu in document.snapshot.gpus if (value := _value(gpu.signals, name)) is not None}
        held[f"gpu.{name}"] = " and ".join(sorted(values)) or None
    held |= {name: document.environment.get(name) for name in ("torch", "cuda", "cudnn", "nccl", "python")}
    variables = _value(host, "env")
    if isinstance(variables, dict):
        held |= {f"env.{n}": v for n, v in variables.items() if n.startswith(_STEERING) and n not in _OWN}
    held["image"] = document.target.image_id
    return {sys.intern(name): sys.intern(_text(value)) for name, value in held.items() if value is not None}


def _value(signals: _Signals, name: str) -> Any:
    read_value = signals.get(name)
    return None if read_value is None else read_value.value


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()
    return text[:120]

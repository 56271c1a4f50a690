"""Which GPU a finding is about, and the GPUs of a report as a table, in the columns that this node could tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from envcheck.checks import ERROR, FAIL, WARN
from envcheck.node.snapshot import Gpu
from envcheck.reports import phrases
from envcheck.reports.model import RunReport
from envcheck.reports.rejudge import LACKING
from envcheck.runner.schema import OutcomeRow

FINDINGS: Final = (FAIL, ERROR, WARN)
_NAMING: Final = ("device", "devices", "gpu", "gpus", "uuid", "uuids", "culprit", "culprits")
# Signals by column; a second one stands behind a slash: what is, of what could be.
_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "memory / MiB": ("memory_used", "memory_total"),
    "power / W": ("power_draw", "power_limit"),
    "°C": ("temperature",),
    "SM / MHz": ("clock_sm", "clock_sm_max"),
    "PCIe gen": ("pcie_gen", "pcie_gen_max"),
    "lanes": ("pcie_width", "pcie_width_max"),
    "NVLinks": ("nvlinks_active",),
    "ECC": ("ecc_mode",),
    "MIG": ("mig_mode",),
}
_MEBIBYTE: Final = 2**20


def uuids(report: RunReport) -> list[str]:
    """Return the node's GPUs as NVML orders them, then those that only torch saw."""
    uuids = [gpu.uuid for gpu in report.snapshot.gpus]
    visible = [device.get("uuid") for device in phrases.devices(report.environment)]
    return list(dict.fromkeys([*uuids, *(str(uuid) for uuid in visible if uuid)]))


def culprits(report: RunReport) -> dict[str, list[OutcomeRow]]:
    """Return for each GPU the findings that name it: in their summary, their details, or by its rank."""
    gpus = uuids(report)
    # That today's rule needs what an older report does not hold is nothing of a GPU.
    findings = [(o, _named(o)) for o in report.outcomes if o.status in FINDINGS and LACKING not in o.summary]
    return {uuid: [o for o, named in findings if any(uuid in text for text in named)] for uuid in gpus}


def _named(outcome: OutcomeRow) -> list[str]:
    details = outcome.details
    listed = details.get("ranks")
    numbers = [details.get("rank"), *(listed if isinstance(listed, list) else [])]
    blamed = [number for number in numbers if number is not None]
    at = [entry for entry in outcome.ranks if isinstance(entry, dict) and entry.get("rank") in blamed]
    identifiers = [details[key] for key in _NAMING if key in details] + [entry.get("device") for entry in at]
    texts = [text for finding in outcome.findings for text in (finding.summary, finding.culprit)]
    return [outcome.summary, outcome.culprit, *texts, *(text for value in identifiers for text in _texts(value))]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from map(str, value)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


class TableCell(NamedTuple):
    """A table's cell; `why` says why nothing could be read, `status` says what it is shown as."""

    text: str
    why: str = ""
    status: str = ""


def gpu_table(report: RunReport) -> tuple[list[str], list[list[TableCell]]]:
    """Return the columns and a row a GPU; a GPU that only torch or only NVML sees has its row too."""
    gpus = {gpu.uuid: gpu for gpu in report.snapshot.gpus}
    shown = {t: names for t, names in _COLUMNS.items() if any(names[0] in gpu.signals for gpu in gpus.values())}
    devices = {str(device.get("uuid")): device for device in phrases.devices(report.environment)}
    blamed, rows, models = culprits(report), [], []
    for number, uuid in enumerate(uuids(report)):
        gpu = gpus.get(uuid, Gpu(uuid))
        models.append(str(gpu.signal("name").value or devices.get(uuid, {}).get("name") or "?"))
        identity = [TableCell(str(_index(gpu, number))), TableCell(models[-1]), TableCell(uuid, status="code")]
        rows.append([*identity, _findings(blamed[uuid]), *(_read(gpu, names) for names in shown.values())])
    titles = ["GPU", "model", "UUID", "findings", *shown]
    if len(set(models)) == 1:
        # The page's head names the one model already.
        return [t for t in titles if t != "model"], [[row[0], *row[2:]] for row in rows]
    return titles, rows


def one_blamed_gpu(report: RunReport) -> str:
    """Return which one GPU more findings name than any other, where the node has several; or ""."""
    named = {uuid: [outcome.id for outcome in outcomes] for uuid, outcomes in culprits(report).items() if outcomes}
    most = max(named.values(), key=len, default=[])
    worst = [uuid for uuid, outcomes in named.items() if len(outcomes) == len(most)]
    one_of_several = len(worst) == 1 < min(len(most), len(uuids(report)))
    if not one_of_several:
        return ""
    numbered = {gpu.uuid: _index(gpu, number) for number, gpu in enumerate(report.snapshot.gpus)}
    name = f"GPU {numbered[worst[0]]} ({worst[0]})" if worst[0] in numbered else worst[0]
    return f"{', '.join(most)} name one GPU: {name}."


def _index(gpu: Gpu, number: int) -> Any:
    index = gpu.signal("index").value
    return number if index is None else index


def _findings(outcomes: list[OutcomeRow]) -> TableCell:
    if not outcomes:
        return TableCell("none")
    worst = next((o.status for o in outcomes if o.status == FAIL), outcomes[0].status)
    return TableCell(", ".join(o.id for o in outcomes), status=worst)


def _read(gpu: Gpu, names: tuple[str, ...]) -> TableCell:
    first = gpu.signal(names[0])
    if first.value is None:
        return TableCell("?", first.reason or "")
    signals = (gpu.signal(name) for name in names)
    values = dict.fromkeys(_plain(signal.value, signal.unit) for signal in signals if signal.value is not None)
    return TableCell(" / ".join(values))


def _plain(value: Any, unit: str | None) -> str:
    number = phrases.number(value)
    if number is None:
        return str(value)
    return f"{number / _MEBIBYTE:,.0f}" if unit == "B" else f"{number:g}"

"""The GPUs of a report as a table: what people compare, in the columns that this node could tell."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from envcheck.checks import FAIL
from envcheck.node.snapshot import Gpu
from envcheck.reports import phrases
from envcheck.reports.blamed_gpus import culprits, uuids
from envcheck.reports.model import RunReport
from envcheck.runner.schema import OutcomeRow

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


class TableCell(NamedTuple):
    """A table's cell; `why` says why nothing could be read, `status` says what it is shown as."""

    text: str
    why: str = ""
    status: str = ""


def table(report: RunReport) -> tuple[list[str], list[list[TableCell]]]:
    """Return the columns and a row a GPU; a GPU that only torch or only NVML sees has its row too."""
    gpus = {gpu.uuid: gpu for gpu in report.snapshot.gpus}
    shown = {t: names for t, names in _COLUMNS.items() if any(names[0] in gpu.signals for gpu in gpus.values())}
    devices = {str(device.get("uuid")): device for device in phrases.devices(report.environment)}
    blamed, rows, models = culprits(report), [], []
    for number, uuid in enumerate(uuids(report)):
        gpu = gpus.get(uuid, Gpu(uuid))
        models.append(str(gpu.signal("name").value or devices.get(uuid, {}).get("name") or "?"))
        identity = [
            TableCell(str(_index(gpu, number))),
            TableCell(models[-1]),
            TableCell(uuid, status="code"),
            _findings(blamed[uuid]),
        ]
        rows.append([*identity, *(_read(gpu, names) for names in shown.values())])
    titles = ["GPU", "model", "UUID", "findings", *shown]
    if len(set(models)) == 1:
        # The page's head names the one model already.
        return [t for t in titles if t != "model"], [[row[0], *row[2:]] for row in rows]
    return titles, rows


def blamed(report: RunReport) -> str:
    """Return which one GPU more findings name than any other, where there are two such findings at least; or ""."""
    named = {uuid: [outcome.id for outcome in outcomes] for uuid, outcomes in culprits(report).items() if outcomes}
    most = max(named.values(), key=len, default=[])
    worst = [uuid for uuid, outcomes in named.items() if len(outcomes) == len(most)]
    return f"{', '.join(most)} name one GPU: {_title(report, worst[0])}." if len(worst) == 1 < len(most) else ""


def _title(report: RunReport, uuid: str) -> str:
    gpus = {gpu.uuid: gpu for gpu in report.snapshot.gpus}
    return f"GPU {_index(gpus[uuid], list(gpus).index(uuid))} ({uuid})" if uuid in gpus else uuid


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

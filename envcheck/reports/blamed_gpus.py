"""Which GPU a finding is about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from envcheck.checks import ERROR, FAIL, WARN
from envcheck.reports import phrases
from envcheck.reports.model import RunReport
from envcheck.reports.rejudge import LACKING
from envcheck.runner.schema import OutcomeRow

FINDINGS: Final = (FAIL, ERROR, WARN)
_NAMING: Final = ("device", "devices", "gpu", "gpus", "uuid", "uuids", "culprit", "culprits")


def uuids(report: RunReport) -> list[str]:
    """Return the node's GPUs as NVML orders them, then those that only torch saw."""
    uuids = [gpu.uuid for gpu in report.snapshot.gpus]
    visible = [device.get("uuid") for device in phrases.devices(report.environment)]
    return list(dict.fromkeys([*uuids, *(str(uuid) for uuid in visible if uuid)]))


def culprits(report: RunReport) -> dict[str, list[OutcomeRow]]:
    """Return for each GPU the findings that name it: in their summary, their details, or by its rank."""
    gpus = uuids(report)
    findings = [(o, _named(o)) for o in report.outcomes if o.status in FINDINGS and not _not_recorded(o)]
    return {uuid: [o for o, named in findings if any(uuid in text for text in named)] for uuid in gpus}


def _not_recorded(outcome: OutcomeRow) -> bool:
    """Tell whether today's rule needs what an older report does not hold: that is nothing of a GPU."""
    return outcome.status == ERROR and LACKING in outcome.summary


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

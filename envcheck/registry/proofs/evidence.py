"""A report as the evidence beside its statement: without names, compressed to the same bytes each time."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from typing import Final

import msgspec

from envcheck.node.snapshot import with_whys
from envcheck.registry.proofs.ran_image import UnprovableError
from envcheck.registry.proofs.statement import MOST_REPORT, ReportReference
from envcheck.registry.proofs.strict_json import MalformedError
from envcheck.reports.model import RunReport
from envcheck.struct_types import LightRecord

MEDIA_TYPE: Final = "application/vnd.envcheck.report.v1+json+gzip"


class PackedReport(LightRecord, frozen=True):
    """The blob, what the statement says of it, and the report that it holds."""

    content: bytes
    reference: ReportReference
    report: RunReport


def pack(report: RunReport, *, plain_names: bool = False) -> PackedReport:
    """Return the evidence; names are pseudonyms unless `plain_names`.

    Raises RedactError as redact does, and UnprovableError for a report that `unpack` would refuse.
    """
    from envcheck.reports.redact import redact  # noqa: PLC0415 (who only reads a report does without its patterns)

    published = report if plain_names else redact(report)
    plain = msgspec.json.encode(published)
    if len(plain) > MOST_REPORT:
        message = f"the report has {len(plain) >> 20} MiB, more than the {MOST_REPORT >> 20} MiB of a proof"
        raise UnprovableError(message, fix="run it without --repeat, and publish that report")
    content = gzip.compress(plain, compresslevel=9, mtime=0)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return PackedReport(content, ReportReference(digest=digest, size=len(content), redacted=not plain_names), published)


def unpack(content: bytes) -> RunReport:
    """Return the report. Raises MalformedError for what is none, or is too large when unpacked."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            plain = stream.read(MOST_REPORT + 1)
    except (OSError, EOFError, zlib.error) as error:
        message = "the report is not gzip"
        raise MalformedError(message) from error
    if len(plain) > MOST_REPORT:
        message = f"the report is larger than {MOST_REPORT >> 20} MiB when unpacked"
        raise MalformedError(message)
    try:
        report = msgspec.json.decode(plain, type=RunReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"the report cannot be read: {' '.join(str(error).split())[:200]}"
        raise MalformedError(message) from error
    return msgspec.structs.replace(report, snapshot=with_whys(report.snapshot))

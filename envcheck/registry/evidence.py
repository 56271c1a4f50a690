"""A report as the evidence beside its statement, and which image of a registry it is about."""

import gzip
import io
import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

from envcheck.errors import EnvcheckError
from envcheck.registry.documents import digest_of
from envcheck.registry.statement import MOST_REPORT, MalformedError, ReportReference
from envcheck.reports.model import RunReport
from envcheck.runner.schema import ImageFacts
from envcheck.struct_types import LightRecord

MEDIA_TYPE: Final = "application/vnd.envcheck.report.v1+json+gzip"
# A host's architecture as image manifests write it.
ARCHS: Final = {"x86_64": "amd64", "aarch64": "arm64"}


class UnprovableError(EnvcheckError):
    """A report that proves nothing about the image it is to be published beside (exit 1)."""

    exit_code = 1


class PackedReport(LightRecord, frozen=True):
    """The blob, what the statement says of it, and the report that it holds."""

    content: bytes
    reference: ReportReference
    report: RunReport


def pack(report: RunReport) -> PackedReport:
    """Return the evidence: without names, and compressed to the same bytes each time."""
    from envcheck.reports.redact import redact  # noqa: PLC0415 (who only reads a report does without its patterns)

    published = redact(report)
    plain = msgspec.json.encode(published)
    if len(plain) > MOST_REPORT:
        message = f"the report has {len(plain) >> 20} MiB, more than the {MOST_REPORT >> 20} MiB of a proof"
        raise UnprovableError(message, fix="run it without --repeat, and publish that report")
    content = gzip.compress(plain, compresslevel=9, mtime=0)
    return PackedReport(content, ReportReference(digest=digest_of(content), size=len(content)), published)


def unpack(content: bytes) -> RunReport:
    """Return the report. Raises MalformedError for what is none, or is too large when unpacked."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            plain = stream.read(MOST_REPORT + 1)
        if len(plain) <= MOST_REPORT:
            return msgspec.json.decode(plain, type=RunReport)
        why = f"it is larger than {MOST_REPORT >> 20} MiB when unpacked"
    except (OSError, EOFError, zlib.error):
        why = "it is not gzip"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
    message = f"the report cannot be read: {why}"
    raise MalformedError(message)


class RemoteImage(LightRecord, frozen=True):
    """One platform's manifest in a repository; `index_digest` is that of the index it was found in."""

    repository: str
    manifest: str
    config: str
    arch: str
    index_digest: str | None = None


def image_arch(report: RunReport) -> str:
    """Return the architecture of the host that ran, in an image's words."""
    return ARCHS.get(report.host.arch, report.host.arch)


def ran(report: RunReport, images: Sequence[RemoteImage]) -> RemoteImage:
    """Return the image that the report is about. Raises UnprovableError where it is none of them, or open which.

    The strongest evidence decides: the manifest's digest, the config's (which holds the layers and all settings), the
    index's with the architecture, or REPOSITORY@DIGEST.
    """
    facts = report.target.image or ImageFacts(runs_as="", program="", history=0, secrets=[])
    id_, pulled = report.target.image_id, {name.rpartition("@")[2] for name in facts.repository_digests}
    same_arch = {image.manifest: image for image in images if image.arch == image_arch(report)}
    for field, stated in (
        ("manifest", {facts.manifest_digest, id_}),
        ("config", {facts.config_digest, id_}),
        ("index_digest", {facts.index_digest, id_} - {None}),
        ("manifest", pulled),
        ("index_digest", pulled),
    ):
        fitting = [image for image in same_arch.values() if getattr(image, field) in stated]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            message = f"the report fits {len(fitting)} images: {', '.join(sorted(one.manifest for one in fitting))}"
            raise UnprovableError(message, fix="publish by digest: REPOSITORY@sha256:...")
    digests = {facts.manifest_digest, facts.config_digest, facts.index_digest, id_} - {None}
    stated_ids = ", ".join(sorted(map(str, digests))) or "no digest is stated"
    listed = ", ".join(same_arch) or "no image for this architecture"
    message = f"the report is about another image ({stated_ids}); the registry has {listed}"
    raise UnprovableError(message, fix="push the image that was run, or run the one in the registry")

"""A report as the evidence beside its statement: without names, compressed to the same bytes each time."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from envcheck.errors import EnvcheckError
from envcheck.registry.statement import MOST_REPORT, MalformedError, ReportReference
from envcheck.reports.model import RunReport
from envcheck.runner.schema import ImageFacts
from envcheck.struct_types import LightRecord

MEDIA_TYPE: Final = "application/vnd.envcheck.report.v1+json+gzip"


class PackedReport(LightRecord, frozen=True):
    """The blob, what the statement says of it, and the report that it holds."""

    content: bytes
    reference: ReportReference
    report: RunReport


def pack(report: RunReport) -> PackedReport:
    """Return the evidence, in which names are pseudonyms.

    Raises RedactError as redact does, and UnprovableError for a report that `unpack` would refuse.
    """
    from envcheck.reports.redact import redact  # noqa: PLC0415 (who only reads a report does without its patterns)

    published = redact(report)
    plain = msgspec.json.encode(published)
    if len(plain) > MOST_REPORT:
        message = f"the report has {len(plain) >> 20} MiB, more than the {MOST_REPORT >> 20} MiB of a proof"
        raise UnprovableError(message, fix="run it without --repeat, and publish that report")
    content = gzip.compress(plain, compresslevel=9, mtime=0)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return PackedReport(content, ReportReference(digest=digest, size=len(content)), published)


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
        return msgspec.json.decode(plain, type=RunReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"the report cannot be read: {' '.join(str(error).split())[:200]}"
        raise MalformedError(message) from error


# A host's architecture as image manifests write it.
_PLATFORMS: Final = {"x86_64": "amd64", "aarch64": "arm64"}


class UnprovableError(EnvcheckError):
    """A report that proves nothing about the image it is to be published beside (exit 1)."""

    exit_code = 1


class RemoteImage(LightRecord, frozen=True):
    """One platform's manifest in a repository; `index_digest` is that of the index it was found in.

    `arch` is the config's architecture in an image's words (amd64), `diff_ids` the config's, the lowest first.
    """

    repository: str
    manifest: str
    config: str
    arch: str
    index_digest: str | None = None
    diff_ids: tuple[str, ...] = ()


def image_arch(report: RunReport) -> str:
    """Return the architecture of the host that ran, in an image's words."""
    return _PLATFORMS.get(report.host.arch, report.host.arch)


def ran(report: RunReport, images: Sequence[RemoteImage]) -> RemoteImage:
    """Return the image that the report is about. Raises UnprovableError where it is none of them, or open which.

    The strongest evidence decides: the manifest's digest, the config's (which holds the layers and all settings), the
    index's with the architecture, REPOSITORY@DIGEST, and the layers alone only where the engine stated neither manifest
    nor config: an image with the same layers can have other settings.
    """
    target = report.target
    facts = target.image or ImageFacts(runs_as="", program="", history=0, secrets=[])
    same_arch = [image for image in images if image.arch == image_arch(report)]
    for fits in _evidence(facts, target.image_id):
        fitting = {image.manifest: image for image in same_arch if fits(image)}
        if len(fitting) == 1:
            return next(iter(fitting.values()))
        if fitting:
            message = f"the report fits {len(fitting)} images: {', '.join(sorted(fitting))}"
            raise UnprovableError(message, fix="publish by digest: REPOSITORY@sha256:...")
    listed = ", ".join(image.manifest for image in same_arch) or "no image for this architecture"
    message = f"the report is about another image: {_named(facts, target.image_id)}; the registry has {listed}"
    raise UnprovableError(message, fix="push the image that was run, or run the one in the registry")


def _evidence(facts: ImageFacts, image_id: str | None) -> list[Callable[[RemoteImage], bool]]:
    """Return what is compared, the strongest first."""
    pulled = {name.rpartition("@")[2] for name in facts.repository_digests}
    compared: list[Callable[[RemoteImage], bool]] = [
        lambda image: image.manifest in (facts.manifest_digest, image_id),
        lambda image: image.config in (facts.config_digest, image_id),
        lambda image: image.index_digest is not None and image.index_digest in (facts.index_digest, image_id),
        lambda image: image.manifest in pulled or image.index_digest in pulled,
    ]
    if facts.config_digest is None and facts.manifest_digest is None and facts.diff_ids:
        compared.append(lambda image: image.diff_ids == tuple(facts.diff_ids))
    return compared


def _named(facts: ImageFacts, image_id: str | None) -> str:
    digests = {
        "manifest": facts.manifest_digest,
        "config": facts.config_digest,
        "index": facts.index_digest,
        "id": image_id,
    }
    return ", ".join(f"{name} {digest}" for name, digest in digests.items() if digest) or "no digest is stated"

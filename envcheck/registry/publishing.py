"""Publish what a run proved: the report as evidence, and the signed statement, both beside the image that ran."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from envcheck import safe_files
from envcheck.errors import ConfigError
from envcheck.registry.attached_proofs import REPORT_TYPE, remote_images
from envcheck.registry.keyless_signing import KeylessSigner
from envcheck.registry.oci.attachments import attach
from envcheck.registry.oci.documents import Descriptor
from envcheck.registry.oci.repository import Repository
from envcheck.registry.proofs import evidence, statement
from envcheck.registry.proofs.envelope import BUNDLE_TYPE, UNSIGNED_TYPE, bundle_annotations, leave_unsigned, sign
from envcheck.registry.proofs.from_report import refuse_unpublishable, state
from envcheck.registry.proofs.ran_image import RemoteImage, image_arch, ran
from envcheck.registry.proofs.statement import Statement
from envcheck.reports.model import RunReport
from envcheck.signing import PrivateKey
from envcheck.struct_types import LightRecord, know_types

_MOST_SBOM: Final = 64 << 20


class _Sbom(msgspec.Struct, rename={"bom_format": "bomFormat", "spdx": "spdxVersion"}):
    bom_format: str = ""
    spdx: str = ""


know_types(_Sbom)


class Publication(LightRecord, frozen=True):
    """One report beside its image. `proof` and `report` are the digests of the artifacts; None of a dry run."""

    image: str
    statement: Statement
    report: str | None
    proof: str | None
    signer: str | None
    notes: tuple[str, ...]


class PreparedProof(LightRecord, frozen=True):
    """A report that is ready to be published."""

    image: RemoteImage
    packed: evidence.PackedReport
    statement: Statement


def prepare(
    repository: Repository, tag_or_digest: str, reports: Sequence[RunReport], *, plain_names: bool = False
) -> list[PreparedProof]:
    """Return what each report says of the image that it ran. Nothing is written.

    Raises UnprovableError for a report that is unfinished, of another image or of a Python.
    """
    for report in reports:
        refuse_unpublishable(report)
    archs = sorted({image_arch(report) for report in reports})
    images = [image for arch in archs for image in remote_images(repository, tag_or_digest, arch)]
    prepared = []
    for report in reports:
        image = ran(report, images)
        packed = evidence.pack(report, plain_names=plain_names)
        prepared.append(PreparedProof(image, packed, state(packed, image)))
    return prepared


def publish(repository: Repository, one: PreparedProof, by: PrivateKey | KeylessSigner | None) -> Publication:
    """Attach the report and then the statement; whoever is interrupted in between has published no proof.

    With a key, an identity of a CI, or unsigned (None).
    """
    subject = _subject(repository, one.image)
    kind = UNSIGNED_TYPE if by is None else BUNDLE_TYPE
    envelope, signer = _enveloped(statement.encode(one.statement), by)
    layers = [(evidence.MEDIA_TYPE, one.packed.content)]
    report = attach(repository, subject, REPORT_TYPE, layers, {}, listing="later")
    annotations = bundle_annotations(statement.PREDICATE_TYPE)
    proof = attach(repository, subject, kind, [(kind, envelope)], annotations, inline=True, listing=report)
    return Publication(
        image=str(repository.reference.pinned(one.image.manifest)),
        statement=one.statement,
        report=report.descriptor.digest,
        proof=proof.descriptor.digest,
        signer=signer,
        notes=proof.notes,
    )


def _enveloped(payload: bytes, by: PrivateKey | KeylessSigner | None) -> tuple[bytes, str | None]:
    """Return the envelope around a statement, and who signed it."""
    if by is None:
        return leave_unsigned(payload, statement.PAYLOAD_TYPE), None
    if isinstance(by, PrivateKey):
        return sign(payload, statement.PAYLOAD_TYPE, by), by.public.id
    return by.sign(payload), str(by.identity)


def read_sbom(path: Path) -> tuple[str, bytes]:
    """Return the media type and the bytes of an SBOM. Raises ConfigError for anything but CycloneDX or SPDX in JSON."""
    try:
        content = safe_files.read_whole(path, most=_MOST_SBOM)
        read = msgspec.json.decode(content, type=_Sbom)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise ConfigError(message, fix="pass the file that `envcheck images sbom` wrote") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        read = _Sbom()
    if read.bom_format == "CycloneDX":
        return "application/vnd.cyclonedx+json", content
    if read.spdx.startswith("SPDX-"):
        return "application/spdx+json", content
    message = f"{path} is neither CycloneDX nor SPDX in JSON"
    raise ConfigError(message, fix="pass the file that `envcheck images sbom` wrote")


def attach_sbom(repository: Repository, image: RemoteImage, sbom: tuple[str, bytes]) -> Descriptor:
    """Attach an SBOM to the image and return what names it."""
    return attach(repository, _subject(repository, image), sbom[0], [sbom], {}).descriptor


def _subject(repository: Repository, image: RemoteImage) -> Descriptor:
    return repository.manifest(image.manifest).descriptor

"""Which image ran: each digest that an engine states leads to the one manifest, and nothing else does."""

from typing import Any

import pytest
from msgspec import structs

from envcheck.registry.attachments import RemoteImage
from envcheck.registry.publishing import UnprovableError, ran
from envcheck.reports.model import RunReport
from envcheck.runner.schema import TargetFacts
from tests import proofs
from tests.tables import each

INDEX = f"sha256:{'d' * 64}"
AMD = structs.replace(proofs.IMAGE, index_digest=INDEX)
ARM = RemoteImage(AMD.repository, proofs.OTHER, f"sha256:{'e' * 64}", "arm64", INDEX)


def of(image_id: str | None = "sha256:0", arch: str = "x86_64", **digests: Any) -> RunReport:
    target = TargetFacts(kind="image", name="x", chosen="--image", image_id=image_id, image=proofs.facts(**digests))
    report = proofs.report(target=target)
    return structs.replace(report, host=structs.replace(report.host, arch=arch))


@each(
    "report",
    [
        of(manifest_digest=proofs.MANIFEST),
        of(config_digest=proofs.CONFIG),
        of(index_digest=INDEX),
        of(repository_digests=[f"other.example/x@{proofs.MANIFEST}"]),
        of(repository_digests=[f"other.example/x@{INDEX}"]),
        of(image_id=proofs.MANIFEST),
        of(image_id=proofs.CONFIG),
        of(image_id=INDEX),
    ],
)
def test_each_digest_leads_to_the_manifest_that_ran(report: RunReport) -> None:
    assert ran(report, [ARM, AMD]) == AMD


def test_an_index_is_read_by_the_architecture_that_ran() -> None:
    assert ran(of(index_digest=INDEX, arch="aarch64"), [AMD, ARM]) == ARM


@each(
    "report",
    [
        of(),
        of(image_id=None),
        of(manifest_digest=proofs.OTHER),
        of(config_digest=proofs.OTHER),
        of(manifest_digest=proofs.MANIFEST, arch="aarch64"),
        of(repository_digests=[f"other.example/x@{proofs.CONFIG}"]),
    ],
)
def test_a_report_of_another_image_is_refused(report: RunReport) -> None:
    with pytest.raises(UnprovableError, match="the report is about another image"):
        ran(report, [ARM, AMD])


def test_what_fits_two_images_is_open() -> None:
    twin = structs.replace(AMD, manifest=f"sha256:{'f' * 64}", config=f"sha256:{'9' * 64}")
    with pytest.raises(UnprovableError, match="fits 2 images"):
        ran(of(index_digest=INDEX), [AMD, twin])
    assert ran(of(index_digest=INDEX, config_digest=AMD.config), [AMD, twin]) == AMD

"""The bill of materials as SPDX 2.3 JSON."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from envcheck import __version__
from envcheck.images.sbom.components import INCOMPLETE, Component, identity
from envcheck.images.sbom.licences import NVIDIA
from envcheck.images.spec import ImageSpec

NO_ASSERTION: Final = "NOASSERTION"
_ROOT: Final = "SPDXRef-image"
_OUR_REF: Final = "LicenseRef-stated-"
_REF: Final = re.compile(r"LicenseRef-[A-Za-z0-9.-]+")
_TEXTS: Final = {NVIDIA: "NVIDIA Proprietary Software; the wheel holds the licence text (License.txt)."}


def spdx(spec: ImageSpec, listed: Sequence[Component], created: dt.datetime) -> str:
    """Return the document; a licence that no metadata at hand states is NOASSERTION."""
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": spec.tag,
        "documentNamespace": f"https://spdx.org/spdxdocs/{spec.cell}-{spec.target}-{identity(spec, listed)}",
        "creationInfo": {
            "created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": [f"Tool: envcheck-{__version__}"],
            "comment": INCOMPLETE,
        },
        "packages": [_image(spec), *(_package(one) for one in listed)],
        "relationships": [
            _relation("SPDXRef-DOCUMENT", "DESCRIBES", _ROOT),
            *(_relation(_ROOT, "CONTAINS", _id(one)) for one in listed),
        ],
        "hasExtractedLicensingInfos": _extracted(listed),
    }
    return json.dumps(document, indent=1) + "\n"


def _image(spec: ImageSpec) -> dict[str, Any]:
    return {
        "SPDXID": _ROOT,
        "name": str(spec.cell),
        "versionInfo": spec.tag,
        "downloadLocation": NO_ASSERTION,
        "filesAnalyzed": False,
        "licenseConcluded": NO_ASSERTION,
        "licenseDeclared": NO_ASSERTION,
        "copyrightText": NO_ASSERTION,
        "primaryPackagePurpose": "CONTAINER",
    }


def _package(one: Component) -> dict[str, Any]:
    return {
        "SPDXID": _id(one),
        "name": one.name,
        "versionInfo": one.version,
        "supplier": f"Organization: {one.supplier}" if one.supplier else NO_ASSERTION,
        "downloadLocation": NO_ASSERTION,
        "filesAnalyzed": False,
        "checksums": [{"algorithm": "SHA256", "checksumValue": digest} for digest in one.sha256],
        "licenseConcluded": NO_ASSERTION,
        "licenseDeclared": _declared(one),
        "copyrightText": NO_ASSERTION,
        "externalRefs": [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": one.purl}
        ],
        "comment": one.environment,
    }


def _declared(one: Component) -> str:
    if one.licence is None:
        return NO_ASSERTION
    return one.licence.expression or _reference(str(one.licence.name))


def _reference(name: str) -> str:
    """Return the identifier of a licence that has only a name."""
    return _OUR_REF + (re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-") or "unnamed")


def _extracted(listed: Iterable[Component]) -> list[dict[str, str]]:
    """Return what SPDX wants to know of each licence that is not in its list."""
    texts: dict[str, str] = {}
    for licence in (one.licence for one in listed if one.licence is not None):
        if licence.name is not None:
            texts[_reference(licence.name)] = licence.name
        for reference in _REF.findall(licence.expression or ""):
            texts[reference] = _TEXTS.get(reference, "The package's metadata names it; its files hold the text.")
    return [{"licenseId": name, "extractedText": text} for name, text in sorted(texts.items())]


def _id(one: Component) -> str:
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", one.ref)


def _relation(one: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}

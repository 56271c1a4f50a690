"""The bill of materials as CycloneDX 1.6 JSON."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any

from envcheck import __version__
from envcheck.images.sbom.components import INCOMPLETE, Component, identity
from envcheck.images.spec import LABEL_PREFIX, ImageSpec


def cyclonedx(spec: ImageSpec, listed: Sequence[Component], created: dt.datetime) -> str:
    """Return the document; what the locks do not cover is said to be incomplete."""
    promises = [{"name": f"{LABEL_PREFIX}{name}", "value": value} for name, value in sorted(spec.promises.items())]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{identity(spec, listed)}",
        "version": 1,
        "metadata": {
            "timestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "tools": {"components": [{"type": "application", "name": "envcheck", "version": __version__}]},
            "component": {
                "type": "container",
                "bom-ref": "image",
                "name": str(spec.cell),
                "version": spec.tag,
                "description": INCOMPLETE,
            },
            "properties": promises,
        },
        "components": [_component(one) for one in listed],
        "compositions": [{"aggregate": "incomplete", "assemblies": ["image"]}],
    }
    return json.dumps(document, indent=1) + "\n"


def _component(one: Component) -> dict[str, Any]:
    written: dict[str, Any] = {
        "type": "library",
        "bom-ref": one.ref,
        "name": one.name,
        "version": one.version,
        "purl": one.purl,
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in one.sha256],
        "properties": [{"name": f"{LABEL_PREFIX}environment", "value": one.environment}],
    }
    if one.supplier:
        written["supplier"] = {"name": one.supplier}
    if one.licence is not None and one.licence.expression:
        written["licenses"] = [{"expression": one.licence.expression}]
    elif one.licence is not None:
        written["licenses"] = [{"license": {"name": one.licence.name}}]
    else:
        # CycloneDX has no word for a licence that nobody stated; this is SPDX's.
        written["licenses"] = [{"license": {"name": "NOASSERTION"}}]
    return written

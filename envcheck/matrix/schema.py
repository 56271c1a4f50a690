"""The JSON Schema of matrix.yaml, for editors."""

from __future__ import annotations

import json

import msgspec

from envcheck.matrix.model import Matrix


def schema() -> str:
    """Return the schema as it is committed beside this file (matrix.schema.json)."""
    found = msgspec.json.schema(Matrix)
    found = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "envcheck matrix.yaml", **found}
    return json.dumps(found, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

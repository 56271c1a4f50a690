"""The JSON Schema of matrix.yaml, for editors."""

from __future__ import annotations

import json

import msgspec

from envcheck.matrix.facts.model import Matrix


def schema() -> str:
    """Return the schema as it is committed beside this file (matrix.schema.json)."""
    header = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "envcheck matrix.yaml"}
    document = {**header, **msgspec.json.schema(Matrix)}
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

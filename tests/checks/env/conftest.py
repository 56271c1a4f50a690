"""What real ranks came to."""

import json
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def outcomes(sabotaged: Callable[[str], Any]) -> Callable[[str], dict[str, Any]]:
    """Return what a check came to in the one run of every check, the sabotaged ones beside the honest."""

    def get(check: str) -> dict[str, Any]:
        rows: list[dict[str, Any]] = json.loads(sabotaged(check).report.read_text())["outcomes"]
        return next(row for row in rows if row["id"] == check)

    return get

"""Every promise in turn: one row each, with what is wrong."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import Any

from envcheck.checks.env.support.operators.promises import (
    arrays_and_files,
    conversions,
    forms,
    modes,
    module_states,
    random_numbers,
    sizes_and_calls,
)

GROUPS: dict[str, dict[str, random_numbers.Promise]] = {
    "state": {
        **random_numbers.PROMISES,
        **conversions.PROMISES,
        **arrays_and_files.PROMISES,
        **modes.PROMISES,
        **module_states.PROMISES,
    },
    "large": sizes_and_calls.LARGE,
    "repeated": sizes_and_calls.REPEATED,
    "forms": forms.PROMISES,
}


def measure(torch: Any, device: Any, source: random.Random) -> Iterator[dict[str, Any]]:
    """Yield one row a promise: error 0 where it holds, else what is wrong."""
    for name, promise in ((name, promise) for group in GROUPS.values() for name, promise in group.items()):
        row = {"operator": name, "dtype": ""}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wrong = promise(torch, device, source)
        except Exception as error:  # noqa: BLE001 (whatever is raised is the finding, and is quoted)
            wrong = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
        yield {**row, "raised": wrong} if wrong else {**row, "error": 0.0, "part": "output"}

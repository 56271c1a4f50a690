"""Every promise in turn: one row each, with what is wrong."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator
from typing import Any

from envcheck.checks.env.support.operators.promises import (
    arrays_and_files,
    call_modes,
    conversions,
    derivatives,
    forms,
    modes,
    module_states,
    random_numbers,
    sizes_and_calls,
)

GROUPS: dict[str, dict[str, random_numbers.Promise]] = {
    "random": random_numbers.PROMISES,
    "state": {
        **conversions.PROMISES,
        **arrays_and_files.PROMISES,
        **modes.PROMISES,
        **module_states.PROMISES,
    },
    "large": sizes_and_calls.LARGE,
    "wide": sizes_and_calls.WIDE_LINES,
    "repeated": sizes_and_calls.REPEATED,
    "forms": forms.PROMISES,
    "call modes": call_modes.PROMISES,
    "derivatives": derivatives.PROMISES,
}


# So many threads share a large tensor on a CPU: ranks have one each, which never divides one.
THREADS, SHARED_BY_THREADS = 2, (*sizes_and_calls.LARGE, *sizes_and_calls.WIDE_LINES)


@contextlib.contextmanager
def _threaded(torch: Any, device: Any) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS if device.type == "cpu" else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure(torch: Any, device: Any, source: random.Random) -> Iterator[dict[str, Any]]:
    """Yield one row a promise: error 0 where it holds, else what is wrong."""
    for name, promise in ((name, promise) for group in GROUPS.values() for name, promise in group.items()):
        row = {"operator": name, "dtype": ""}
        try:
            several = _threaded(torch, device) if name in SHARED_BY_THREADS else contextlib.nullcontext()
            with warnings.catch_warnings(), several:
                warnings.simplefilter("ignore")
                wrong = promise(torch, device, source)
        except Exception as error:  # noqa: BLE001 (whatever is raised is the finding, and is quoted)
            wrong = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
        yield {**row, "raised": wrong} if wrong else {**row, "error": 0.0, "part": "output"}

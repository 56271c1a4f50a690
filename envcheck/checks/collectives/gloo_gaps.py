"""What gloo does not have, by the words that PyTorch documents for it; any other exception is no lack but a fault."""

from __future__ import annotations

import importlib.util
import re

# torch/csrc/distributed/c10d: Backend.hpp and ProcessGroup.hpp ("Backend gloo does not support ..."),
# ProcessGroupGloo.cpp ("ProcessGroupGloo does not support ...", "no support for ... in Gloo process group",
# "Cannot use ReduceOp.AVG with Gloo", "Invalid scalar type"); releases 1.13 to 2.13.
_WORDS = re.compile(
    r"(Backend|ProcessGroup) ?gloo:? does not (yet )?support|no support for \w+ in gloo process group"
    r"|cannot use ReduceOp\.\w+ with gloo|^invalid scalar type",
    re.IGNORECASE,
)
_LENGTH = 300
# pytorch/pytorch#118911 (2.3) brought an all-reduce that ignores the operation; still open for 2.8 in #162338.
_SUMS_ONLY = ((2, 3), (2, 9))
SUMS_ONLY = "the gloo of this PyTorch adds whatever operation reduce-scatter is given (pytorch/pytorch#162338)"
NO_NUMPY = "this PyTorch needs NumPy to exchange Python objects, and NumPy is not installed"


def lacks(backend: str, error: BaseException) -> bool:
    """Return whether an exception is gloo saying that it does not have this operation or dtype."""
    return backend == "gloo" and bool(_WORDS.search(str(error)))


def ignores_operation(backend: str, torch: str, collective: str, operation: str) -> bool:
    """Return whether this release's gloo is known to add where reduce-scatter is called with another operation."""
    release = tuple(int(part) for part in re.findall(r"\d+", torch)[:2])
    affected = backend == "gloo" and _SUMS_ONLY[0] <= release < _SUMS_ONLY[1]
    return affected and collective.startswith("reduce-scatter") and operation != "sum"


def needs_numpy(error: BaseException) -> bool:
    """Return whether an exception only says that NumPy is not installed; a NumPy that does not work is a fault."""
    return "numpy is not available" in str(error).lower() and importlib.util.find_spec("numpy") is None


def quoted(error: BaseException) -> str:
    """Return an exception's type and first line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:_LENGTH]

"""The dtypes that a device has to get right, and how coarsely each of them rounds."""

from __future__ import annotations

from envcheck.checks import Measured

UNIT_ROUNDOFF = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}
BFLOAT16_SINCE = (8, 0)


def dtypes(entry: Measured) -> list[str]:
    """Return fp32, on GPUs fp16, and bf16 on CPUs and from compute capability 8.0 on."""
    if not entry["is_cuda"]:
        return ["float32", "bfloat16"]
    native = tuple(entry.get("capability") or ()) >= BFLOAT16_SINCE
    return ["float32", "float16", "bfloat16"] if native else ["float32", "float16"]

"""Why a proof does not hold: stable words, in the order in which they are looked for.

What comes first decides: what is not there or not readable, then who signed it, then what it says of which image, then
whether it is of this node, then what the policy asks for, then what has happened since.
"""

from __future__ import annotations

import enum

from envcheck.struct_types import LightRecord


class ProofRefusal(enum.Enum):
    """The words of `--json`; the texts beside them may change."""

    NO_PROOF = "no-proof"
    DANGLING = "dangling"
    TAMPERED = "tampered"
    UNKNOWN_FORMAT = "unknown-format"
    UNSIGNED = "unsigned"
    WRONG_KEY = "wrong-key"
    WRONG_SUBJECT = "wrong-subject"
    FROM_THE_FUTURE = "from-the-future"
    FAILED = "failed"
    NOT_A_GPU_RUN = "not-a-gpu-run"
    WRONG_ARCH = "wrong-arch"
    WRONG_GPU = "wrong-gpu"
    TOO_FEW_GPUS = "too-few-gpus"
    DRIVER_TOO_OLD = "driver-too-old"
    DRIVER_UNSUPPORTED = "driver-unsupported"
    LEVEL_TOO_LOW = "level-too-low"
    CHECK_MISSING = "check-missing"
    EXPIRED = "expired"
    FAILED_SINCE = "failed-since"
    STALE_LIMITS = "stale-limits"
    ALIAS_NOT_PROMOTED = "alias-not-promoted"


class Rejection(LightRecord, frozen=True):
    """A refusal, and what it is about in a sentence for people."""

    reason: ProofRefusal
    detail: str

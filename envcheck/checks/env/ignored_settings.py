"""A setting that nothing reads looks like a mirror, and the download goes to the public host, or nowhere."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
from pathlib import Path

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, passed, undecided, warned

CHECK = Check(promise="every mirror and cache setting of the environment is one that something reads", level="static")

LIMIT = Limit(0, "settings", "huggingface_hub, pip, uv and conda: their own lists of environment variables", "equal")
# Settings that nothing reads, or not for long, and what is read instead.
_TABLE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
IGNORED, OUTDATED = _TABLE["ignored"], _TABLE["outdated"]
TRANSFER = "HF_HUB_ENABLE_HF_TRANSFER"
TRUE = ("1", "true", "yes", "on")


def measure(rank: Rank) -> Measured:
    """Return the names that are set; no value of any."""
    enabled = os.environ.get(TRANSFER, "").lower() in TRUE
    # huggingface_hub 1.0 reads it no longer, and fetches with Xet: huggingface/huggingface_hub#3444, #4219.
    dead = enabled and any(
        not hub.version.startswith("0.") for hub in importlib.metadata.distributions(name="huggingface_hub")
    )
    return {
        "rank": rank.rank,
        "ignored": [name for name in IGNORED if name in os.environ] + ([TRANSFER] if dead else []),
        "outdated": [name for name in OUTDATED if name in os.environ],
        "transfer_missing": enabled and not dead and importlib.util.find_spec("hf_transfer") is None,
    }


def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Warn naming each, with what is read instead."""
    entry = ranks[0] if ranks else {}
    if not isinstance(entry.get("ignored"), list) or not isinstance(entry.get("outdated"), list):
        return undecided("the environment was not read", code="ignored-settings.unmeasured")
    sentences = [f"nothing reads {name}" for name in entry["ignored"]]
    sentences += [f"{name} is outdated" for name in entry["outdated"]]
    known = {TRANSFER: "HF_XET_HIGH_PERFORMANCE", **OUTDATED, **IGNORED}
    fixes = [f"{name} -> {known[name]}" for name in entry["ignored"] + entry["outdated"]]
    if entry.get("transfer_missing"):
        sentences.append(f"{TRANSFER} is set, and hf_transfer is not installed: downloads fail")
        fixes.append(f"unset {TRANSFER}, or install hf_transfer")
    if sentences:
        text, fix, code = "; ".join(sentences), "; ".join(fixes), "ignored-settings.ignored"
        return warned(text, fix=fix, value=len(sentences), limit=LIMIT, code=code)
    return passed("every such setting is read by something", value=0, limit=LIMIT)

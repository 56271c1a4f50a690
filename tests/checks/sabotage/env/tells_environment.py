"""Nothing is wrong: two ranks tell what NCCL would be told here."""

from __future__ import annotations

import os

from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View, passed

CHECK = Check(promise="the ranks speak", level="quick", ranks=2)


def measure(rank: Rank) -> Measured:
    return {"rank": rank.rank, "NCCL_P2P_DISABLE": os.environ.get("NCCL_P2P_DISABLE")}


def judge(_view: View, ranks: Ranks) -> Outcome:
    return passed("spoke", value=len(ranks), unit="ranks")

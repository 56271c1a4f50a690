"""Ranks that work under a test's own start can fail under the start that users have.

Here ranks are started by torchrun itself, meet over TCP by the own host name, and end by the interpreter's exit.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided, warned, worst
from envcheck.checks.collectives import torchrun_rank
from envcheck.checks.env import name_resolution
from envcheck.checks.support import process_group
from envcheck.counting import counted, numbered
from envcheck.node import subprocesses

CHECK = checks.Check(
    promise="torchrun starts ranks that find each other by the host name, and they end without a crash",
    level="full",
    seconds=12.0,
    cpu_seconds=5.0,
    timeout=260.0,
)

LIMIT = checks.Limit(0, "failed ranks", "exit code 0 of torchrun, and of each rank's own end", "at most")
ON_CPU = 2
PATIENCE = 210.0
_LOG_LIMIT = 1 << 15
# What torchrun prints of each rank that failed, torch 1.13 to 2.9.
_FAILURE = re.compile(r"rank\s+: (\d+) \(local_rank: \d+\)\s+exitcode\s+: (-?\d+)")
_RAISED = re.compile(r"^(?:\[rank\d+\]:? ?)?([\w.]*(?:Error|Exception): .*)", re.MULTILINE)
_AT_EXIT = re.compile(r"Error in atexit\._run_exitfuncs|Exception ignored in atexit callback")
_NAME_FIX = "see the check name-resolution; until it is mended, start torchrun with --standalone on a single machine"
_FIX = "run `torchrun --nproc_per_node 2` with a small program by hand; the check's log has what torchrun printed"


def measure(rank: Rank) -> Measured:
    """Run torchrun with one rank a GPU (two on a CPU) and return how it and each rank ended."""
    if importlib.util.find_spec("torch.distributed.run") is None:
        return {"rank": rank.rank, "missing": "this torch has no torch.distributed.run"}
    import torch

    if not torch.distributed.is_available():
        return {"rank": rank.rank, "missing": "this torch is built without torch.distributed"}
    nproc = torch.cuda.device_count() if rank.device.startswith("cuda") else ON_CPU
    by_name = name_resolution.resolves_own_name()
    begun = time.monotonic()
    code, output = _run(_arguments(nproc, by_name, rank.scratch))
    sys.stdout.write(output)
    raised = _RAISED.search(output)
    return {
        "rank": rank.rank,
        "nproc": nproc,
        "by_name": by_name,
        "code": code,
        "seconds": round(time.monotonic() - begun, 2),
        "failures": [[int(number), int(exitcode)] for number, exitcode in _FAILURE.findall(output)],
        "raised": raised and raised[1][:300],
        "at_exit": bool(_AT_EXIT.search(output)),
        "ranks": [_left(Path(rank.scratch), number) for number in range(nproc)],
    }


def _arguments(nproc: int, by_name: bool, scratch: str) -> list[str]:  # noqa: FBT001 (one private caller)
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    # Old torch knows the names with underscores alone.
    meeting = (
        ["--rdzv_backend=c10d", f"--rdzv_endpoint={socket.gethostname()}:{port}"]
        if by_name
        else ["--master_addr=127.0.0.1", f"--master_port={port}"]
    )
    program = [str(Path(torchrun_rank.__file__)), scratch]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc_per_node={nproc}"]
    return [*launcher, *meeting, *program]


def _run(command: list[str]) -> tuple[int | None, str]:
    process_group.leave()
    if os.environ.get("GLOO_SOCKET_IFNAME") == "lo":
        del os.environ["GLOO_SOCKET_IFNAME"]  # the runner's own default
    done = subprocesses.run(command, PATIENCE)
    return done.code, f"{done.output}{done.errors}"[-_LOG_LIMIT:]


def _left(directory: Path, number: int) -> dict[str, Any]:
    try:
        joined = json.loads((directory / f"rank{number}.joined").read_text(encoding="ascii"))
    except (OSError, ValueError):
        joined = None
    return {"joined": joined, **{name: (directory / f"rank{number}.{name}").exists() for name in ("returned", "left")}}


def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Fail on each rank that did not join, had a wrong sum or did not end well; warn where the name is unknown."""
    entry = ranks[0] if ranks else {}
    if entry.get("missing"):
        return skipped(str(entry["missing"]), code="torchrun.unsupported")
    members = entry.get("ranks")
    if not isinstance(members, list) or not members or "code" not in entry:
        return undecided("torchrun was not started", code="torchrun.not-started")
    code, failures = entry["code"], entry.get("failures")
    exited = code is None or (isinstance(code, int) and not isinstance(code, bool))
    complete = len(members) == entry.get("nproc") and all(isinstance(member, dict) for member in members)
    if not (exited and complete and isinstance(failures, list) and isinstance(entry.get("by_name"), bool)):
        summary = f"torchrun did not say how each of its {entry.get('nproc')} ranks and it itself ended"
        return undecided(summary, code="torchrun.unmeasured")
    findings = [_joined(number, member, entry) for number, member in enumerate(members)] + _ended(entry, members)
    if not entry.get("by_name"):
        summary = "the own host name does not resolve; the ranks met over 127.0.0.1 instead"
        findings.append(warned(summary, fix=_NAME_FIX, code="torchrun.host-name", culprit="own host name"))
    way = "the own host name" if entry.get("by_name") else "127.0.0.1"
    summary = f"{len(members)} ranks of torchrun met over {way} in {entry.get('seconds')} s and ended without a crash"
    return worst([finding for finding in findings if finding is not None], passed(summary, value=0, limit=LIMIT))


def _joined(number: int, member: dict[str, Any], entry: Measured) -> Outcome | None:
    joined = member.get("joined")
    culprit = f"rank {number}"
    if not isinstance(joined, dict) or not process_group.counts(joined.get("wrong")):
        why = f": {entry['raised']}" if entry.get("raised") else ""
        fix = process_group.remedy(why, _FIX)
        return failed(f"{culprit} did not join{why}", fix=fix, code="torchrun.not-joined", culprit=culprit)
    if joined["wrong"] or joined.get("world") != entry.get("nproc"):
        summary = f"{culprit} of {joined.get('world')} had {counted(joined['wrong'], 'wrong element')} in a sum"
        fix = "see the checks all-reduce and collectives"
        return failed(summary, fix=fix, value=joined["wrong"], code="torchrun.wrong-sum", culprit=culprit)
    return None


def _ended(entry: Measured, members: list[dict[str, Any]]) -> list[Outcome]:
    findings = [_crashed(number, code, members) for number, code in entry.get("failures") or []]
    if entry["code"] is None:
        late = [number for number, member in enumerate(members) if member.get("returned") and not member.get("left")]
        who = f"; {numbered('rank', late)} had returned and did not end" if late else ""
        findings.append(_end(f"torchrun did not end in {PATIENCE:g} s{who}", "torchrun"))
    elif entry["code"] and not findings:
        why = f": {entry['raised']}" if entry.get("raised") else ""
        findings.append(_end(f"torchrun ended with exit code {entry['code']}{why}", "torchrun"))
    silent = [n for n, member in enumerate(members) if member.get("left") is not True]
    if entry["code"] == 0 and silent:
        summary = f"{numbered('rank', silent)} left before the interpreter had called its exit handlers"
        findings.append(_end(summary, f"rank {silent[0]}"))
    if entry.get("at_exit"):
        findings.append(_end("a function registered with atexit raised", "atexit"))
    return findings


def _crashed(number: int, code: int, members: list[dict[str, Any]]) -> Outcome:
    how = f"died of {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"ended with exit code {code}"
    returned = 0 <= number < len(members) and members[number].get("returned")
    return _end(f"rank {number} {how}{' at its exit, its work done' if returned else ''}", f"rank {number}")


def _end(summary: str, culprit: str) -> Outcome:
    fix = "run it by hand with PYTHONFAULTHANDLER=1, and leave imports out until it ends well: the last was the culprit"
    return failed(summary, fix=process_group.remedy(summary, fix), code="torchrun.end", culprit=culprit)

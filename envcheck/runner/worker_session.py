"""One worker from start to end: its directory, its plan, its events, and a limit to its silence."""

import contextlib
import dataclasses
import errno
import json
import math
import os
import re
import resource
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from envcheck.checks import FAIL
from envcheck.checks.support import exact_data, progress_file
from envcheck.errors import refuse
from envcheck.node.signal_source import ValueType, fields, listed, mapped, maybe, signed, string
from envcheck.runner.local_python import Handle, Target
from envcheck.runner.outcomes import Event
from envcheck.runner.planning import STARTING, CheckModule
from envcheck.runner.requirements import Requirements
from envcheck.runner.schema import OutcomeRow, Plan, encodable
from envcheck.runner.worker import process_limits
from envcheck.runner.worker.fork_server import MOST_STRETCH, P2P_OFF
from envcheck.runner.worker.rank_group import KEPT

IMPORT_TIMEOUT: Final = 180.0
LAST: Final = ("end", "died", "silent")
# What the worker itself may need before it says what the environment is: the import, then two probes.
_FIRST: Final = IMPORT_TIMEOUT + 2 * 95.0
_OVER: Final = 20.0  # what it may need beyond a check's own limit to end its group
_POLL: Final = 0.01
_BY_HAND: Final = "import torch with that Python by hand, and see what it does"
# Bytes of an event and of all: 64 ranks have 4 MiB of logs where NCCL_DEBUG is set, and some 30 checks have ranks.
_LINE, _MOST = 1 << 24, 1 << 28
_MOST_RANKS: Final = 4096  # of one node: each may have a seed of its own, the run's and its number
_DEPTH: Final = 60  # of lists and objects in each other; a check's measurement has some six
_PROBE_SIZE: Final = 1 << 16  # bytes: a worker writes about as many before it runs a check


def _count(least: int, most: int) -> ValueType:
    return lambda value: type(value) is int and least <= value <= most


def _any(_: object) -> bool:
    return True


# What the worker says (fork_server.Events): an image can write anything in its place.
_EVENTS: Final[Mapping[str, Mapping[str, ValueType]]] = {
    "environment": {"facts": fields(device_count=_count(0, 4096), devices=listed(mapped(_any)))},
    "started": {"id": string, "limit": signed},
    "done": {
        "id": string,
        "ranks": listed(_any),
        "error": maybe(fields(rank=_count(0, 1 << 30), text=string)),
        "seconds": signed,
        "body": signed,
        "logs": listed(string),
        "progress": listed(_any),
        "survivors": listed(mapped(_any)),
        "kept": lambda value: mapped(_any)(value) and value.keys() <= {*KEPT},
    },
    "left-out": {"id": string, "left": signed},
    "waiting": {},
    "end": {},
    "died": {"status": _count(-64, 255)},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What was asked for: complete before anything is measured. `chosen` are the checks of `plan`, in its order.

    `resolution` is what the resolver said of this machine and the target's torch, when it was asked; `matrix` the
    Matrix to judge by, None for the shipped one. `requirements` are a site's on what is measured.
    `stretch`: the limits of checks grow where Python and torch start slowly.
    """

    plan: Plan
    chosen: Sequence[CheckModule]
    target: Target
    site: Path | None = None
    spawn: bool = False
    stretch: bool = False
    resolution: str | None = None
    matrix: Any = None
    requirements: Requirements = dataclasses.field(default_factory=Requirements)


def worker_plan(plan: Plan, asked: RunPlan, known: Mapping[str, OutcomeRow], *, several_nodes: bool) -> dict[str, Any]:
    """Return the worker's plan. `ours`: what it writes beside it goes with it; `run` and `seed` are this run's alone.

    Where peer-to-peer is `known` to be broken, no rank tries it again: a probe failed, or a group hung with it.
    """
    modules = {module.id: module for module in asked.chosen}
    failed = any(module.check.probe and i in known and known[i].status == FAIL for i, module in modules.items())
    without_p2p = failed or any(row.details.get("hung") for row in known.values())
    nonce, asked_for = secrets.token_hex(8), exact_data.requested_seed()
    seed = int(nonce, 16) % 1_000_000 if asked_for is None else asked_for
    names = ("id", "ranks", "least_ranks", "gpus", "seconds", "timeout")
    planned = [(check, modules[check.id]) for check in plan.checks if check.kind == "env"]
    return {
        "checks": [
            {name: getattr(check, name) for name in names}
            | {"source": module.source, "probe": module.check.probe, "imports": list(module.check.imports)}
            for check, module in planned
        ],
        "environment": {exact_data.SEED: str(seed), **(P2P_OFF if without_p2p else {})},
        "nproc": plan.nproc,
        "level": plan.level,
        "run": nonce,
        "seed": seed,
        "budget": plan.budget,
        "ours": asked.target.facts.kind == "python",
        "spawn": asked.spawn,
        "import_timeout": IMPORT_TIMEOUT,
        "starting": STARTING if asked.stretch else None,
        "several_nodes": several_nodes,
    }


@contextlib.contextmanager
def working_directory(plan: Mapping[str, Any], site: Path | None) -> Iterator[Path]:
    """Yield a new directory with the plan of a run in it, and the site's own checks; remove it afterwards.

    The user of a container has another number, so the directory is writable for everyone; its parent, which only this
    user may enter, keeps the other users of this machine out. Of a run that is killed the worker's guard removes it.
    Raises ConfigError where no directory can be made, or where its disk is full.
    """
    with _refusing_full_disk():
        outer = Path(tempfile.mkdtemp(prefix="envcheck-run-"))
    inner = outer / "plan"
    try:
        with _refusing_full_disk():
            inner.mkdir()
            inner.chmod(0o777)
            if why := _why_unwritable(inner):
                raise OSError(0, why)
            (inner / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
            if site is not None and (site / "env").is_dir():
                shutil.copytree(site / "env", inner / "site")
        yield inner
    finally:
        with contextlib.suppress(RecursionError):  # directories in each other, which an image can make
            shutil.rmtree(outer, ignore_errors=True)


def leave_word(path: Path) -> None:
    """Make the empty file that a worker waits for; it may be gone by then, and no link that it left is followed."""
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644))


def events(target: Target, directory: Path, plan: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the worker's events; the last is always one of LAST, and nothing of it runs after that.

    The last says in `why`, `fix` and `code` how the worker came to its end. What is no event of this run, or about a
    check that was not planned, is skipped, and `foreign` says what it was, once.
    """
    handle, importing = target.start(directory), True
    try:
        for event in _follow(handle, directory / "events.jsonl", plan):
            importing = importing and event["event"] != "environment"
            if event["event"] in LAST:
                yield _ended(event, handle, directory, importing=importing, own_limits=target.facts.kind == "python")
                return
            yield event
    finally:
        handle.close()


def _follow(handle: Handle, path: Path, plan: Mapping[str, Any]) -> Iterator[Event]:
    limits: dict[str, float] = {check["id"]: check["timeout"] for check in plan["checks"]}
    position, patience, refused = 0, time.monotonic() + _FIRST, False
    # Whatever it says meanwhile; only who waits for other nodes may take longer, and that wait is ended elsewhere.
    longest = _FIRST + sum(2 * (limit * MOST_STRETCH + _OVER) for limit in limits.values())
    end = math.inf if plan["several_nodes"] else time.monotonic() + longest
    while True:
        code = handle.poll()
        try:
            lines, position = _read(path, position)
        except OSError as error:
            yield {"event": "silent", "why": f"the worker's results cannot be read: {error.strerror}"}
            return
        for line in lines:
            event = _event(line, plan, limits)
            if event["event"] == "foreign" and refused:
                continue
            refused = refused or event["event"] == "foreign"
            yield event
            limit = limits.get(str(event.get("id")), _OVER)
            stretched = min(max(limit, event["limit"] if event["event"] == "started" else 0.0), limit * MOST_STRETCH)
            patience = time.monotonic() + _OVER + stretched
            if event["event"] in ("done", "left-out"):
                del limits[event["id"]]  # what says more of it writes in the worker's place
        if code is not None and not lines:
            yield {"event": "died", "status": code}
            return
        if time.monotonic() > min(patience, end):
            yield {"event": "silent", "why": "the worker stopped answering and was ended"}
            return
        time.sleep(_POLL)


def _ended(event: Event, handle: Handle, directory: Path, *, importing: bool, own_limits: bool) -> Event:
    """Return the last event with what a report says of it; `own_limits`: it ran under the limits of this process."""
    log, unwritable = ("", "") if event["event"] == "end" else (handle.logs(), _why_unwritable(directory))
    why = event.get("why", "the worker ended without a message")
    if event["event"] == "died":
        why = ending(event["status"], log, unwritable, importing=importing, own_limits=own_limits)
    fix = _BY_HAND if importing else "see the log, and try `--only` with one check"
    fix = "make room there, or set TMPDIR to a directory that has some" if unwritable else fix
    code = "torch.import-lost" if importing else "worker.lost"
    return {"event": event["event"], "why": why, "fix": fix, "code": code, "log": log}


def ending(status: int, log: str, unwritable: str, *, importing: bool, own_limits: bool) -> str:
    """Say how a worker came to its end, and what it did then."""
    last = process_limits.telling_line(log) if own_limits else next(reversed(log.strip().splitlines()), "")
    if unwritable:
        last = f"its directory for temporary files takes nothing more: {unwritable}"
    manner = f"{process_limits.ended(status)}{' while importing torch' if importing else ''}"
    text = f"the worker {manner}{': ' if last else ''}{last}"
    return process_limits.explained(text) if own_limits else text


def _read(path: Path, position: int) -> tuple[list[bytes], int]:
    """Return the whole lines after `position`, and where they end; OSError for a link, a FIFO, an endless line."""
    text = progress_file.content(path, _LINE, position) or b""
    if position > _MOST or (len(text) > _LINE and b"\n" not in text):
        raise OSError(0, f"they have over {_MOST} bytes, or {_LINE} in a line")
    complete_lines = text[: text.rfind(b"\n") + 1]
    return complete_lines.splitlines(), position + len(complete_lines)


def _event(line: bytes, plan: Mapping[str, Any], limits: Mapping[str, float]) -> Event:
    """Return the event that a line is, or one called `foreign` that says why it is none."""
    try:
        event = encodable(json.loads(line))
        form = _EVENTS[event["event"]]
    except RecursionError:
        why = "it is nested too deeply"
    except (ValueError, LookupError, TypeError):  # of json, of text that is not UTF-8, of what is no object
        why = f"{line[:80]!r} is no event"
    else:
        about, skips = event.get("id"), event["event"] == "left-out" and plan["budget"] is None
        fits = event.keys() == {"event", "run", *form} and fields(**form)(event) and event["run"] == plan["run"]
        if fits and _shallow(event) and about in (None, *limits) and not skips and _of_this_seed(event, plan):
            return dict(event)
        why = f"{event['event']} of {str(about)[:40]} in the run {str(event.get('run'))[:40]}"
    return {"event": "foreign", "what": why}


def _of_this_seed(event: Event, plan: Mapping[str, Any]) -> bool:
    """Tell whether the ranks of a check of ours made their data from the run's seed; a group of nodes has another."""
    ours = any(check["id"] == event.get("id") and check["source"].startswith("module:") for check in plan["checks"])
    said = [rank.get("seed") for rank in event.get("ranks", ()) if isinstance(rank, dict)]
    others = [seed for seed in said if isinstance(seed, int) and not 0 <= seed - plan["seed"] < _MOST_RANKS]
    return not (ours and others) or plan["several_nodes"]


def _shallow(value: Any, left: int = _DEPTH) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left > 0 and all(_shallow(part, left - 1) for part in parts)


@contextlib.contextmanager
def _refusing_full_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        small = "" if limit == resource.RLIM_INFINITY else f" (a file may have {limit} bytes, see `ulimit -f`)"
        why = f"no writable directory for temporary files: {_why(error)}{small}"
        refuse(why, "set TMPDIR to a writable directory with free space")


def _why(error: OSError) -> str:
    # shutil.copytree raises a list of (source, target, the text of an OSError).
    copied = re.search(r"\[Errno (\d+)\]", str(error)) if isinstance(error, shutil.Error) else None
    return os.strerror(int(copied[1])) if copied else str(error.strerror or error)


def _why_unwritable(place: Path) -> str:
    """Write 64 KiB to a directory and return why that failed; "" where it did not."""
    try:
        with tempfile.TemporaryFile(dir=place, buffering=0) as probe:
            probe.write(bytes(_PROBE_SIZE))
            probe.seek(0, os.SEEK_END)
            return "" if probe.tell() == _PROBE_SIZE else os.strerror(errno.ENOSPC)
    except FileNotFoundError:
        return ""  # the run has ended and removed the directory
    except OSError as error:
        return _why(error)

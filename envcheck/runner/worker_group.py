"""A group of ranks: started together, in one process group, judged by their result files, ended as one."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import io
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envcheck.runner import worker_kernel, worker_peers, worker_rank

LOG_LIMIT = 1 << 16  # a dump of 100 frames is 15 KiB, and its head says where it hangs
HUNG = worker_peers.HUNG
_GRACE = 2.0  # what a group has left once one of its ranks is lost, and after SIGTERM
_TICK = 0.05
_WORDS = 200


@dataclasses.dataclass(frozen=True)
class Job:
    """What each rank of a group does. `source` is "module:NAME[:FUNCTION]" or "file:PATH"; `start` fork or spawn.

    `environment` is set over that of the user.
    """

    source: str
    world: int = 1
    gpu: bool = False
    start: str = "fork"
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


class _Member:
    """One rank as its parent sees it: process, the end of its output, and how it ended (None: it has not)."""

    def __init__(self, rank: int, pid: int, pipe: int) -> None:
        self.rank, self.pid, self.pipe = rank, pid, pipe
        self.tail = b""
        self.status: int | None = None

    def poll(self) -> bool:
        """Return whether it ended just now."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                return True
        return False

    def read(self) -> bytes | None:
        """Take what it printed: b"" at the end of it, None when there is nothing now."""
        try:
            chunk = os.read(self.pipe, 1 << 16)
        except BlockingIOError:
            return None
        self.tail = (self.tail + chunk)[-LOG_LIMIT:]
        return chunk


def run_group(
    job: Job,
    directory: Path,
    timeout: float,
    forget: Callable[[], None],
    started: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Run a job's ranks and return {ranks, error, seconds, body, logs}; `error` is {rank, text[, doing]}, or None.

    `directory` becomes the group's own. `forget` closes, in a rank, what only the parent may write to. `started` is
    told the process group.
    """
    directory.mkdir(parents=True)
    begun = time.monotonic()
    members = _start(job, directory, forget)
    group = members[0].pid
    started(group)
    ended = _watch(members, begun + timeout)
    hung = [m for m in members if m.status is None]
    manner = _stop(members, group) if hung else ""
    survivors = worker_kernel.end_descendants(_GRACE)
    for member in members:
        while member.read():
            pass
        os.close(member.pipe)
    results = [_result(directory, m) for m in members]
    error = _culprit(ended, results) or _hang(hung, manner, timeout) or _lost(results)
    return {
        "ranks": [r.get("measured") for r in results],
        "error": error and {**error, **_doing(directory, error["rank"])},
        "seconds": round(time.monotonic() - begun, 3),
        "body": max([r.get("seconds", 0.0) for r in results]),
        "logs": [m.tail.decode(errors="replace") for m in members],
        "survivors": [{"pid": pid, "state": worker_kernel.state(pid)} for pid in survivors],
    }


def be_rank(job: Job, rank: int, directory: Path) -> None:
    """Measure as one rank, in the process this is called in, and end that process."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what it said before it was killed is told too
    worker_rank.measure(lambda: _function(job.source), job.world, rank, gpu=job.gpu, directory=directory)


def _function(source: str) -> Callable[[Any], Any]:
    kind, _, name = source.partition(":")
    if kind == "module":
        module, _, function = name.partition(":")
        found: Callable[[Any], Any] = getattr(importlib.import_module(module), function or "measure")
        return found
    spec = importlib.util.spec_from_file_location(f"envcheck_site_{Path(name).stem}", name)
    if spec is None or spec.loader is None:
        raise ImportError(name)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    measure: Callable[[Any], Any] = loaded.measure
    return measure


def _start(job: Job, directory: Path, forget: Callable[[], None]) -> list[_Member]:
    port = _free_port()
    members: list[_Member] = []
    sys.stdout.flush()
    sys.stderr.flush()
    for rank in range(job.world):
        ours, theirs = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            try:
                worker_kernel.die_with_parent(parent)
                os.setpgid(0, members[0].pid if members else 0)
                forget()
                _child(job, rank, port, directory, theirs)
            finally:
                # Never back into the nursery's own stack.
                os._exit(1)
        os.close(theirs)
        os.set_blocking(ours, False)
        members.append(_Member(rank, pid, ours))
        _join(pid, members[0].pid)
    return members


def _join(pid: int, group: int) -> None:
    # Parent and child both set it, so that neither runs on before it is true.
    try:
        os.setpgid(pid, group)
    except (PermissionError, ProcessLookupError):
        return


def _child(job: Job, rank: int, port: int, directory: Path, output: int) -> None:
    os.dup2(output, 1)
    os.dup2(output, 2)
    worker_rank.enter(rank, job.world, port)
    os.environ.update(job.environment)
    if job.start == "spawn":
        worker = str(Path(__file__).with_name("worker.py"))
        spec = json.dumps([dataclasses.asdict(job), rank, str(directory)])
        os.execv(sys.executable, [sys.executable, "-B", worker, "--rank", spec])  # noqa: S606 (no shell is meant)
    be_rank(job, rank, directory)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _watch(members: list[_Member], deadline: float) -> list[_Member]:
    """Return the members that ended by themselves, first to end first; a lost one shortens the others' time."""
    ended: list[_Member] = []
    with selectors.DefaultSelector() as selector:
        for member in members:
            selector.register(member.pipe, selectors.EVENT_READ, member)
        while len(ended) < len(members) and time.monotonic() < deadline:
            for key, _ in selector.select(_TICK if selector.get_map() else _TICK / 10):
                if key.data.read() == b"":
                    selector.unregister(key.fd)
            # Of those found dead in one look, a signal explains an exception better than the other way round.
            gone = sorted((m for m in members if m.poll()), key=lambda m: (m.status or 0, m.rank))
            if any(m.status for m in gone):
                deadline = min(deadline, time.monotonic() + _GRACE)
            ended += gone
    return ended


def _stop(members: list[_Member], group: int) -> str:
    """End what still runs, gently and then not; return what it took."""
    for name, number in (("SIGTERM", signal.SIGTERM), ("SIGKILL", signal.SIGKILL)):
        worker_kernel.signal_quietly(-group, number)
        until = time.monotonic() + _GRACE
        while time.monotonic() < until:
            for member in members:
                member.read()
                member.poll()
            if all(m.status is not None for m in members):
                return name
            time.sleep(_TICK / 5)
    return "nothing: it survives SIGKILL"


def _result(directory: Path, member: _Member) -> dict[str, Any]:
    path = directory / f"rank{member.rank}.json"
    if not path.exists():
        return {}
    if path.stat().st_size > worker_rank.RESULT_LIMIT:
        return {"error": f"its result file is over {worker_rank.RESULT_LIMIT} bytes"}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {"error": "its result file is no JSON"}
    return found if isinstance(found, dict) else {"error": "its result file is no JSON object"}


def _doing(directory: Path, rank: int) -> dict[str, str]:
    """Return what a lost rank wrote to `rankN.doing` of what it was about to do."""
    path = directory / f"rank{rank}.doing"
    try:
        text = path.read_bytes()[:_WORDS].decode(errors="replace").strip()
    except OSError:
        return {}
    return {"doing": text} if text else {}


def _culprit(ended: list[_Member], results: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the first rank to be lost, and how."""
    for member in ended:
        told = results[member.rank].get("error")
        if member.status is not None and member.status < 0:
            return {"rank": member.rank, "text": f"died of {signal.Signals(-member.status).name}"}
        if told:
            return {"rank": member.rank, "text": told}
        if member.status:
            return {"rank": member.rank, "text": f"exited with code {member.status}"}
        if not results[member.rank]:
            return {"rank": member.rank, "text": "exited with code 0 and no result"}
    return None


def _hang(hung: list[_Member], manner: str, timeout: float) -> dict[str, Any] | None:
    if not hung:
        return None
    ranks = ", ".join(str(m.rank) for m in hung)
    return {"rank": hung[0].rank, "text": f"{HUNG} {timeout:g} s (ranks {ranks}); ended by {manner}"}


def _lost(results: list[dict[str, Any]]) -> dict[str, Any] | None:
    missing = next((rank for rank, r in enumerate(results) if "measured" not in r), None)
    return None if missing is None else {"rank": missing, "text": "gave no result"}

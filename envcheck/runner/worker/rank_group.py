"""A group of ranks: started together in one process group, judged by their result files, ended as one."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import faulthandler
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
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from envcheck.checks import Rank
from envcheck.checks.support import control_group, progress_file
from envcheck.checks.support.exact_data import SEED
from envcheck.node import subprocesses
from envcheck.runner.worker import group_ending, process_limits

# What a report keeps of how a group ran: variables set for it, why it ran again, and the CPU quota that held it back.
KEPT = ("ran_with", "hung", "throttled")
LOG_LIMIT = 1 << 16  # a dump of 100 frames is 15 KiB, and its head says where it hangs
_GRACE = 2.0  # what a group has left once one of its ranks is lost, and after SIGTERM
_TICK = 0.05
_LOOK = 1.0
_STOPPED = 10  # looks: a rank that nobody lets go on for so long has the group ended
_DIGITS = 7  # a number of threads has fewer


@dataclasses.dataclass(frozen=True)
class Job:
    """What each rank of a group does. `source` is "module:NAME[:FUNCTION]" or "file:PATH"; `start` fork or spawn.

    `environment` is set over that of the user. Of a group over several `nodes`, this one is number `node`, and has the
    `here` ranks from `first` on.
    """

    source: str
    world: int = 1
    gpu: bool = False
    start: str = "fork"
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    first: int = 0
    here: int = 0
    node: int = 0
    nodes: int = 1
    level: str = "standard"

    @property
    def ranks(self) -> range:
        """Return the numbers of the ranks on this machine."""
        return range(self.first, self.first + (self.here or self.world))


class _Member:
    """One rank as its parent sees it: process, the end of its output, and how it ended (None: it has not)."""

    def __init__(self, rank: int, pid: int, pipe: int) -> None:
        self.rank, self.pid, self.pipe = rank, pid, pipe
        self.tail = b""
        self.status: int | None = None

    @property
    def log(self) -> str:
        return self.tail.decode(errors="replace")

    def poll(self) -> bool:
        """Return whether it ended just now."""
        pid, status = (0, 0) if self.status is not None else os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.status = os.waitstatus_to_exitcode(status)
        return pid != 0

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
    started: Callable[[], object] = lambda: None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Run a job's ranks of this machine; return {ranks, error, seconds, body, logs, survivors, progress, kept}.

    `error` is None or {rank, text[, hung][, doing]}. `directory` becomes the group's own. `forget` closes, in a rank,
    what only the parent may write to. `started` is called once they run. `stopped` tells that other nodes have lost
    their part: no rank will come to its end. `progress` is, for each rank, the kernel's letter for it ("" once it has
    ended), and how far it came (see progress_file). `kept` is what a report keeps of how they ran, by KEPT.
    """
    directory.mkdir(parents=True)
    begun, unstarted = time.monotonic(), ""
    members: list[_Member] = []
    ended: list[_Member] = []
    process_limits.remember_kills()
    quotas = control_group.quotas()
    try:
        _start(job, directory, forget, members)
    except OSError as refused:
        unstarted = process_limits.explained(f"could not be started: {refused.strerror or refused}")
    else:
        started()
        ended = _watch(members, directory, begun + timeout, stopped)
    hung = [m for m in members if m.status is None]
    after = min(timeout, round(time.monotonic() - begun, 1))
    states = _states(hung)
    manner = _stop(members) if hung else ""
    survivors = subprocesses.end_descendants(_GRACE)
    for member in members:
        while member.read():
            pass
        os.close(member.pipe)
    results = {rank: group_ending.result(directory, rank) for rank in job.ranks}
    seen = {
        m.rank: group_ending.ObservedRank(
            m.rank, states.get(m.rank, ""), *progress_file.read(directory, m.rank), m.log, m.status or 0
        )
        for m in members
    }
    still, over = ([seen[m.rank] for m in some] for some in (hung, ended))
    error = group_ending.error(over, still, results, f"{after:g} s", manner)
    if unstarted:
        error = {"rank": job.first + len(members), "text": unstarted}
    variables = [f"{name}={value}" for name, value in job.environment.items() if name != SEED]
    ran = {"ran_with": variables, "throttled": control_group.held(quotas)}
    return {
        "ranks": [r.get("measured") for r in results.values()],
        "error": error and {**error, **group_ending.doing(directory, error["rank"])},
        "seconds": round(time.monotonic() - begun, 3),
        "body": max([r.get("seconds", 0.0) for r in results.values()]),
        "logs": [m.log for m in members],
        "survivors": [{"pid": pid, "state": subprocesses.state(pid)} for pid in survivors],
        "progress": [[one.state, *one.position] for one in seen.values()],
        "kept": {name: value for name, value in ran.items() if value},
    }


def _function(source: str) -> Any:
    kind, _, name = source.partition(":")
    if kind == "module":
        module, _, function = name.partition(":")
        return getattr(importlib.import_module(module), function or "measure")
    return load_file(Path(name)).measure


def load_file(path: Path) -> ModuleType:
    """Return a check of a site's own as a module; it raises whatever the file does."""
    spec = importlib.util.spec_from_file_location(f"envcheck_site_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(name=str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _start(job: Job, directory: Path, forget: Callable[[], None], members: list[_Member]) -> None:
    parent, address = os.getpid(), loopback()
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        with contextlib.suppress(OSError):  # no loopback is up: a rank that needs one says so
            probe.bind((address, 0))
        port = int(probe.getsockname()[1])
    sys.stdout.flush()
    sys.stderr.flush()
    for rank in job.ranks:
        reading_end, writing_end = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(reading_end)
            os.close(writing_end)
            raise
        if not pid:
            try:
                subprocesses.die_with_parent(parent)
                subprocesses.die_first()
                os.setpgid(0, members[0].pid if members else 0)
                forget()
                _child(job, rank, port, directory, writing_end)
            finally:
                # Never back into the nursery's own stack.
                os._exit(1)
        os.close(writing_end)
        os.set_blocking(reading_end, False)
        members.append(_Member(rank, pid, reading_end))
        # Parent and child both set it, so that neither runs on before it is true.
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, members[0].pid)


def _child(job: Job, rank: int, port: int, directory: Path, output: int) -> None:
    os.dup2(output, 1)
    os.dup2(output, 2)
    ours = environment(rank - job.first, len(job.ranks), port, os.environ)
    if job.nodes > 1:
        ours |= {"RANK": str(rank), "WORLD_SIZE": str(job.world)}
        ours.pop("GLOO_SOCKET_IFNAME", None)  # no other node is behind the loopback
    # What an outer launcher tells its own group; torch would join that one instead of ours.
    for name in [n for n in os.environ if n.startswith(("TORCHELASTIC_", "GROUP_", "ROLE_"))]:
        del os.environ[name]
    os.environ.update({**ours, **job.environment})
    if job.start == "spawn":
        worker = str(Path(__file__).with_name("main.py"))
        spec = json.dumps([dataclasses.asdict(job), rank, str(directory)])
        os.execv(sys.executable, [sys.executable, "-B", worker, "--rank", spec])  # noqa: S606 (no shell is meant)
    be_rank(job, rank, directory)


def _watch(members: list[_Member], directory: Path, deadline: float, cancelled: Callable[[], bool]) -> list[_Member]:
    """Return the members that ended by themselves, first to end first; a lost one shortens the others' time."""
    ended: list[_Member] = []
    stopped, look = 0, time.monotonic()
    with selectors.DefaultSelector() as selector:
        for member in members:
            selector.register(member.pipe, selectors.EVENT_READ, member)
        while len(ended) < len(members) and time.monotonic() < deadline:
            for key, _ in selector.select(_TICK if selector.get_map() else _TICK / 10):
                if key.data.read() == b"":
                    selector.unregister(key.fd)
            # Of those found dead in one look, a signal explains an exception better than the other way round.
            ended_members = sorted((m for m in members if m.poll()), key=lambda m: (m.status or 0, m.rank))
            if any(m.status or not os.path.lexists(directory / f"rank{m.rank}.json") for m in ended_members):
                deadline = min(deadline, time.monotonic() + _GRACE)
            ended += ended_members
            if time.monotonic() >= look:
                look = time.monotonic() + _LOOK
                running = [m for m in members if m.status is None]
                stopped = stopped + 1 if any(subprocesses.state(m.pid) == "T" for m in running) else 0
                if stopped >= _STOPPED or cancelled():
                    break
    return ended


def _states(members: list[_Member]) -> dict[int, str]:
    """Return the kernel's letter for each rank; a sleep in the kernel that is over a moment later is none."""
    first = {m.rank: subprocesses.state(m.pid) for m in members}
    if "D" in first.values():
        time.sleep(_TICK * 4)
    return {m.rank: "S" if first[m.rank] == "D" != subprocesses.state(m.pid) else first[m.rank] for m in members}


def _stop(members: list[_Member]) -> str:
    for name, number in (("SIGTERM", signal.SIGTERM), ("SIGKILL", signal.SIGKILL)):
        subprocesses.signal_quietly(-members[0].pid, number)
        until = time.monotonic() + _GRACE
        while time.monotonic() < until:
            for member in members:
                member.read()
                member.poll()
            if all(m.status is not None for m in members):
                return name
            time.sleep(_TICK / 5)
    return "nothing: it survives SIGKILL"


def environment(rank: int, world: int, port: int, outer: Mapping[str, str]) -> dict[str, str]:
    """Return what torchrun would set for this rank of a group on this machine, over `outer`, which stays as it is.

    A choice of the user's (NCCL_*, GLOO_SOCKET_IFNAME, OMP_NUM_THREADS) is what is to be tested, so it is kept.
    """
    ours = {**dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)), "MASTER_ADDR": loopback(), "MASTER_PORT": str(port)}
    ours |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(world))
    defaults = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": str(threads(world))}
    return {**ours, **{k: v for k, v in defaults.items() if not outer.get(k)}}


def loopback() -> str:
    """Return the loopback's address: ::1 where it has no IPv4."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError as error:
            return "::1" if error.errno == errno.EADDRNOTAVAIL else "127.0.0.1"
    return "127.0.0.1"


def threads(world: int) -> int:
    """Return how many CPU threads each of `world` ranks may use here."""
    return max(1, len(os.sched_getaffinity(0)) // world)


def chosen_threads(environ: Mapping[str, str]) -> int:
    """Return the number of OMP_NUM_THREADS, of "4,2" (nested levels) the first; 0 for what OpenMP does not take."""
    first = environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isascii() and first.isdecimal() and len(first) < _DIGITS else 0


def spawned_rank(spec: str) -> None:
    """Be one rank in a fresh interpreter, where a fork was not safe; never returns."""
    job, rank, directory = json.loads(spec)
    be_rank(Job(**job), rank, Path(directory))


def be_rank(job: Job, rank: int, directory: Path) -> None:
    """Call a check's measure as one rank, write `rankN.json`, and end the process that this is called in."""
    code = 1
    try:
        _prepare(len(job.ranks), directory)
        progress_file.write(directory, rank, progress_file.STARTED)
        begun, local = time.monotonic(), rank - job.first
        check = _function(job.source)
        progress_file.write(directory, rank, progress_file.LOADED)
        place = Rank(
            rank=rank,
            world=job.world,
            local_rank=local,
            device=f"cuda:{local}" if job.gpu else "cpu",
            backend="nccl" if job.gpu else "gloo",
            scratch=str(directory),
            node=job.node,
            nodes=job.nodes,
            level=job.level,
        )
        measured = check(place)
        if not isinstance(measured, dict):
            message = f"measure returned {type(measured).__name__}, not a dict"
            raise TypeError(message)  # noqa: TRY301 (reported as what the check raised)
        _sized(measured)  # refuses what JSON cannot hold, such as a circle, before it is searched
        explained = process_limits.explained_in(measured)
        _write(directory, rank, _sized({"measured": explained, "seconds": time.monotonic() - begun}))
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException as error:  # noqa: BLE001 (a check's process ends here; what it raised is its result)
        traceback.print_exc()  # first, for there may be no room for a file
        said = str(error).strip().splitlines()  # NCCL's cause stands last
        text = ": ".join([type(error).__name__, *said[:1], *(said[-1:] if "Last error:" in said else [])])
        _write(directory, rank, json.dumps({"error": process_limits.explained(text[:500])}))
    finally:
        leave(code)


def leave(code: int) -> NoReturn:
    """End this process without a teardown: a library that crashes while it unloads would take a good result with it."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _prepare(world: int, directory: Path) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what it printed before it was killed is kept too
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(directory)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    faulthandler.enable(file=sys.__stderr__ or 2)
    # When the time is up, SIGTERM has every thread say where it hangs before it ends.
    faulthandler.register(signal.SIGTERM, file=sys.__stderr__ or 2, chain=True)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_num_threads"):
        torch.set_num_threads(chosen_threads(os.environ) or threads(world))
    if any(entry[0] == "error" for entry in warnings.filters):
        warnings.simplefilter("default")  # a warning of torch's is no fault of what is checked


def _sized(result: dict[str, Any]) -> str:
    text = json.dumps(result)
    if len(text) > group_ending.RESULT_LIMIT:
        message = f"measure returned {len(text)} bytes, over {group_ending.RESULT_LIMIT}"
        raise ValueError(message)
    return text


def _write(directory: Path, rank: int, text: str) -> None:
    unfinished = directory / f".rank{rank}.json"
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(directory / f"rank{rank}.json")

"""The guard and the nursery: the process that outlives everything below it, and the one that imports torch once.

A GPU that cannot reach its neighbour does not say so: the first transfer hangs (NVIDIA/nccl#2079, #631), the process
dies, or other bytes arrive. So one process tries it before any group does (a check marked `probe`), and the groups
after it run without peer-to-peer instead of hanging one after the other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from envcheck.node import subprocesses
from envcheck.runner.worker import process_limits, rank_group, torch_facts

NODE_READ = "node-read"  # the file beside the plan that says so
# Of a group over several nodes: the file beside the plan that says which part of it this node has, once all nodes are
# ready, and the one that says that the running check's ranks wait for nodes that are lost.
NODES_READY, NODES_LOST = "nodes-ready.json", "nodes-lost"
MOST_STRETCH = 10.0
_TICK = 0.01
_LIMIT = 5.0
# NVIDIA NCCL user guide, Environment Variables: no direct access between GPUs, be it over NVLink or PCI.
P2P_OFF = {"NCCL_P2P_DISABLE": "1"}


class Events:
    """The one way out: a line a fact, whole or not at all."""

    def __init__(self, directory: Path, run: str) -> None:
        self._run = run
        self._fd = os.open(str(directory / "events.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        # Another user's envcheck reads it when this is a container, whatever the umask in there.
        os.fchmod(self._fd, 0o644)

    def emit(self, event: str, **facts: Any) -> None:
        """Append one event."""
        line = (json.dumps({"event": event, "run": self._run, **facts}) + "\n").encode()
        while line:  # a disk that is nearly full takes a part, and then raises
            line = line[os.write(self._fd, line) :]

    def close(self) -> None:
        """Let go of it: what a rank writes is never an event."""
        os.close(self._fd)


def stretch(took: float, planned: float | None) -> float:
    """Return by how much the limits of checks grow where Python and torch start slowly: 1 (also unplanned) to 10."""
    return min(max(took / planned, 1.0), MOST_STRETCH) if planned else 1.0


def run(directory: Path, plan: dict[str, Any]) -> None:
    """Carry out a plan; every result is an event."""
    subprocesses.adopt_orphans()
    os.chdir(directory)  # where temporary files go when nothing else can be written to
    # NVML counts by PCI bus; CUDA's own default counts by speed.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    nursery = _Nursery(directory, plan)
    facts = nursery.environment()
    nursery.events.emit("environment", facts=facts)
    if plan.get("several_nodes") and "error" not in facts:
        nursery.await_nodes()
    for check in plan["checks"]:
        alone = "error" not in facts and nursery.world(check, facts) < check["least_ranks"]
        if check["gpus"] > facts["device_count"] or alone:
            continue
        if check["seconds"] <= nursery.left():
            nursery.prepare(check["imports"], facts)
        if check["seconds"] <= (left := nursery.left()):
            nursery.check(check, facts)
        else:
            nursery.events.emit("left-out", id=check["id"], left=round(left, 1))
    nursery.events.emit("end")


class _Nursery:
    def __init__(self, directory: Path, plan: dict[str, Any]) -> None:
        self.directory, self.plan = directory, plan
        self.events = Events(directory, plan["run"])
        self.scratch = Path(tempfile.mkdtemp(prefix="envcheck-", dir=str(directory) if plan["ours"] else None))
        self.begun = time.monotonic()
        self.groups: dict[str, str] = dict(plan["environment"])
        # Another node's ranks would not try again at the same time.
        self.may_try_again = not plan.get("several_nodes")
        self.part: dict[str, Any] = {}
        self.stretch = 1.0

    def left(self) -> float:
        budget = self.plan["budget"]
        return float("inf") if budget is None else float(budget) - (time.monotonic() - self.begun)

    def environment(self) -> dict[str, Any]:
        """Import torch, and have children ask it what must not be asked here."""
        # libgomp binds this process to the cores of GOMP_CPU_AFFINITY when it is loaded.
        begun, cores = time.monotonic(), rank_group.threads(1)
        threads = min(rank_group.chosen_threads(os.environ) or cores, cores)
        error = self.plan.get("import_ended")
        if error is None:
            error = self._load("torch")
        else:
            torch_facts.refuse_torch(error)  # it ended the process before this one
        imported = {"import_seconds": round(time.monotonic() - begun, 3)} if error is None else self._failed(error)
        facts = {**torch_facts.python_facts(), "threads": threads, **imported}
        facts["start"] = "spawn" if self.plan["spawn"] or torch_facts.cuda_is_up() else "fork"
        if "error" not in facts:
            facts.update(self._probe("build_facts", facts["start"]))
        self.stretch = stretch(time.monotonic() - self.begun, self.plan.get("starting"))
        if facts.get("cuda"):
            # Wait until the node was read: memory that is held before CUDA starts here is somebody else's.
            deadline = time.monotonic() + 60.0  # NVML itself is given up long before
            while not (self.directory / NODE_READ).exists() and time.monotonic() < deadline:
                time.sleep(_TICK)
            facts.update(self._probe("device_facts", facts["start"]))
        return facts

    def _failed(self, error: str) -> dict[str, Any]:
        try:
            there = importlib.util.find_spec("torch") is not None
            tried = {"import_trials": torch_facts.try_imports(error, self.scratch)} if there else {}
        except Exception as failed:  # noqa: BLE001 (what broke the import may break this too, such as a limit)
            tried = {"import_trials": {"untried": str(failed)}}
        return {"error": error, **tried}

    def prepare(self, modules: list[str], facts: dict[str, Any]) -> None:
        """Import once what checks load besides torch, where their ranks are forked from here; a check reports its own.

        An optimizer's first step imports the compiler, which takes as long as torch itself.
        """
        if facts["start"] == "fork" and "error" not in facts:
            for name in modules:
                self._load(name)
            facts["start"] = "spawn" if torch_facts.cuda_is_up() else "fork"

    def await_nodes(self) -> None:
        """Wait until all nodes are ready, and read which part of the group this one has; envcheck ends the wait."""
        ready, until = self.directory / NODES_READY, time.monotonic()
        while not ready.exists():
            time.sleep(_TICK)
            if time.monotonic() >= until:
                self.events.emit("waiting")
                until = time.monotonic() + 5.0
        self.part = json.loads(ready.read_text(encoding="utf-8"))
        self.groups.update(self.part["environment"])

    def world(self, check: dict[str, Any], facts: dict[str, Any]) -> int:
        if self.part:
            return int(self.part["world"])
        return int(check["ranks"] or facts["device_count"] or self.plan["nproc"])

    def check(self, check: dict[str, Any], facts: dict[str, Any]) -> None:
        place: dict[str, Any] = {name: int(self.part[name]) for name in ("first", "here", "node", "nodes") if self.part}
        port = {"MASTER_PORT": str(self.part["ports"][check["id"]])} if self.part else {}
        job = rank_group.Job(
            source=check["source"].replace("file:", f"file:{self.directory}/", 1),
            world=self.world(check, facts),
            gpu=facts["device_count"] > 0,
            start=facts["start"],
            environment={**self.groups, **port},
            level=self.plan["level"],
            **place,
        )
        done = self._group(check, job)
        environment = {**os.environ, **self.groups}
        if self.may_try_again and worth_another_try(done, environment, gpu=job.gpu, world=job.world):
            without = dataclasses.replace(job, environment={**self.groups, **P2P_OFF})
            done = second_try(done, self._group(check, without, "-again"))
            self.may_try_again = "hung" in done["kept"]
        self.groups = later_environment(check, done, self.groups)
        self.events.emit("done", id=check["id"], **done)

    def _group(self, check: dict[str, Any], job: rank_group.Job, suffix: str = "") -> dict[str, Any]:
        limit = check["timeout"] * self.stretch
        directory, lost = self.scratch / f"{check['id']}{suffix}", self.directory / NODES_LOST
        return rank_group.run_group(
            *(job, directory, limit, self.events.close),
            lambda: self.events.emit("started", id=check["id"], limit=limit),
            lost.exists,
        )

    def _load(self, module: str) -> str | None:
        # A hang inside an import holds the interpreter: only the kernel can end it, and the guard reports SIGALRM.
        signal.alarm(int(self.plan["import_timeout"]))
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 (a broken torch raises anything; it is reported, not hidden)
            return process_limits.explained(f"{type(error).__name__}: {error}")
        finally:
            signal.alarm(0)
        return None

    def _probe(self, name: str, start: str) -> dict[str, Any]:
        job = rank_group.Job(source=f"module:envcheck.runner.worker.torch_facts:{name}", start=start)
        done = rank_group.run_group(job, self.scratch / name, 90.0, self.events.close)
        if done["error"]:
            return {f"{name}_error": done["error"]["text"]}
        return dict(done["ranks"][0])


def guard(argv: list[str]) -> int:
    """Run the plan in the directory named by the one argument; return 0 when the nursery came to its end."""
    directory = Path(argv[0])
    plan: dict[str, Any] = json.loads((directory / "plan.json").read_text(encoding="utf-8"))
    # Python 3.12 warns of a fork beside threads; that the nursery runs no torch operation is what makes it safe.
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
    subprocesses.adopt_orphans()
    status = _nursery_ended(directory, plan)
    said = directory / "events.jsonl"
    if status and not (said.exists() and said.stat().st_size):  # before it says anything a nursery only imports torch
        plan["import_ended"] = torch_facts.lost_import(status, directory / "worker.log", plan["import_timeout"])
        status = _nursery_ended(directory, plan)
    if status:
        Events(directory, plan["run"]).emit("died", status=status)
    elif plan["ours"]:
        # envcheck cuts the lifeline once it has read the end, however busy it is; killed, it removes nothing.
        select.select([0], [], [])
        shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            directory.parent.rmdir()
    return min(abs(status or 0), 1)


def _nursery_ended(directory: Path, plan: dict[str, Any]) -> int | None:
    """Run the nursery and end all below it; return its exit code, or the negated signal; None on a cut lifeline."""
    guard, status = os.getpid(), 0
    nursery = os.fork()
    if not nursery:
        _be_nursery(guard, directory, plan)
    pid, lifeline = 0, True
    while lifeline and not pid:
        ready, _, _ = select.select([0], [], [], 0.02)
        lifeline = not ready or bool(os.read(0, 4096))
        if lifeline:
            # Orphans come to us too; leave them to the end and wait for the nursery alone.
            pid, status = os.waitpid(nursery, os.WNOHANG)
    subprocesses.end_descendants(_LIMIT)
    return os.waitstatus_to_exitcode(status) if pid else None


def _be_nursery(guard: int, directory: Path, plan: dict[str, Any]) -> NoReturn:
    code = 1
    try:
        subprocesses.die_with_parent(guard)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        run(directory, plan)
        code = 0
    except BaseException:  # noqa: BLE001 (the process ends here; its log and exit code are what is reported)
        sys.excepthook(*sys.exc_info())
    finally:
        rank_group.leave(code)


def later_environment(check: Mapping[str, Any], done: Mapping[str, Any], now: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the groups after this one, which ran in `now`."""
    error = done.get("error")
    wrong = any(isinstance(rank, dict) and rank.get("broken") for rank in done.get("ranks") or [])
    # A probe shows that peer-to-peer is broken: it was lost while it copied, or wrong bytes came.
    broken = check.get("probe") and (error.get("doing") if error else wrong)
    return {**now, **P2P_OFF} if broken or "hung" in done["kept"] else dict(now)


def worth_another_try(done: Mapping[str, Any], environment: Mapping[str, str], *, gpu: bool, world: int) -> bool:
    """Return whether GPU ranks with peer-to-peer hung, or were ended by NCCL's watchdog, and may pass without it."""
    hung = bool((done.get("error") or {}).get("hung"))
    return gpu and world > 1 and hung and any(environment.get(name) != value for name, value in P2P_OFF.items())


def second_try(first: Mapping[str, Any], repeated: dict[str, Any]) -> dict[str, Any]:
    """Return what a group without peer-to-peer came to, after it had hung with it; hung both times, it hung."""
    seconds = round(first["seconds"] + repeated["seconds"], 3)
    both = {"seconds": seconds, "survivors": [*first["survivors"], *repeated["survivors"]]}
    if repeated["error"]:
        text = f"{first['error']['text']}; without peer-to-peer it was lost too: {repeated['error']['text']}"
        return {**first, **both, "error": {**first["error"], "text": text}}
    return {**repeated, **both, "kept": {**repeated["kept"], "hung": first["error"]["text"]}}

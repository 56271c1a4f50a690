"""What one rank does: measure, and leave a result file. Whatever it prints, raises or does to itself is its own."""

from __future__ import annotations

import errno
import faulthandler
import json
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from envcheck.checks import Rank
from envcheck.checks.env.support.process import progress_file
from envcheck.runner.worker import process_limits

RESULT_LIMIT = 1 << 20
_DIGITS = 7  # a number of threads has fewer
# What an outer launcher tells its own group; torch would join that one instead of ours.
_OUTER = ("TORCHELASTIC_", "GROUP_", "ROLE_")


def enter(rank: int, world: int, port: int, nodes: int = 1) -> None:
    """Set this process's environment for one rank of a group, all of whose ranks on this machine are `world`."""
    for name in [n for n in os.environ if n.startswith(_OUTER)]:
        del os.environ[name]
    ours = environment(rank, world, port, os.environ)
    if nodes > 1 and not os.environ.get("GLOO_SOCKET_IFNAME"):
        del ours["GLOO_SOCKET_IFNAME"]  # no other node is behind the loopback
    os.environ.update(ours)


def environment(rank: int, world: int, port: int, outer: Mapping[str, str]) -> dict[str, str]:
    """Return what torchrun would set for this rank of a group on this machine, over `outer`, which stays as it is.

    A choice of the user's (NCCL_*, GLOO_SOCKET_IFNAME, OMP_NUM_THREADS) is what is to be tested, so it is kept.
    """
    ours = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": loopback(),
        "MASTER_PORT": str(port),
    }
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


def measure(load: Callable[[], Callable[[Any], Any]], place: Rank, here: int) -> None:
    """Call a check's measure, write `rankN.json`, and end the process; nothing of it returns to the caller.

    `here` is how many of the group's ranks are on this machine.
    """
    code, rank, directory = 1, place.rank, Path(place.scratch)
    try:
        _prepare(here, directory)
        progress_file.write(directory, rank, progress_file.STARTED)
        begun = time.monotonic()
        check = load()
        progress_file.write(directory, rank, progress_file.LOADED)
        measured = check(place)
        checked = _checked(measured)
        _sized(checked)  # refuses what JSON cannot hold, such as a circle, before it is searched
        explained = process_limits.explained_in(checked)
        _write(directory, rank, _sized({"measured": explained, "seconds": time.monotonic() - begun}))
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException as error:  # noqa: BLE001 (a check's process ends here; what it raised is its result)
        traceback.print_exc()  # first, for there may be no room for a file
        _write(directory, rank, json.dumps({"error": process_limits.explained(_error_text(error))}))
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            # No teardown: a library that crashes while it unloads would take a good result with it.
            os._exit(code)


def _prepare(world: int, directory: Path) -> None:
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


def _checked(measured: Any) -> dict[str, Any]:
    if not isinstance(measured, dict):
        message = f"measure returned {type(measured).__name__}, not a dict"
        raise TypeError(message)
    return measured


def _sized(result: dict[str, Any]) -> str:
    text = json.dumps(result)
    if len(text) > RESULT_LIMIT:
        message = f"measure returned {len(text)} bytes, over {RESULT_LIMIT}"
        raise ValueError(message)
    return text


def _error_text(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *lines[:1]])[:500]


def _write(directory: Path, rank: int, text: str) -> None:
    unfinished = directory / f".rank{rank}.json"
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(directory / f"rank{rank}.json")

"""The bus bandwidth that envcheck reports of an all-reduce against a plain torch loop on the same ranks, in one run.

    python benchmarks/collectives.py [--python /opt/venv] [--ranks 2,4] [--repeat 10] [--json]     exit 1: goal missed

Ranks are started in the environment's own Python, over NCCL where it sees two GPUs or more, else over gloo on this CPU.
Each of --repeat rounds runs the check all-reduce-bandwidth as it is and a bare loop (`dist.all_reduce` between two
readings of the clock, or two CUDA events) of the check's largest size, in turn. Both report the median call of a round,
averaged over ranks: busbw = S / t * 2 (n - 1) / n (NVIDIA/nccl-tests, doc/PERFORMANCE.md). The ratio is envcheck's to
the loop's, its median over the rounds; the goal is 10 %. Where GPUs and `all_reduce_perf` of nccl-tests are there, its
in-place figure is compared with envcheck's too; that goal is 3 %.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

GOAL: Final = 0.10
NCCL_TESTS_GOAL: Final = 0.03
ROOT: Final = Path(__file__).resolve().parents[1]
DEFAULT: Final = str(ROOT / ".envcheck/test-venv")
WARMUP, CALLS = 5, 20
COUNT: Final = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"


def bare(torch: Any, dist: Any, tensor: Any) -> float:
    """Return the median seconds of an all-reduce in a loop that does nothing else."""
    for _ in range(WARMUP):
        dist.all_reduce(tensor)
    dist.barrier()
    seconds = []
    for _ in range(CALLS):
        if tensor.is_cuda:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            dist.all_reduce(tensor)
            end.record()
            end.synchronize()
            seconds.append(float(start.elapsed_time(end)) / 1000)
        else:
            began = time.perf_counter()
            dist.all_reduce(tensor)
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def be_rank(number: int, world: int, ports: list[int], backend: str, scratch: str) -> None:
    """Measure both in turn, and leave {bytes, envcheck: [seconds, ...], bare: [seconds, ...]}."""
    sys.path.insert(0, str(ROOT))
    import torch  # noqa: PLC0415 (the rank's Python has it, the benchmark's own need not)
    import torch.distributed as dist  # noqa: PLC0415

    from envcheck.checks import Rank  # noqa: PLC0415
    from envcheck.checks.env import all_reduce_bandwidth  # noqa: PLC0415

    device = f"cuda:{number}" if backend == "nccl" else "cpu"
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {"envcheck": [], "bare": []}
    size = 0
    for turn, port in enumerate(ports):
        os.environ["MASTER_PORT"] = str(port)
        # Each group has a directory of its own: its ranks meet in a file there.
        meeting = Path(scratch, str(turn))
        meeting.mkdir(exist_ok=True)
        rank = Rank(number, world, number, device, backend, str(meeting))
        # In alternation, ABBA: a machine that gets slower or faster meanwhile favours neither.
        if turn % 4 in (0, 3):
            point = all_reduce_bandwidth.measure(rank)["curve"][-1]
            size = point["bytes"]
            seconds["envcheck"].append(point["seconds"])
        else:
            dist.init_process_group(backend, rank=number, world_size=world)
            seconds["bare"].append(bare(torch, dist, torch.zeros(size // 4, device=device)))
            dist.destroy_process_group()
    Path(scratch, f"rank{number}.json").write_text(json.dumps({"bytes": size, **seconds}), encoding="utf-8")


def group(python: str, world: int, backend: str, repeat: int) -> dict[str, Any]:
    """Run a group of ranks and return its figures. Ends the benchmark when a rank fails: that is no measurement."""
    with tempfile.TemporaryDirectory() as scratch:
        ports = ",".join(map(str, free_ports(2 * repeat)))
        argv = [python, __file__, "--world", str(world), "--ports", ports, "--backend", backend, "--scratch", scratch]
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        ranks = [subprocess.Popen([*argv, "--rank", str(n)], env=environment) for n in range(world)]
        while None in (codes := [rank.poll() for rank in ranks]) and not any(codes):
            time.sleep(0.1)
        for rank in ranks:  # they would wait for the one that failed
            rank.kill()
        if any(codes):
            sys.exit(f"ranks of {world} ended with {codes}")
        figure_line = [json.loads(Path(scratch, f"rank{n}.json").read_text(encoding="utf-8")) for n in range(world)]
    return figures(figure_line, world, backend)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on, below those that clients are given: they are used minutes later."""
    measured: list[int] = []
    for port in random.sample(range(15000, 32000), 17000):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            measured.append(port)
        if len(measured) == count:
            break
    return measured


def figures(figure_line: list[dict[str, Any]], world: int, backend: str) -> dict[str, Any]:
    """Return the bus bandwidths of both, GB/s, and their ratio: medians over the rounds, times averaged over ranks."""
    size = int(figure_line[0]["bytes"])

    def busbw(name: str) -> list[float]:
        means = [statistics.fmean(times) for times in zip(*(rank[name] for rank in figure_line), strict=True)]
        return [size / seconds * 2 * (world - 1) / world / 1e9 for seconds in means]

    ours, theirs = busbw("envcheck"), busbw("bare")
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return {
        "ranks": world,
        "backend": backend,
        "bytes": size,
        "envcheck": statistics.median(ours),
        "bare": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "spread": [ratios[0], ratios[-1]],
    }


def nccl_tests(program: str, size: int, gpus: int) -> float:
    """Return the in-place bus bandwidth in GB/s that nccl-tests prints for this size."""
    argv = [program, "-b", str(size), "-e", str(size), "-g", str(gpus), "-w", str(WARMUP), "-n", str(CALLS)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    row = next(line.split() for line in done.stdout.splitlines() if line.split()[:1] == [str(size)])
    return float(row[11])


def measure(python: str, worlds: list[int], repeat: int) -> list[dict[str, Any]]:
    """Return the figures of every group, over NCCL on all GPUs where there are two."""
    executable = str(Path(python, "bin/python")) if Path(python).is_dir() else python
    gpus = int(subprocess.run([executable, "-c", COUNT], capture_output=True, text=True, check=True).stdout)
    if gpus < 2:  # noqa: PLR2004 (one has nobody to talk to)
        return [group(executable, world, "gloo", repeat) for world in worlds]
    measured = group(executable, gpus, "nccl", repeat)
    program = shutil.which("all_reduce_perf")
    if program:
        measured["nccl_tests"] = nccl_tests(program, measured["bytes"], gpus)
        measured["nccl_tests_ratio"] = measured["envcheck"] / measured["nccl_tests"]
    return [measured]


def met(measured: dict[str, Any]) -> bool:
    """Return whether a group's ratios are within their goals."""
    same = abs(float(measured["ratio"]) - 1) <= GOAL
    return same and abs(float(measured.get("nccl_tests_ratio", 1)) - 1) <= NCCL_TESTS_GOAL


def figure_line(measured: dict[str, Any]) -> str:
    """Return a group's figures as a line."""
    low, high = measured["spread"]
    text = (
        f"{measured['ranks']} ranks over {measured['backend']}, {measured['bytes'] >> 20} MiB, busbw in GB/s: "
        f"envcheck {measured['envcheck']:.3f}, bare loop {measured['bare']:.3f}; "
        f"ratio {measured['ratio']:.3f} ({low:.3f} to {high:.3f}); goal 1 +- {GOAL}"
    )
    if "nccl_tests" in measured:
        ratio = measured["nccl_tests_ratio"]
        text += f"; nccl-tests {measured['nccl_tests']:.3f}, ratio {ratio:.3f}; goal 1 +- {NCCL_TESTS_GOAL}"
    return text


def main() -> None:
    """Measure and print; or, started as a rank, measure alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=DEFAULT, help="an environment with torch [default: that of `make test`]")
    parser.add_argument("--ranks", default="2,4", help="how many ranks, without GPUs [default: 2,4]")
    parser.add_argument("--repeat", type=int, default=10, help="rounds, an even number [default: 10]")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, and no goal: does it still run?")
    for name in ("--rank", "--world", "--ports", "--backend", "--scratch"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.smoke:
        given.ranks, given.repeat = "2", 2
    if given.repeat < 2 or given.repeat % 2:  # noqa: PLR2004 (alternation)
        parser.error("--repeat has to be an even number")
    if given.rank is not None:
        ports = [int(port) for port in given.ports.split(",")]
        be_rank(int(given.rank), int(given.world), ports, given.backend, given.scratch)
        return
    groups = measure(given.python, [int(world) for world in given.ranks.split(",")], given.repeat)
    good = all(map(met, groups))
    if given.json:
        print(json.dumps({"benchmark": "collectives", "groups": groups, "goal": GOAL, "met": good}))
    else:
        print("\n".join(map(figure_line, groups)))
    raise SystemExit(0 if good or given.smoke else 1)


if __name__ == "__main__":
    main()

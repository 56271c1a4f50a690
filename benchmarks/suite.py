"""What a run costs beyond what cannot be saved, and what `quick` costs where there is no GPU.

    python benchmarks/suite.py --python /opt/venv [--repeat 5] [--level quick]... [--json]     exit 1: a goal is missed
    python benchmarks/suite.py --image REF …        in a container; tests/e2e/private_engine.py offers an engine
    python benchmarks/suite.py --no-resolver …      in a namespace whose name server answers nothing (as root)

`whole` is the wall clock of `envcheck run` as a user starts it, from the command to its exit; `import` that of
`python -c "import torch"` in the same environment, measured right before and after it; `bodies` is the sum over
the checks of what their slowest rank spent in `measure`. Two ratios are taken of each round, and the median of the
rounds is compared with its goal:

    whole / (import + bodies)   everything else: envcheck's start, reading the node, forks, the report     <= 1.25
    whole / import              `quick`, where torch has no GPU to look at                                 <= 2
    planned / taken             of all checks that measured something, whichever is more over the other    <= 1.5

Of an image, `import` is what its worker says, for its start is part of what a user waits for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

OVERHEAD: Final = 1.25
QUICK: Final = 2.0
PLANNED: Final = 1.5
ROOT: Final = Path(__file__).resolve().parents[1]
DEFAULT: Final = str(ROOT / ".envcheck/test-venv")


class Target(NamedTuple):
    """What is run: an environment or an image by its name, with or without a name server that answers."""

    name: str
    image: bool = False
    lonely: bool = False

    @property
    def options(self) -> list[str]:
        """Return the options of `envcheck run` that mean it."""
        return ["--image" if self.image else "--python", self.name]


def timed(argv: Sequence[str]) -> float:
    """Return the seconds a command takes; one that could not do its work (exit 2 or 3) ends the benchmark."""
    begun = time.monotonic()
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begun
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(argv)} exited with {done.returncode}: {done.stderr or done.stdout}")
    return seconds


def once(target: Target, level: str) -> dict[str, float]:
    """Return one measurement of each part, in seconds, and how many GPUs torch saw."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        run = [sys.executable, "-m", "envcheck", "run", *target.options, "--level", level, "--output", str(report)]
        bare = [_executable(target.name), "-c", "import torch"]
        before = None if target.image else timed(bare)
        whole = timed([*_lonely(Path(scratch)), *run] if target.lonely else run)
        after = None if target.image else timed(bare)
        facts = json.loads(report.read_bytes())
    own = facts["environment"].get("import_seconds", 0.0)
    done = [o for o in facts["outcomes"] if o["kind"] == "env" and o["seconds"] and o["status"] != "skip"]
    return {
        "whole": whole,
        "import": own if before is None or after is None else (before + after) / 2,
        "bodies": sum(attempt["body"] for outcome in facts["outcomes"] for attempt in outcome["attempts"]),
        "planned": sum(outcome["planned"] for outcome in done),
        "taken": sum(outcome["seconds"] for outcome in done),
        "gpus": facts["environment"]["device_count"],
    }


def _lonely(scratch: Path) -> list[str]:
    """Return what runs a command where no name server answers."""
    (scratch / "hosts").write_text("127.0.0.1 localhost\n", encoding="ascii")
    helper = str(ROOT / "tests/silent_resolver.py")
    places = [str(scratch / "hosts"), str(scratch / "questions")]
    return ["unshare", "--net", "--mount", "--uts", sys.executable, helper, *places]


def _executable(python: str) -> str:
    return str(Path(python, "bin/python")) if Path(python).is_dir() else python


def measured(target: Target, level: str, repeat: int) -> dict[str, Any]:
    """Return the medians of some rounds, after one that reads everything from disk."""
    once(target, level)
    rounds = [once(target, level) for _ in range(repeat)]
    figures: dict[str, Any] = {name: round(statistics.median(r[name] for r in rounds), 3) for name in rounds[0]}
    overhead = [r["whole"] / (r["import"] + r["bodies"]) for r in rounds]
    imports = [r["whole"] / r["import"] for r in rounds]
    figures |= {"level": level, "overhead": round(statistics.median(overhead), 3), "overhead_goal": OVERHEAD}
    planned = statistics.median(max(r["planned"] / r["taken"], r["taken"] / r["planned"]) for r in rounds)
    figures |= {"off_plan": round(planned, 3), "off_plan_goal": PLANNED}
    if level == "quick" and not figures["gpus"]:
        figures |= {"imports": round(statistics.median(imports), 3), "imports_goal": QUICK}
    return figures


def figure_line(figures: dict[str, Any]) -> str:
    """Return a measurement as a line or two of text."""
    parts = f"import torch {figures['import']:.2f} s + check bodies {figures['bodies']:.2f} s"
    line = f"{figures['level']}: {figures['whole']:.2f} s = {figures['overhead']:.2f} x ({parts}); goal <= {OVERHEAD}"
    if "imports" in figures:
        line += f"\n{figures['level']}: {figures['imports']:.2f} x import torch; goal <= {QUICK:g}"
    plan = f"planned {figures['planned']:.1f} s, taken {figures['taken']:.1f} s"
    return f"{line}\n{figures['level']}: {plan}: {figures['off_plan']:.2f} x; goal <= {PLANNED}"


def missed(figures: dict[str, Any]) -> bool:
    """Return whether a ratio is over its goal."""
    return bool(figures["off_plan"] > PLANNED or figures["overhead"] > OVERHEAD or figures.get("imports", 0.0) > QUICK)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=DEFAULT, help="an environment with torch [default: that of `make test`]")
    parser.add_argument("--image", help="an image of this machine's engine instead")
    parser.add_argument("--no-resolver", action="store_true", help="run where no name server answers; needs root")
    parser.add_argument("--level", action="append", help="repeatable [default: quick]")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, and no goal: does it still run?")
    given = parser.parse_args()
    if given.smoke:
        given.level, given.repeat = ["static"], 1
    target = Target(given.image or given.python, image=bool(given.image), lonely=given.no_resolver)
    results = [measured(target, level, given.repeat) for level in given.level or ["quick"]]
    print(json.dumps({"benchmark": "suite", "levels": results}) if given.json else "\n".join(map(figure_line, results)))
    raise SystemExit(int(any(map(missed, results)) and not given.smoke))


if __name__ == "__main__":
    main()

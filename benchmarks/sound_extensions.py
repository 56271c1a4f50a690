"""Run the checks of native extensions on environments that are sound: no finding may fail, warn or be an error.

    python benchmarks/sound_extensions.py --python PYTHON3.12 --cpu ENVIRONMENT/bin/python [--ffmpeg LIBRARIES]
        [--directory DIR] [--only WORD] [--json]

Two environments with torch for CUDA 12 and 13 are installed once (12 GB, hard links to uv's cache where it is on the
same disk). `--cpu` is one with torch 2.13.0+cpu and Python 3.11. Each package of the list then comes in front of one
of them, in a directory of its own. `--ffmpeg` are directories with FFmpeg's libraries, for torchcodec.

Prints each environment with the status of `extensions` and `extensions-loaded` and every alarm; one exits with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CHECKS = ("extensions", "extensions-loaded")
ALARMS = ("fail", "error", "warn")
CUDA_12 = ["torch==2.9.1", "torchvision==0.24.1", "torchaudio==2.9.1", "torchcodec==0.9.1"]
CUDA_12 += ["bitsandbytes==0.49.2", "xformers==0.0.33.post2"]
BASES = {"cu128": CUDA_12, "cu130": ["torch==2.13.0", "torchvision==0.28.0", "torchcodec==0.15.0", "torchao==0.18.0"]}
_NUMBA = ["numba-cuda==0.30.4", "numba", "llvmlite", "cuda-bindings", "cuda-core", "cuda-pathfinder"]
_ONNX = ["flatbuffers", "protobuf", "packaging"]
# Base, and what comes in front of it: without dependencies, so that torch stays.
IN_FRONT: list[tuple[str, list[str]]] = [
    ("cu128", []),
    ("cu128", ["bitsandbytes==0.46.1"]),
    ("cu128", ["bitsandbytes==0.50.2"]),
    ("cu128", ["faiss-gpu-cu12==1.14.1.post1", "packaging"]),
    ("cu128", ["faiss-gpu==1.15.1", "packaging"]),
    ("cu128", _NUMBA),
    ("cu128", ["cupy-cuda12x==14.2.0", "cuda-pathfinder"]),
    ("cu128", ["onnxruntime-gpu==1.26.0", *_ONNX]),
    ("cu128", ["torchao==0.15.0"]),
    ("cu130", []),
    ("cu130", ["bitsandbytes==0.50.2", "packaging"]),
    ("cu130", ["cupy-cuda13x==14.2.0", "cuda-pathfinder"]),
    ("cu130", _NUMBA),
    ("cu130", ["torchao==0.17.0"]),
    ("cu130", ["torchaudio==2.11.0"]),
    ("cu130", ["torchcodec==0.13.0"]),
    ("cu130", ["torchcodec==0.17.0"]),
    ("cu130", ["onnxruntime-gpu==1.31.1", *_ONNX]),
    ("cpu", []),
    ("cpu", ["torchcodec==0.11.1"]),
    ("cpu", ["torchcodec==0.12.0"]),
    ("cpu", ["torchcodec==0.13.0"]),
    ("cpu", ["torchao==0.18.0"]),
    ("cpu", ["bitsandbytes==0.50.2", "packaging"]),
]


class Answer(NamedTuple):
    """What the checks said of one environment. `statuses` are in the order of CHECKS; `alarms` are texts."""

    name: str
    statuses: list[str]
    alarms: list[str]
    seconds: float


def install(directory: Path, name: str, python: str) -> str:
    """Return the Python of a base, which is installed if it is not there."""
    place = directory / name
    if not (place / "installed").exists():
        subprocess.run(["uv", "venv", "-q", "--python", python, str(place)], check=True)
        words = ["uv", "pip", "install", "-q", "--compile-bytecode", "--python", str(place / "bin" / "python")]
        subprocess.run([*words, *BASES[name]], check=True)
        (place / "installed").touch()
    return str(place / "bin" / "python")


def in_front(directory: Path, base: str, python: str, packages: list[str]) -> Path:
    """Return a directory with packages, which are installed for a base's Python if they are not there."""
    place = directory / f"{base}-{'-'.join(packages).replace('=', '').replace('--', '-')}"
    if packages and not place.exists():
        words = ["uv", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:", "--python", python]
        subprocess.run([*words, "--target", str(place), *packages], check=True)
    return place


def run(python: str, name: str, front: Path, ffmpeg: str) -> Answer:
    """Return what the two checks say of an environment. Raises FileNotFoundError if the run wrote no report."""
    report, begun = front.with_name(f"{front.name}.json"), time.monotonic()
    command = [sys.executable, "-m", "envcheck", "run", "--python", python, "--level", "quick", "--output", str(report)]
    command += [word for check in CHECKS for word in ("--only", check)]
    environment = {**os.environ, "PYTHONPATH": str(front), "LD_LIBRARY_PATH": ffmpeg}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    report.unlink(missing_ok=True)
    subprocess.run(command, capture_output=True, check=False, env=environment, cwd=ROOT)
    outcomes = {row["id"]: row for row in json.loads(report.read_text(encoding="utf-8"))["outcomes"]}
    rows = [outcomes[check] for check in CHECKS]
    findings = [part for row in rows for part in (row["findings"] or [row])]
    alarms = [f"{part['code']}: {part['summary']}" for part in findings if part["status"] in ALARMS]
    return Answer(name, [row["status"] for row in rows], alarms, time.monotonic() - begun)


def main() -> None:
    """Install, run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="a Python 3.12 to install with")
    parser.add_argument("--cpu", help="the Python of an environment with torch 2.13.0+cpu")
    parser.add_argument("--ffmpeg", default="")
    parser.add_argument("--directory", type=Path, default=Path("sound-extensions"))
    parser.add_argument("--only", default="", help="only environments with this word in their name")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, and no goal: does it still run?")
    options = parser.parse_args()
    if not options.cpu or not (options.python or options.smoke):
        print("nothing is installed without --python and --cpu: see --help")
        raise SystemExit(0)
    answers = []
    options.directory.mkdir(parents=True, exist_ok=True)
    for base, packages in [("cpu", [])] if options.smoke else IN_FRONT:
        name = " ".join(["torch for", base, *packages])
        if options.only in name:
            python = options.cpu if base == "cpu" else install(options.directory, base, options.python)
            front = in_front(options.directory, base, python, packages)
            answer = run(python, name, front.resolve(), options.ffmpeg)
            answers.append(answer)
            print(
                f"{' '.join(answer.statuses):12} {answer.seconds:4.0f} s  {name}",
                *answer.alarms,
                sep="\n  ",
                flush=True,
            )
    wrong = sum(bool(answer.alarms) for answer in answers)
    print(
        json.dumps([answer._asdict() for answer in answers]) if options.json else f"{wrong} of {len(answers)} alarmed"
    )
    raise SystemExit(1 if wrong or not answers else 0)


if __name__ == "__main__":
    main()

"""Compare the matrix's facts about the default index's wheels with that index, through uv as it is configured here.

    .venv/bin/python .ci/matrix/check_online.py [--matrix FILE]

It takes minutes: two questions for each release. Wheels that are on PyTorch's own indexes alone, those for aarch64 and
for free-threaded Pythons are not asked for. Exit 0: nothing found; 1: findings; 3: the index cannot be reached.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from envcheck.counting import counted
from envcheck.errors import EnvcheckError, UnavailableError
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file.lint import Problem
from envcheck.matrix.file.load import load

ROOT = Path(__file__).parents[2]

_RUNTIME: Final = re.compile(r"^nvidia-cuda-runtime(?:-cu\d+)?==(\d+\.\d+)", re.MULTILINE)
_REFUSED: Final = "No solution found"
_TIMEOUT: Final = 300.0
PARALLEL_QUESTIONS: Final = 8


class Question(NamedTuple):
    """One fact to check: that the index has torch for a Python, and with `cuda` also which CUDA it is built with."""

    torch: str
    python: str
    cuda: str | None


class Reply(NamedTuple):
    """The client's pins, or why there are none."""

    pins: str | None
    why: str = ""


Client = Callable[[Question], Reply]


def main() -> int:
    """Ask the index, and print what it contradicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrix", type=Path, default=ROOT / "matrix.yaml", help="the file of facts")
    options = parser.parse_args()
    try:
        problems = check_online(load(options.matrix))
    except EnvcheckError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.writelines(f"{where}: {problem}\n" for where, problem in problems)
    sys.stdout.write(f"{counted(len(problems), 'finding')}\n")
    return 1 if problems else 0


def check_online(matrix: Matrix, client: Client | None = None) -> list[Problem]:
    """Return where the index contradicts the matrix on its own x86_64 wheels: their CUDA, oldest and newest Python.

    Raises UnavailableError when the index cannot be reached; the facts are then neither confirmed nor refuted.
    """
    questions = list(_questions(matrix))
    ask = client or _uv
    # Ask the first question alone: uv processes share a cache and its locks, so they retry a dead index one by one.
    replies = {question: ask(question) for question in questions[:1]}
    with ThreadPoolExecutor(PARALLEL_QUESTIONS) as pool:
        replies |= zip(questions[1:], pool.map(ask, questions[1:]), strict=True)
    return [problem for question in questions for problem in _compare(question, replies[question])]


def _questions(matrix: Matrix) -> Iterator[Question]:
    for release in matrix.torch:
        variant = release.variant(release.pypi.get("x86_64", ""))
        build = next((build for build in variant.builds if build.arch == "x86_64"), None) if variant else None
        if variant is None or build is None:
            continue
        # uv resolves neither for free-threaded Pythons nor for Python 3.7.
        pythons = [python for python in build.python if not python.endswith("t") and python != "3.7"]
        yield Question(release.torch, pythons[0], None)
        yield Question(release.torch, pythons[-1], variant.cuda)


def _compare(question: Question, reply: Reply) -> Iterator[Problem]:
    where = f"torch {question.torch}"
    if reply.pins is None:
        yield Problem(where, f"the index has no wheel for Python {question.python}: {reply.why}")
        return
    if question.cuda is None:
        return
    built = _RUNTIME.search(reply.pins)
    if built is None:
        yield Problem(where, f"the index's wheel requires no CUDA runtime, the matrix says CUDA {question.cuda}")
    elif built[1] != question.cuda:
        yield Problem(where, f"the index's wheel requires CUDA {built[1]}, the matrix says {question.cuda}")


def _uv(question: Question) -> Reply:
    uv = shutil.which("uv", path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]))
    if uv is None:
        message = "uv is not on PATH"
        raise UnavailableError(message, fix="install it: pip install uv")
    command = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:"]
    command += ["--python-version", question.python, "--python-platform", "x86_64-manylinux_2_28"]
    command += ["-"] if question.cuda else ["--no-deps", "-"]
    try:
        # An empty directory, so that uv reads no project's pyproject.toml or uv.toml.
        with tempfile.TemporaryDirectory() as scratch:
            process = subprocess.run(
                command,
                cwd=scratch,
                input=f"torch=={question.torch}\n",
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        message = f"uv did not answer within {_TIMEOUT:.0f} s"
        raise UnavailableError(message, fix="check the index that uv is configured for") from error
    return _reply(process)


def _reply(process: subprocess.CompletedProcess[str]) -> Reply:
    if process.returncode == 0:
        return Reply(process.stdout)
    why = " ".join(process.stderr.split())
    if _REFUSED in why:
        return Reply(None, why[:200])
    message = f"cannot query the package index: {why[:200] or f'uv exit status {process.returncode}'}"
    raise UnavailableError(message, fix="check the index and certificates that uv is configured for")


if __name__ == "__main__":
    sys.exit(main())

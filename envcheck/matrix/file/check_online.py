"""Compare the matrix's facts about PyPI with the package index, through uv as it is configured here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final, NamedTuple

from envcheck.counting import counted
from envcheck.errors import UnavailableError
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file.lint import Problem

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


class Step(NamedTuple):
    """Progress: `done` of `total` questions; the latest was about `torch`, and `release_done` if it was its last."""

    torch: str
    done: int
    total: int
    release_done: bool


class Scope(NamedTuple):
    """What an online check covers: `questions` about the default index's wheels of `releases`, and what it leaves out.

    `left_out` are sentences: how many rows (a variant's wheels for one host architecture) are left out, and why.
    """

    questions: int
    releases: int
    left_out: list[str]


Client = Callable[[Question], Reply]


def scope(matrix: Matrix) -> Scope:
    """Return what an online check of this matrix covers and what it leaves out."""
    questions = list(_questions(matrix))
    rows = [
        (release.pypi.get(build.arch) == variant.variant, variant.variant, build.arch)
        for release in matrix.torch
        for variant in release.variants
        for build in variant.builds
    ]
    elsewhere = [variant for on_default, variant, _ in rows if not on_default]
    other_arch = sum(on_default and arch != "x86_64" for on_default, _, arch in rows)
    names = ", ".join(sorted(set(elsewhere)))
    return Scope(
        len(questions),
        len({question.torch for question in questions}),
        [
            (
                f"{counted(len(elsewhere), 'row')} of {names}: on PyTorch's own indexes, "
                "and uv is asked for its default one"
            ),
            f"{counted(other_arch, 'row')} of aarch64: uv is asked for x86_64",
            "free-threaded Pythons and 3.7: uv resolves for none of them",
        ],
    )


def check_online(
    matrix: Matrix, client: Client | None = None, progress: Callable[[Step], None] = lambda _: None
) -> list[Problem]:
    """Return where the index contradicts the matrix on PyPI's own x86_64 wheels: their CUDA, oldest and newest Python.

    Raises UnavailableError when the index cannot be reached; the facts are then neither confirmed nor refuted.
    """
    questions = list(_questions(matrix))
    replies = _ask_all(questions, client or _uv, progress)
    return [problem for question in questions for problem in _compare(question, replies[question])]


def _ask_all(questions: list[Question], ask: Client, progress: Callable[[Step], None]) -> dict[Question, Reply]:
    replies: dict[Question, Reply] = {}

    def take(question: Question, reply: Reply) -> None:
        replies[question] = reply
        unanswered = any(other.torch == question.torch and other not in replies for other in questions)
        progress(Step(question.torch, len(replies), len(questions), not unanswered))

    # Ask the first question alone: uv processes share a cache and its locks, so they retry a dead index one by one.
    for question in questions[:1]:
        take(question, ask(question))
    with ThreadPoolExecutor(PARALLEL_QUESTIONS) as pool:
        pending = {pool.submit(ask, question): question for question in questions[1:]}
        try:
            for future in as_completed(pending):
                take(pending[future], future.result())
        except UnavailableError:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return replies


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
    uv = shutil.which("uv", path=os.pathsep.join([str(_scripts()), os.environ.get("PATH", "")]))
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


def _scripts() -> Path:
    import sysconfig  # noqa: PLC0415 (only the online check needs it)

    return Path(sysconfig.get_path("scripts"))

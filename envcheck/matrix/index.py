"""Ask the package index, through the client as it is configured here, whether what the matrix says of PyPI is so."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from envcheck.errors import UnavailableError
from envcheck.matrix.lint import Finding
from envcheck.matrix.model import Matrix

_RUNTIME: Final = re.compile(r"^nvidia-cuda-runtime(?:-cu\d+)?==(\d+\.\d+)", re.MULTILINE)
_REFUSED: Final = "No solution found"
_TIMEOUT: Final = 300.0
_AT_ONCE: Final = 4


class Question(NamedTuple):
    """One fact to be checked: that torch is there for a Python, and with `cuda` also what it is built with."""

    torch: str
    python: str
    cuda: str | None


class Reply(NamedTuple):
    """What the client found: its pins, or why there are none."""

    pins: str | None
    why: str = ""


Client = Callable[[Question], Reply]


def check_online(
    matrix: Matrix, client: Client | None = None, progress: Callable[[str], None] = lambda _: None
) -> list[Finding]:
    """Return where the index contradicts the matrix on PyPI's own x86_64 wheels: their CUDA, oldest and newest Python.

    Raises UnavailableError when the index cannot be reached: then nothing is known, which is not the same as right.
    """
    ask = client or _uv
    questions = list(_questions(matrix))
    findings: list[Finding] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for question, reply in zip(questions, pool.map(ask, questions), strict=True):
            progress(f"torch {question.torch} for Python {question.python}")
            findings += _compare(question, reply)
    return findings


def _questions(matrix: Matrix) -> Iterator[Question]:
    for release in matrix.torch:
        variant = release.variant(release.pypi["x86_64"])
        build = next((build for build in variant.builds if build.arch == "x86_64"), None) if variant else None
        if variant is None or build is None:
            continue
        # uv resolves for no free-threaded Python, and not for those it no longer knows.
        pythons = [python for python in build.python if not python.endswith("t") and python != "3.7"]
        yield Question(release.torch, pythons[0], None)
        yield Question(release.torch, pythons[-1], variant.cuda)


def _compare(question: Question, reply: Reply) -> Iterator[Finding]:
    where = f"torch {question.torch}"
    if reply.pins is None:
        yield Finding(where, f"the index has no wheel for Python {question.python}: {reply.why}")
        return
    if question.cuda is None:
        return
    built = _RUNTIME.search(reply.pins)
    if built is None:
        yield Finding(where, f"the index's wheel requires no CUDA runtime, the matrix says CUDA {question.cuda}")
    elif built[1] != question.cuda:
        yield Finding(where, f"the index's wheel requires CUDA {built[1]}, the matrix says {question.cuda}")


def _uv(question: Question) -> Reply:
    uv = shutil.which("uv", path=os.pathsep.join([str(_beside()), os.environ.get("PATH", "")]))
    if uv is None:
        message = "uv is not on PATH"
        raise UnavailableError(message, fix="install it: pip install uv")
    command = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:"]
    command += ["--python-version", question.python, "--python-platform", "x86_64-manylinux_2_28"]
    command += ["-"] if question.cuda else ["--no-deps", "-"]
    try:
        # An empty directory: a pyproject.toml or uv.toml of a project is no part of the question.
        with tempfile.TemporaryDirectory() as scratch:
            done = subprocess.run(
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
    return _reply(done)


def _reply(done: subprocess.CompletedProcess[str]) -> Reply:
    if done.returncode == 0:
        return Reply(done.stdout)
    why = " ".join(done.stderr.split())
    if _REFUSED in why:
        return Reply(None, why[:200])
    message = f"the package index cannot be asked: {why[:200] or f'uv exit status {done.returncode}'}"
    raise UnavailableError(message, fix="check the index and certificates that uv is configured for")


def _beside() -> Path:
    import sysconfig  # noqa: PLC0415 (only the online check needs it)

    return Path(sysconfig.get_path("scripts"))

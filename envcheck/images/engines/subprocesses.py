"""The one door to the programs that build: docker, podman, uv, mmdebstrap."""

import json
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from envcheck.errors import BuildError, UnavailableError, refuse

Process: TypeAlias = subprocess.Popen[bytes]


class CommandResult(NamedTuple):
    """The result of a program: its exit status (None if the time limit ended it) and the output of both streams."""

    status: int | None
    output: str


def last_words(result: CommandResult) -> str:
    """Return the last line that a program wrote, which mostly says why it failed."""
    lines = [line.strip() for line in result.output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it took too long" if result.status is None else "it wrote nothing"


def documents(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of JSON, or JSON lines, that a command printed; its warnings may stand before them."""
    lines = text.splitlines(keepends=True)
    start = next((number for number, line in enumerate(lines) if line[:1] in ("[", "{")), len(lines))
    rest = "".join(lines[start:]).strip()
    while rest[:1] in ("[", "{"):
        value, end = json.JSONDecoder().raw_decode(rest)
        yield from value if isinstance(value, list) else [value]
        rest = rest[end:].lstrip()


def which(program: str) -> str | None:
    """Return where a program is, or None; the administrator's directories count."""
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def stream(
    argv: Sequence[str],
    *,
    timeout: float,
    on_line: Callable[[str], None] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> CommandResult:
    """Run a program, handing lines over as written; at `timeout` its process group is killed. UnavailableError."""
    deadline = time.monotonic() + timeout
    with _start(argv, env, cwd) as process:
        return _result(process, deadline, on_line or (lambda _: None))


def stream_all(
    argvs: Sequence[Sequence[str]], *, timeout: float, on_line: Callable[[str], None], env: Mapping[str, str]
) -> list[CommandResult]:
    """Run programs at the same time, each as `stream` does, and return their results in order.

    `on_line` is called by a thread of each. An interrupt, or an error of `on_line`, kills all of them.
    """
    deadline = time.monotonic() + timeout
    with ExitStack() as stack:
        processes = [stack.enter_context(_start(argv, env, None)) for argv in argvs]
        pool = stack.enter_context(ThreadPoolExecutor(len(processes)))
        try:
            results = [pool.submit(_result, process, deadline, on_line) for process in processes]
            for finished in wait(results, return_when=FIRST_EXCEPTION).done:
                finished.result()  # the error of a later program must not wait for an earlier one
            return [finished.result() for finished in results]
        except BaseException:
            for process in processes:
                _kill(process)
            raise


def _result(process: subprocess.Popen[bytes], deadline: float, on_line: Callable[[str], None]) -> CommandResult:
    try:
        output, ended = _read(process.stdout, deadline, on_line)
        status = process.wait(max(0.1, deadline - time.monotonic())) if ended else None
    except subprocess.TimeoutExpired:
        status = None
    except BaseException:
        _kill(process)
        raise
    if status is None:
        _kill(process)
        process.wait()
    return CommandResult(status, output)


def output(argv: Sequence[str], *, timeout: float = 60) -> str:
    """Return what a program prints; a failure is a BuildError with its last words."""
    result = stream(argv, timeout=timeout)
    if result.status != 0:
        failure = f"{argv[0]} {argv[1] if argv[1:] else ''} failed: {last_words(result)}"
        refuse(failure, "run it by hand to see more", BuildError)
    return result.output


def attach(argv: Sequence[str]) -> Process:
    """Start a program that reads end of file when this process ends, however it does. What it writes is dropped."""
    return _start(argv, None, None, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def _start(
    argv: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: Path | None,
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
) -> Process:
    program = which(argv[0])
    if program is None:
        refuse(f"{argv[0]} is not installed", f"install {argv[0]}, or choose another --engine", UnavailableError)
    return subprocess.Popen(
        [program, *argv[1:]],
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        env={**os.environ, **env} if env else None,
        cwd=cwd,
        start_new_session=True,
    )


def _read(pipe: Any, deadline: float, on_line: Callable[[str], None]) -> tuple[str, bool]:
    parts: list[bytes] = []
    partial = b""
    with selectors.DefaultSelector() as ready:
        ready.register(pipe, selectors.EVENT_READ)
        while ready.select(max(0.0, deadline - time.monotonic())):
            chunk = os.read(pipe.fileno(), 65536)
            if not chunk:
                if partial:
                    on_line(partial.decode(errors="replace"))
                return b"".join(parts).decode(errors="replace"), True
            parts.append(chunk)
            *lines, partial = (partial + chunk).split(b"\n")
            for line in lines:
                on_line(line.decode(errors="replace"))
    return b"".join(parts).decode(errors="replace"), False


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return

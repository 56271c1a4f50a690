"""One worker from start to end: its plan written, its events read, its silence not waited for for ever."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from envcheck.runner.schema import encodable
from envcheck.runner.targets import scratch_dirs
from envcheck.runner.targets.interface import Handle, Target
from envcheck.runner.worker.fork_server import NODE_READ

Event = dict[str, Any]

IMPORT_TIMEOUT: Final = 180.0
# Each names a check of the plan.
_OF_CHECKS: Final = ("started", "done", "left-out")
LAST: Final = ("end", "died", "silent")
# What the worker itself may need before it says what the environment is: the import, then two probes.
_FIRST: Final = IMPORT_TIMEOUT + 2 * 95.0
_OVER: Final = 20.0  # what it may need beyond a check's own limit to end its group
_POLL: Final = 0.01
_LINE: Final = 1 << 28  # bytes: what a thousand ranks measured is less


@contextlib.contextmanager
def working_directory(plan: Mapping[str, Any], site: Path | None) -> Iterator[Path]:
    """Yield a directory with the plan in it, and the site's own checks."""
    with scratch_dirs.directory() as scratch:
        with scratch_dirs.filling():
            (scratch / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
            if site is not None and (site / "env").is_dir():
                shutil.copytree(site / "env", scratch / "site")
        yield scratch


def node_was_read(directory: Path) -> None:
    """Tell the worker that it may touch the GPUs now; it may be gone by then, and its directory too."""
    with contextlib.suppress(OSError):
        os.close(os.open(directory / NODE_READ, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644))


def events(target: Target, directory: Path, limits: Mapping[str, float]) -> Iterator[Event]:
    """Yield the worker's events; the last is always `end`, `died` or `silent`, and nothing of it runs after that.

    `limits` is each check's timeout. What a worker says that is no event, or about a check that was not planned, is
    skipped: its checks count as unfinished.
    """
    handle = target.start(directory)
    groups: list[int] = []
    try:
        for event in _follow(handle, directory / "events.jsonl", limits):
            groups = {"started": [event.get("group", 0)], "done": []}.get(event["event"], groups)
            yield event
    finally:
        handle.end(groups)


def _follow(handle: Handle, path: Path, limits: Mapping[str, float]) -> Iterator[Event]:
    position, patience = 0, time.monotonic() + _FIRST
    while True:
        code = handle.poll()
        try:
            events, position = _read(path, position)
        except OSError as error:
            yield {"event": "silent", "unreadable": error.strerror, **_words(handle, path.parent)}
            return
        for event in events:
            if event["event"] in _OF_CHECKS and event.get("id") not in limits:
                continue
            yield {**event, **_words(handle, path.parent)} if event["event"] == "died" else event
            if event["event"] in LAST:
                return
            patience = time.monotonic() + _OVER + limits.get(str(event.get("id")), _OVER)
        if code is not None and not events:
            yield {"event": "died", **_manner(code), **_words(handle, path.parent)}
            return
        if time.monotonic() > patience:
            yield {"event": "silent", **_words(handle, path.parent)}
            return
        time.sleep(_POLL)


def _words(handle: Handle, directory: Path) -> Event:
    """Return the worker's last words, and why it can have left none."""
    return {"log": handle.log(), "unwritable": scratch_dirs.refusal(directory)}


def _manner(code: int) -> Event:
    return {"signal": signal.Signals(-code).name} if code < 0 else {"code": code}


def _read(path: Path, position: int) -> tuple[list[Event], int]:
    """Return the whole lines after `position`, and where they end. Raises OSError for what no worker writes.

    Processes of an image can put anything in its place: a link, a FIFO, a line without an end.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return [], position
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "it is no regular file")
        stream.seek(position)
        text = stream.read(_LINE)
    if len(text) == _LINE and b"\n" not in text:
        raise OSError(0, f"a line has over {_LINE} bytes")
    complete_lines = text[: text.rfind(b"\n") + 1]
    return [event for line in complete_lines.splitlines() if (event := _event(line))], position + len(complete_lines)


def _event(line: bytes) -> Event | None:
    """Return an event, or None for a line that a full disk cut off."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return encodable(event) if isinstance(event, dict) and "event" in event else None

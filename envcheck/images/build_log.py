"""Why a build failed, read off its log: the step, its last words, the likely cause and what to do about it."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from envcheck.data import state_path
from envcheck.errors import BuildError

_STEP: Final = re.compile(r"^#(?P<id>\d+) (?P<title>\[[^\]]+\] .*)$")
# Buildah's, whose lines have no number.
_BUILDAH: Final = re.compile(r"^(?:\[\d+/\d+\] )?STEP (?P<at>\d+/\d+): (?P<what>.*)$")
_OUTPUT: Final = re.compile(r"^#(?P<id>\d+) (?:\d+\.\d+ )(?P<text>.*)$")
_ERROR: Final = re.compile(r"^#(?P<id>\d+) ERROR: (?P<text>.*)$")
_MOUNT: Final = re.compile(r"--mount=\S+\s+")
_URL: Final = re.compile(r"https?://(?:[^/\s@]*@)?([^/\s)\"'?]+)")
_QUOTED_HOST: Final = re.compile(r"['\"]([\w-]+(?:\.[\w-]+)+)['\"]")
LAST_LINES: Final = 15


class Cause(msgspec.Struct, frozen=True):
    """What most likely went wrong where a log matches `pattern`, and what to do.

    `contained` is more to do, where the build is in a container.
    """

    pattern: str
    what: str
    fix: str
    contained: str = ""


class FailedStep(NamedTuple):
    """A failed build: the step's first line, its last lines of output, and the likely cause where one is known."""

    step: str
    lines: list[str]
    cause: Cause | None


@functools.cache
def _causes(table: str) -> list[Cause]:
    """Return the known causes. The first that matches wins: a full disk can end in any of the others."""
    return msgspec.json.decode(Path(__file__).with_name(table).read_bytes(), type=list[Cause])


def diagnose(log: str, table: str = "build_causes.json", **named: str) -> Cause | None:
    """Return the likely cause of a failure, or None when nothing in the log is known.

    `named` are the values of more fields in the table's texts, as {engine}.
    """
    for cause in _causes(table):
        match = re.search(cause.pattern, log)
        if match:
            values = {"host": _host(log, match), "said": (match.groupdict().get("said") or match[0]).strip(), **named}
            return msgspec.structs.replace(cause, what=cause.what.format(**values), fix=cause.fix.format(**values))
    return None


def _host(log: str, match: re.Match[str]) -> str:
    """Return the host a message is about: of the URL in its line or last before it, else what a tool quotes there."""
    line_end = log.find("\n", match.end())
    line = log[: line_end if line_end >= 0 else len(log)]
    hosts = _URL.findall(line) or _QUOTED_HOST.findall(line[match.start() :])
    return hosts[-1] if hosts else "a host"


def explain(log: str) -> FailedStep:
    """Read BuildKit's plain progress (or any log): the failing step, its last lines, the likely cause."""
    lines = log.splitlines()
    failed = next((match for line in lines if (match := _ERROR.match(line))), None)
    if failed is None:
        begun = filter(None, map(step_of, filter(_BUILDAH.match, reversed(lines))))
        return FailedStep(next(begun, "the build"), _tail(lines), diagnose(log))
    output = [match["text"] for line in lines if (match := _OUTPUT.match(line)) and match["id"] == failed["id"]]
    steps = (line for line in lines if (match := _STEP.match(line)) and match["id"] == failed["id"])
    lines_shown = [*output, failed["text"]]
    return FailedStep(
        next(filter(None, map(step_of, steps)), "the build"),
        _tail(lines_shown),
        diagnose("\n".join(lines_shown)) or diagnose(log),
    )


def step_of(line: str) -> str | None:
    """Return the step a line of progress begins, without its mounts, e.g. "[runtime 3/9] RUN ...", or None."""
    if buildah := _BUILDAH.match(line):
        return f"[{buildah['at']}] {_MOUNT.sub('', buildah['what'])}"
    match = _STEP.match(line)
    return _MOUNT.sub("", match["title"]) if match and not match["title"].startswith("[internal]") else None


def said_of(line: str) -> str:
    """Return a line of progress without its number and time."""
    match = _OUTPUT.match(line)
    return match["text"] if match else line


def _tail(lines: list[str]) -> list[str]:
    return [line.rstrip() for line in lines if line.strip()][-LAST_LINES:]


def require_success(
    name: str,
    log_name: str,
    status: int | None,
    output: str,
    timeout: float,
    *,
    step: str | None = None,
    before: str = "",
) -> Path | None:
    """Keep the log of what builds `name`, after what was `before`; return where it is, if there was room for one.

    An exit status that is not 0, or None after `timeout` seconds, is a FailedError.
    """
    path = state_path("logs", f"{log_name}.log")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{before}{output}", encoding="utf-8")
    except OSError:
        log = None  # a full disk must not hide why a build failed
    else:
        log = path
    if status != 0:
        ended = f"timed out after {timeout:.0f} s" if status is None else ""
        raise FailedError(name, f"{output}\n{ended}", log, step=step)
    return log


class FailedError(BuildError):
    """A build that failed: one line names the cause and what to do; `detail` is the step and its last lines.

    `step` is named for a build that is not in a container, whose log does not tell its steps.
    """

    def __init__(self, name: str, text: str, log: Path | None, *, step: str | None = None) -> None:
        explanation = explain(text)
        cause = explanation.cause or Cause("", "no known cause", "read its last lines above, or the whole log")
        fix = cause.fix + ("" if step else cause.contained)
        where = f"log: {log}" if log else "no space left for the log"
        super().__init__(f"{name} could not be built: {cause.what} ({where})", fix=fix)
        self.log = log
        self.detail = [f"in {step or explanation.step}", *explanation.lines]


# What install.sh and os.sh say of each attempt; the rest of the log is the installer's.
_SAID: Final = re.compile(
    r"envcheck: (?P<group>[a-z]+): (?:used (?P<used>.+)|(?P<failed>.+) failed rc=(?P<status>\d+))"
)


class UsedSource(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a lock group, or of the distribution's packages ("os"). `failed` maps those before it to why."""

    group: str
    source: str
    failed: dict[str, str]


def used(log: str) -> list[UsedSource]:
    """Return the source of each group that this build installed, in order; what came out of a cache is not there."""
    sources = []
    failed: dict[str, str] = {}
    for entry, before in _attempts(log):
        if entry["used"]:
            sources.append(UsedSource(group=entry["group"], source=entry["used"], failed=failed))
            failed = {}
        else:
            cause = diagnose(before)
            failed[entry["failed"]] = cause.what if cause else f"exit status {entry['status']}"
    return sources


def _attempts(log: str) -> Iterator[tuple[re.Match[str], str]]:
    since: list[str] = []
    for line in map(said_of, log.splitlines()):
        match = _SAID.fullmatch(line.rstrip())
        if match is None:
            since.append(line)
        else:
            yield match, "\n".join(since)
            since = []

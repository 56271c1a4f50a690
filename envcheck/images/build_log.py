"""Why a build failed, read off its log: the step, its last words, the likely cause and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from envcheck.data import state_path
from envcheck.errors import BuildError
from envcheck.images.plan import BuildPlan

_STEP: Final = re.compile(r"^#(?P<id>\d+) (?P<title>\[[^\]]+\] .*)$")
_OUTPUT: Final = re.compile(r"^#(?P<id>\d+) (?:\d+\.\d+ )(?P<text>.*)$")
_ERROR: Final = re.compile(r"^#(?P<id>\d+) ERROR: (?P<text>.*)$")
_MOUNT: Final = re.compile(r"--mount=\S+\s+")
_URL: Final = re.compile(r"https?://(?:[^/\s@]*@)?([^/\s)\"'?]+)")
_QUOTED_HOST: Final = re.compile(r"['\"]([\w-]+(?:\.[\w-]+)+)['\"]")
LAST_LINES: Final = 15


class Cause(NamedTuple):
    """What most likely went wrong, and what to do; `contained` is more to do, where the build is in a container."""

    what: str
    fix: str
    contained: str = ""


class FailedStep(NamedTuple):
    """A failed build: the step's first line, its last lines of output, and the likely cause where one is known."""

    step: str
    lines: list[str]
    cause: Cause | None


_AGAIN: Final = "or `envcheck lock` the cell again"

# The first that matches wins: a full disk can end in any of the others, a wrong hash in "no matching distribution".
_CAUSES: Final[dict[str, Cause]] = {
    # What g++, nvcc, the shell and the engines say of a compiler that the kernel killed.
    r"Killed signal terminated program|died due to signal 9|signal 9 \(|cc1plus: out of memory|virtual memory exhausted"
    r"|(?s:envcheck: extension: compiling.*(?:^|\s)Killed\b)|exit code: 137": Cause(
        "out of memory: the kernel killed a compiler",
        "give fewer jobs, e.g. MAX_JOBS=1 in the environment, or build on a machine with more memory",
    ),
    r"(?i)no space left|\bENOSPC\b|disk quota exceeded|\bEDQUOT\b|enough (?:free |disk )*space|disk is full": Cause(
        "the disk is full", "free some: `docker builder prune`, `docker image prune`; a CUDA image needs 25 GB to build"
    ),
    r"envcheck: built: ": Cause(
        "the wheel that was compiled needs what neither torch nor the system has (above)",
        "take a version that is made for this torch",
    ),
    r"(?s)envcheck: extension: compiling.*(?:name resolution|Name or service not known|Network is unreachable"
    r"|Could not resolve|ConnectionError|URLError)": Cause(
        "its build asks for a network, and has none", "build its wheel elsewhere, and add it to your own index"
    ),
    r"envcheck: extension: pip ended with": Cause(
        "its source does not compile on this cell", "read the log, take another version, or another torch"
    ),
    r"[Hh]ash mismatch|DO NOT MATCH THE HASHES|Hash Sum mismatch": Cause(
        "hash mismatch: a file is not the one that was locked", f"try another mirror, {_AGAIN} if its source is right"
    ),
    r"(?i)certificate.verify.failed|UnknownIssuer|invalid peer certificate|x509:|self.signed certificate|SSLError"
    r"|unable to get local issuer|certificate verification failed": Cause(
        "TLS: a certificate is not trusted", "give the CA with `ca:` in a mirror profile, or use --mirror host"
    ),
    r"envcheck: proof failed": Cause(
        "version assertion failed: what was installed is not what the cell promises",
        f"the index serves another build; try another mirror, {_AGAIN}",
    ),
    r"envcheck: overwritten": Cause(
        "a package on top overwrites files of the cell's packages (above)",
        "leave it out: the cell holds what it brings, perhaps in another version",
    ),
    r"name resolution|Temporary failure resolving|Could not resolve|Name or service not known|dns error"
    r"|failed to lookup address|no such host": Cause(
        "{host} does not resolve", "check the mirror's name", ", and that the build has a network (--network host)"
    ),
    r"Connection refused|Network is unreachable|No route to host|tcp connect error|Could not connect": Cause(
        "{host} cannot be reached",
        "check the mirror's address, the proxy and the firewall",
        "; --network host may help",
    ),
    r"\(40[13] |\b40[13]\s+(?:Client Error|Unauthorized|Forbidden)|error: 40[13]\b": Cause(
        "the mirror refuses access (401/403)", "give credentials with `netrc:` in a mirror profile"
    ),
    r"\(404 |\b404\s+(?:Client Error|Not Found)|error: 404\b|does not have a Release file": Cause(
        "404: the mirror does not have it", "check the index's URL and kind (simple or find-links), or another mirror"
    ),
    r"No matching distribution|no version of |No solution found|no wheels? with a matching"
    r"|not found in the (?:package )?(?:registry|provided)|Unable to locate package": Cause(
        "no matching distribution: the index has no such file for this platform", f"try another mirror, {_AGAIN}"
    ),
    r"(?i)timed? ?out|deadline exceeded": Cause(
        "timed out", "the mirror is slow: try again (what was fetched is kept), or another mirror"
    ),
    r"frontend capability moby\.buildkit\.frontend\.contexts": Cause(
        "this engine's BuildKit takes no named context", "use docker 23 or later, or leave --prefetch out"
    ),
    r"failed to resolve source metadata|pull access denied|manifest unknown": Cause(
        "the base image is not available", "set `registry:` in a mirror profile, or --base bootstrap"
    ),
    r"(?i)permission denied|operation not permitted": Cause(
        "permission denied", "look at the step: rootless engines need subordinate ids, SELinux hosts a label"
    ),
}


def diagnose(log: str) -> Cause | None:
    """Return the likely cause of a failure, or None when nothing in the log is known."""
    matches = ((cause, re.search(pattern, log)) for pattern, cause in _CAUSES.items())
    cause, match = next(((cause, match) for cause, match in matches if match), (None, None))
    if cause is None or match is None:
        return None
    return cause._replace(what=cause.what.replace("{host}", _host(log, match)))


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
        return FailedStep("the build", _tail(lines), diagnose(log))
    output = [match["text"] for line in lines if (match := _OUTPUT.match(line)) and match["id"] == failed["id"]]
    begun = (line for line in lines if (match := _STEP.match(line)) and match["id"] == failed["id"])
    step = next(filter(None, map(step_of, begun)), "")
    lines_shown = [*output, failed["text"]]
    return FailedStep(step or "the build", _tail(lines_shown), diagnose("\n".join(lines_shown)) or diagnose(log))


def step_of(line: str) -> str | None:
    """Return the step a line of progress begins, without its mounts, e.g. "[runtime 3/9] RUN ...", or None."""
    match = _STEP.match(line)
    return _MOUNT.sub("", match["title"]) if match and not match["title"].startswith("[internal]") else None


def said_of(line: str) -> str:
    """Return a line of progress without its number and time."""
    match = _OUTPUT.match(line)
    return match["text"] if match else line


def _tail(lines: list[str]) -> list[str]:
    return [line.rstrip() for line in lines if line.strip()][-LAST_LINES:]


def require_success(plan: BuildPlan, status: int | None, output: str, timeout: float) -> Path | None:
    """Keep a build's log, and return where it is, if there was room for one.

    An exit status that is not 0, or None after `timeout` seconds, is a FailedError.
    """
    log = keep_log(log_path(f"{plan.cell}-{plan.target}"), output)
    if status != 0:
        ended = f"timed out after {timeout:.0f} s" if status is None else ""
        raise FailedError(plan.tag, f"{output}\n{ended}", log)
    return log


def log_path(name: str) -> Path:
    """Return where a build's whole log goes."""
    return state_path("logs") / f"{name}.log"


def keep_log(log: Path, text: str) -> Path | None:
    """Write a log, and return where it is; None where it cannot be written: that must not hide why a build failed."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return log


class FailedError(BuildError):
    """A build that failed: one line names the cause and what to do; `detail` is the step and its last lines.

    `step` is named for a build that is not in a container, whose log does not tell its steps.
    """

    def __init__(self, name: str, text: str, log: Path | None, *, step: str | None = None) -> None:
        explanation = explain(text)
        cause = explanation.cause or Cause("no known cause", "read its last lines above, or the whole log")
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
    """Yield the result of each attempt, with the lines since the one before."""
    since: list[str] = []
    for line in map(said_of, log.splitlines()):
        match = _SAID.fullmatch(line.rstrip())
        if match is None:
            since.append(line)
        else:
            yield match, "\n".join(since)
            since = []

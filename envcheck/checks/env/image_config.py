"""What an image runs as, and what it starts, nobody looks at until a job writes files of root's or will not end.

A Python as PID 1 reaps no orphan and ignores SIGTERM; files that root writes into a mounted home stay root's.
"""

from __future__ import annotations

import os
from pathlib import Path

import envcheck
from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, passed, skipped, undecided, warned, worst
from envcheck.checks.support import control_group

CHECK = checks.Check(
    promise="the image runs as a user of its own, under an init that reaps and hands signals on", level="static"
)

LIMIT = checks.Limit(
    "an ordinary user under an init", "", "Docker: USER and `docker run --init`; tini's README on PID 1", "equal"
)
INITS = (
    *("tini", "docker-init", "dumb-init", "catatonit", "podman-init", "pause"),
    *("s6-svscan", "s6-overlay", "init", "systemd", "runit"),
)
ROOT = ("", "0", "root")
_USER_FIX = "give the Dockerfile a USER, or start it with --user"
_INIT_FIX = 'have ENTRYPOINT ["/usr/bin/tini", "-g", "--"], or start it with --init'


def measure(rank: Rank) -> Measured:
    """Return who this process is, whether its root is the machine's, and what PID 1 is."""
    return {
        "rank": rank.rank,
        "image": is_image(),
        "contained": contained(),
        "uid": os.getuid(),
        # Whether uid 0 is somebody else outside: a rootless container.
        "mapped": control_group.text(Path("/proc/self/uid_map")).split()[:2] not in ([], ["0", "0"]),
        "init": control_group.text(Path("/proc/1/comm")).strip(),
    }


def judge(view: View, ranks: Ranks) -> Outcome:
    """Warn of root and of a PID 1 that is no init; of an image as it is configured, for envcheck starts its own."""
    entry = ranks[0] if ranks else {}
    if not isinstance(entry.get("contained"), bool) or not isinstance(entry.get("uid"), int):
        return undecided("the process was not looked at", code="image-config.unmeasured")
    if not entry["contained"]:
        return skipped("no container: this machine's user and init are its own", code="container.none")
    if entry.get("image") and not view.image:
        return undecided(
            "the image's configuration was not read", fix="see `docker image inspect`", code="image-config.unread"
        )
    user = str(view.image.get("runs_as", "")).partition(":")[0] if view.image else str(entry["uid"])
    program = str(view.image.get("program", "") if view.image else entry.get("init", ""))
    root = user in ROOT and (bool(view.image) or not entry.get("mapped"))
    value = {"runs_as": user or "root", "starts": program or "nothing"}
    findings = []
    if root:
        findings.append(warned("it runs as root", fix=_USER_FIX, value=value, limit=LIMIT, code="image-config.root"))
    if program not in INITS:
        summary = f"PID 1 is {program or 'not known'}, which is no init"
        findings.append(warned(summary, fix=_INIT_FIX, value=value, limit=LIMIT, code="image-config.no-init"))
    return worst(findings, passed(f"user {value['runs_as']}, under {program}", value=value, limit=LIMIT))


# Where the runner mounts envcheck into an image; nobody installs it there.
_STAGED = "/run/envcheck/"
# What docker and podman leave in a container's root.
_MARKS = ("/.dockerenv", "/run/.containerenv")


def is_image() -> bool:
    """Return whether this is an image under test, whose files and variables are those it is handed on with."""
    return envcheck.__file__.startswith(_STAGED)


def contained() -> bool:
    """Return whether this is a container of docker's, podman's or Kubernetes', an image under test included."""
    return is_image() or "KUBERNETES_SERVICE_HOST" in os.environ or any(map(os.path.exists, _MARKS))

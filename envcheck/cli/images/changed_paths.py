"""The paths that a change touches: from git, or listed by the user."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from envcheck.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from pathlib import Path

_SECONDS: Final = 60.0


def since(revision: str, directory: Path) -> list[str]:
    """Return what differs between the checkout of `directory` and where its branch left `revision`, as git has it.

    Files that git does not know yet count. Raise ConfigError where git cannot tell.
    """
    from envcheck.images.engines.subprocesses import stream, which

    if which("git") is None:
        message = "--changed-since asks git, which is not installed"
        raise UnavailableError(message, fix="install git, or list the changed paths with --changed FILE")
    paths: list[str] = []
    for words in (
        # First: outside a checkout `git diff` would compare two files instead.
        ["ls-files", "--others", "--exclude-standard", "--full-name", "-z", "--", ":/"],
        ["diff", "--name-only", "--no-renames", "-z", "--merge-base", "--end-of-options", revision],
    ):
        result = stream(["git", "-C", str(directory), *words], timeout=_SECONDS)
        if result.status != 0:
            first = (result.output.strip().splitlines() or ["it gave no reason"])[0].removeprefix("fatal: ")
            message = f"git cannot compare with {revision!r}: {first}"
            raise ConfigError(message, fix="name a revision of this checkout, with its history up to the common one")
        paths += [path for path in result.output.split("\0") if path]
    return paths


def listed(file: str) -> list[str]:
    """Return the paths of a file, one a line or ended by NUL; "-" is standard input.

    A list without a path is a ConfigError: more likely the command before it failed than that nothing changed.
    """
    from pathlib import Path

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        message = f"{file}: not UTF-8 text"
        raise ConfigError(message, fix="list one path a line") from error
    paths = [path.strip() for path in text.replace("\0", "\n").splitlines() if path.strip()]
    if not paths:
        where = "standard input" if file == "-" else file
        message = f"--changed: {where} names no path"
        raise ConfigError(message, fix="list one path a line, as `git diff --name-only` does")
    strange = next((path for path in paths if path.startswith(("/", '"', "..")) or "\t" in path), None)
    if strange is not None:
        message = f"--changed: {strange!r} is not a path below the repository's top"
        raise ConfigError(message, fix="list one path a line, as `git diff --name-only -z` does")
    return paths

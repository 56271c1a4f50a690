"""The one place of this stage that starts a process: docker's credential helpers, such as docker-credential-pass.

A helper's output holds a secret. It is in no message and no exception, whether the helper succeeds or fails.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from typing import Final

import msgspec

from envcheck.errors import ConfigError, UnavailableError
from envcheck.struct_types import know_types

# Seconds; a helper may have to unlock a store.
TIMEOUT: Final = 30.0
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# What docker-credential-helpers prints for a registry that it has no login for.
_NONE: Final = b"credentials not found in native keychain"


class HelperAnswer(msgspec.Struct):
    """A login as a helper prints it. The user `<token>` means that the secret is an identity token."""

    user: str = msgspec.field(name="Username", default="")
    secret: str = msgspec.field(name="Secret", default="")

    def __repr__(self) -> str:
        """Show no secret."""
        return f"HelperAnswer(user={self.user!r})"


know_types(HelperAnswer)


def helper_login(helper: str, server: str, named_in: str) -> HelperAnswer | None:
    """Return the login that a helper has for a server, or None. Raise UnavailableError if it fails or takes too long.

    `named_in` is the file that names the helper.
    """
    if not _NAME.fullmatch(helper):
        message = f"{named_in}: {helper[:40]!r} is not the name of a credential helper"
        raise ConfigError(message, fix="write the NAME of docker-credential-NAME")
    program = f"docker-credential-{helper}"
    path = shutil.which(program)
    if path is None:
        message = f"{named_in} names the credential helper {program}, which is not on PATH"
        raise UnavailableError(message, fix=f"install {program}, or remove it from the file and log in again")
    code, printed = _run(path, server, program, named_in)
    if code:
        if _NONE in printed:
            return None
        message = f"{program}, which {named_in} names, ends with exit code {code} for {server}"
        raise UnavailableError(message, fix=f"run `{program} get` yourself to see why, or log in again")
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer = msgspec.json.decode(printed, type=HelperAnswer)
        return answer if answer.secret else None
    message = f"{program}, which {named_in} names, does not print a login as JSON"
    raise UnavailableError(message, fix="log in to the registry again")


def _run(path: str, server: str, program: str, named_in: str) -> tuple[int, bytes]:
    """Return the exit code and what a helper prints; what it says on its standard error is dropped."""
    process = subprocess.Popen(
        [path, "get"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(server.encode(), timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        message = f"{program}, which {named_in} names, gives no answer in {TIMEOUT:g} s"
        raise UnavailableError(message, fix=f"run `{program} get` yourself: it may wait for a password") from None
    finally:
        _end(process)
    return process.returncode, printed


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a helper that was not waited for, with all that it started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in filter(None, (process.stdin, process.stdout)):
        pipe.close()

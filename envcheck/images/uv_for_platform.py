"""uv for a platform that is not this machine's: a build runs it inside the image, and this machine has only its own."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

import uv

from envcheck.data import data_path, state_path
from envcheck.errors import UnavailableError
from envcheck.images.build.failure_causes import diagnose
from envcheck.images.engines import subprocesses
from envcheck.images.lock_with_uv import PLATFORMS, environment, source_options
from envcheck.images.locks.lockfile import parse_lock
from envcheck.matrix.facts.model import HostArch
from envcheck.mirrors.profiles.model import Profile

_TIMEOUT: Final = 600.0


def uv_for(arch: HostArch, profile: Profile) -> Path:
    """Return uv of templates/uv.lock for an architecture; it is fetched through the profile once, held to its hash.

    Where no source of the profile has it, that is an UnavailableError.
    """
    lock = data_path("templates") / "uv.lock"
    (pin,) = parse_lock(lock.read_text(), "base", "templates/uv.lock").pins
    kept = state_path("tools", f"uv-{pin.version}-{arch}")
    program = kept / "bin/uv"
    if program.is_file():
        return program
    kept.parent.mkdir(parents=True, exist_ok=True)
    why = f"{profile.name} is closed and names no Python index"
    for source in source_options(profile, "pypi"):
        with tempfile.TemporaryDirectory(prefix=".uv-", dir=kept.parent) as scratch:
            target = Path(scratch) / "uv"
            command = _command(target, arch, source, lock)
            ended = subprocesses.stream(command, timeout=_TIMEOUT, env=environment(profile))
            if ended.status == 0:
                target.rename(kept)
                return program
        cause = diagnose(ended.output)
        why = cause.what if cause else (ended.output.strip().splitlines() or ["uv said nothing"])[-1]
    message = f"uv {pin.version} for {arch}, which the build runs, could not be fetched: {why}"
    raise UnavailableError(message, fix="pass --mirror with a profile whose Python index has it")


def _command(target: Path, arch: HostArch, source: list[str], lock: Path) -> list[str]:
    # An interpreter is named because uv would otherwise look for one of that platform.
    command = [uv.find_uv_bin(), "pip", "install", "--no-config", "--quiet", "--python", sys.executable]
    command += ["--target", str(target), "--python-platform", PLATFORMS[arch], "--no-deps", "--require-hashes"]
    return [*command, "--only-binary", ":all:", *source, "--requirements", str(lock)]

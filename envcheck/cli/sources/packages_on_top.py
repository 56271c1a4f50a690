"""A user's own packages on top of a cell: locked once, kept, and used again by the next build."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from pathlib import Path

import click

from envcheck import safe_files
from envcheck.counting import counted
from envcheck.data import state_path
from envcheck.errors import ConfigError
from envcheck.images.known_wheels import sha256
from envcheck.images.lock_on_top import checked, contradiction, excluded, lock_user_packages, read_requirements
from envcheck.images.lockfile import Lock, format_lock, parse_lock
from envcheck.images.spec import ImageSpec, with_user_packages
from envcheck.mirrors.profiles.model import Profile


def requested_packages(named: Sequence[str], file: Path | None) -> list[str]:
    """Return the requirements of --with and --with-file; one that cannot be locked is a ConfigError."""
    return [*checked(named), *(read_requirements(file) if file else [])]


def with_packages(
    spec: ImageSpec,
    requirements: Sequence[str],
    profile: Profile,
    *,
    keep: bool,
    wheels: Sequence[Path] = (),
    native: Collection[str] = (),
) -> ImageSpec:
    """Return the spec with these packages on top, of the kept lock where there is one; say which lock it is.

    `keep`: a new lock is kept for the next build. `wheels` are files beside those of the index, and `native` names the
    native extensions, which get a lock of their own.
    """
    if not requirements:
        return spec
    path = _kept(spec, requirements, wheels)
    if path.is_file():
        lock, origin = _read(path, spec, requirements), "kept from an earlier build"
    else:
        made = lock_user_packages(spec, requirements, profile, wheels)
        if made is None:
            _say_excluded(excluded(spec, requirements))
            held = [line for line in requirements if line not in excluded(spec, requirements)]
            why = f": {spec.tag} holds {', '.join(held)}" if held else ""
            click.echo(f"with    nothing to add{why}", err=True)
            return spec
        lock, origin = made, "locked now: their hashes are what the mirror says today"
        if keep:
            path.parent.mkdir(parents=True, exist_ok=True)
            safe_files.replace(path, format_lock(made, f"{spec.tag}, on top: {', '.join(requirements)}").encode())
    where = f"; lock: {path}" if path.is_file() else ", not kept"
    click.echo(f"with    {counted(len(lock.pins), 'package')} on top, {origin}{where}", err=True)
    with_them = with_user_packages(spec, lock, native)
    _say_excluded(excluded(with_them, requirements))
    return with_them


def _say_excluded(requirements: Sequence[str]) -> None:
    for line in requirements:
        click.echo(f"with    {line} is left out: its marker excludes this Python or platform", err=True)


def _read(path: Path, spec: ImageSpec, requirements: Sequence[str]) -> Lock:
    """Return a kept lock; ConfigError where it cannot be read or is not one of these requirements on this cell."""
    fix = "delete it: the next build makes it anew"
    try:
        lock = parse_lock(path.read_text(encoding="utf-8"), "user", str(path))
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        reason = error.message if isinstance(error, ConfigError) else f"{path} cannot be read"
        raise ConfigError(reason, fix=fix) from error
    wrong = contradiction(spec, lock, requirements)
    if wrong:
        message = f"{path} {wrong}"
        raise ConfigError(message, fix=fix)
    return lock


def _kept(spec: ImageSpec, requirements: Sequence[str], wheels: Sequence[Path]) -> Path:
    """Return where the lock of these requirements, and these files, on top of these locks is kept."""
    files = sorted(map(sha256, wheels))
    request = json.dumps([spec.tag, spec.promises["lock"], sorted(requirements), *([files] if files else [])])
    return state_path("locks-on-top", f"{spec.tag}-{hashlib.sha256(request.encode()).hexdigest()[:16]}.lock")

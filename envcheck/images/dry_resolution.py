"""Ask the installer whether a torch and extensions can be installed together; nothing is installed or kept."""

from __future__ import annotations

from collections.abc import Sequence

from envcheck.images.lock_with_uv import UnsatisfiableError, first_resolution, platform_of, source_options
from envcheck.matrix.facts.lookup import glibc
from envcheck.matrix.facts.model import Cell, HostArch, Matrix
from envcheck.mirrors.profiles.model import Profile


class DisagreementError(UnsatisfiableError):
    """The index answered, and what the facts call fitting cannot be installed together."""


def dry_resolution(matrix: Matrix, cell: Cell, pins: Sequence[str], profile: Profile, arch: HostArch) -> int:
    """Return how many packages the cell's torch and these pins ("vllm==0.16.0") need together, as wheels.

    torch is taken from the Python index: every variant of a release has the same requirements but for NVIDIA's
    libraries. Raises DisagreementError where nothing satisfies all, UnavailableError where no index answers.
    """
    platform = platform_of(glibc(matrix, cell.python), arch)
    options = ["--python-version", cell.python.removesuffix("t"), "--python-platform", platform]
    requirements = [f"torch=={cell.torch}", *pins]
    tries = [([*options, *source], requirements) for source in source_options(profile, "pypi")]
    try:
        return len(first_resolution(tries, f"{', '.join(pins)} beside torch {cell.torch}", profile))
    except UnsatisfiableError as error:
        raise DisagreementError(error.message, fix=error.fix) from error

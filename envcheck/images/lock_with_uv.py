"""Ask uv what a cell's packages are: the one place where a lock meets an index."""

import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import uv
from packaging.utils import canonicalize_name

from envcheck.errors import UnavailableError, refuse
from envcheck.images.build_log import diagnose
from envcheck.images.lockfile import Lock, Pin, divide, group_of
from envcheck.images.spec import ARCH, facts, torch_index, torch_version
from envcheck.images.targets import BESIDE_TORCH
from envcheck.matrix.facts.model import Cell, HostArch, Matrix, key
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Index, Profile, network_indexes, without_queries

# Every base has a newer C library; wheels for an older one match too.
PLATFORMS: Final[dict[HostArch, str]] = {"x86_64": "x86_64-manylinux_2_28", "aarch64": "aarch64-manylinux_2_28"}
# The newest platform that uv knows.
_NEWEST_GLIBC: Final = "2.40"
_TIMEOUT: Final = 900.0
_DRAWN: Final = " \u00d7\u2570\u2500\u25b6\u2502\u251c\u2574\u00b7"  # the tree uv draws around its reasons
_NO_SOLUTION: Final = re.compile(r"^(error: )?No solution found when resolving dependencies:?( cause:)? ")
SOURCE_VARIABLES: Final = ("UV_INDEX", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")


def requirements(matrix: Matrix, cell: Cell, arch: HostArch = ARCH) -> list[list[str]]:
    """Return what a cell is asked to hold, best first: a companion that has no wheel for it may be left out."""
    release, variant, _ = facts(matrix, cell, arch)
    version = torch_version(release, variant.variant, arch)
    lines = [f"torch=={version}", *BESIDE_TORCH]
    if variant.variant == "cpu":
        return [lines]
    label = version.removeprefix(release.torch)
    vision = [f"torchvision=={release.torchvision}{label}"] if release.torchvision else []
    audio = [f"torchaudio=={release.torchaudio}{label}"] if release.torchaudio else []
    return [lines + more for more in ([*vision, *audio], vision, [])]


def platform_of(version: str | None, arch: HostArch) -> str:
    """Return uv's name of the platform with this glibc, the oldest known one for None. Wheels for older ones match."""
    if version is None:
        return PLATFORMS[arch]
    return f"{arch}-manylinux_{min(version, _NEWEST_GLIBC, key=key).replace('.', '_')}"


class UnsatisfiableError(UnavailableError):
    """The indexes answered, and what they have does not fit together."""


class Refusal(NamedTuple):
    """Why uv resolved nothing; `unsatisfiable` where the index answered and nothing fits."""

    why: str
    unsatisfiable: bool = False


def lock_cell(
    matrix: Matrix, cell: Cell, profile: Profile, arch: HostArch = ARCH, like: Sequence[Lock] = ()
) -> list[Lock]:
    """Resolve a cell through the profile, sources in order, and return its locks in layer order."""
    release, _, _ = facts(matrix, cell, arch)
    index = torch_index(release, cell.variant, arch)
    options = ["--python-version", cell.python, "--python-platform", PLATFORMS[arch]]
    requirements_in = requirements(matrix, cell, arch)
    tries = [([*options, *source], w) for w in requirements_in for source in source_options(profile, index)]
    same = [f"{pin.name}=={pin.version}" for lock in like for pin in lock.pins if lock.group in ("nvidia", "base")]
    return divide(first_resolution(tries, str(cell), profile, wishes=same), index)


def source_options(profile: Profile, torch_index: str) -> list[list[str]]:
    """Return the source options of each attempt. Local files count only for a torch that is on no Python index.

    (`torch==2.13.0` would be satisfied by a local `torch-2.13.0+cpu` file: PEP 440 ignores a label nobody asked for.)
    """
    remote = network_indexes([i for i in profile.pypi if i.kind == "simple"], closed=profile.closed)
    python = [[] if i.url == CLIENT_DEFAULT else ["--default-index", i.url] for i in remote]
    if torch_index == "pypi":
        return python
    variant = torch_index.rpartition("/")[2]
    default = [] if profile.closed else [["--torch-backend", variant]]
    torch = [_torch_options(index, variant) for index in profile.pytorch] or default
    return [[*p, *t] for t in torch for p in python]


def _torch_options(index: Index, variant: str) -> list[str]:
    url = index.url.replace("{variant}", variant)
    if index.url == CLIENT_DEFAULT:
        return ["--torch-backend", variant]
    # Indexes are tried in uv's order, the named one first; hashes bind what was found to what will be installed.
    return ["--find-links", url] if index.kind == "find-links" else ["--index", url]


def first_resolution(
    tries: Sequence[tuple[list[str], Sequence[str]]],
    name: str,
    profile: Profile,
    *,
    constraints: Sequence[str] = (),
    wishes: Sequence[str] = (),
) -> list[Pin]:
    """Return what the first try that uv can resolve gives; the first refusal is the one worth reading.

    `wishes` are constraints too, as long as they can be met. A source that did not answer is not asked again: uv
    retries by itself, and each try takes ten seconds.
    """
    refusals: list[Refusal] = []
    silent: list[list[str]] = []
    for options, requirements in tries:
        if options in silent:
            continue
        files = {"wanted.in": requirements, "constraints.in": [*constraints, *wishes]}
        resolution = _compile(options, files, profile)
        if not isinstance(resolution, Refusal):
            return resolution
        refusals.append(resolution)
        if not resolution.unsatisfiable:
            silent.append(options)
    first = refusals[0] if refusals else Refusal(f"{profile.name} is closed and does not name its indexes")
    if wishes and first.unsatisfiable:
        return first_resolution(tries, name, profile, constraints=constraints)
    message = f"{name} cannot be locked: {first.why}"
    error = UnsatisfiableError if first.unsatisfiable else UnavailableError
    raise error(message, fix="pass --mirror with a profile whose index has it")


def _compile(options: list[str], files: Mapping[str, Sequence[str]], profile: Profile) -> list[Pin] | Refusal:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "pylock.toml"
        for name, lines in files.items():
            (Path(scratch) / name).write_text("".join(f"{line}\n" for line in lines))
        # pylock, because it names the one file per package that fits the platform; the other form hashes them all.
        # An interpreter is named because uv would otherwise download the one it is asked to resolve for.
        command = [uv.find_uv_bin(), "pip", "compile", "--no-config", "--quiet", "--only-binary", ":all:"]
        command += ["--python", sys.executable]
        command += ["--constraints", f"{scratch}/constraints.in"]
        command += ["--format", "pylock.toml", *options, f"{scratch}/wanted.in", "-o", str(out)]
        try:
            ended = subprocess.run(
                command, env=environment(profile), capture_output=True, text=True, check=False, timeout=_TIMEOUT
            )
        except subprocess.TimeoutExpired:
            return Refusal(f"uv did not end within {_TIMEOUT:.0f} s")
        if ended.returncode != 0:
            return _refusal(ended.stderr)
        return parse_pylock(out.read_bytes())


def environment(profile: Profile) -> dict[str, str]:
    """Return the environment uv runs in: this one, with the profile's sources and certificates and no others."""
    kept = {key: value for key, value in os.environ.items() if key not in SOURCE_VARIABLES}
    kept["UV_PYTHON_DOWNLOADS"] = "never"
    if profile.ca is not None:
        kept["SSL_CERT_FILE"] = profile.ca
    if profile.netrc is not None:
        kept["NETRC"] = profile.netrc
    return kept


def _refusal(stderr: str) -> Refusal:
    """Return uv's reason in one line: why nothing fits, or in a word what did not answer."""
    cause, unsatisfiable = diagnose(stderr), "No solution found" in stderr
    if cause is not None and not unsatisfiable:
        return Refusal(cause.what)
    lines = [line.strip(_DRAWN) for line in without_queries(stderr).splitlines()]
    text = _NO_SOLUTION.sub("", " ".join(line for line in lines if line))
    why = textwrap.shorten(text, 400, placeholder=" ...").removesuffix(".")
    return Refusal(why, unsatisfiable=unsatisfiable)


def parse_pylock(data: bytes) -> list[Pin]:
    """Return the pins of a pylock.toml; a file without a sha256 is refused."""
    pins = []
    for package in msgspec.toml.decode(data, type=dict[str, Any]).get("packages", []):
        hashes = [wheel.get("hashes", {}).get("sha256") for wheel in package.get("wheels", [])]
        if not hashes or None in hashes:
            what = f"the index lists no sha256 for {package['name']} {package['version']}"
            refuse(what, "use an index that lists them", UnavailableError)
        pins.append(
            Pin(name=canonicalize_name(package["name"]), version=package["version"], sha256=sorted(set(hashes)))
        )
    return pins


def companions(locks: Iterable[Lock]) -> list[str]:
    """Return the pins of torch and its companions, for people."""
    return [f"{p.name} {p.version}" for lock in locks for p in lock.pins if group_of(p.name) == "torch"]

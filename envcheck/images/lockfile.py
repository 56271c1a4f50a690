"""What a lock is, as data."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec
from packaging.utils import canonicalize_name
from packaging.version import Version

from envcheck.errors import ConfigError, refuse
from envcheck.matrix.facts.model import HostArch
from envcheck.mirrors.profiles.model import without_logins

Group = Literal["nvidia", "torch", "base", "devel", "train", "jupyter", "extensions", "user"]


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """One package of a lock: exact version (local label included) and the sha256 of each file that may be it."""

    name: str
    version: str
    sha256: list[str]


class Lock(msgspec.Struct, frozen=True, kw_only=True):
    """One lock file, `<group>.lock`. `index` is where all of it comes from: "pypi" or "pytorch/<variant>".

    Groups are layers, rarest change first: `nvidia` (nvidia-*, cuda-*, triton), `torch` (torch and companions), `base`
    (the rest of the torch environment). The others are what a target of that name adds to it; `extensions` and `user`
    are what a user adds to a target (`build --with`), native extensions of torch apart from the rest.
    """

    group: Group
    index: str
    pins: list[Pin]


MADE_ANEW: Final = "delete it: the next build makes it anew"
GROUPS: Final[tuple[Group, ...]] = get_args(Group)
_TORCH: Final = frozenset({"torch", "torchvision", "torchaudio"})
_CUDA: Final = re.compile(r"^(nvidia-|cuda-|triton$|pytorch-triton$)")
_INDEX: Final = re.compile(r"^# index: (?P<index>pypi|pytorch/(?:cpu|cu[0-9]{3}))$")
_PIN: Final = re.compile(r"^(?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)==(?P<version>[^\s\\;]+) \\$")
_HASH: Final = re.compile(r"^    --hash=sha256:(?P<hash>[0-9a-f]{64})(?P<more> \\)?$")


def group_of(package: str) -> Group:
    """Return the layer a package belongs to: the rarest changed first."""
    if package in _TORCH:
        return "torch"
    return "nvidia" if _CUDA.match(package) else "base"


# What pip-compile and uv write beside a hashed pin: extras and a marker with it; options that say only where from.
_REQUIREMENT: Final = re.compile(
    r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==(?P<version>[^\s\\;]+)\s*(?:;[^\\]*)?\\$"
)
_BESIDE: Final = re.compile(
    r"^(?:\s*#.*|(?:-i|--(?:extra-)?index-url|--find-links|--trusted-host|--(?:no|only)-binary)\b.*)$"
)


def divide(pins: Iterable[Pin], torch_index: str) -> list[Lock]:
    """Divide a cell's pins into locks in layer order; what torch's index serves of its own is the `torch` group."""
    pins = sorted(pins, key=lambda pin: pin.name)
    locks = []
    for group in GROUPS:
        members = [pin for pin in pins if group_of(pin.name) == group]
        if members:
            locks.append(Lock(group=group, index=torch_index if group == "torch" else "pypi", pins=members))
    return locks


def format_lock(lock: Lock, title: str) -> str:
    """Return the lock file: requirements with hashes, sorted, naming no URL, no date and no mirror."""
    lines = [f"# {title}", f"# index: {lock.index}"]
    for pin in sorted(lock.pins, key=lambda pin: pin.name):
        hashes = [f"    --hash=sha256:{digest}" for digest in sorted(pin.sha256)]
        lines += [" \\\n".join([f"{pin.name}=={pin.version}", *hashes])]
    return "\n".join(lines) + "\n"


def parse_lock(text: str, group: Group, where: str) -> Lock:
    """Return the lock in `text`; whatever is not an exact, hashed pin is refused with its line."""
    return _parsed(list(enumerate(text.splitlines(), 1)), group, where)


def _parsed(lines: list[tuple[int, str]], group: Group, where: str) -> Lock:
    index = next((m["index"] for _, line in lines if (m := _INDEX.match(line))), None)
    if index is None:
        raise _bad(where, 1, "missing comment `# index: …`")
    pins: list[Pin] = []
    hashes: list[str] | None = None
    for number, line in lines:
        if hashes is None and (line.startswith("#") or not line):
            continue
        if hashes is None:
            pins.append(_pin(line, where, number))
            hashes = pins[-1].sha256
            continue
        match = _HASH.match(line)
        if match is None:
            raise _bad(where, number, "missing sha256")
        hashes.append(match["hash"])
        hashes = hashes if match["more"] else None
    if hashes is not None or not pins:
        raise _bad(where, lines[-1][0], "ends early")
    return Lock(group=group, index=index, pins=pins)


def parse_requirements(content: bytes, group: Group, where: str) -> Lock:
    """Return the lock in `content`, or of requirements with hashes as pip-compile and uv write them: all of pypi."""
    try:
        text = _decoded(content, where)
        lines = text.splitlines()
        if any(line.startswith("# index:") for line in lines):
            return parse_lock(text, group, where)
        plain = [(number, part) for number, line in enumerate(lines, 1) for part in _plain(line)]
        return _parsed([(0, "# index: pypi"), *plain], group, where)
    except ConfigError as error:
        fix = "give a lock of `envcheck lock`, or requirements with hashes (`pip-compile --generate-hashes`)"
        raise ConfigError(error.message, fix=fix) from error


def _plain(line: str) -> list[str]:
    """Return a line as the lines of a lock: a requirement and each of its hashes by itself, continued as it is."""
    text, comment, _ = line.partition(" #")
    requirement, *hashes = re.split(r"(?:^|\s+)--hash=", text.rstrip()) if "--hash=" in text else [line]
    if not hashes:
        return [_named(line)]
    more = text.rstrip().endswith("\\") and not comment
    hashes = [digest.removesuffix("\\").strip() for digest in hashes]
    rows = [f"    --hash={digest} \\" for digest in hashes]
    if not more:
        rows[-1] = rows[-1].removesuffix(" \\")
    return [_named(f"{requirement.strip()} \\"), *rows] if requirement.strip() else rows


def _named(line: str) -> str:
    match = _REQUIREMENT.match(line)
    if match is None:
        return "" if _BESIDE.match(line) else line
    return f"{canonicalize_name(match['name'])}=={match['version']} \\"


def _pin(line: str, where: str, number: int) -> Pin:
    match = _PIN.match(line)
    if match is None:
        raise _bad(where, number, f"{without_logins(line.strip())!r} is not an exact version with a hash")
    try:
        Version(match["version"])
    except ValueError as error:
        raise _bad(where, number, f"{match['version']!r} is not a version") from error
    return Pin(name=canonicalize_name(match["name"]), version=match["version"], sha256=[])


def _bad(where: str, number: int, problem: str) -> ConfigError:
    return ConfigError(f"{where}:{number}: {problem}", fix="run `envcheck lock` for the cell")


def file_name(group: Group, arch: HostArch = "x86_64") -> str:
    """Return the name of a lock's file: `torch.lock`, and `torch.aarch64.lock` for the other architecture."""
    return f"{group}.lock" if arch == "x86_64" else f"{group}.{arch}.lock"


def missing(directory: Path, arch: HostArch = "x86_64") -> list[str]:
    """Return the lock files that a cell's directory lacks: torch and base always, and what its Dockerfile installs.

    A directory without any lock and Dockerfile lacks nothing: the cell is not locked yet. The Dockerfile there is that
    of x86_64.
    """
    dockerfile = directory / "Dockerfile"
    present = {group for group in GROUPS if (directory / file_name(group, arch)).is_file()}
    shown = arch == "x86_64" and dockerfile.is_file()
    text = dockerfile.read_text(encoding="utf-8", errors="replace") if shown else ""
    named = {group for group in GROUPS if f"/{group}.lock," in text}
    needed = named | ({"torch", "base"} if present or text else set())
    return [file_name(group, arch) for group in GROUPS if group in needed - present]


def read_locks(directory: Path, groups: Sequence[Group] = GROUPS, arch: HostArch = "x86_64") -> list[Lock]:
    """Return the locks of a cell's directory in layer order; a group without a file is absent."""
    files = [(group, directory / file_name(group, arch)) for group in groups]
    return [parse_lock(_text(path), group, str(path)) for group, path in files if path.is_file()]


def read_kept(path: Path, group: Group) -> Lock:
    """Return a lock that a build kept for the next one. Raise ConfigError where it cannot be read."""
    try:
        return parse_lock(_text(path), group, str(path))
    except ConfigError as error:
        raise ConfigError(error.message, fix=MADE_ANEW) from error


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        refuse(f"{path}: {error.strerror}", "give this user the right to read it")
    return _decoded(content, str(path))


def _decoded(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad(where, content.count(b"\n", 0, error.start) + 1, "not UTF-8 text") from error


def digest(locks: Sequence[Lock]) -> str:
    """Return the sha256 that stands for all of a cell's pins, whatever their files' comments say."""
    text = "".join(f"{lock.group}\n{format_lock(lock, lock.group)}" for lock in locks)
    return hashlib.sha256(text.encode()).hexdigest()


def version_of(locks: Iterable[Lock], pattern: str) -> str | None:
    """Return the version of the one package whose whole name matches, or None."""
    return next((pin.version for lock in locks for pin in lock.pins if re.fullmatch(pattern, pin.name)), None)

"""A build context that plain `docker build DIR` builds: the cell, and a mirror profile made into files.

It is laid out as a checkout is, whose images/CELL/Dockerfile is the same, and has mirror/ and bin/uv beside it. What
mirror/ holds is only ever bind-mounted: os/, and for each lock group a directory that says where its files come from. A
RUN mounts only what it uses, so that a change repeats only the steps that depend on it. A netrc is not in the directory
at all.
"""

import contextlib
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec
import uv

from envcheck.data import data_path
from envcheck.errors import ConfigError, refuse
from envcheck.images.dockerfile import all_locks, base_reference, render_cell, render_dockerfile
from envcheck.images.dockerfile import write as write_files
from envcheck.images.lockfile import Lock, parse_lock
from envcheck.images.spec import ImageSpec
from envcheck.images.wheels import local_wheels, refused_wheels
from envcheck.mirrors.profiles.host_config import apt_sources, base_urls, ca_bundle, certificates, system_roots
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Index, Profile, hf_environment, network_indexes
from envcheck.mirrors.settings import RenderOptions, apt_sources_of, client_file

Network = Literal["none", "default", "host"]
_SCRIPTS: Final = ("os", "install", "prove", "own")
# Beside envcheck's own files nothing of a checkout goes along: no caches, no shipped copies of what is not needed.
_LEFT_OUT: Final = shutil.ignore_patterns("__pycache__", "*.pyc", "_data", ".*")


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """A written context. `secrets` are build secrets, id -> file, to be passed beside it.

    `wheels` is the directory that the Dockerfile's stage of that name stands for, to be passed as a named context.
    `network` is what installing needs: "none" when every wheel was carried, "host" for a mirror on this machine's
    loopback. A base that lacks OS packages needs apt's network on top. `carried` maps a lock group to whether all of
    its files are in the context, or in `wheels`.
    """

    path: Path
    secrets: dict[str, Path]
    wheels: Path | None
    base: str
    network: Network
    carried: dict[str, bool]


class SourceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of sources.tsv: a source from which install.sh tries to install a group."""

    group: str
    name: str
    kind: Literal["carried", "simple", "find-links", "torch-backend", "default"]
    url: str


def write(
    specs: Sequence[ImageSpec],
    profile: Profile,
    out: Path,
    *,
    matrix: Path | None = None,
    wheels: Path | None = None,
    tool: Path | None = None,
    key_only: bool = False,
) -> Context:
    """Write the context of a cell's targets into `out`, a new or empty directory.

    The targets are of one architecture. `tool` is its uv, by default this machine's.

    `wheels`, a directory with a file of every pin, takes the mirror's place: the context then names no mirror at all.
    `key_only` leaves out where the files come from, which is no part of a build's key: to find a cell's wheels on this
    machine takes as long as to hash gigabytes of them.
    """
    spec = specs[0]
    # Other than images/CELL/, a context has one architecture, and its Dockerfile calls each lock by the plain name.
    cell = {name.replace(f".{spec.arch}.lock", ".lock"): text for name, text in render_cell(*specs).items()}
    cell.pop("Dockerfile")
    tool_pins = tool_lock()
    _start(out)
    groups: dict[str, Lock] = {**{str(lock.group): lock for lock in all_locks(specs)}, "envcheck": tool_pins}
    base = base_reference(spec, profile.registry)
    write_files(out / "images" / str(spec.cell), cell)
    _write_targets(specs, profile, base, out)
    _write_tool(out, matrix, tool or Path(uv.find_uv_bin()))
    rows: list[SourceRow] = []
    carried: dict[str, bool] = {}
    if wheels is not None:
        rows = [SourceRow(group=name, name="files-of-the-store", kind="carried", url="-") for name in groups]
        carried = dict.fromkeys(groups, True)
        _write_sources(rows, out / "mirror")
    elif not key_only:
        rows, carried = _write_mirror(spec, profile, groups, out / "mirror")
    _normalise(out)
    secrets = {"netrc": Path(profile.netrc)} if profile.netrc and wheels is None else {}
    return Context(path=out, secrets=secrets, wheels=wheels, base=base, network=network(rows), carried=carried)


def sources(group: str, lock: Lock, profile: Profile, *, carried: bool) -> list[SourceRow]:
    """Return what install.sh tries for a group, in order: the files in the context when they are all there."""
    first = [SourceRow(group=group, name="files-in-the-context", kind="carried", url="-")] if carried else []
    variant = lock.index.rpartition("/")[2] if lock.index != "pypi" else None
    indexes = network_indexes(profile.pytorch if variant else profile.pypi, closed=profile.closed)
    if not indexes and not first:
        message = f"{profile.name} is closed and names no index for {group}.lock"
        raise ConfigError(message, fix=f"name one under `{'pytorch' if variant else 'pypi'}:`, or take `closed` out")
    return first + [_source(group, number, index, variant) for number, index in enumerate(indexes, 1)]


def _source(group: str, number: int, index: Index, variant: str | None) -> SourceRow:
    which = "pytorch" if variant else "pypi"
    if index.url == CLIENT_DEFAULT and variant:
        return SourceRow(group=group, name="pytorch-default", kind="torch-backend", url=variant)
    if index.url == CLIENT_DEFAULT:
        return SourceRow(group=group, name="pypi-default", kind="default", url="-")
    url = index.url.replace("{variant}", variant or "")
    return SourceRow(group=group, name=f"{which}-{number}", kind=index.kind, url=url)


def network(rows: Iterable[SourceRow]) -> Network:
    """Return the network installing needs; a first source that is carried needs none."""
    rows = list(rows)
    used = [row for row in rows if not any(r.kind == "carried" for r in rows if r.group == row.group)]
    hosts = {urlsplit(row.url).hostname for row in used if "://" in row.url}
    if any(host == "localhost" or (host or "").startswith("127.") or host == "::1" for host in hosts):
        return "host"
    return "default" if used else "none"


def tool_lock() -> Lock:
    """Return the lock of the environment envcheck itself has in an image."""
    path = data_path("templates") / "envcheck.lock"
    if not path.is_file():
        refuse("templates/envcheck.lock does not exist", "reinstall envcheck")
    return parse_lock(path.read_text(), "base", "templates/envcheck.lock")


def _start(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        refuse(f"{out} {'contains files' if out.is_dir() else 'is a file'}", "give --output a new or empty directory")
    out.mkdir(parents=True, exist_ok=True)


def _write_targets(specs: Sequence[ImageSpec], profile: Profile, base: str, out: Path) -> None:
    kept = hf_environment(profile) if profile.keep else None
    (out / "Dockerfile").write_text(render_dockerfile(*specs, base=base, kept=kept, carried=True))
    scripts, own = data_path("templates") / "context", out / "templates/context"
    for name in (*_SCRIPTS, *(f"targets/{spec.target}" for spec in specs)):
        if (scripts / name).is_dir():
            shutil.copytree(scripts / name, own / name)
    if profile.keep:
        # No credentials, and no file of this machine.
        options = RenderOptions(variant=specs[0].cell.variant, local=False)
        for path, client in (("etc/pip.conf", "pip"), ("etc/uv/uv.toml", "uv")):
            (out / "keep" / path).parent.mkdir(parents=True, exist_ok=True)
            (out / "keep" / path).write_text(client_file(profile, client, options))


def _write_mirror(
    spec: ImageSpec, profile: Profile, groups: Mapping[str, Lock], mirror: Path
) -> tuple[list[SourceRow], dict[str, bool]]:
    """Write where each group is tried from, with the files that this machine has; return that, and who is carried."""
    wheels = local_wheels(groups.values(), profile, spec.cell.python)
    carried = {name: all(set(pin.sha256) & wheels.keys() for pin in lock.pins) for name, lock in groups.items()}
    rows = [row for name, lock in groups.items() for row in sources(name, lock, profile, carried=carried[name])]
    _write_sources(rows, mirror)
    for name, lock in groups.items():
        local_digests = {digest for pin in lock.pins for digest in pin.sha256} & wheels.keys()
        if local_digests:
            (mirror / name / "wheels").mkdir()
        for path in (wheels[digest] for digest in local_digests):
            _take(path, mirror / name / "wheels" / path.name, 0o644, 0o444)
        missing = [pin for pin in lock.pins if not set(pin.sha256) & wheels.keys()]
        lacking = msgspec.structs.replace(lock, pins=missing)
        _write_refused(name, refused_wheels(lacking, profile, spec.cell.python), mirror)
    roots = ca_bundle(profile)
    if roots:
        for name in ("os", *groups):
            (mirror / name / "ca.pem").write_text(roots)
    _write_apt(spec, profile, mirror / "os/apt")
    if profile.closed:
        (mirror / "os/closed").touch()
    return rows, carried


def _write_sources(rows: Iterable[SourceRow], mirror: Path) -> None:
    (mirror / "os").mkdir(parents=True)
    lines: dict[str, str] = {}
    for row in rows:
        lines[row.group] = lines.get(row.group, "") + f"{row.group}\t{row.name}\t{row.kind}\t{row.url}\n"
    for group, text in lines.items():
        (mirror / group).mkdir()
        (mirror / group / "sources.tsv").write_text(text)
        _write_refused(group, [], mirror)


def _write_refused(group: str, names: Iterable[str], mirror: Path) -> None:
    """Write which local files were left out for their hash: what install.sh says when nothing else has them either."""
    (mirror / group / "refused.tsv").write_text("".join(f"{group}\t{name}\n" for name in names))


def _write_apt(spec: ImageSpec, profile: Profile, directory: Path) -> None:
    """Write deb822 sources whose list of mirrors apt walks itself, or nothing: then the base's own count."""
    distro, suite = spec.base.distro, spec.base.suite
    bases = profile.apt
    if profile.name == "host" and not bases:
        bases = base_urls(apt_sources(), distro, suite)
    if not bases:
        return
    directory.mkdir()
    # In the base image it is the mount that this path names.
    for name, text in apt_sources_of(bases, distro, suite, "/run/mirror/apt").items():
        (directory / name).write_text(text)
    roots = None if profile.ca else system_roots()
    if roots and any(base.startswith("https://") for base in bases):
        # A slim base has no certificates yet: its apt would ask no https mirror (tuna/issues#2396).
        (directory.parent / "ca.pem").write_text(certificates([roots.read_text()]))


def _write_tool(out: Path, matrix: Path | None, tool: Path) -> None:
    (out / "bin").mkdir()
    _take(tool, out / "bin/uv", 0o755)
    shutil.copyfile(data_path("templates") / "envcheck.lock", out / "templates/envcheck.lock")
    shutil.copytree(Path(__file__).resolve().parents[1], out / "envcheck", ignore=_LEFT_OUT)
    shutil.copyfile(matrix or data_path("matrix.yaml"), out / "matrix.yaml")


def _take(source: Path, target: Path, *modes: int) -> None:
    """Hard-link a big file that has one of the modes; copy it where the file system cannot, or with the first mode."""
    if stat.S_IMODE(source.stat().st_mode) in modes:
        with contextlib.suppress(OSError):
            target.hardlink_to(source.resolve())
            return
    shutil.copyfile(source, target)
    target.chmod(modes[0])


def _normalise(out: Path) -> None:
    """Give everything the modes an image is to have, whatever the umask; wheels may be links to read-only files."""
    for path in [out, *out.rglob("*")]:
        mode = 0o755 if path.is_dir() or path.parent == out / "bin" else 0o644
        if stat.S_IMODE(path.stat().st_mode) != mode and path.parent.name != "wheels":
            path.chmod(mode)

"""The extensions of a build that no index has as a wheel: compiled or fetched, and kept in the store."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from envcheck.cli import Settings
from envcheck.cli.build.cell_to_build import lock_first, spec_to_build
from envcheck.cli.build.printed import details, listeners, show_uncompiled
from envcheck.cli.build.request import BuildRequest
from envcheck.cli.shared.parameter_types import architecture
from envcheck.cli.sources.on_top import (
    PinnedExtensions,
    WheelFile,
    extension_names,
    known_extensions,
    pinned_to_fit,
    with_packages,
)
from envcheck.cli.store.common import disk_errors, open_store, transfer_options
from envcheck.errors import ConfigError
from envcheck.images.prefetch import StoredWheel, viewed
from envcheck.images.source_builds import recipe, sdist
from envcheck.images.source_builds.compile import Compiler, wheel_of
from envcheck.images.source_builds.recipe import ExtensionBuild, KeptWheel, Sdist, capabilities
from envcheck.images.spec import ImageSpec
from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.file.load import load
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.index import parse_file_name
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Index, Profile
from envcheck.mirrors.store.objects import Store


class SpecWithRequirements(NamedTuple):
    """The spec with packages on top, and the profile that has all of their files."""

    spec: ImageSpec
    profile: Profile


class ExtensionWheels(NamedTuple):
    """The wheels in a directory, the requirements that take them, and the profile with that directory before all."""

    paths: list[Path]
    requirements: list[str]
    profile: Profile


def most_jobs() -> int | None:
    """Return the user's own limit of compilers at once, $MAX_JOBS, None without one. Raises ConfigError."""
    text = os.environ.get("MAX_JOBS", "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        message = f"MAX_JOBS is {text!r}, which is no number of jobs"
        raise ConfigError(message, fix="set it to 1 or more, or unset it")
    return int(text)


@contextlib.contextmanager
def with_requirements(
    settings: Settings, spec: ImageSpec, requirements: list[str], profile: Profile, request: BuildRequest
) -> Iterator[SpecWithRequirements | None]:
    """Yield the spec with packages on top: extensions in the release that fits, compiled where none has a wheel.

    Yield None where a plan cannot know them yet; that is printed then.
    """
    extensions = known_extensions(request.extensions)
    pinned = pinned_to_fit(load(settings.matrix), spec, requirements, extensions, request.gpus)
    if request.dry_run and _planned_without_wheels(settings, spec, pinned, request):
        yield None
        return
    with extension_wheels(settings, spec, pinned, profile, request) as made:
        lines, native = [*pinned.requirements, *made.requirements], extension_names(extensions)
        keep = not request.dry_run
        spec = with_packages(spec, lines, profile, keep=keep, wheels=made.paths, native=native)
        yield SpecWithRequirements(spec, made.profile)


@contextlib.contextmanager
def extension_wheels(
    settings: Settings, spec: ImageSpec, pinned: PinnedExtensions, profile: Profile, request: BuildRequest
) -> Iterator[ExtensionWheels]:
    """Compile or fetch what has no wheel on the index, and yield where it is. Nothing happens where all have one."""
    if not pinned.sources and not pinned.files:
        yield ExtensionWheels([], [], profile)
        return
    _refuse_foreign(spec, pinned)
    store = open_store(request.store)
    with contextlib.ExitStack() as stack:
        with disk_errors(store.root), store.held():
            stop = threading.Event()
            with transfer_options(settings, profile, stop) as means:
                compiled = _compiled(settings, spec, pinned.sources, profile, request, store, means)
                fetched = [_fetched(store, file, means) for file in pinned.files]
            folder = stack.enter_context(viewed(store, [*compiled, *fetched]))
        paths = sorted(folder.glob("*.whl"))
        yield ExtensionWheels(paths, [*map(_pin, paths)], with_directory(profile, folder))


def _refuse_foreign(spec: ImageSpec, pinned: PinnedExtensions) -> None:
    """Refuse to compile for another architecture: emulated, one file of a real extension takes an hour."""
    if pinned.sources and spec.arch != architecture("auto"):
        name, version = pinned.sources[0]
        message = f"{name} {version} must be compiled, which a machine of {spec.arch} can do"
        raise ConfigError(message, fix="build there, or add its wheel to your own index")


def _pin(wheel: Path) -> str:
    name, version, _ = parse_file_name(wheel.name)
    return f"{name}=={version}"


def with_directory(profile: Profile, folder: Path) -> Profile:
    """Return the profile with the wheels of a directory of this machine; its hash alone says that one is taken."""
    indexes = profile.pypi or ([] if profile.closed else [Index(url=CLIENT_DEFAULT)])
    return msgspec.structs.replace(profile, pypi=[*indexes, Index(url=str(folder), kind="find-links")])


def _planned_without_wheels(
    settings: Settings, spec: ImageSpec, pinned: PinnedExtensions, request: BuildRequest
) -> bool:
    """Print the plan of a build that first compiles or fetches an extension; tell whether it is one."""
    if not _lacks_wheels(settings, spec, pinned, request):
        return False
    names = [*(f"{name} {version}" for name, version in pinned.sources), *(file.name for file in pinned.files)]
    show_uncompiled(spec, names, engine=request.engine, packages=pinned.requirements, as_json=request.as_json)
    return True


def _lacks_wheels(settings: Settings, spec: ImageSpec, pinned: PinnedExtensions, request: BuildRequest) -> bool:
    """Tell whether a build would first compile or fetch an extension."""
    store = open_store(request.store)
    if any(not store.has(file.sha256) for file in pinned.files):
        return True
    facts_gpus = _capabilities(settings, spec, pinned.sources, request.gpus)
    devel = _devel(settings, spec, request) if pinned.sources else spec
    for (name, version), gpus in zip(pinned.sources, facts_gpus, strict=True):
        known = sdist.pinned(devel, name, version)
        build = _build(devel, known, gpus) if known else None
        if devel.lacks_lock or build is None or recipe.find(store, build) is None:
            return True
    return False


def _capabilities(
    settings: Settings, spec: ImageSpec, sources: Sequence[tuple[str, str]], gpus: Sequence[str]
) -> list[tuple[str, ...]]:
    facts = Facts(load(settings.matrix))
    return [capabilities(facts, gpus, spec.cuda, f"{name} {version}") for name, version in sources]


def _devel(settings: Settings, spec: ImageSpec, request: BuildRequest) -> ImageSpec:
    return spec_to_build(settings, str(spec.cell), "devel", request.images_dir, spec.arch)


def _build(devel: ImageSpec, source: Sdist, gpus: tuple[str, ...]) -> ExtensionBuild:
    return ExtensionBuild(sdist=source, devel=devel, gpus=gpus)


def _compiled(
    settings: Settings,
    spec: ImageSpec,
    sources: Sequence[tuple[str, str]],
    profile: Profile,
    request: BuildRequest,
    store: Store,
    means: Callable[[str], TransferOptions],
) -> list[StoredWheel]:
    if not sources:
        return []
    gpus = _capabilities(settings, spec, sources, request.gpus)
    limit = most_jobs()
    devel = lock_first(settings, _devel(settings, spec, request), profile)
    facts = Facts(load(settings.matrix))
    wheels = []
    with listeners(settings) as (say, on_line), details():
        compiler = Compiler(request.engine, profile, request.base, request.timeout, limit, on_line, say)
        for (name, version), capabilities in zip(sources, gpus, strict=True):
            source = sdist.bring(store, devel, name, version, profile, means)
            build = _build(devel, source, capabilities)
            wheel, new = wheel_of(build, store, facts, compiler, means)
            origin = "compiled now" if new else "compiled by an earlier build"
            click.echo(f"with    {wheel.name}: {origin}, kept in {store.root}", err=True)
            wheels.append(_stored(wheel))
    return wheels


def _stored(wheel: KeptWheel) -> StoredWheel:
    return StoredWheel(wheel.name, wheel.sha256, "pypi")


def _fetched(store: Store, file: WheelFile, means: Callable[[str], TransferOptions]) -> StoredWheel:
    if not store.sound(file.sha256):
        store.put(WantedFile((file.url,), file.sha256, None, Path(file.name)), means(file.name))
    return StoredWheel(file.name, file.sha256, "pypi")

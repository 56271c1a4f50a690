"""The extensions of a build that no index has as a wheel: compiled or fetched, and kept in the store."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from envcheck.cli import Settings
from envcheck.cli.build.cell_to_build import lock_first, spec_to_build
from envcheck.cli.build.printed import details, listeners, show_without_key
from envcheck.cli.build.request import BuildRequest
from envcheck.cli.options import architecture
from envcheck.cli.sources.on_top import PinnedExtensions, known_extensions, pinned_to_fit, with_packages
from envcheck.cli.sources.store import disk_errors, open_store, transfer_options
from envcheck.errors import ConfigError
from envcheck.images.source_builds import recipe, sdist
from envcheck.images.source_builds.compile import Compiler, wheel_of
from envcheck.images.source_builds.recipe import ExtensionBuild, capabilities
from envcheck.images.spec import ImageSpec
from envcheck.images.wheels import StoredWheel, viewed
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
    options = request.options
    extensions = known_extensions(options.extensions)
    pinned = pinned_to_fit(load(settings.matrix), spec, requirements, extensions, options.gpus)
    native = frozenset(name for row in extensions.extensions for name in (row.name, *row.aliases))
    lines, keep = pinned.requirements, not options.dry_run
    if not pinned.sources and not pinned.files:
        yield SpecWithRequirements(with_packages(spec, lines, profile, keep=keep, native=native), profile)
        return
    made = _Wheels(settings, spec, pinned, request)
    if options.dry_run and made.lacking():
        made.show_plan()
        yield None
        return
    with made.in_directory(profile) as folder:
        paths = sorted(folder.glob("*.whl"))
        lines, profile = [*lines, *map(_pin, paths)], with_directory(profile, folder)
        on_top = with_packages(spec, lines, profile, keep=keep, wheels=paths, native=native)
        yield SpecWithRequirements(on_top, profile)


def _pin(wheel: Path) -> str:
    name, version, _ = parse_file_name(wheel.name)
    return f"{name}=={version}"


def with_directory(profile: Profile, folder: Path) -> Profile:
    """Return the profile with the wheels of a directory of this machine; its hash alone says that one is taken."""
    indexes = profile.pypi or ([] if profile.closed else [Index(url=CLIENT_DEFAULT)])
    return msgspec.structs.replace(profile, pypi=[*indexes, Index(url=str(folder), kind="find-links")])


class _Wheels:
    """The extensions that must be compiled or fetched, and the store that keeps their wheels."""

    def __init__(self, settings: Settings, spec: ImageSpec, pinned: PinnedExtensions, request: BuildRequest) -> None:
        self._settings, self._spec, self._pinned, self._request = settings, spec, pinned, request
        self._store: Store = open_store(request.options.store)
        self._facts = Facts(load(settings.matrix))
        if pinned.sources and spec.arch != architecture("auto"):  # emulated, one file of a real one takes an hour
            name, version = pinned.sources[0]
            message = f"{name} {version} must be compiled, which a machine of {spec.arch} can do"
            raise ConfigError(message, fix="build there, or add its wheel to your own index")
        gpus = request.options.gpus
        self._gpus = [capabilities(self._facts, gpus, spec.cuda, f"{name} {v}") for name, v in pinned.sources]

    def _devel(self) -> ImageSpec:
        images_dir = self._request.options.images_dir
        return spec_to_build(self._settings, str(self._spec.cell), "devel", images_dir, self._spec.arch)

    def lacking(self) -> bool:
        """Tell whether a build would first compile or fetch an extension."""
        if any(not self._store.has(file.sha256) for file in self._pinned.files):
            return True
        devel = self._devel() if self._pinned.sources else self._spec
        for (name, version), gpus in zip(self._pinned.sources, self._gpus, strict=True):
            known = sdist.pinned(devel, name, version)
            build = ExtensionBuild(sdist=known, devel=devel, gpus=gpus) if known else None
            if devel.lacks_lock or build is None or recipe.find(self._store, build) is None:
                return True
        return False

    def show_plan(self) -> None:
        """Print the plan; its locks are not known yet."""
        pinned = self._pinned
        names = [*(f"{name} {version}" for name, version in pinned.sources), *(file.name for file in pinned.files)]
        lines = [f"compile {name}: first, on the cell's devel; its wheel is kept in the store" for name in names]
        lines += [f"with    {package}: locked on top once the wheel is there" for package in pinned.requirements]
        plan = {"compile": names, "with": pinned.requirements}
        show_without_key([self._spec], self._request, plan, [*lines, "key     known once the wheel is there"])

    @contextlib.contextmanager
    def in_directory(self, profile: Profile) -> Iterator[Path]:
        """Compile or fetch the wheels, and yield a directory that has them."""
        with contextlib.ExitStack() as stack:
            with disk_errors(self._store.root), self._store.held():
                with transfer_options(self._settings, profile, threading.Event()) as means:
                    wheels = [*self._compiled(profile, means), *self._fetched(means)]
                folder = stack.enter_context(viewed(self._store, wheels))
            yield folder

    def _compiled(self, profile: Profile, means: Callable[[str], TransferOptions]) -> Iterator[StoredWheel]:
        if not self._pinned.sources:
            return
        request, limit = self._request, most_jobs()
        devel = lock_first(self._settings, self._devel(), profile)
        with listeners(self._settings) as (say, on_line), details():
            compiler = Compiler(request.engine, profile, request.base, request.options.timeout, limit, on_line, say)
            for (name, version), gpus in zip(self._pinned.sources, self._gpus, strict=True):
                source = sdist.bring(self._store, devel, name, version, profile, means)
                build = ExtensionBuild(sdist=source, devel=devel, gpus=gpus)
                wheel, new = wheel_of(build, self._store, self._facts, compiler, means)
                origin = "compiled now" if new else "compiled by an earlier build"
                click.echo(f"with    {wheel.name}: {origin}, kept in {self._store.root}", err=True)
                yield StoredWheel(wheel.name, wheel.sha256)

    def _fetched(self, means: Callable[[str], TransferOptions]) -> Iterator[StoredWheel]:
        for file in self._pinned.files:
            if not self._store.sound(file.sha256):
                self._store.put(WantedFile((file.url,), file.sha256, None, Path(file.name)), means(file.name))
            yield StoredWheel(file.name, file.sha256)

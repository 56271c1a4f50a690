"""`envcheck build`: its steps, its plans and what it prints of what was built."""

import contextlib
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from envcheck.cli import Settings
from envcheck.cli.building.cell_to_build import best_cell, kept_locks, locked_specs, spec_to_build
from envcheck.cli.building.on_top import OnTop, planned, put_on_top
from envcheck.cli.building.request import BuildOptions, BuildRequest
from envcheck.cli.commands.images import running_here
from envcheck.cli.commands.resolve import active_python, fill
from envcheck.cli.options import command_with
from envcheck.cli.shared.process import SILENT, last_line, print_json
from envcheck.cli.sources import format_bytes, open_store, prefetched_wheels, probed_profile, tell_choice
from envcheck.counting import counted
from envcheck.data import rendered, state_path
from envcheck.errors import ConfigError
from envcheck.images import engines
from envcheck.images.build_context import tool_lock
from envcheck.images.build_log import FailedError, said_of, step_of
from envcheck.images.engines import build, venv
from envcheck.images.engines.build import TargetRequest
from envcheck.images.lock_on_top import uv_for
from envcheck.images.source_compile import Compiler
from envcheck.images.spec import ImageSpec
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.resolve import Query, resolve
from envcheck.mirrors.profiles.load import AUTO
from envcheck.mirrors.profiles.load import load as load_profile
from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.store.objects import Store
from envcheck.node import collect
from envcheck.reports import phrases

# What uv says of each file of more than 1 MiB.
_FETCHED: Final = re.compile(r"\s*Download(?P<how>ing|ed) (?P<name>\S+)(?: \((?P<size>[\d.]+)(?P<unit>[KMG])iB\))?\s*")
_UNITS: Final = {"K": 2**10, "M": 2**20, "G": 2**30}


class _Voice:
    """What a build says: each line with the time since the start, and the bytes that uv fetched so far."""

    def __init__(self, settings: Settings, first: str) -> None:
        self._quiet, self._verbose = settings.quiet, settings.verbose
        self._began = self._heard = time.monotonic()
        self._last = first
        self._steps: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._there: set[str] = set()

    def say(self, line: str) -> None:
        """Print a message; it is the last one until there is another."""
        self._last = line
        self._tell(line)

    def on_line(self, line: str) -> None:
        """Print of the build's lines each step once, with --verbose all."""
        title, said = step_of(line), said_of(line)
        self._last = said.strip() or self._last
        if wheel := _FETCHED.fullmatch(said):
            self._there.update([wheel["name"]] if wheel["how"] == "ed" else [])
            self._sizes.setdefault(wheel["name"], int(float(wheel["size"] or 0) * _UNITS.get(wheel["unit"], 0)))
        if self._verbose and not self._quiet:
            click.echo(line, err=True)
        elif title and title not in self._steps:
            self._steps.add(title)
            self.say(title)

    def beat(self, ended: threading.Event) -> None:
        """Tell the last line again whenever nothing new was printed for some seconds."""
        while not ended.wait(SILENT / 5):
            if not self._verbose and time.monotonic() - self._heard >= SILENT:
                self._tell(f"... {last_line(self._last)}")

    def _tell(self, line: str) -> None:
        self._heard = time.monotonic()
        there = sum(size for name, size in self._sizes.items() if name in self._there)
        fetched = (
            f" ({format_bytes(there)} of {format_bytes(sum(self._sizes.values()))} fetched)" if self._sizes else ""
        )
        if not self._quiet:
            click.echo(f"  {phrases.duration(self._heard - self._began):>5}  {line}{fetched}", err=True)


@contextlib.contextmanager
def listeners(settings: Settings, first: str) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Yield what prints messages, and lines of a build. The last lines of a step that failed are printed."""
    voice, ended = _Voice(settings, first), threading.Event()
    thread = threading.Thread(target=voice.beat, args=(ended,), daemon=True)
    thread.start()
    try:
        yield voice.say, voice.on_line
    except FailedError as error:
        for line in error.detail:
            click.echo(f"  {line}", err=True)
        raise
    finally:
        ended.set()
        thread.join()


@command_with(BuildOptions, "platform", epilog="Example: envcheck build torch2.13.0-cpu-py311 --mirror host")
def command(options: BuildOptions, settings: Settings) -> None:
    """Build a cell (one torch, CUDA variant and Python) and prove that it is what its tag says.

    Without CELL, envcheck builds the published cell that `envcheck resolve` names for this machine, or the newest one
    whose torch the mirror has. On a CPU that may be a CUDA build; envcheck then prints its size.

    An unpublished cell is locked first, through the mirror. Its hashes are trusted on first use and kept. Packages of
    --with get a lock of their own on top of the cell's; a package that needs another torch or numpy is refused.
    A native extension without a wheel that fits is compiled on the cell's devel, and its wheel is kept in the store.

    --push REPOSITORY pushes what was built and proven, under its full tag, and prints REPOSITORY@DIGEST.

    Several --target are built at once and share their layers: a shared step runs once.

    The build checks its versions before an image exists, and the labels before the image gets its tag. A cell that has
    an image with the same key is not built again. With --prefetch, envcheck downloads and verifies all files first, and
    the build has no network (docker needs buildx, podman 4.2). If a mirror fails, envcheck says why and tries the next
    one. `envcheck --verbose` shows the build's output, `--quiet` only the result.

    Exit 0: built, or already present; 1: the build failed, or breaks a promise; 2: wrong usage; 3: an engine, a
    Python or an index is missing.
    """
    request = BuildRequest.from_options(options, settings, engines.find, _from_environment())
    engine = None if request.engine == "venv" else engines.connect(request.engine)
    if engine and request.foreign and not options.dry_run:
        engine.demand_platform(options.platform)
    if engine and options.prefetch:
        engine.demand_contexts()
    matrix, store = load(settings.matrix), open_store(options.store)
    named = None if options.mirror == AUTO else load_profile(options.mirror)
    _refuse_release(matrix, options.selector)
    selector = options.selector or _cell_for_this_machine(matrix, request.engine, named)
    specs = [spec_to_build(matrix, selector, each, options.images_dir, request.arch) for each in request.targets]
    unlocked = [spec for spec in specs if spec.lacks_lock]
    if unlocked and named is None:
        message = f"--mirror auto probes for the files of a lock, and {unlocked[0].cell} has none yet"
        raise ConfigError(message, fix="name the mirror that the lock is made through, e.g. --mirror host")
    profile = named or probed_profile(settings, [lock for spec in specs for lock in spec.locks])
    tell_choice(settings, options.mirror)
    if options.dry_run and unlocked:
        if engine is None:
            venv.plan(unlocked[0], _destination(unlocked[0], options.output))  # refuses what a build would
        unknown = {"lock": "made first", "mirror": profile.name, "with": request.requirements}
        _print_without_key(unlocked, request, unknown)
        return
    with listeners(settings, "what is installed is looked up"):
        specs = locked_specs(matrix, specs, profile)
        on_top = planned(request, matrix, specs[0]) if request.requirements else None
    if options.dry_run and on_top and (first := on_top.lacking(store)):
        _print_without_key(specs, request, first)
        return
    built = _carry_out(matrix, specs, profile, on_top, store, engine, request)
    how = {"run_options": engines.run_options, "local_name": engines.local_name}
    _print("plan" if options.dry_run else "built", built, request, **how)


def _from_environment() -> set[str]:
    """Return the options of this command whose value is from the environment: one for every command."""
    context = click.get_current_context()
    named = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in named.items() if source is click.core.ParameterSource.ENVIRONMENT}


def _refuse_release(matrix: Matrix, name: str | None) -> None:
    """Refuse the name of a release, and name those of its cells that this machine runs."""
    cells = [str(cell) for cell in matrix.cells() if name and str(cell).startswith(f"{name}-")]
    if cells:
        here = running_here(matrix)
        runs = ", ".join(cell for cell in cells if cell in here) or "none of them"
        message = f"{name} names {counted(len(cells), 'published cell')}; this machine runs {runs}"
        raise ConfigError(message, fix=f"name one; `envcheck images '{name}-*'` lists them all")


def _cell_for_this_machine(matrix: Matrix, engine: str, profile: Profile | None) -> str:
    """Return the name of the published cell to build here through this mirror, and say which it is and why."""
    query, read, notes = fill(matrix, Query(), collect.identify(), active_python())
    answer = resolve(matrix, query, read_here=read, notes=notes)
    best = best_cell(matrix, [answer, resolve(matrix, query.replace(python=None))], engine, profile)
    click.echo(f"cell    {best.cell}: {best.why or 'the best published one for this machine'}", err=True)
    return str(best.cell)


def _destination(spec: ImageSpec, output: Path | None) -> Path:
    """Return where an environment goes: a directory of its own for each target and each set of packages on top."""
    plain = spec.target == "runtime" and not spec.on_top
    return output or state_path("venvs", str(spec.cell) if plain else f"torch{spec.tag}")


def _carry_out(
    matrix: Matrix,
    specs: Sequence[ImageSpec],
    profile: Profile,
    on_top: OnTop | None,
    store: Store,
    engine: engines.Engine | None,
    request: BuildRequest,
) -> Sequence[object]:
    """Make what comes on top, fetch and build; return what was built, or in a dry run would be."""
    options, settings, wheels = request.options, request.settings, None
    with contextlib.ExitStack() as stack:
        if on_top:
            with listeners(settings, "what comes on top is looked up") as (say, on_line):
                compiler = Compiler(request.engine, profile, request.base, options.timeout, on_line, say)
                put = put_on_top(matrix, on_top, specs[0], store, compiler, settings)
                spec, profile = stack.enter_context(put)
                specs = [spec]
        if options.prefetch:
            cell, locks = specs[0].cell, [*specs[0].locks, *([tool_lock()] if engine else [])]
            plan = str(cell) if options.dry_run else None
            wheels = stack.enter_context(prefetched_wheels(settings, locks, cell.python, profile, store, plan))
        if engine is None:
            return [_environment(specs[0], profile, wheels, request)]
        return _images(engine, specs, profile, wheels, request)


def _images(
    engine: engines.Engine, specs: Sequence[ImageSpec], profile: Profile, wheels: Path | None, request: BuildRequest
) -> Sequence[object]:
    options = request.options
    tool = uv_for(specs[0].arch, profile) if request.foreign and not options.dry_run else None
    targets = [
        TargetRequest(
            spec=spec,
            profile=profile,
            repository=request.repository,
            network=request.network,
            base=request.base,
            timeout=options.timeout,
            matrix=request.settings.matrix,
            wheels=wheels,
            tag=request.tag,
            tool=tool,
        )
        for spec in specs
    ]
    if options.dry_run:
        return [build.dry_run(engine, target) for target in targets]
    with listeners(request.settings, "the build starts") as (say, on_line):
        made = build.build(engine, targets, say=say, on_line=on_line)
        if options.push is None:
            return made
        say(f"pushing to {options.push}")
        return [build.push(engine, each, options.push, options.timeout) for each in made]


def _environment(spec: ImageSpec, profile: Profile, wheels: Path | None, request: BuildRequest) -> object:
    dest, timeout = _destination(spec, request.options.output), request.options.timeout
    if request.options.dry_run:
        return venv.plan(spec, dest)
    with listeners(request.settings, "the build starts") as (say, on_line):
        return venv.build(spec, profile, dest, timeout=timeout, on_line=on_line, say=say, wheels=wheels)


def _print_without_key(specs: Sequence[ImageSpec], request: BuildRequest, plan: dict[str, Any]) -> None:
    """Print a plan of what has no lock yet, or no wheel: what it installs is not known, and so it has no key."""
    first = {"schema": "envcheck/build-plan/1", "engine": request.engine, "cell": str(specs[0].cell)}
    plans = [{**first, "target": spec.target, "key": None, **plan} for spec in specs]
    _print("plan-without-key", plans, request, kept=kept_locks(specs[0].cell))


def _print(template: str, values: Sequence[object], request: BuildRequest, **more: object) -> None:
    """Print plans or what was built: as JSON, one or a list of several, or as templates/printed/ has it."""
    if request.options.as_json:
        print_json(values[0] if len(values) == 1 else values)
        return
    context = {"quiet": request.settings.quiet, "asked": request.options.engine, "counted": counted, "join": shlex.join}
    for value in values:
        name = "built" if template == "built" else "plan"
        click.echo(rendered(f"printed/{template}.txt.j2", {name: value, **context, **more}), nl=False)

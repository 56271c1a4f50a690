"""Which targets of which cells the options of `envcheck images` mean."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from envcheck.errors import ConfigError, UnavailableError
from envcheck.images.engines import subprocesses
from envcheck.images.engines.subprocesses import stream
from envcheck.images.plan import PLATFORMS
from envcheck.images.spec import ImageSpec, load_spec, no_lock, select, select_one
from envcheck.matrix.facts.model import Cell, HostArch, Matrix, Target
from envcheck.matrix.file.load import load

CellTargets = tuple["Cell", list["Target"]]
# Folders of templates/ that no image is made from: mirror sites, and what other tools read.
NOT_OF_IMAGES: Final = frozenset({"site", "formats"})


class Selection(Protocol):
    """The options that select."""

    @property
    def selectors(self) -> tuple[str, ...]:
        """Cells or globs; none stands for all."""

    @property
    def target(self) -> str | None:
        """The one target, or all."""

    @property
    def changed_since(self) -> str | None:
        """A revision of git."""

    @property
    def changed(self) -> str | None:
        """A file that lists changed paths."""


def selected(matrix: Matrix, options: Selection, images_dir: Path) -> list[CellTargets]:
    """Return the cells with their targets; a target that no named cell has is a ConfigError."""
    named = [
        (cell, [target for target in matrix.targets(cell) if options.target in (None, target)])
        for cell in select(matrix, options.selectors)
    ]
    chosen = [(cell, targets) for cell, targets in named if targets]
    if not chosen:
        message = f"no selected cell is published as {options.target}"
        raise ConfigError(message, fix="choose a target that `envcheck images` lists for the cell")
    return _touched(chosen, options, images_dir)


def _touched(chosen: list[CellTargets], options: Selection, images_dir: Path) -> list[CellTargets]:
    """Return those that the named changes touch; all where no change is named."""
    if options.changed_since is not None and options.changed is not None:
        message = "--changed-since and --changed exclude each other"
        raise ConfigError(message, fix="give one of them")
    if options.changed_since is not None:
        paths = _since(options.changed_since, images_dir)
    elif options.changed is not None:
        paths = _listed(options.changed)
    else:
        return chosen
    touched = set(changed_cells(paths, [str(cell) for cell, _ in chosen]))
    return [(cell, targets) for cell, targets in chosen if str(cell) in touched]


def changed_cells(paths: Iterable[str], cells: Sequence[str]) -> list[str]:
    """Return the cells whose images these paths change, in the order given.

    A path is below the repository's top, as `git diff --name-only` writes it. images/<cell>/ and what is in it change
    that cell. A template changes every cell, unless its folder is known to be of no image. A change of matrix.yaml is
    seen in the rendered files, which `envcheck render --check` holds to it, so that it need not be read here.
    """
    parts = [PurePosixPath(path).parts for path in paths]
    if any(_is_template(path) for path in parts):
        return list(cells)
    touched = {path[1] for path in parts if path[:1] == ("images",) and path[1:]}
    return [cell for cell in cells if cell in touched]


def _is_template(path: tuple[str, ...]) -> bool:
    return path[:1] == ("templates",) and path[1:2] not in [(name,) for name in NOT_OF_IMAGES]


def specs_of(
    matrix: Matrix, chosen: Sequence[CellTargets], images_dir: Path, archs: Sequence[HostArch]
) -> list[ImageSpec]:
    """Return one spec for each target of each cell on each of these architectures that the cell is published for."""
    specs = [
        load_spec(matrix, cell, target, images_dir=images_dir, arch=arch)
        for cell, targets in chosen
        for target in targets
        for arch in matrix.archs(cell)
        if arch in archs
    ]
    if chosen and not specs:
        message = f"no selected cell is published for {' or '.join(PLATFORMS[arch] for arch in archs)}"
        raise ConfigError(
            message, fix="leave --platform out, or choose a cell whose `platforms` in `envcheck images --json` name it"
        )
    return specs


def spec_of(matrix_file: Path | None, selector: str, target: Target, images_dir: Path | None) -> ImageSpec:
    """Return one target of the one cell that the selector names, locked; ConfigError otherwise."""
    matrix = load(matrix_file)
    cell = select_one(matrix, selector)
    published = matrix.targets(cell)
    if target not in published:
        message = f"{cell} is not published as {target}"
        raise ConfigError(message, fix=f"choose --target {' or '.join(published)}")
    spec = load_spec(matrix, cell, target, images_dir=images_dir)
    if not spec.locks:
        raise no_lock(cell)
    return spec


_SECONDS: Final = 60.0


def _since(revision: str, directory: Path) -> list[str]:
    """Return what differs between the checkout of `directory` and where its branch left `revision`, as git has it.

    Files that git does not know yet count. Raise ConfigError where git cannot tell.
    """
    if subprocesses.which("git") is None:
        message = "--changed-since asks git, which is not installed"
        raise UnavailableError(message, fix="install git, or list the changed paths with --changed FILE")
    paths: list[str] = []
    for words in (
        # First: outside a checkout `git diff` would compare two files instead.
        ["ls-files", "--others", "--exclude-standard", "--full-name", "-z", "--", ":/"],
        ["diff", "--name-only", "--no-renames", "-z", "--merge-base", "--end-of-options", revision],
    ):
        result = stream(["git", "-C", str(directory), *words], timeout=_SECONDS)
        if result.status != 0:
            first = (result.output.strip().splitlines() or ["it gave no reason"])[0].removeprefix("fatal: ")
            message = f"git cannot compare with {revision!r}: {first}"
            raise ConfigError(message, fix="name a revision of this checkout, with its history up to the common one")
        paths += [path for path in result.output.split("\0") if path]
    return paths


def _listed(file: str) -> list[str]:
    """Return the paths of a file, one a line or ended by NUL; "-" is standard input.

    A list without a path is a ConfigError: more likely the command before it failed than that nothing changed.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        message = f"{file}: not UTF-8 text"
        raise ConfigError(message, fix="list one path a line") from error
    paths = [path.strip() for path in text.replace("\0", "\n").splitlines() if path.strip()]
    if not paths:
        where = "standard input" if file == "-" else file
        message = f"--changed: {where} names no path"
        raise ConfigError(message, fix="list one path a line, as `git diff --name-only` does")
    strange = next((path for path in paths if path.startswith(("/", '"', "..")) or "\t" in path), None)
    if strange is not None:
        message = f"--changed: {strange!r} is not a path below the repository's top"
        raise ConfigError(message, fix="list one path a line, as `git diff --name-only -z` does")
    return paths

"""A resolution as people read it: the answer first, then why, then what else could run. 80 columns."""

from __future__ import annotations

import os
import shlex
import textwrap
from typing import TYPE_CHECKING, Final

import click

from envcheck.matrix.facts.model import PYTORCH
from envcheck.matrix.resolver.resolve import Resolution
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from envcheck.matrix.extensions.answer import ChosenExtension, ExtensionResolution

_WIDTH: Final = 80
_COLOURS: Final = {"ok": "green", "driver-ok-via-minor-compat": "green", "forward-compat-required": "yellow"}


def show(
    answer: Resolution, *, extended: ExtensionResolution | None = None, everything: bool = False, quiet: bool = False
) -> None:
    """Print it; `everything` adds a table of every cell, `quiet` leaves only the answer itself.

    `extended` is the answer again where it has extensions.
    """
    cell, *pip = _head(answer)
    steps = extended.commands[1:] if extended is not None else []
    # A comment of the shell, so that the lines can be pasted as they are.
    order = ["  # run these in this order:"] if steps else []
    for line in [cell, *order, *pip, *(f"  {command}" for command in steps)]:
        click.echo(line)
    if quiet:
        return
    if extended is not None:
        _section("With", lines(extended))
    _section("Why", answer.reasons)
    _section("Or", [f"{row.change}\n{row.cell} ({row.verdict})" for row in answer.alternatives])
    _section("Build", _published(answer))
    read = [f"read from this node: {name} {value}" for name, value in answer.read_here.items()]
    weak = [f"verified: false, only one weak source has {fact}" for fact in answer.weak]
    _section("Note", [*answer.notes, *read, *weak])
    if everything:
        _table(answer)
        if extended is not None:
            _refused_table(extended)


def _head(answer: Resolution) -> list[str]:
    verdict = _style(answer.verdict, _COLOURS.get(answer.verdict, "red"))
    if answer.cell is None:
        return [f"no combination matches: {verdict}"]
    return [f"{_style(answer.cell)}: {verdict}", *(f"  {line}" for line in _pip(answer))]


def _pip(answer: Resolution) -> list[str]:
    command, option, url = answer.pip.partition(" --index-url ")
    if not option:
        command, option, url = answer.pip.partition(" --find-links ")
    if not option:
        return [command] if command else []
    return [f"{command} \\", f"   {option}{url}"]


def pip_command(answer: Resolution, profile: Profile) -> str:
    """Return the pip command that installs the answer, from the profile's PyTorch index or the public one.

    Empty where nothing is legal, or where a closed profile names no PyTorch index.
    """
    torch, *companions = answer.install or [""]
    if not torch or not answer.index:
        return f"pip install {' '.join(answer.install)}" if torch else ""
    variant = answer.index.rpartition("/")[2]
    words = " ".join([f"{torch}+{variant}" if answer.arch == "x86_64" else torch, *companions])
    remote = [index for index in profile.pytorch if index.url != CLIENT_DEFAULT]
    if not remote:
        return "" if profile.closed else f"pip install {words} --index-url {PYTORCH}/{answer.index}"
    option = "--find-links" if remote[0].kind == "find-links" else "--index-url"
    return f"pip install {words} {option} {shlex.quote(remote[0].url.replace('{variant}', variant))}"


def _published(answer: Resolution) -> list[str]:
    """Say which published cell runs there, and which better one can be built; what to do where there is none."""
    if answer.cell is None:
        return []
    unlocked = f"envcheck build {answer.buildable}\nnot published: its lock is made first, through your mirror"
    if answer.published is None and answer.buildable is None:
        return ["none of the published cells fits: use the pip command above, or relax --torch, --variant or --python"]
    if answer.published is None:
        return ["none of the published cells fits", unlocked]
    other = "" if answer.published == answer.cell else f"\n{answer.cell} is not published; this is the best that is"
    better = [] if answer.buildable in {None, answer.published} else [unlocked]
    return [f"envcheck build {answer.published}{other}", *better]


def _section(title: str, items: list[str]) -> None:
    if not items:
        return
    click.echo()
    click.echo(_style(title))
    for item in items:
        start = "  - "
        for line in item.split("\n"):
            click.echo(
                textwrap.fill(
                    line,
                    _WIDTH,
                    initial_indent=start,
                    subsequent_indent="    ",
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
            start = "    "


def _table(answer: Resolution) -> None:
    rows = [(row.cell, row.verdict if row.verified else f"{row.verdict} (weak)") for row in answer.ranked]
    rejected = [(f"torch{row.torch}-{row.variant}", row.verdict) for row in answer.rejected]
    _print_table("verdict", [*rows, *rejected])


def _refused_table(answer: ExtensionResolution) -> None:
    rows = [(row.cell, "; ".join(f"{each.name}: {each.word}" for each in row.refused)) for row in answer.refused_cells]
    _print_table("first refusal of each extension", rows)


def _print_table(heading: str, rows: Iterable[tuple[str, str]]) -> None:
    from envcheck.cli.shared.process import print_table

    click.echo()
    print_table(("cell", heading), rows)


def _style(text: str, colour: str | None = None) -> str:
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour, bold=True)


# One nvcc of these kernels takes up to 8 GiB.
_JOBS: Final = "MAX_JOBS=$(( $(free -g | awk '/Mem/ {print $7}') / 8 + 1 ))"


def commands(answer: ExtensionResolution, arch_list: list[str]) -> list[str]:
    """Return the commands that install the answer, torch first; none of them can move torch.

    Wheels that are not on the Python index come without their dependencies; the last command installs those, with
    torch pinned to the build that is there. `arch_list` are the compute capabilities to build for.
    """
    if answer.cell is None or not answer.pip:
        return []
    torch = _torch(answer)
    alone = (line for each in answer.extensions for line in _alone(each, arch_list, torch))
    pinned = [f"{each.name}=={each.version}" for each in answer.extensions if not _is_from_git(each)]
    last = [f"pip install {' '.join(map(shlex.quote, [torch, *pinned]))}"] if pinned else []
    return [answer.pip, *alone, *last]


def _is_from_git(each: ChosenExtension) -> bool:
    """Return whether a source is in git only: the index has another project of that name, or no such release."""
    return each.channel == "source" and (each.where or "").startswith("git+")


def _torch(answer: ExtensionResolution) -> str:
    variant = answer.index.rpartition("/")[2]
    return f"{answer.install[0]}+{variant}" if variant and answer.arch == "x86_64" else answer.install[0]


def _alone(each: ChosenExtension, arch_list: list[str], torch: str) -> Iterator[str]:
    from envcheck.matrix.extensions.fit import SOURCE_ONLY  # most questions have no extension

    name = f"{each.name}=={each.version}"
    if each.verdict == SOURCE_ONLY:
        codes = f'TORCH_CUDA_ARCH_LIST="{";".join(arch_list)}" ' if arch_list else ""
        how = f"{shlex.quote(torch)} " if _is_from_git(each) else "--no-deps "
        yield f"{codes}{_JOBS} pip install --no-build-isolation {how}{shlex.quote(each.where or name)}"
    elif each.channel == "pytorch":
        yield f"pip install --no-deps {name} --index-url {PYTORCH}/{each.where}"
    elif each.channel in ("project", "third-party"):
        yield _from_project(each, name)


def _from_project(each: ChosenExtension, name: str) -> str:
    if each.where and each.file and each.where.endswith("/"):
        return f"pip install --no-deps {shlex.quote(each.where + each.file.replace('+', '%2B'))}"
    if each.where and each.channel == "project":
        return f"pip install --no-deps {name} --index-url {shlex.quote(each.where)}"
    return f"# take the wheel of {name} for this torch, CUDA and Python from {each.where}"


def lines(answer: ExtensionResolution) -> list[str]:
    """Return a paragraph for each extension: release, wheel, where it is from, and how it binds."""
    return [_line(each) for each in answer.extensions]


def _line(each: ChosenExtension) -> str:
    from envcheck.matrix.extensions.fit import JIT, SOURCE_ONLY

    source = {"pypi": "the Python index", "pytorch": "the PyTorch index", "source": "its source"}.get(each.channel)
    where = source or f"{each.channel}, {each.where}"
    word = f" ({each.verdict})" if each.verdict in (JIT, SOURCE_ONLY) else ""
    file = f"\n{each.file}" if each.file else ""
    return f"{each.name} {each.version}{word}, from {where}{file}\n{each.reason}"

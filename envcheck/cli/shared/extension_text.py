"""The extensions of a resolution: the commands that install them, and the lines that say how each binds."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from envcheck.matrix.extensions.fit import JIT, SOURCE_ONLY
from envcheck.matrix.facts.model import PYTORCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envcheck.matrix.extensions.answer import ChosenExtension, ExtensionResolution

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
    source = {"pypi": "the Python index", "pytorch": "the PyTorch index", "source": "its source"}.get(each.channel)
    where = source or f"{each.channel}, {each.where}"
    word = f" ({each.verdict})" if each.verdict in (JIT, SOURCE_ONLY) else ""
    file = f"\n{each.file}" if each.file else ""
    return f"{each.name} {each.version}{word}, from {where}{file}\n{each.reason}"

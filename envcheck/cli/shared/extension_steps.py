"""What to run for an answer of `resolve --with`: the steps with pip, and the command that builds an image of it."""

import platform
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from envcheck.matrix.extensions.answer import ChosenExtension, ExtensionResolution, glibc_notes
from envcheck.matrix.extensions.fit import JIT, SOURCE_ONLY
from envcheck.matrix.facts.lookup import Facts, nvcc_in_wheels
from envcheck.matrix.facts.model import PYTORCH, Cell, Matrix
from envcheck.matrix.resolver.query import requested_devices

# One nvcc of these kernels takes up to 8 GiB.
_JOBS: Final = "MAX_JOBS=$(( $(free -g | awk '/Mem/ {print $7}') / 8 + 1 ))"


def with_steps(matrix: Matrix, answer: ExtensionResolution, own_facts: Path | None) -> ExtensionResolution:
    """Return an answer that has its pip command with the steps, the build, and a note on the C library.

    `own_facts` is the user's own file of extensions, which the build must read too.
    """
    facts = Facts(matrix)
    codes = sorted({device.cc for device in requested_devices(facts, answer.query)})
    here = platform.libc_ver()[1] if answer.read_here else None
    return msgspec.structs.replace(
        answer,
        commands=commands(answer, codes),
        build=build_lines(facts, answer, own_facts),
        notes=[*answer.notes, *glibc_notes(matrix, answer, here)],
    )


def commands(answer: ExtensionResolution, arch_list: list[str]) -> list[str]:
    """Return the commands that install the answer, torch first; none of them can move torch.

    Wheels of another index come without their dependencies; the last command installs those, with torch pinned to the
    build that is there. `arch_list` are the compute capabilities to build for.
    """
    if answer.cell is None or not answer.pip:
        return []
    torch = _torch(answer)
    others = [each for each in answer.extensions if each.channel != "torch"]
    alone = (line for each in others for line in _alone(each, arch_list, torch))
    pinned = [_url(each) or f"{each.name}=={each.version}" for each in others if not _is_built(each)]
    last = [f"pip install {' '.join(map(shlex.quote, [torch, *pinned]))}"] if pinned else []
    return [answer.pip, *alone, *last]


def _url(each: ChosenExtension) -> str | None:
    """Return the URL of a project's own wheel; None where its file or folder is not known."""
    if each.channel != "project" or not each.where or not each.where.endswith("/") or not each.file:
        return None
    return each.where + each.file.replace("+", "%2B")


def _is_built(each: ChosenExtension) -> bool:
    # What is in git only is never taken from the index, which has another project of that name, or no such release.
    return each.verdict == SOURCE_ONLY or (each.where or "").startswith("git+")


def build_lines(facts: Facts, answer: ExtensionResolution, own_facts: Path | None) -> list[str]:
    """Return the command that builds the answer with its extensions, or why no build can."""
    cell = Cell.parse(answer.cell or "")
    if cell is None:
        return []
    if str(cell) not in (answer.published, answer.buildable):
        return [f"no image has Python {cell.python}: ask again with another --python"]
    why = next(filter(None, (_not_built(facts, answer, cell, each) for each in answer.extensions)), None)
    if why is not None:
        return [f"{why}: run the steps above, or add its wheel to your own index"]
    words = [word for each in answer.extensions for word in ("--with", f"{each.name}=={each.version}")]
    words += [word for name in answer.query.gpus for word in ("--gpu", name)]
    words += ["--extensions", str(own_facts)] if own_facts else []
    lines = [shlex.join(["envcheck", "build", str(cell), *words])]
    lines += [] if str(cell) == answer.published else ["not published: its lock is made first, through your mirror"]
    new = [each.name for each in answer.extensions if _url(each) and not each.sha256]
    lines += [f"no sha256 on record for {name}: trusted on first use and kept, or --sha256 {name}=HASH" for name in new]
    return ["\n".join(lines)]


def _not_built(facts: Facts, answer: ExtensionResolution, cell: Cell, each: ChosenExtension) -> str | None:
    release = facts.matrix.release(cell.torch)
    variant = release.variant(cell.variant) if release else None
    cuda = variant.cuda if variant else None
    if _is_built(each):
        where = each.where or f"its source with nvcc {cuda}"
        if each.where or (cuda and not nvcc_in_wheels(cuda)):
            return f"a build does not compile {each.name} from {where}"
        return f"{each.name} is compiled for GPUs that --gpu names" if cuda and not answer.query.gpus else None
    if each.channel in ("pytorch", "third-party") or (each.channel == "project" and _url(each) is None):
        return f"a build takes no wheel of {each.name} from {each.where}"
    held = each.channel != "torch" or each.name == "torchvision" or not answer.index
    return None if held else f"images of {cell.variant} hold no {each.name}"


def _torch(answer: ExtensionResolution) -> str:
    variant = answer.index.rpartition("/")[2]
    return f"{answer.install[0]}+{variant}" if variant and answer.arch == "x86_64" else answer.install[0]


def _alone(each: ChosenExtension, arch_list: list[str], torch: str) -> Iterator[str]:
    name = f"{each.name}=={each.version}"
    if _is_built(each):
        codes = f'TORCH_CUDA_ARCH_LIST="{";".join(arch_list)}" ' if arch_list else ""
        what = f"{shlex.quote(torch)} {shlex.quote(each.where or name)}"
        yield f"{codes}{_JOBS} pip install --no-build-isolation {what}"
    elif each.channel == "pytorch":
        yield f"pip install --no-deps {name} --index-url {PYTORCH}/{each.where}"
    elif each.channel == "project" and each.where and not each.where.endswith("/"):
        yield f"pip install --no-deps {name} --index-url {shlex.quote(each.where)}"
    elif each.channel in ("project", "third-party") and _url(each) is None:
        yield f"# take the wheel of {name} for this torch, CUDA and Python from {each.where}"


def lines(answer: ExtensionResolution) -> Iterator[str]:
    """Yield a paragraph for each extension: release, wheel, where it is from, and how it binds."""
    sources = {
        "pypi": "the Python index",
        "pytorch": "the PyTorch index",
        "torch": "torch's index",
        "source": "its source",
    }
    for each in answer.extensions:
        where = sources.get(each.channel) or f"{each.channel}, {each.where}"
        word = f" ({each.verdict})" if each.verdict in (JIT, SOURCE_ONLY) else ""
        file = f"\n{each.file}" if each.file else ""
        yield f"{each.name} {each.version}{word}, from {where}{file}\n{each.reason}"

"""What each target adds to a cell's torch environment: distribution packages, Python packages, and its command."""

from __future__ import annotations

from typing import Final, NamedTuple

from envcheck.images.locks.model import Group
from envcheck.matrix.facts.model import Target

# All a base must have: its own Python, roots for TLS, an init that reaps. A bootstrapped base includes them.
OS_PACKAGES: Final = ("ca-certificates", "python3", "python3-venv", "tini")


class TargetRecipe(NamedTuple):
    """What a target adds. `packages` are the distribution's; `command` is what the image runs when given nothing.

    `group` is the lock of the Python packages that `requirements` resolve to, None where there are none.
    `cuda_requirements` are added for a cell whose wheel carries CUDA; "{major}" and "{minor}" stand for its version.
    """

    packages: tuple[str, ...] = ()
    group: Group | None = None
    requirements: tuple[str, ...] = ()
    cuda_requirements: tuple[str, ...] = ()
    command: tuple[str, ...] = ("python3",)


# Debian's and Ubuntu's names are the same. libc6-dev comes with g++; python3-dev has the headers torch.compile needs.
RECIPES: Final[dict[Target, TargetRecipe]] = {
    "runtime": TargetRecipe(),
    "devel": TargetRecipe(packages=("g++", "gcc", "libc6-dev", "make", "ninja-build", "python3-dev"), group="devel"),
    "train": TargetRecipe(
        group="train",
        requirements=(
            "accelerate",
            "datasets",
            "huggingface_hub",
            "optuna",
            "peft",
            "safetensors",
            "tensorboard",
            "transformers",
        ),
        cuda_requirements=("bitsandbytes",),
    ),
    "jupyter": TargetRecipe(
        packages=("openssh-server",), group="jupyter", requirements=("ipykernel", "ipywidgets", "jupyterlab")
    ),
}


# The locks of the torch environment, which all targets of a cell share.
SHARED_GROUPS: Final[tuple[Group, ...]] = ("nvidia", "torch", "base")


def groups_of(target: Target) -> tuple[Group, ...]:
    """Return the lock groups that a target installs, in layer order."""
    own = RECIPES[target].group
    return (*SHARED_GROUPS, *((own,) if own else ()))


def wanted(target: Target, cuda: str | None) -> list[str]:
    """Return what a target's lock is resolved from, for a wheel of this CUDA ("12.8", None for cpu)."""
    recipe = RECIPES[target]
    if cuda is None:
        return [*recipe.requirements]
    major, _, minor = cuda.partition(".")
    return [*recipe.requirements, *(each.format(major=major, minor=minor) for each in recipe.cuda_requirements)]

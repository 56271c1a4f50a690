"""What each target adds to a cell's torch environment: distribution packages, Python packages, and its command."""

from collections.abc import Callable
from typing import Final, NamedTuple

from envcheck.images.lockfile import Group
from envcheck.matrix.facts.model import Target

# What every cell holds beside its torch. numpy: from_numpy and DataLoader's default need it. pip installs in a child
# image, and Triton up to 3.1 and torch.utils.cpp_extension import setuptools; the distribution's would be older, and
# held to no hash.
BESIDE_TORCH: Final = ("numpy", "pip", "setuptools")
# All a base must have: its own Python, roots for TLS, an init that reaps. A bootstrapped base includes them.
OS_PACKAGES: Final = ("ca-certificates", "python3", "python3-venv", "tini")
# What NCCL opens when it runs (src/misc/ibvsymbols.cc, mlx5dvsymbols.cc), and the packages that bring it. libibverbs1
# only recommends its providers, without which it finds no device: both are named. 0.65 MB to fetch.
FABRIC_LIBRARIES: Final = ("libibverbs.so.1", "libmlx5.so.1")
FABRIC_PACKAGES: Final = ("ibverbs-providers", "libibverbs1")


class TargetRecipe(NamedTuple):
    """What a target adds. `packages` are the distribution's; `command` is what the image runs when given nothing.

    `group` is the lock of the Python packages that `requirements` resolve to, None where there are none.
    `cuda_requirements` gives what is added for a cell whose wheel carries CUDA, from its version ("12.8").
    `extensions` are native extensions of torch, for cells with CUDA; they have a lock of their own, extensions.lock.
    """

    packages: tuple[str, ...] = ()
    group: Group | None = None
    requirements: tuple[str, ...] = ()
    cuda_requirements: Callable[[str], tuple[str, ...]] = lambda _: ()
    extensions: tuple[str, ...] = ()
    command: tuple[str, ...] = ("python3",)


def os_packages(cuda: str | None) -> tuple[str, ...]:
    """Return the distribution's packages of a cell, for a wheel of this CUDA ("12.8", None for cpu)."""
    return tuple(sorted((*OS_PACKAGES, *(FABRIC_PACKAGES if cuda else ()))))


# NVIDIA parts its compiler otherwise in each CUDA, and only that of 13 is whole: in the wheels of 11 and 12 there is
# ptxas, but neither nvcc nor cicc nor cudafe++, so that they compile no CUDA source.
_COMPILERS: Final = {
    "11": ("nvidia-cuda-nvcc-cu11", "nvidia-cuda-cccl-cu11"),
    "12": ("nvidia-cuda-nvcc-cu12", "nvidia-cuda-cccl-cu12"),
    "13": ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl"),
}


def cuda_compilers(cuda: str) -> tuple[str, ...]:
    """Return NVIDIA's wheels with the compilers and headers of a CUDA ("12.8"), of the same minor; none if unknown."""
    return tuple(f"{name}=={cuda}.*" for name in _COMPILERS.get(cuda.partition(".")[0], ()))


# Debian's and Ubuntu's names are the same. libc6-dev comes with g++; python3-dev has the headers torch.compile needs.
RECIPES: Final[dict[Target, TargetRecipe]] = {
    "runtime": TargetRecipe(),
    "devel": TargetRecipe(
        packages=("g++", "gcc", "libc6-dev", "make", "ninja-build", "python3-dev"),
        group="devel",
        # What the setup.py of an extension imports when it is built without isolation, against the torch that is here.
        requirements=("packaging", "setuptools", "wheel"),
        cuda_requirements=cuda_compilers,
    ),
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
        extensions=("bitsandbytes",),
    ),
    # libnss-wrapper names a --user that /etc/passwd does not know, which sshd and git ask for.
    "jupyter": TargetRecipe(
        packages=("libnss-wrapper", "openssh-server"),
        group="jupyter",
        requirements=("ipykernel", "ipywidgets", "jupyterlab"),
        command=("start-jupyter",),
    ),
}


# The locks of the torch environment, which all targets of a cell share.
SHARED_GROUPS: Final[tuple[Group, ...]] = ("nvidia", "torch", "base")
# The lock of native extensions of torch: those of a target, and those that a user puts on top.
EXTENSIONS: Final[tuple[Group, ...]] = ("extensions",)


def groups_of(target: Target) -> tuple[Group, ...]:
    """Return the lock groups that a target installs, in layer order."""
    recipe = RECIPES[target]
    own: tuple[Group, ...] = (recipe.group,) if recipe.group else ()
    return (*SHARED_GROUPS, *own, *(EXTENSIONS if recipe.extensions else ()))


def requirements_of(target: Target, cuda: str | None) -> list[str]:
    """Return what a target's own lock is resolved from, for a wheel of this CUDA ("12.8", None for cpu)."""
    recipe = RECIPES[target]
    return [*recipe.requirements, *(recipe.cuda_requirements(cuda) if cuda else ())]


def extensions_of(target: Target, cuda: str | None) -> tuple[str, ...]:
    """Return the native extensions that a target adds, for a wheel of this CUDA ("12.8", None for cpu)."""
    return RECIPES[target].extensions if cuda else ()

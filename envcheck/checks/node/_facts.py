"""What several node checks ask of the matrix and of the view."""

from __future__ import annotations

import functools

from envcheck.checks import View
from envcheck.matrix.gpus import find_gpu
from envcheck.matrix.load import load
from envcheck.matrix.model import Matrix


def matrix(view: View) -> Matrix:
    """Return the matrix the run was given, else the shipped one."""
    return view.matrix if isinstance(view.matrix, Matrix) else _shipped()


@functools.cache
def _shipped() -> Matrix:
    return load()


def wheel_cuda(view: View) -> str | None:
    """Return the CUDA that the environment's torch carries, else the one its image promises; None for neither."""
    if view.environment.get("torch"):
        cuda = view.environment.get("cuda")
        return str(cuda) if cuda else None
    promised = view.promises.get("cuda", "none")
    return None if promised == "none" else promised


def datacenter(view: View) -> bool | None:
    """Return whether every GPU here is a data-centre one; None when a model is unknown."""
    known = [find_gpu(matrix(view), str(gpu.signal("name").value)) for gpu in view.snapshot.gpus]
    if not known or None in known:
        return None
    return all(gpu.datacenter for gpu in known if gpu is not None)

"""Specs to files. Pure: the same spec gives the same bytes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final

from envcheck.errors import ConfigError
from envcheck.images.render.committed_files import lock_files
from envcheck.images.spec import LABEL_PREFIX, ImageSpec
from envcheck.templating import rendered

# All a base must have: its own Python, roots for TLS, an init that reaps. A bootstrapped base includes them.
OS_PACKAGES: Final = ("ca-certificates", "python3", "python3-venv", "tini")
PROVEN: Final = ("torch", "cuda", "cudnn", "nccl", "python", "arch-list")


def render_cell(spec: ImageSpec) -> dict[str, bytes]:
    """Return the files of images/<cell>/: the Dockerfile and the locks."""
    if not spec.locks:
        message = f"{spec.cell} has no lock"
        raise ConfigError(message, fix=f"run `envcheck lock {spec.cell}` where its index can be reached")
    return {"Dockerfile": render_dockerfile(spec).encode(), **lock_files(spec.cell, spec.locks)}


def render_cells(specs: Iterable[ImageSpec]) -> dict[str, bytes]:
    """Return all of images/, path below it -> bytes."""
    return {f"{spec.cell}/{name}": content for spec in specs for name, content in render_cell(spec).items()}


def render_dockerfile(spec: ImageSpec, *, base: str | None = None, kept: Mapping[str, str] | None = None) -> str:
    """Return the Dockerfile; with `kept`, the one that leaves keep/ and this environment in the image."""
    return rendered("Dockerfile.j2", template_context(spec, base=base, kept=kept))


def template_context(
    spec: ImageSpec, *, base: str | None = None, kept: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return what the Dockerfile's template is given."""
    cuda = spec.promises["cuda"]
    return {
        "cell": spec.cell,
        "base": base or base_reference(spec),
        "packages": OS_PACKAGES,
        "python": spec.cell.python,
        "locks": spec.locks,
        "proof": " ".join(shlex.quote(f"{name}={spec.promises[name]}") for name in PROVEN),
        "keep": kept is not None,
        "kept_environment": dict(kept or {}),
        "cuda_major": None if cuda == "none" else cuda.partition(".")[0],
        "labels": labels(spec),
    }


def base_reference(spec: ImageSpec, registry: str | None = None) -> str:
    """Return the base, by digest once known; `registry` stands in for the engine's default one."""
    image = spec.base.image + (f"@{spec.base.digest}" if spec.base.digest else "")
    if registry is None:
        return image
    return f"{registry.rstrip('/')}/{image if '/' in image else f'library/{image}'}"


def labels(spec: ImageSpec) -> dict[str, str]:
    """Return every label but the revision, which only a build knows, sorted."""
    described = f"PyTorch {spec.promises['torch']}, Python {spec.cell.python}, {spec.target}"
    oci = {
        "org.opencontainers.image.base.name": spec.base.image,
        "org.opencontainers.image.description": described,
        "org.opencontainers.image.title": f"{spec.cell}-{spec.target}",
        "org.opencontainers.image.version": spec.tag,
    }
    if spec.base.digest:
        oci["org.opencontainers.image.base.digest"] = spec.base.digest
    return dict(sorted({**oci, **{f"{LABEL_PREFIX}{name}": value for name, value in spec.promises.items()}}.items()))

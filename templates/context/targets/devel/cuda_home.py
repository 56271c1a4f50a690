# ruff: noqa: INP001, T201 (a script of a build)
"""cuda_home.py SITE-PACKAGES HOME CUDA: NVIDIA's wheels linked into one HOME, which compilers take for a CUDA toolkit.

Each wheel has its own bin/, include/ and lib/, and no name without a version that a linker looks for. Exit 1 unless
what the wheels of this CUDA ("13.0") have works: from 13 on a kernel compiles, before that ptxas answers.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

PARTS = {"bin": "bin", "include": "include", "nvvm": "nvvm", "lib": "lib64"}
LEFT_OUT = ("__init__.py", "__pycache__")
# The first CUDA whose wheels have nvcc, and what it must compile: host and device code, with headers of two wheels.
WITH_NVCC = 13
KERNEL = "#include <cuda_fp16.h>\n#include <cuda/std/cmath>\n__global__ void grow(float *x) { *x += 1; }\n"


def link(site_packages: Path, home: Path) -> None:
    """Link what all of NVIDIA's wheels have into `home`."""
    packages = sorted(path for path in (site_packages / "nvidia").iterdir() if path.is_dir())
    for part, name in PARTS.items():
        merge([package / part for package in packages if (package / part).is_dir()], home / name)
    for library in sorted((home / "lib64").glob("lib*.so.*")):
        plain = library.with_name(library.name.partition(".so.")[0] + ".so")
        if not plain.is_symlink():
            plain.symlink_to(library.name)


def merge(directories: list[Path], target: Path) -> None:
    """Link each entry of these directories into `target`; directories of one name become one."""
    target.mkdir(parents=True)
    entries: dict[str, list[Path]] = {}
    for path in (path for directory in directories for path in sorted(directory.iterdir())):
        if path.name not in LEFT_OUT:
            entries.setdefault(path.name, []).append(path)
    for name, paths in entries.items():
        if len(paths) > 1 and all(path.is_dir() for path in paths):
            merge(paths, target / name)
        else:
            (target / name).symlink_to(paths[0])


def broken(home: Path, cuda: str) -> str | None:
    """Return why the compilers in `home` are not those of this CUDA or do not work, None if they do."""
    whole = int(cuda.partition(".")[0]) >= WITH_NVCC
    name = "nvcc" if whole else "ptxas"
    log = run([str(home / "bin" / name), "--version"])
    if f"release {cuda}," not in log:
        release = re.search(r"release [0-9.]+", log)
        return f"no {name} of CUDA {cuda}: {release[0] if release else last_words(log)}"
    if not whole:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        source, output = Path(scratch) / "grow.cu", Path(scratch) / "grow.o"
        source.write_text(KERNEL, encoding="ascii")
        log = run([str(home / "bin/nvcc"), "-c", str(source), "-o", str(output)])
        return None if output.exists() else f"nvcc compiles no kernel: {last_words(log)}"


def last_words(output: str) -> str:
    """Return the end of a command's output in one line."""
    return " ".join(output.split())[-300:]


def run(argv: list[str]) -> str:
    """Return all that a command says, or why it did not run."""
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except OSError as error:
        return str(error)
    return done.stdout


def main(arguments: list[str]) -> int:
    """Link, and try the compilers."""
    site_packages, home, cuda = arguments
    link(Path(site_packages), Path(home))
    why = broken(Path(home), cuda)
    if why is not None:
        print(f"envcheck: proof failed: {why}", file=sys.stderr)
    return 0 if why is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

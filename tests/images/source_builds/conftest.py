"""Builds of the CPU cell and of one with CUDA, and sdists made on the spot."""

import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from envcheck.images.source_recipe import ExtensionBuild, Sdist
from envcheck.images.spec import load_spec
from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.facts.model import Cell
from envcheck.matrix.file.load import load

SHA256 = "a" * 64
MakeSdist = Callable[..., Path]


@pytest.fixture(scope="session")
def facts() -> Facts:
    return Facts(load())


@pytest.fixture(scope="session")
def make_build(facts: Facts) -> Callable[..., ExtensionBuild]:
    def make(cell: str, *gpus: str, sha256: str = SHA256) -> ExtensionBuild:
        parsed = Cell.parse(cell)
        assert parsed is not None
        sdist = Sdist(name="scatter-ops", version="1.0", sha256=sha256, requires=[])
        return ExtensionBuild(sdist=sdist, devel=load_spec(facts.matrix, parsed, "devel"), gpus=gpus)

    return make


@pytest.fixture
def make_sdist(tmp_path: Path) -> MakeSdist:
    def make(name: str = "scatter-ops", version: str = "1.0", files: Mapping[str, str] | None = None) -> Path:
        stem = f"{name.replace('-', '_')}-{version}"
        path = tmp_path / "sdists" / f"{stem}.tar.gz"
        path.parent.mkdir(exist_ok=True)
        texts = {"PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", **(files or {})}
        with tarfile.open(path, "w:gz") as archive:
            for file, text in texts.items():
                entry = tarfile.TarInfo(f"{stem}/{file}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))
        return path

    return make

"""An image's ledger names every byte once: whose it is, what is there twice, and what nothing needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envcheck.images.engines import size_inside
from envcheck.images.engines.size import Duplicate, duplicates

SITE = "opt/venv/lib/python3.11/site-packages"
MB = 1 << 20


def put(root: Path, path: str, size: int) -> Path:
    """Write a file of zeros."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes(size))
    return file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a small root file system with one package of each kind."""
    put(tmp_path, f"{SITE}/torch/lib/libtorch.so", 3 * MB)
    put(tmp_path, f"{SITE}/torch/__init__.py", 100)
    put(tmp_path, f"{SITE}/torch/__pycache__/__init__.cpython-311.pyc", 70)
    record = put(tmp_path, f"{SITE}/torch-2.13.0+cpu.dist-info/RECORD", 0)
    record.write_text("torch/__init__.py,,\ntorch/lib/libtorch.so,,\n../../../bin/torchrun,,\n")
    put(tmp_path, "opt/venv/bin/torchrun", 10)
    put(tmp_path, "opt/envcheck/lib/python3.11/site-packages/click.py", 50)
    put(tmp_path, "usr/bin/tini", 20)
    put(tmp_path, "usr/share/doc/tini/copyright", 5)
    put(tmp_path, "usr/lib/libc.a", 40)
    put(tmp_path, "var/lib/dpkg/info/tini.list", 0).write_text("/bin/tini\n/usr/share/doc/tini/copyright\n")
    put(tmp_path, "home/user/notes", 7)
    put(tmp_path, "proc/kcore", 9999)
    os.link(tmp_path / "home/user/notes", tmp_path / "home/user/again")
    return tmp_path


def test_every_byte_has_one_owner(root: Path) -> None:
    actual = size_inside.measured(str(root))
    listed = len((root / "var/lib/dpkg/info/tini.list").read_bytes())
    record = len((root / f"{SITE}/torch-2.13.0+cpu.dist-info/RECORD").read_bytes())
    assert actual["packages"] == {"torch==2.13.0+cpu": 3 * MB + 110}
    assert actual["kinds"] == {
        "packages": 3 * MB + 110,
        "bytecode": 70,
        "envcheck": 50,
        "system": 25,
        "other": 7 + 40 + listed + record,
    }
    assert actual["unneeded"] == {"documentation": 5, "static libraries": 40}
    assert actual["libraries"] == [(f"/{SITE}/torch/lib/libtorch.so", 3 * MB)]


def test_a_library_in_two_places_is_a_duplicate_and_its_links_and_versions_in_one_place_are_not() -> None:
    there = [
        ("/opt/venv/nvidia/cublas/lib/libcublasLt.so.12", 700),
        ("/usr/local/cuda/lib64/libcublasLt.so.12.8.4.1", 750),
        ("/opt/venv/a.libs/libgomp-a34b3233.so.1", 3),
        ("/opt/venv/b.libs/libgomp-24e2ab19.so.1.0.0", 2),
        ("/opt/venv/cudnn/lib/libcudnn_ops.so.9", 5),
        ("/opt/venv/cudnn/lib/libcudnn_adv.so.9", 5),
        ("/opt/venv/x/_C.cpython-311-x86_64-linux-gnu.so", 9),
        ("/opt/venv/y/_C.cpython-311-x86_64-linux-gnu.so", 9),
    ]
    assert duplicates(there) == [
        Duplicate(library="libcublasLt", bytes=700, paths=sorted(path for path, _ in there[:2])),
        Duplicate(library="libgomp", bytes=2, paths=sorted(path for path, _ in there[2:4])),
    ]

"""`matrix wheel` writes the row that the facts have of real wheels, and refuses in one line what it cannot read."""

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from envcheck.matrix.extensions.file import ExtensionRelease, ExtensionWheel, load, loads
from envcheck.mirrors.net.client import hub_client
from envcheck.mirrors.profiles.load import load as load_profile
from tests.elf_files import CUBIN, PTX, MadeLibrary, library
from tests.index_wheels import url_of
from tests.wheels import wheel

Run = Callable[..., tuple[int, str, str]]
# Of each kind: no library, the stable ABI, C++ with both string ABIs, mixed, CUDA 12, 13 and none, abi3 and py39,
# PTX, bundled NVIDIA libraries (torchvision), several libraries with different code. 115 MB in all.
REAL = {
    "auto-gptq": ["0.7.1"],
    "autoawq": ["0.2.6"],
    "numba-cuda": ["0.30.4"],
    "torch-tensorrt": ["2.8.0", "2.10.0", "2.14.0"],
    "torchao": ["0.14.1", "0.16.0", "0.18.0"],
    "torchaudio": ["2.9.1", "2.10.0", "2.11.0"],
    "torchcodec": ["0.7.0", "0.10.0", "0.13.0", "0.15.0", "0.17.0"],
    "torchvision": ["0.25.0", "0.29.2"],
    "xformers": ["0.0.35"],
}
EXTENSION = library(
    MadeLibrary(
        needed=["libc10.so", "libcudart.so.13"],
        undefined=["_ZN3c105ErrorD1Ev"],
        versions=["GLIBC_2.34"],
        code=[(CUBIN, 90), (PTX, 120)],
    )
)


def opened(run: Run, *arguments: str) -> tuple[int, str, str]:
    return run("matrix", "wheel", *arguments)


def made(directory: Path, data: bytes = EXTENSION, name: str = "ext-1.0-cp312-cp312-manylinux_2_28_x86_64.whl") -> Path:
    requires = [
        "torch>=2.10",
        "numpy<3; python_version >= '3.12'",
        "colorama; sys_platform == 'win32'",
        "x; extra=='y'",
    ]
    path = wheel(directory, "ext", requires=requires, files={"ext/_C.so": data})
    return path.rename(directory / name)


def fact(name: str, version: str) -> tuple[ExtensionRelease, ExtensionWheel]:
    extension = load().find(name)
    assert extension is not None
    release = next(row for row in extension.releases if row.version == version)
    return release, next(row for row in release.wheels if row.channel == "pypi" and row.arch == "x86_64")


@pytest.mark.tools
@pytest.mark.parametrize(("name", "version"), [(name, version) for name, listed in REAL.items() for version in listed])
def test_a_real_wheel_has_the_record_of_the_facts(run: Run, tmp_path: Path, name: str, version: str) -> None:
    release, expected = fact(name, version)
    url = url_of(name, version, expected.tags)
    path = tmp_path / unquote(url.rpartition("/")[2].partition("#")[0])
    with hub_client(load_profile("host")).get(url) as answer:
        path.write_bytes(b"".join(answer.chunks(1 << 20)))
    status, out, err = opened(run, str(path))
    assert status == 0, err
    [row] = loads(out.encode()).extensions
    [written] = row.releases
    [actual] = written.wheels
    assert (row.name, written.version, written.requires_python) == (name, version, release.requires_python)
    # The facts keep only what several extensions share.
    assert {key: written.requires.get(key) for key in release.requires} == release.requires
    assert set(actual.tags) <= set(expected.tags)
    code = ("sass", "ptx") if expected.code_verified else ()  # else its project says for which GPUs it is
    for field in ("arch", "glibc", "size_mb", "abi", "cxx11abi", "cuda", "cuda_choices", *code):
        assert getattr(actual, field) == getattr(expected, field), field


def test_the_row_is_a_file_of_facts(run: Run, tmp_path: Path) -> None:
    path = made(tmp_path)
    code, out, err = opened(run, str(path))
    assert code == 0, err
    [row] = loads(out.encode()).extensions
    [release] = row.releases
    [actual] = release.wheels
    assert (row.name, release.version, release.requires) == ("ext", "1.0", {"numpy": "<3", "torch": ">=2.10"})
    assert (actual.channel, actual.arch, actual.tags, actual.glibc) == ("pypi", "x86_64", ["cp312-cp312"], "2.28")
    assert (actual.abi, actual.cxx11abi, actual.cuda) == ("c++", [True], ["13"])
    assert (actual.sass, actual.ptx) == (["9.0"], ["12.0"])
    assert actual.sha256 == {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
    assert actual.note == "_C.so needs glibc 2.34, newer than the tag says"


def test_a_file_name_says_what_metadata_does_not(run: Run, tmp_path: Path) -> None:
    name = "ext-1.0+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"
    path = wheel(tmp_path, "ext", "1.0+cu12torch2.8cxx11abiTRUE").rename(tmp_path / name)
    document: dict[str, Any] = json.loads(opened(run, str(path), "--json", "--channel", "project")[1])
    actual = document["row"]["releases"][0]["wheels"][0]
    assert (actual["torch"], actual.get("glibc"), actual["channel"]) == (["2.8"], None, "project")
    assert (document["schema"], document["libraries"], document["size"]) == (
        "envcheck/wheel/1",
        [],
        path.stat().st_size,
    )


@pytest.mark.parametrize("data", [EXTENSION[:-8], b"", b"INPUT(-lc10)\n"], ids=["truncated", "empty", "linker script"])
def test_libraries_that_cannot_be_read_are_not_known(run: Run, tmp_path: Path, data: bytes) -> None:
    code, out, err = opened(run, str(made(tmp_path, data)))
    [row] = loads(out.encode()).extensions
    assert (row.releases[0].wheels[0].sass, row.releases[0].wheels[0].cuda) == (None, None)
    assert code == 3
    assert "1 of its libraries not read, first ext/_C.so" in err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent.whl", "no such file"),
        ("ext-1.0.tar.gz", "not a wheel"),
        ("wheel.whl", "NAME-VERSION-PYTHON-ABI-PLATFORM.whl"),
        ("ext-1.0-cp312-cp312-win_amd64.whl", "is for win_amd64"),
        ("ext-1.0-cp3x-cp3x-linux_x86_64.whl", "is for cp3x, no CPython"),
        ("ext-1.0-pp310-pypy310_pp73-linux_x86_64.whl", "is for pp310, no CPython"),
        ("other-1.0-cp312-cp312-linux_x86_64.whl", "its METADATA is of ext 1.0"),
        ("ext-2.0-cp312-cp312-linux_x86_64.whl", "its METADATA is of ext 1.0"),
    ],
)
def test_what_is_no_wheel_for_linux_is_refused(run: Run, tmp_path: Path, name: str, words: str) -> None:
    if name != "absent.whl":
        made(tmp_path, name=name)
    code, out, err = opened(run, str(tmp_path / name))
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_library_for_another_machine_counts_as_not_read(run: Run, tmp_path: Path) -> None:
    code, out, err = opened(run, str(made(tmp_path, library(MadeLibrary(code=[(CUBIN, 90)], machine=183)))))
    [row] = loads(out.encode()).extensions
    assert (code, row.releases[0].wheels[0].sass, row.releases[0].wheels[0].abi) == (3, None, None)
    assert "ext/_C.so: it is for aarch64" in err


def test_metadata_of_another_project_or_that_cannot_be_read_is_said(run: Run, tmp_path: Path) -> None:
    name = "ext-1.0-cp312-cp312-linux_x86_64.whl"
    for folder, requires, words in (
        ("other-1.0", "torch", "its METADATA lies in other-1.0.dist-info, which no installer takes"),
        ("ext-1.0", "torch (==2.9.1", "its METADATA requires 'torch (==2.9.1', which names no versions of an index"),
        ("ext-1.0", "torch @ https://x.example/t.whl", "which names no versions of an index"),
        ("ext-1.0", "torch\nRequires-Python: banana", "requires Python 'banana', which is no version specifier"),
        ("ext-1.0", "torch\nVersion: 1.0", ""),
    ):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            text = f"Metadata-Version: 2.1\nName: ext\nVersion: 1.0\nRequires-Dist: {requires}\n"
            archive.writestr(f"{folder}.dist-info/METADATA", text)
        code, out, err = opened(run, str(tmp_path / name))
        assert (code, out == "", words in err, err.count("\n")) == (
            (2, True, True, 1) if words else (0, False, True, 0)
        )


@pytest.mark.parametrize(("suffixes", "code"), [(("311", "312"), 0), (("311",), 2), ((), 0)])
def test_a_wheel_that_was_renamed_for_another_python_is_refused(
    run: Run, tmp_path: Path, suffixes: tuple[str, ...], code: int
) -> None:
    files = {f"ext/_C.cpython-{suffix}-x86_64-linux-gnu.so": EXTENSION for suffix in suffixes}
    path = wheel(tmp_path, "ext", files={"ext/_D.abi3.so": EXTENSION, **files})
    status, _, err = opened(run, str(path.rename(tmp_path / "ext-1.0-cp312-cp312-linux_x86_64.whl")))
    assert status == code
    assert ("its module ext/_C is for cp311, not for cp312" in err) is bool(code)


SHIPPED = Path(__file__).parents[2] / "matrix.yaml"


def test_show_one_release(run: Run) -> None:
    code, out, _ = run("matrix", "show", "--torch", "2.8.0")
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()[1:5]] == ["cu129", "cu128", "cu126", "cpu"]
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = run("matrix", "show", "--torch", "9", "--json")
    assert (code, json.loads(out)) == (2, [])


def test_a_list_of_gpus_says_the_driver_of_each_whole_and_pads_nothing(run: Run) -> None:
    _, out, _ = run("matrix", "show", "--list-gpus")
    rows = [line.split() for line in out.splitlines()]
    assert ["520.56.06", "9.0", "x86_64", "yes", "H100"] in rows
    assert "…" not in out
    for shown in (out, run("images", "torch2.8.0-*")[1], run("resolve", "--torch", "2.8", "--no-here", "--all")[1]):
        assert not [line for line in shown.splitlines() if line != line.rstrip() or len(line) > 80]


def test_show_takes_what_resolve_takes(run: Run) -> None:
    _, arm, _ = run("matrix", "show", "--torch", "2.13.0", "--arch", "arm64")
    assert arm == run("matrix", "show", "--torch", "2.13.0", "--arch", "aarch64")[1]
    assert "* what the default Python index has" in arm.splitlines()


def test_check_passes_on_what_is_shipped_finds_and_exits_1(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("matrix", "check")
    assert (code, out) == (0, "nothing wrong with 29 torch releases, 31 GPUs, 27 driver branches\n")
    broken = tmp_path / "matrix.yaml"
    broken.write_text(SHIPPED.read_text().replace('floor: "525.60.13"', 'floor: "425.60.13"'))
    code, out, _ = run("--matrix", str(broken), "matrix", "check")
    assert code == 1
    assert "CUDA 12.x: floor 425.60.13 is not above 450.80.02 of 11.x" in out
    code, out, _ = run("--matrix", str(broken), "matrix", "check", "--json")
    assert code == 1
    assert json.loads(out)[0]["where"] == "CUDA 12.x"

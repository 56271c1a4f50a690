"""Without an engine: the same lock and promises as a virtual environment, complete or not at all. Real uv."""

import dataclasses
import hashlib
import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from envcheck.errors import UnavailableError
from envcheck.images.build_log import FailedError
from envcheck.images.engines import venv
from envcheck.images.engines.venv import Environment
from envcheck.images.lock_with_uv import lock_cell
from envcheck.images.lockfile import Lock, Pin
from envcheck.images.spec import ImageSpec, make_spec, with_user_packages
from envcheck.matrix.facts.model import Cell, Matrix
from envcheck.mirrors.profiles.model import Index, Profile
from tests.http_server import Answer, Request, Server, Servers, directory
from tests.wheels import wheel

Build = Callable[..., Environment]


@pytest.fixture
def build(spec: ImageSpec, profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))

    def run(spec: ImageSpec = spec) -> Environment:
        return venv.build(spec, profile, tmp_path / "env", timeout=120, on_line=lambda _: None)

    return run


def imported(built: Environment) -> str:
    program = "import torch, numpy; print(torch.__version__)"
    return subprocess.run([built.python, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def test_it_is_what_it_promises(build: Build, spec: ImageSpec) -> None:
    built = build()
    assert imported(built) == spec.promises["torch"] == "2.8.0+cu128"
    # Libraries of the machine it lies on are not its own to promise.
    promised = json.loads((Path(built.path) / "envcheck-promises.json").read_text())
    assert {**promised, "fabric": "libibverbs.so.1 libmlx5.so.1"} == spec.own_promises
    assert "fabric" not in promised
    assert "numpy==" in spec.own_promises["packages"]
    assert "used pypi-1" in Path(built.log or "").read_text()


def test_a_build_that_fails_leaves_the_environment_that_was_there(build: Build, spec: ImageSpec) -> None:
    built = build()
    (Path(built.path) / "lib/mine").touch()
    pins = [Pin(name="torch", version="2.8.0", sha256=["0" * 64])]
    wrong = [msgspec.structs.replace(one, pins=pins) if one.group == "torch" else one for one in spec.locks]
    with pytest.raises(FailedError, match="hash mismatch") as failed:
        build(msgspec.structs.replace(spec, locks=wrong))
    assert (failed.value.detail[0], failed.value.exit_code) == ("in install torch", 1)
    assert imported(built) == "2.8.0+cu128"
    assert (Path(built.path) / "lib/mine").exists()
    # A build that was killed: the new one is not complete, and the earlier one stands beside it.
    Path(built.path).rename(Path(built.path).with_name(".env.earlier"))
    Path(built.path).mkdir()
    (Path(built.path) / "envcheck-partial").touch()
    assert build().skipped is True
    assert imported(built) == "2.8.0+cu128"
    assert sorted(path.name for path in Path(built.path).parent.glob("*env*")) == ["env"]


def test_a_torch_that_is_not_the_promised_one_is_refused(build: Build, spec: ImageSpec) -> None:
    lied = msgspec.structs.replace(spec, promises={**spec.promises, "cudnn": "9.99.0"})
    with pytest.raises(FailedError, match="version assertion failed") as failed:
        build(lied)
    assert any("cudnn is 9.10.2, promised was 9.99.0" in line for line in failed.value.detail)


def test_a_package_on_top_overwrites_no_file_of_the_cell(
    build: Build, spec: ImageSpec, simple_index: Callable[[Path], Path], tmp_path: Path
) -> None:
    """The wheels of NCCL for cu12 and cu13 have one path."""
    whole = {"nvidia_nccl_cu12.py": "VERSION = '2.27.3'\n", "own.py": ""}  # the same bytes do no harm
    other = {"nvidia_nccl_cu12.py": "VERSION = 'of another CUDA'\n"}
    specs = []
    for version, files in (("2.30.7", whole), ("2.30.8", other)):
        path = wheel(tmp_path / version, "nvidia-nccl-cu13", version, files=files)
        simple_index(path.parent)
        pin = Pin(name="nvidia-nccl-cu13", version=version, sha256=[hashlib.sha256(path.read_bytes()).hexdigest()])
        specs.append(with_user_packages(spec, Lock(group="user", index="pypi", pins=[pin])))
    assert build(specs[0]).skipped is False
    with pytest.raises(FailedError, match="a package on top overwrites files of the cell's packages") as failed:
        build(specs[1])
    line = "envcheck: overwritten: nvidia-nccl-cu13 overwrote 1 of nvidia-nccl-cu12, e.g. nvidia_nccl_cu12.py"
    assert line in failed.value.detail


def test_a_python_that_is_not_here_says_what_to_do() -> None:
    with pytest.raises(UnavailableError, match=r"no Python 3\.77 on this machine; `uv python install 3\.77`"):
        venv.find_python("3.77")


def test_devel_has_nvidias_wheels_as_one_toolkit(
    build: Build, spec: ImageSpec, simple_index: Callable[[Path], Path], tmp_path: Path
) -> None:
    ptxas = '#!/bin/sh\necho "Cuda compilation tools, release 12.8, V1"\n'
    files = {"nvidia/cuda_nvcc/bin/ptxas": ptxas, "nvidia/cuda_nvcc/include/crt/host_config.h": "config\n"}
    path = wheel(tmp_path / "nvcc", "nvidia-cuda-nvcc-cu12", "12.8.93", files=files)
    simple_index(path.parent)
    pin = Pin(name="nvidia-cuda-nvcc-cu12", version="12.8.93", sha256=[hashlib.sha256(path.read_bytes()).hexdigest()])
    lock = Lock(group="devel", index="pypi", pins=[pin])
    devel = msgspec.structs.replace(spec, target="devel", locks=[*spec.locks, lock])
    home = Path(build(devel).path) / "cuda"
    assert (home / "include/crt/host_config.h").read_text() == "config\n"
    assert (home / "bin/ptxas").is_symlink()


CELL = Cell(torch="2.8.0", variant="cu128", python="3.11")


class Mirror(Server):
    """A mirror of a tree whose pages are right; `faults` says of which project what is wrong with its wheel."""

    def __init__(self, root: Path, address: str, over: threading.Event) -> None:
        super().__init__(self.answer, address)
        self.root, self.over = root, over
        self.faults: dict[str, str] = {}

    @property
    def wheels(self) -> list[str]:
        return [one.path for one in self.requests if one.method == "GET" and one.path.endswith(".whl")]

    def answer(self, request: Request) -> Answer:
        fault = self.faults.get(request.path.rpartition("/")[2].partition("-")[0])
        if fault in {"404", "500"}:
            return Answer(int(fault))
        files = directory(self.root / "evil" if fault == "wrong bytes" else self.root)
        if self.faults.get("ranges") == "none":
            del request.headers["Range"]
        answer = files(request)
        if fault in {"hangs", "breaks off"}:
            return dataclasses.replace(answer, body=self._half(answer.body, fault), close=True)
        return answer

    def _half(self, parts: bytes | Iterable[bytes], fault: str) -> Iterator[bytes]:
        body = parts if isinstance(parts, bytes) else b"".join(parts)
        yield body if len(body) == 1 else body[: len(body) // 2]
        if fault == "hangs":
            self.over.wait(60)


@pytest.fixture
def mirrors(torch_wheels: Path, simple_index: Callable[[Path], Path], servers: Servers) -> Iterator[list[Mirror]]:
    """Start two mirrors of the same tree; the test says which of their wheels are not right."""
    root, over = simple_index(torch_wheels).parent, threading.Event()
    # A whole wheel of the right name and size, and not the one that was locked.
    evil = wheel(root / "evil", "sympy", "1.14.0", files={"sympy.py": "VERSION = 'stolen'\n"})
    assert evil.stat().st_size == (root / evil.name).stat().st_size
    yield [servers.start(Mirror(root, address, over)) for address in ("127.0.0.2", "127.0.0.3")]
    over.set()


@pytest.fixture
def profile(mirrors: list[Mirror]) -> Profile:
    return Profile(name="two", pypi=[Index(url=f"{mirror.url}/simple") for mirror in mirrors])


@pytest.fixture
def spec(matrix: Matrix, mirrors: list[Mirror]) -> ImageSpec:
    well = mirrors[1]
    locks = lock_cell(matrix, CELL, Profile(name="well", pypi=[Index(url=f"{well.url}/simple")]))
    well.requests.clear()
    return make_spec(matrix, CELL, locks)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give a silent mirror a second, and nothing a cache that another test filled."""
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path / "home"))


def netloc(url: str) -> str:
    return urlsplit(url).netloc


def same_as_locked(built: Environment, well: Mirror, wheels: Path) -> None:
    """Fail unless every module that was installed is the one of the good wheels."""
    program = (
        "import importlib, json, sys; print(json.dumps({n: open(importlib.import_module(n).__file__).read() "
        "for n in sys.argv[1:]}))"
    )
    names = ["nvidia_cudnn_cu12", "nvidia_nccl_cu12", "sympy", "numpy"]
    completed = subprocess.run([built.python, "-I", "-c", program, *names], check=True, capture_output=True, text=True)
    versions = {path.name.split("-")[0]: path.name.split("-")[1] for path in wheels.glob("*.whl")}
    assert json.loads(completed.stdout) == {name: f"VERSION = {versions[name]!r}\n" for name in names}
    assert well.wheels


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize(
    ("faults", "reasons"),
    [
        (
            {"nvidia_nccl_cu12": "404", "torch": "500", "sympy": "wrong bytes"},
            {"nvidia": "404: the mirror does not have it", "torch": "the mirror is too busy", "base": "hash mismatch"},
        ),
        ({"nvidia_nccl_cu12": "hangs", "sympy": "breaks off"}, {"nvidia": "timed out", "base": "exit status 2"}),
    ],
)
def test_the_build_ends_with_the_second_mirror_and_says_why(
    faults: Mapping[str, str],
    reasons: Mapping[str, str],
    mirrors: list[Mirror],
    spec: ImageSpec,
    profile: Profile,
    tmp_path: Path,
    torch_wheels: Path,
) -> None:
    ill, well = mirrors
    ill.faults.update(faults)
    built = venv.build(spec, profile, tmp_path / "env", timeout=120, on_line=lambda _: None)
    same_as_locked(built, well, torch_wheels)
    first, second = f"pypi-1 ({netloc(ill.url)})", f"pypi-2 ({netloc(well.url)})"
    data = {used.group: used for used in built.sources}
    assert {group: used.source for group, used in data.items()} == {
        group: second if group in reasons else first for group in ("nvidia", "torch", "base")
    }
    for group, reason in reasons.items():
        assert data[group].failed[first].startswith(reason), data[group]
    assert {path.rpartition("/")[2].partition("-")[0] for path in ill.wheels} >= faults.keys()

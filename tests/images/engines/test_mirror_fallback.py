"""A mirror that fails in the middle of a build: the next one has it, that is said, and no wrong byte gets in.

Two real servers on the loopback, the build's own installer, and the downloader of --prefetch.
"""

import dataclasses
import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from envcheck.images.engines import venv
from envcheck.images.engines.venv import Environment
from envcheck.images.lock_with_uv import lock_cell
from envcheck.images.spec import ImageSpec, make_spec
from envcheck.matrix.facts.model import Cell, Matrix
from envcheck.mirrors.profiles.model import Index, Profile
from tests.http_server import Answer, Request, Server, Servers, directory
from tests.wheels import wheel

CELL = Cell(torch="2.8.0", variant="cu128", python="3.11")


class Mirror(Server):
    """A mirror of a tree whose pages are right; `faults` says of which project what is wrong with its wheel."""

    def __init__(self, root: Path, address: str, over: threading.Event) -> None:
        super().__init__(self.answer, address)
        self.root, self.over = root, over
        self.faults: dict[str, str] = {}

    @property
    def wheels(self) -> list[str]:
        """Return the wheels that were fetched."""
        return [one.path for one in self.requests if one.method == "GET" and one.path.endswith(".whl")]

    def answer(self, request: Request) -> Answer:
        """Return a file, or what is wrong."""
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
def ill(mirrors: list[Mirror]) -> Mirror:
    return mirrors[0]


@pytest.fixture
def well(mirrors: list[Mirror]) -> Mirror:
    return mirrors[1]


@pytest.fixture
def profile(ill: Mirror, well: Mirror) -> Profile:
    return Profile(name="two", pypi=[Index(url=f"{ill.url}/simple"), Index(url=f"{well.url}/simple")])


@pytest.fixture
def spec(matrix: Matrix, well: Mirror) -> ImageSpec:
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
            {"nvidia": "404: the mirror does not have it", "torch": "exit status 2", "base": "hash mismatch"},
        ),
        ({"nvidia_nccl_cu12": "hangs", "sympy": "breaks off"}, {"nvidia": "timed out", "base": "exit status 2"}),
    ],
)
def test_the_build_ends_with_the_second_mirror_and_says_why(
    faults: Mapping[str, str],
    reasons: Mapping[str, str],
    ill: Mirror,
    well: Mirror,
    spec: ImageSpec,
    profile: Profile,
    tmp_path: Path,
    torch_wheels: Path,
) -> None:
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

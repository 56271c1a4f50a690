"""A tiny matrix, wheels made on the spot, and an index on the loopback: real uv, no network."""

import hashlib
import ssl
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from envcheck.errors import UnavailableError
from envcheck.images.engines import venv
from envcheck.images.lock_with_uv import lock_cell
from envcheck.images.lockfile import Lock, Pin
from envcheck.images.spec import ImageSpec, make_spec
from envcheck.matrix.facts.model import Cell, Matrix
from envcheck.mirrors.profiles.model import Index, Profile
from tests.http_server import Answer, Request, Server, Servers, directory
from tests.wheels import wheel

# What prove.py asks of a torch: versions and the architectures of its kernels.
_FAKE_TORCH = {
    "torch/version.py": "__version__ = '2.8.0+cu128'\ncuda = '12.8'\n",
    "torch/__init__.py": (
        "from types import SimpleNamespace as N\nfrom torch import version\n__version__ = version.__version__\n"
        "backends = N(cudnn=N(version=lambda: 91002))\ncuda = N(nccl=N(version=lambda: (2, 27, 3)))\n"
        "_C = N(_cuda_getArchFlags=lambda: 'sm_90 sm_80')\n"
    ),
}


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let uv give a dead index up at once."""
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")


@pytest.fixture
def matrix() -> Matrix:
    return msgspec.yaml.decode(Path(__file__).with_name("matrix.yaml").read_bytes(), type=Matrix)


@pytest.fixture
def locks() -> list[Lock]:
    def pins(*named: tuple[str, str]) -> list[Pin]:
        return [Pin(name=n, version=v, sha256=[hashlib.sha256(n.encode()).hexdigest()]) for n, v in named]

    nvidia = pins(("nvidia-cudnn-cu12", "9.10.2.21"), ("nvidia-nccl-cu12", "2.27.3"))
    return [
        Lock(group="nvidia", index="pypi", pins=nvidia),
        Lock(group="torch", index="pypi", pins=pins(("torch", "2.8.0"))),
        Lock(group="base", index="pypi", pins=pins(("numpy", "2.5.5"))),
    ]


@pytest.fixture
def torch_wheels(tmp_path: Path) -> Path:
    where = tmp_path / "wheels"
    needs = ("nvidia-cudnn-cu12==9.10.2.21", "nvidia-nccl-cu12==2.27.3", "sympy")
    wheel(where, "torch", "2.8.0", requires=needs, files=_FAKE_TORCH)
    wheel(where, "torchvision", "0.23.0", requires=["torch==2.8.0"])
    wheel(where, "nvidia-cudnn-cu12", "9.10.2.21")
    wheel(where, "nvidia-nccl-cu12", "2.27.3")
    wheel(where, "sympy", "1.14.0")
    for name, version in (("numpy", "2.5.5"), ("pip", "26.3"), ("setuptools", "84.2.1")):
        wheel(where, name, version)
    return where


@pytest.fixture
def simple_index(tmp_path: Path) -> Callable[[Path], Path]:
    """Return a maker of a PEP 503 tree over a directory of wheels."""

    def make(wheels: Path) -> Path:
        root = tmp_path / "index"
        for path in sorted(wheels.glob("*.whl")):
            page = root / "simple" / path.name.split("-")[0].replace("_", "-") / "index.html"
            page.parent.mkdir(parents=True, exist_ok=True)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            (root / path.name).write_bytes(path.read_bytes())
            with page.open("a") as file:
                file.write(f'<a href="../../{path.name}#sha256={digest}">{path.name}</a>\n')
        return root / "simple"

    return make


class Site(Server):
    """A served directory, and the Authorization header that it insists on, if any."""

    def __init__(self, root: Path, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(self.answer, tls=tls)
        self.files = directory(root)
        self.insists: str | None = None

    def answer(self, request: Request) -> Answer:
        if self.insists and request.login != self.insists:
            return Answer(401, headers={"WWW-Authenticate": 'Basic realm="test"'})
        return self.files(request)


@pytest.fixture
def python() -> str:
    """Return a version of Python that is on this machine and has wheels of the made-up cell."""
    for version in ("3.11", "3.12"):
        try:
            venv.find_python(version)
        except UnavailableError:
            continue
        return version
    pytest.skip("neither Python 3.11 nor 3.12 is on this machine")


@pytest.fixture
def serve(servers: Servers) -> Callable[..., Site]:
    return lambda root, tls=None: servers.start(Site(root, tls))


@pytest.fixture
def index_of(simple_index: Callable[[Path], Path], serve: Callable[..., Site]) -> Callable[[Path], str]:
    """Return what serves a directory of wheels, at the URL that it returns."""
    return lambda wheels: f"{serve(simple_index(wheels).parent).url}/simple"


@pytest.fixture
def site(torch_wheels: Path, simple_index: Callable[[Path], Path], serve: Callable[..., Site]) -> Site:
    return serve(simple_index(torch_wheels).parent)


@pytest.fixture
def profile(site: Site) -> Profile:
    return Profile(name="t", pypi=[Index(url=f"{site.url}/simple")])


@pytest.fixture
def spec(matrix: Matrix, profile: Profile, python: str) -> ImageSpec:
    cell = Cell(torch="2.8.0", variant="cu128", python=python)
    return make_spec(matrix, cell, lock_cell(matrix, cell, profile))

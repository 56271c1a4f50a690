"""The maintainers' scripts over the matrix, run in this process."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import refresh

from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file.load import loads
from tests.http_server import Server, Servers

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    return loads((Path(__file__).parents[2] / "matrix.yaml").read_bytes())


@pytest.fixture
def server(servers: Servers, request: pytest.FixtureRequest) -> Server:
    """Return an index that answers as the test's module has it."""
    return servers.start(Server(request.module.answer))


@pytest.fixture
def profile(tmp_path: Path, server: Server) -> str:
    path = tmp_path / "site.yaml"
    path.write_text(
        f"name: site\npypi: [{{url: '{server.url}/simple'}}]\npytorch: [{{url: '{server.url}/whl/{{variant}}'}}]\n"
    )
    return str(path)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["refresh.py", *args])
        code = refresh.main()
        output = capsys.readouterr()
        return code, output.out, output.err

    return call

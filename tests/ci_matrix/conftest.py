"""The maintainers' scripts over the matrix, run in this process."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import refresh

from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file.load import loads

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    return loads((Path(__file__).parents[2] / "matrix.yaml").read_bytes())


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["refresh.py", *args])
        code = refresh.main()
        output = capsys.readouterr()
        return code, output.out, output.err

    return call

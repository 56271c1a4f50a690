"""The command line as a user meets it, in this process."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.cli import main


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["envcheck", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        output = capsys.readouterr()
        return code or 0, output.out, output.err

    return call
